"""Global memory as one CU sees it: L1, then this CU's share of L2, Infinity Cache and HBM.

    wave --> address unit --> L1 --miss--> L2 (XCD) --miss--> Infinity Cache --miss--> HBM
              64 B/cycle             `------- a fair share of each, by bytes -------'

Each level is a queue with a bandwidth and a latency. L1 is simulated line by line (LRU). Which
lines miss further out depends on what the other 255 CUs do, which nobody simulates here:
`Locality` gives each buffer the fraction of its lines that this CU is the first to bring into
the L2 of its XCD, and the fraction of those that HBM has to supply, and a hash of the line
number picks which. The same line always gets the same answer, so a run is repeatable. A line
that this CU fetched before is in L2 while it fits there, and in the Infinity Cache after that.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from gfx950.timing.parameters import Machine
from gfx950.timing.steps import SECTOR_BYTES

LEVELS = ("l1", "l2", "infinity", "hbm")
_HASH = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _unit_hash(number: int) -> float:
    """Maps an integer to [0, 1), the same way every time."""
    mixed = (number * _HASH) & _MASK
    mixed ^= mixed >> 32
    return ((mixed * _HASH) & _MASK) / (1 << 64)


@dataclass(frozen=True)
class BufferLocality:
    """How one address range behaves beyond L1."""

    first: int
    end: int
    l2_miss: float = 1.0
    """Fraction of lines that this CU brings into its L2 before any neighbour does."""
    hbm: float = 1.0
    """Fraction of those that the Infinity Cache does not hold."""


@dataclass(frozen=True)
class Locality:
    """The buffers of a launch; addresses outside them come from HBM."""

    buffers: tuple[BufferLocality, ...] = ()

    def level(self, line: int, line_bytes: int) -> int:
        """Returns which level supplies a line that misses L1: 1 L2, 2 Infinity Cache, 3 HBM."""
        address = line * line_bytes
        for buffer in self.buffers:
            if buffer.first <= address + line_bytes - 1 and address < buffer.end:
                if _unit_hash(line) >= buffer.l2_miss:
                    return 1
                return 3 if _unit_hash(~line) < buffer.hbm else 2
        return 3


@dataclass(frozen=True)
class Share:
    """How many CUs are busy: the bandwidth that one of them gets."""

    active_cus: int

    def bytes_per_cycle(self, machine: Machine) -> tuple[float, ...]:
        """Returns this CU's bandwidth at each level."""
        per_xcd = max(1, -(-self.active_cus // machine.num_xcds))
        l1 = machine.l1_bytes_per_cycle
        beyond = max(1, self.active_cus)
        return (
            float(l1),
            min(l1, machine.l2_bytes_per_cycle / per_xcd),
            min(l1, machine.per_cycle(machine.infinity_gbps) / beyond),
            min(l1, machine.per_cycle(machine.hbm_gbps) / beyond),
        )


@dataclass
class GlobalMemory:
    """The memory side of one CU while its waves run."""

    machine: Machine
    share: Share
    locality: Locality
    bytes_moved: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LEVELS, 0.0))
    """Bytes that crossed each level towards the CU or from it."""
    busy_until: list[float] = field(default_factory=lambda: [0.0] * len(LEVELS))

    def __post_init__(self):
        m = self.machine
        self._rates = self.share.bytes_per_cycle(m)
        self._latency = (m.l1_latency, m.l2_latency, m.infinity_latency, m.hbm_latency)
        self._lines: OrderedDict[int, float] = OrderedDict()
        self._capacity = m.l1_bytes // m.line_bytes
        self._flight: deque[tuple[float, int]] = deque()
        self._in_flight = 0
        self._written: set[int] = set()
        neighbours = max(1, -(-self.share.active_cus // m.num_xcds))
        self._own_l2: OrderedDict[int, None] = OrderedDict()
        self._own_l2_capacity = m.l2_bytes // m.line_bytes // neighbours
        self._seen: set[int] = set()

    @property
    def bytes_written(self) -> int:
        """Distinct bytes that stores have changed, in whole sectors."""
        return len(self._written) * SECTOR_BYTES

    def room_at(self, time: float, num_bytes: int) -> float:
        """Returns when another request of `num_bytes` fits into the bytes in flight."""
        flight = self._flight
        while flight and flight[0][0] <= time:
            self._in_flight -= flight.popleft()[1]
        excess = self._in_flight + num_bytes - self.machine.in_flight_bytes
        for done, size in flight:
            if excess <= 0:
                break
            time, excess = max(time, done), excess - size
        return time

    def _through(self, level: int, time: float, num_bytes: float) -> float:
        """Passes bytes through a level's queue; returns when the last one is out."""
        self.busy_until[level] = max(self.busy_until[level], time) + num_bytes / self._rates[level]
        self.bytes_moved[LEVELS[level]] += num_bytes
        return self.busy_until[level]

    def _level(self, line: int) -> int:
        """Returns the level that supplies a line, and keeps it in this CU's share of L2."""
        if line in self._own_l2:
            self._own_l2.move_to_end(line)
            return 1
        first = self.locality.level(line, self.machine.line_bytes)
        level = min(first, 2) if line in self._seen else first
        self._seen.add(line)
        self._own_l2[line] = None
        if len(self._own_l2) > self._own_l2_capacity:
            self._own_l2.popitem(last=False)
        return level

    def load(self, time: float, sectors: tuple[int, ...], past_l2: bool = False) -> float:
        """Returns when the data of a load issued at `time` is back.

        `past_l2` loads see what other XCDs wrote: neither L1 nor L2 answers them.
        """
        line_bytes = self.machine.line_bytes
        per_line = line_bytes // SECTOR_BYTES
        done = self._through(0, time, len(sectors) * SECTOR_BYTES) + self._latency[0]
        missing = [0, 0, 0, 0]
        arriving = []
        for line in dict.fromkeys(s // per_line for s in sectors):
            arrival = self._lines.pop(line, None)
            if arrival is None or past_l2:
                level = max(self._level(line), 2 if past_l2 else 1)
                for outer in range(1, level + 1):
                    missing[outer] += 1
                arriving.append((line, level))
            else:
                done = max(done, arrival)
                self._lines[line] = arrival
        ready = [0.0] * len(LEVELS)
        for level in range(1, len(LEVELS)):
            if missing[level]:
                ready[level] = self._through(level, time, missing[level] * line_bytes)
                ready[level] += self._latency[level]
        for line, level in arriving:
            self._lines[line] = ready[level]
            done = max(done, ready[level])
        while len(self._lines) > self._capacity:
            self._lines.popitem(last=False)
        size = len(arriving) * line_bytes
        if size:
            last = self._flight[-1][0] if self._flight else 0.0
            self._flight.append((max(done, last), size))
            self._in_flight += size
        return done

    def atomic(self, time: float, sectors: tuple[int, ...]) -> float:
        """Returns when an atomic, done where all XCDs see it, has answered."""
        num_bytes = len(set(sectors)) * SECTOR_BYTES
        return self._through(2, self._through(0, time, num_bytes), num_bytes) + self._latency[2]

    def store(self, time: float, sectors: tuple[int, ...]) -> float:
        """Returns when L2 has acknowledged a store; the bytes go on to HBM in the background.

        L2 combines stores to one sector, so each sector goes out once.
        """
        touched = set(sectors)
        size = len(touched) * SECTOR_BYTES
        accepted = self._through(0, time, size)
        at_l2 = self._through(1, accepted, size)
        fresh = len(touched - self._written) * SECTOR_BYTES
        self._written.update(touched)
        for level in (2, 3):
            self._through(level, at_l2, fresh)
        return at_l2 + self.machine.l2_latency

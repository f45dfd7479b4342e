"""Grids on the CPU: groups of warps, who runs next, who waits for whom.

warps       of a group, or of all groups of a cluster, take turns of random length
copies      that are asynchronous happen some time before somebody waits for them; those to
            registers and shared memory of `cp.async` as late as possible
products    of warp groups happen at once, but what they read in shared memory must still be
            there when they are waited for

module = Module(text)
Launch(module, entry, grid=(2, 1, 1), threads=128, arguments=[..], memory=memory).run()
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.ptx import parse
from tests.ptx.instructions import Kernel
from tests.ptx.memory import PEER_BITS, Barrier, Fault, Memory, fresh_address
from tests.ptx.operands import BLOCK
from tests.ptx.scalar import LANES
from tests.ptx.warp import Warp


class Module:
    """The kernels of a text."""

    def __init__(self, text: str):
        self.functions, constants = parse.functions_of(text)
        self.constants = {
            name: (fresh_address(0), np.frombuffer(v, np.uint8)) for name, v in constants.items()
        }
        self.statics = {}
        at = 0
        for align, name, size in re.findall(
            r"\.shared\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[(\d*)\]", text
        ):
            at = -(-at // int(align)) * int(align)
            self.statics[name] = at
            at += int(size or 0)
        self.static_bytes = at
        self.kernels: dict[str, Kernel] = {}

    def kernel(self, entry: str) -> Kernel:
        """Returns a kernel, made ready when it is first asked for."""
        if entry not in self.kernels:
            function = parse.inline(self.functions[entry], self.functions)
            self.kernels[entry] = Kernel(self, function)
        return self.kernels[entry]


@dataclass
class Meeting:
    """A hardware barrier."""

    arrived: int = 0
    generation: int = 0
    votes: list[bool] = field(default_factory=list)
    outcome: bool = False


class Cluster:
    """Groups that see each other's shared memory."""

    def __init__(self):
        self.groups: list[Group] = []
        self.arrived: set[int] = set()
        self.generation = 0

    def settle(self) -> None:
        """Ends a barrier when all warps that have not ended are there."""
        alive = {id(w) for g in self.groups for w in g.warps if w.fragments}
        if self.arrived and alive <= self.arrived:
            self.generation += 1
            self.arrived.clear()

    def arrive(self, w: Warp) -> None:
        """A warp arrives."""
        if id(w) in self.arrived:
            raise Fault("a warp arrives twice at the cluster's barrier")
        w.cluster_generation = self.generation
        self.arrived.add(id(w))
        self.settle()

    def wait(self, w: Warp) -> str | None:
        """A warp waits for all that arrive."""
        if self.generation != w.cluster_generation:
            return None
        w.blocked = lambda: self.generation == w.cluster_generation
        return BLOCK


class Group:
    """The warps of a group, and their shared memory."""

    def __init__(self, launch: Launch, block: tuple[int, int, int], cluster: Cluster):
        self.launch, self.block, self.cluster = launch, block, cluster
        cluster.groups.append(self)
        self.rank = len(cluster.groups) - 1
        # Garbage: NaN, if somebody takes it for a number.
        self.shared = np.full(
            launch.kernel.module.static_bytes + launch.shared_bytes, 0xFF, np.uint8
        )
        self.barriers: dict[int, Barrier] = {}
        self.meetings: dict[int, Meeting] = {}
        self.copies: list[Callable] = []
        self.warps = [Warp(self, i) for i in range(-(-launch.threads // LANES))]

    def num_threads(self) -> int:
        """Returns the threads that have not ended."""
        return LANES * sum(bool(w.fragments) for w in self.warps)

    def barrier(self, address: int) -> Barrier:
        """Returns a barrier object."""
        if address not in self.barriers:
            raise Fault(f"no barrier was made at {address}")
        return self.barriers[address]

    def meet(self, w: Warp, number: int, threads: int, waits: bool) -> str | None:
        """A warp arrives at a hardware barrier."""
        meeting = self.meetings.setdefault(number, Meeting())
        meeting.arrived += LANES
        if meeting.arrived > threads:
            raise Fault(f"{meeting.arrived} threads at barrier {number}, which is for {threads}")
        if meeting.arrived == threads:
            meeting.arrived = 0
            meeting.outcome = any(meeting.votes)
            meeting.votes.clear()
            meeting.generation += 1
            return None
        if not waits:
            return None
        before = meeting.generation
        w.blocked = lambda: meeting.generation == before
        return BLOCK

    def reduce(
        self, w: Warp, number: int, threads: int, vote: bool, any_of: bool, to: int
    ) -> str | None:
        """The same, with a vote."""
        meeting = self.meetings.setdefault(number, Meeting())
        meeting.votes.append(vote == any_of)
        found = self.meet(w, number, threads, True)

        def deliver() -> None:
            w.put(to, np.full(LANES, meeting.outcome == any_of), None)

        if found is None:
            deliver()
        else:
            w.when_free = deliver
        return found

    def copy(self, to: int, source: np.ndarray, num_bytes: int, barrier: int, where: str) -> None:
        """Starts a copy to shared memory; it happens later."""
        if to % 16 or num_bytes % 16 or int(source[0]) % 16:
            raise Fault(f"a copy that is not aligned: {num_bytes} bytes to {to} {where}")
        memory = self.launch.memory

        def happen() -> None:
            view, at = memory.one(source, num_bytes, writes=False)
            if to + num_bytes > len(self.shared):
                raise Fault(f"a copy past the end of shared memory {where}")
            self.shared[to : to + num_bytes] = view[at[0] : at[0] + num_bytes]
            self.barrier(barrier).complete(num_bytes)

        self.copies.append(happen)

    def send(self, to: int, raw: np.ndarray, barrier: int) -> None:
        """Starts a store to a group of the cluster; it happens later."""
        peer, at = self.peer(to)
        told, barrier = self.peer(barrier)
        if told is not peer or at % len(raw) or at + len(raw) > len(peer.shared):
            raise Fault(f"{len(raw)} bytes to {at}, whose barrier is at {barrier}")

        def happen() -> None:
            peer.shared[at : at + len(raw)] = raw
            peer.barrier(barrier).complete(len(raw))

        # The other one has to be there for it, not this one.
        peer.copies.append(happen)

    def copy_to_peer(self, to: int, source: int, num_bytes: int, barrier: int) -> None:
        """Starts a copy of shared memory to a group of the cluster; it reads and happens later."""
        peer, at = self.peer(to)
        told, barrier = self.peer(barrier)
        ends = max(at + num_bytes - len(peer.shared), source + num_bytes - len(self.shared))
        if told is not peer or at % 16 or source % 16 or num_bytes % 16 or ends > 0:
            raise Fault(f"{num_bytes} bytes from {source} to {at}, whose barrier is at {barrier}")

        def happen() -> None:
            if not self.num_threads():
                raise Fault("a group ended before its shared memory was copied")
            peer.shared[at : at + num_bytes] = self.shared[source : source + num_bytes]
            peer.barrier(barrier).complete(num_bytes)

        peer.copies.append(happen)

    def peer(self, address: int) -> tuple[Group, int]:
        """Returns the group that an address means, and where there."""
        rank, at = (address >> PEER_BITS) - 1, address & ((1 << PEER_BITS) - 1)
        return self if rank < 0 else self.cluster.groups[rank], at


class Launch:
    """A grid of a kernel."""

    def __init__(
        self,
        module: Module,
        entry: str,
        grid: tuple[int, int, int],
        threads: int,
        arguments: list[bytes],
        memory: Memory,
        *,
        cluster: int = 0,
        shared_bytes: int = 0,
        seed: int = 0,
    ):
        self.kernel = module.kernel(entry)
        self.grid, self.threads, self.cluster = grid, threads, cluster
        self.shared_bytes, self.memory = shared_bytes, memory
        self.random = np.random.default_rng(seed)
        self.params = {}
        for (name, size), given in zip(self.kernel.entry_params.items(), arguments, strict=True):
            if len(given) != size:
                raise Fault(f"parameter {name} has {size} bytes, got {len(given)}")
            self.params[name] = np.frombuffer(given, np.uint8)[None, :].repeat(LANES, axis=0)
        for name, (address, data) in module.constants.items():
            memory.add(address, data, name, writes=False)

    def run(self) -> int:
        """Runs all groups; returns the instructions of all warps."""
        blocks = [
            (x, y, z)
            for z in range(self.grid[2])
            for y in range(self.grid[1])
            for x in range(self.grid[0])
        ]
        size = max(self.cluster, 1)
        clusters = [blocks[i : i + size] for i in range(0, len(blocks), size)]
        total = 0
        for index in self.random.permutation(len(clusters)):
            cluster = Cluster()
            groups = [Group(self, block, cluster) for block in clusters[index]]
            total += self.run_cluster(groups)
        return total

    def run_cluster(self, groups: list[Group]) -> int:
        """Runs the warps of some groups in turns."""
        warps = [w for g in groups for w in g.warps]
        total, idle = 0, 0
        while warps:
            worked = 0
            for i in self.random.permutation(len(warps)):
                warp = warps[i]
                try:
                    worked += warp.run(int(self.random.integers(20, 400)))
                    if warp.group.copies and self.random.random() < 0.2:
                        worked += self.happen(warp.group)
                except Fault as fault:
                    raise Fault(f"{fault} ({warp.where()})") from None
            total += worked
            if not worked:
                waiting = [g for g in groups if g.copies]
                if waiting:
                    self.happen(waiting[0])
                    idle = 0
                else:
                    idle += 1
            else:
                idle = 0
            if idle > 3:
                places = sorted({w.where() for w in warps if w.fragments})
                raise Fault("all warps wait: " + "; ".join(places[:12]))
            warps = [w for w in warps if w.fragments]
        for group in groups:
            if group.copies:
                raise Fault("a group ended before its copies")
        return total

    def happen(self, group: Group) -> int:
        """Lets one of a group's copies happen."""
        group.copies.pop(int(self.random.integers(len(group.copies))))()
        return 1

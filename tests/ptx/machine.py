"""Grids on the CPU: groups of warps, who runs next, who waits for whom.

lanes       of a warp run together; where they part, those that are furthest behind go on, and
            instructions of whole warps wait for all
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
from tests.ptx.instructions import Kernel, Op
from tests.ptx.memory import LOCAL, PEER_BITS, SHARED, Barrier, Fault, Memory, rows_at
from tests.ptx.operands import BLOCK, YIELD
from tests.ptx.registers import OnRegisters
from tests.ptx.scalar import BITS, LANES, lanes_of

OFTEN = 16
"""How often lanes come by before instructions become one function: it takes time to make."""


class Module:
    """The kernels of a text."""

    def __init__(self, text: str):
        self.functions, constants = parse.functions_of(text)
        self.constants = {name: np.frombuffer(v, np.uint8) for name, v in constants.items()}
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


class Warp:
    """Lanes, their registers and where they are."""

    def __init__(self, group: Group, index: int):
        self.group, self.index = group, index
        kernel = group.launch.kernel
        self.kernel = kernel
        self.r = list(kernel.garbage)
        self.live = np.arange(LANES) + LANES * index < group.launch.threads
        self.fragments: list[list] = [[0, self.live.copy(), False]]
        """Where some lanes are: the instruction, which lanes, whether they wait for the others."""
        self.looked: list | None = None
        """Those that have just looked at a barrier in vain."""
        self.blocked: Callable | None = None
        self.when_free: Callable | None = None
        self.local = np.zeros((LANES, kernel.local_bytes), np.uint8)
        self.params = {n: np.zeros((LANES, size), np.uint8) for n, size in kernel.params.items()}
        self.copies: list[list[Callable]] = [[]]
        self.bulk: list[list[list[Callable]]] = [[[]] for _ in range(LANES)]
        """Copies to global memory, by lane, in lists that are waited for together."""
        self.products: list[list] = [[]]
        self.cluster_generation = -1
        self.pc = 0
        self._special: dict[str, np.ndarray] = {}

    def width(self, slot: int) -> int:
        """Returns the bits of a register."""
        return self.kernel.widths[slot]

    def put(self, slot: int, values: np.ndarray, m: np.ndarray | None) -> None:
        """Writes a register of the lanes that run."""
        old = self.r[slot]
        if old.dtype != values.dtype:
            if values.dtype.kind in "if" and values.dtype.itemsize * 8 > 8:
                values = values.view(BITS[values.dtype.itemsize * 8])
            values = values.astype(old.dtype)
        self.r[slot] = values if m is None else np.where(m, values, old)

    def special(self, name: str) -> np.ndarray:
        """Returns a special register."""
        if name not in self._special:
            launch, (x, y, z) = self.group.launch, self.group.block
            gx, gy, gz = launch.grid
            lane = np.arange(LANES)
            known = {
                "%tid.x": lane + LANES * self.index, "%tid.y": 0, "%tid.z": 0,
                "%ntid.x": launch.threads, "%ntid.y": 1, "%ntid.z": 1,
                "%ctaid.x": x, "%ctaid.y": y, "%ctaid.z": z,
                "%nctaid.x": gx, "%nctaid.y": gy, "%nctaid.z": gz,
                "%laneid": lane, "%warpid": self.index, "%smid": 0,
                "%cluster_ctarank": self.group.rank, "%cluster_nctarank": max(launch.cluster, 1),
            }  # fmt: skip
            self._special[name] = np.broadcast_to(known[name], LANES).astype(np.uint32)
        return self._special[name]

    def param(self, name: str) -> np.ndarray:
        """Returns the bytes of a parameter, [lane, byte]."""
        found = self.params.get(name)
        return self.group.launch.params[name] if found is None else found

    def where(self) -> str:
        """Says where the warp is."""
        return (
            f"at {self.kernel.ops[self.pc].text!r}, warp {self.index} of group {self.group.block}"
        )

    def settle(self, keep: int) -> None:
        """Waits for products, all but the last groups of them: what they read is still there."""
        while len(self.products) - 1 > keep:
            for places, before in self.products.pop(0):
                if (self.group.shared[places] != before).any():
                    raise Fault("a stage was written while a product read it")

    # Memory

    def load(self, space: str, at: np.ndarray, size: int, m: np.ndarray | None) -> np.ndarray:
        """Returns what lanes load, [lane, byte]; of other lanes, zeros."""
        lanes = lanes_of(m)
        found = np.zeros((LANES, size), np.uint8)
        wanted = at[lanes]
        if space.startswith("shared"):
            found[lanes] = self.of_shared(wanted, size)
            return found
        wanted = wanted.astype(np.uint64)
        if space in ("global", "const"):
            found[lanes] = self.group.launch.memory.load(wanted, size)
            return found
        own = (wanted >= LOCAL) & (wanted < SHARED)
        near = wanted >= SHARED
        far = ~own & ~near
        if far.any():
            found[lanes[far]] = self.group.launch.memory.load(wanted[far], size)
        if near.any():
            found[lanes[near]] = self.of_shared(wanted[near] - np.uint64(SHARED), size)
        for lane, where in zip(lanes[own], wanted[own], strict=True):
            offset = int(where) - LOCAL
            found[lane] = self.local[lane, offset : offset + size]
        return found

    def store(self, space: str, at: np.ndarray, raw: np.ndarray, m: np.ndarray | None) -> None:
        """Stores bytes, [lane, byte]."""
        lanes = lanes_of(m)
        wanted = at[lanes]
        if space.startswith("shared"):
            self.to_shared(wanted, raw[lanes])
            return
        wanted = wanted.astype(np.uint64)
        own = (wanted >= LOCAL) & (wanted < SHARED)
        near = wanted >= SHARED
        far = ~own & ~near
        if far.any():
            self.group.launch.memory.store(wanted[far], raw[lanes[far]])
        if near.any():
            self.to_shared(wanted[near] - np.uint64(SHARED), raw[lanes[near]])
        for lane, where in zip(lanes[own], wanted[own], strict=True):
            offset = int(where) - LOCAL
            self.local[lane, offset : offset + raw.shape[1]] = raw[lane]

    def places(self, at: np.ndarray, size: int):
        """Returns for each group of the cluster the lanes that mean it, its rows and which."""
        Memory.check(at.astype(np.uint64), size)
        at = at.astype(np.int64)
        ranks = (at >> PEER_BITS) - 1
        at = at & ((1 << PEER_BITS) - 1)
        for rank in {*ranks.tolist()}:
            group = self.group if rank < 0 else self.group.cluster.groups[rank]
            chosen = ranks == rank
            last = int(at[chosen].max())
            if last + size > len(group.shared):
                raise Fault(f"past the end of shared memory: {last}")
            yield chosen, *rows_at(group.shared, at[chosen], size)

    def of_shared(self, at: np.ndarray, size: int) -> np.ndarray:
        """Loads from shared memory."""
        found = np.zeros((len(at), size), np.uint8)
        for chosen, rows, picked in self.places(at, size):
            found[chosen] = rows[picked]
        return found

    def to_shared(self, at: np.ndarray, raw: np.ndarray) -> None:
        """Stores to shared memory."""
        for chosen, rows, picked in self.places(at, raw.shape[1]):
            rows[picked] = raw[chosen]

    # Running

    def run(self, budget: int) -> int:
        """Runs for so many instructions at most; returns how many did something."""
        if self.blocked:
            if self.blocked():
                return 0
            self.blocked = None
            if self.when_free:
                self.when_free()
                self.when_free = None
        done = 0
        while done < budget and self.fragments:
            fragment = self.next_fragment()
            count, how = self.run_fragment(fragment, budget - done)
            done += count
            if how == YIELD:
                # A look at a barrier, and the jump back to it. Other lanes are next: they may be
                # those that the barrier waits for.
                self.looked = fragment
                return max(done - 1, 0)
            if how == BLOCK:
                return done
        return done

    def next_fragment(self) -> list:
        """Returns the lanes that are furthest behind, and joins those that are at one place.

        Lanes that have just looked at a barrier in vain let others go first.
        """
        if len(self.fragments) > 1:
            by_place: dict[int, list] = {}
            for fragment in self.fragments:
                other = by_place.get(fragment[0])
                if other:
                    other[1] = other[1] | fragment[1]
                else:
                    by_place[fragment[0]] = fragment
            self.fragments = list(by_place.values())
        for fragment in self.fragments:
            if fragment[2] and (fragment[1] == self.live).all():
                fragment[2] = False
        ready = [f for f in self.fragments if not f[2]]
        if not ready:
            places = [self.kernel.ops[f[0]].text for f in self.fragments]
            raise Fault(f"lanes of a warp wait for each other at different places: {places}")
        others = [f for f in ready if f is not self.looked]
        self.looked = None
        return min(others or ready, key=lambda f: f[0])

    def forget(self, fragment: list) -> None:
        """Takes a fragment from the warp's: that one, not one that is like it."""
        self.fragments = [other for other in self.fragments if other is not fragment]

    def run_fragment(self, fragment: list, budget: int) -> tuple[int, str | None]:
        """Runs some lanes until they part, meet others or wait."""
        ops, starts = self.kernel.ops, self.kernel.starts
        pc, mask, _ = fragment
        partial = not mask.all()
        m = mask if partial else None
        alone = len(self.fragments) == 1
        done = 0
        while done < budget:
            op = ops[pc]
            if straight := op.straight[partial]:
                run, count = straight
                run(self, m)
                done += count
                pc += count
            else:
                done += 1
                active = m
                if op.guard >= 0:
                    active = mask & (~self.r[op.guard] if op.negated else self.r[op.guard])
                    if not active.any():
                        pc += 1
                        continue
                    if (active == mask).all():
                        active = m
                    elif op.target >= 0:
                        self.part(fragment, [op.target, active], [pc + 1, mask & ~active])
                        return done, None
                if op.exits:
                    self.leave(fragment, pc + 1, mask if active is None else active)
                    return done, None
                same = alone and active is m
                if op.whole and not same and not self.are_together(op, mask, active, m):
                    fragment[0], fragment[2] = pc, True
                    return done, None
                self.pc = pc
                if op.run and (how := self.execute(op, active, partial=partial)):
                    fragment[0] = pc + 1
                    return done, how
                pc = op.target if op.target >= 0 else pc + 1
            if not alone and pc in starts:
                break
        fragment[0] = pc
        return done, None

    def part(self, fragment: list, *parts: list) -> None:
        """Lanes go on at different places."""
        self.forget(fragment)
        self.fragments += [[*part, False] for part in parts]

    def leave(self, fragment: list, pc: int, gone: np.ndarray) -> None:
        """Lanes end."""
        self.live = self.live & ~gone
        fragment[0], fragment[1] = pc, fragment[1] & ~gone
        if not fragment[1].any():
            self.forget(fragment)
            self.group.cluster.settle()

    def are_together(self, op: Op, mask: np.ndarray, active: np.ndarray | None, m) -> bool:
        """Says whether all lanes that have not ended are at an instruction for all of them."""
        if ((mask if active is None else active) == self.live).all():
            return True
        if active is not m:
            raise Fault(f"not all lanes run {op.text!r}")
        return False

    def execute(self, op: Op, active: np.ndarray | None, *, partial: bool) -> str | None:
        """Runs one instruction; those that lanes come by often become one function."""
        how = op.run(self, active)
        if op.guard < 0 and isinstance(op.run, OnRegisters):
            op.seen[partial] += 1
            if op.seen[partial] == OFTEN:
                self.kernel.straighten(self.pc, partial=partial)
        elif op.text.startswith("wgmma.commit"):
            self.products.append([])
        return how


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
        for name, data in module.constants.items():
            memory.add(data.ctypes.data, len(data), name, writes=False)

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

"""A warp: its registers, its own memory, and where its lanes are.

Lanes run together; where they part, those that are furthest behind go on, and instructions of
whole warps wait for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tests.ptx.instructions import Op
from tests.ptx.memory import LOCAL, PEER_BITS, SHARED, Fault, Memory, of_space, rows_at
from tests.ptx.operands import BLOCK, YIELD
from tests.ptx.registers import OnRegisters
from tests.ptx.scalar import BITS, LANES, lanes_of

if TYPE_CHECKING:
    from tests.ptx.machine import Group

OFTEN = 16
"""How often lanes come by before instructions become one function: it takes time to make."""


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
        wanted = of_space(space, wanted)
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
        wanted = of_space(space, wanted)
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

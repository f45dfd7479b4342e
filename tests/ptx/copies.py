"""Copies between global and shared memory, and the barrier objects that count what they bring."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tests.ptx import parse
from tests.ptx.boxes import ROW_BYTES, MappedRows
from tests.ptx.memory import Barrier, Fault
from tests.ptx.operands import YIELD, Operands
from tests.ptx.scalar import LANES, lanes_of

if TYPE_CHECKING:
    from tests.ptx.warp import Warp

SWIZZLE_BYTES = 1024
"""Tiles begin at multiples of this: addresses say how they are swizzled."""


def happen(lists: list[list[Callable]], keep: int) -> None:
    """Lets copies happen, all but the last lists that are closed and the open one."""
    while len(lists) - 1 > keep:
        for copy in lists.pop(0):
            copy()


class Copies(Operands):
    """Those instructions as closures."""

    def _mbarrier(self, s: parse.Statement, parts: list[str]) -> Callable:
        operands = list(s.operands)
        address = self.address(next(o for o in operands if o.startswith("[")), 32)
        if parts[0] == "init":
            count = self.value(operands[1])

            def init(w: Warp, m: np.ndarray | None) -> None:
                for lane in lanes_of(m):
                    w.group.barriers[int(address(w)[lane])] = Barrier(int(count(w)[lane]))

            return init
        if parts[0] in ("try_wait", "test_wait"):
            to, parity = self.slots[operands[0]], self.value(operands[2])

            def wait(w: Warp, m: np.ndarray | None) -> str | None:
                at, wanted, found = address(w), parity(w), np.zeros(LANES, bool)
                for lane in lanes_of(m):
                    found[lane] = w.group.barrier(int(at[lane])).phase != (int(wanted[lane]) & 1)
                w.put(to, found, m)
                return None if found[lanes_of(m)].all() else YIELD

            return wait
        expects = "expect_tx" in parts
        num_bytes = self.value(operands[2]) if expects else None

        def arrive(w: Warp, m: np.ndarray | None) -> None:
            at = address(w)
            for lane in lanes_of(m):
                barrier = w.group.barrier(int(at[lane]))
                if expects:
                    barrier.expect(int(num_bytes(w)[lane]))
                barrier.arrive()

        if parts[0] != "arrive":
            raise NotImplementedError(s.op)
        return arrive

    def _cp(self, s: parse.Statement, parts: list[str]) -> Callable:
        if parts[1] == "bulk" and len(s.operands) < 3 + (parts[2] != "tensor"):
            return self.bulk_out(s, parts)
        if parts[1:4] == ["bulk", "tensor", "2d"]:
            return self.boxes(s)
        if parts[1:4] == ["bulk", "shared:cluster", "shared:cta"]:
            return self.to_peer(s)
        if parts[1] == "bulk":
            to, barrier = self.address(s.operands[0], 32), self.address(s.operands[3], 32)
            source, size = self.address(s.operands[1], 64), self.value(s.operands[2])

            def bulk(w: Warp, m: np.ndarray | None) -> None:
                for lane in lanes_of(m):
                    w.group.copy(
                        int(to(w)[lane]), source(w)[lane : lane + 1], int(size(w)[lane]),
                        int(barrier(w)[lane]), w.where(),
                    )  # fmt: skip

            return bulk
        if parts[1:4] == ["mbarrier", "arrive", "noinc"]:
            return self.arrive_when_copied(self.address(s.operands[0], 32))
        if parts[1] == "commit_group":
            return lambda w, m: w.copies.append([])
        if parts[1] in ("wait_group", "wait_all"):
            keep = int(s.operands[0]) if parts[1] == "wait_group" else 0

            def settle(w: Warp, m: np.ndarray | None) -> None:
                if parts[1] == "wait_all":
                    w.copies.append([])
                happen(w.copies, keep)

            return settle
        to, source = self.address(s.operands[0], 32), self.address(s.operands[1], 64)
        size = int(s.operands[2])
        given = self.value(s.operands[3]) if len(s.operands) > 3 else None

        def start(w: Warp, m: np.ndarray | None) -> None:
            at, where = to(w).copy(), source(w).copy()
            count = given(w).copy() if given else np.full(LANES, size, np.uint32)
            mask = np.ones(LANES, bool) if m is None else m.copy()

            def copy() -> None:
                raw = np.zeros((LANES, size), np.uint8)
                for amount in np.unique(count[mask]):
                    chosen = mask & (count == amount)
                    if amount:
                        if int(amount) != size:
                            raise Fault(f"a copy of {amount} of {size} bytes")
                        raw[chosen] = w.load("global", where, size, chosen)[chosen]
                w.store("shared", at, raw, mask)

            w.copies[-1].append(copy)

        return start

    def boxes(self, s: parse.Statement) -> Callable:
        """Copies of tiles of mapped rows: what lies outside of them is zero."""
        to, barrier = self.address(s.operands[0], 32), self.address(s.operands[2], 32)
        map_text, place = s.operands[1].strip("[] ").split(",", 1)
        tensor_map = self.value(map_text.strip(), "u64")
        byte, row = self.values(place.strip("{} "), "u32")

        def start(w: Warp, m: np.ndarray | None) -> None:
            for lane in lanes_of(m):
                group, first = w.group, int(to(w)[lane])
                rows = MappedRows.at(group.launch, int(tensor_map(w)[lane]))
                place, told = (int(byte(w)[lane]), int(row(w)[lane])), int(barrier(w)[lane])
                end = first + rows.box_rows * ROW_BYTES
                if first % SWIZZLE_BYTES or end > len(group.shared):
                    raise Fault(f"a tile at {first} of {len(group.shared)} bytes {w.where()}")

                def happen(group=group, span=slice(first, end), rows=rows, place=place, told=told):
                    group.shared[span] = rows.box(group.launch.memory, *place)
                    group.barrier(told).complete(span.stop - span.start)

                group.copies.append(happen)

        return start

    @staticmethod
    def arrive_when_copied(barrier: Callable) -> Callable:
        """Arrives some time after the copies that the warp has started, which happen then, too."""

        def arrive(w: Warp, m: np.ndarray | None) -> None:
            begun = [copy for of_list in w.copies for copy in of_list]
            w.copies[:] = [[]]
            group, told = w.group, [int(barrier(w)[lane]) for lane in lanes_of(m)]

            def happen() -> None:
                for copy in begun:
                    copy()
                for address in told:
                    group.barrier(address).arrive()

            group.copies.append(happen)

        return arrive

    @staticmethod
    def store_later(to: Callable, bytes_of: Callable, barrier: Callable) -> Callable:
        """Stores to a group of the cluster, whose barrier counts the bytes."""

        def store(w: Warp, m: np.ndarray | None) -> None:
            raw = bytes_of(w)
            for lane in lanes_of(m):
                w.group.send(int(to(w)[lane]), raw[lane].copy(), int(barrier(w)[lane]))

        return store

    def to_peer(self, s: parse.Statement) -> Callable:
        """Copies shared memory to a group of the cluster, whose barrier counts the bytes."""
        to, source, barrier = (self.address(s.operands[i], 32) for i in (0, 1, 3))
        size = self.value(s.operands[2])

        def start(w: Warp, m: np.ndarray | None) -> None:
            for lane in lanes_of(m):
                w.group.copy_to_peer(
                    *(int(given(w)[lane]) for given in (to, source, size, barrier))
                )

        return start

    def bulk_out(self, s: parse.Statement, parts: list[str]) -> Callable:
        """Copies to global memory, and what orders them: lists of each lane."""
        if parts[2] == "commit_group":

            def commit(w: Warp, m: np.ndarray | None) -> None:
                for lane in lanes_of(m):
                    w.bulk[lane].append([])

            return commit
        if parts[2] == "wait_group":
            keep = int(s.operands[0])

            def settle(w: Warp, m: np.ndarray | None) -> None:
                for lane in lanes_of(m):
                    happen(w.bulk[lane], keep)

            return settle
        if parts[2:4] != ["global", "shared:cta"]:
            raise NotImplementedError(s.op)
        to, source = self.address(s.operands[0], 64), self.address(s.operands[1], 32)
        size = self.value(s.operands[2])

        def start(w: Warp, m: np.ndarray | None) -> None:
            for lane in lanes_of(m):
                at, num_bytes = to(w)[lane : lane + 1].copy(), int(size(w)[lane])
                first = int(source(w)[lane])
                if first % 16 or num_bytes % 16 or int(at[0]) % 16:
                    raise Fault(f"a copy that is not aligned: {num_bytes} bytes {w.where()}")

                def copy(at=at, first=first, num_bytes=num_bytes) -> None:
                    if first + num_bytes > len(w.group.shared):
                        raise Fault("a copy past the end of shared memory")
                    view, place = w.group.launch.memory.one(at, num_bytes, writes=True)
                    raw = w.group.shared[first : first + num_bytes]
                    view[place[0] : place[0] + num_bytes] = raw

                w.bulk[lane][-1].append(copy)

        return start

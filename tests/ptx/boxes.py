"""Tiles that copies cut out of mapped rows: what `PtxQueue` says of them, and how they then lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tests.ptx.memory import PARAM, Fault, Memory

if TYPE_CHECKING:
    from tests.ptx.machine import Launch

MAP_BYTES = 128
ROW_BYTES = 128
PART_BYTES = 16


class MappedRows(NamedTuple):
    """Rows, and the tiles that are cut out of them."""

    address: int
    rows: int
    row_bytes: int
    stride_bytes: int
    box_rows: int

    @classmethod
    def at(cls, launch: Launch, address: int) -> MappedRows:
        """Returns the map of a launch whose generic address is given."""
        for name, place in launch.kernel.param_places.items():
            if PARAM + place == address and launch.params[name].shape[1] == MAP_BYTES:
                words = launch.params[name][0].view(np.uint64)[: len(cls._fields)]
                found = cls(*map(int, words))
                if any(
                    x % PART_BYTES for x in (found.address, found.row_bytes, found.stride_bytes)
                ):
                    raise Fault(f"rows that are not aligned: {found}")
                return found
        raise Fault(f"no tensor map at {address:#x}")

    def box(self, memory: Memory, byte: int, row: int) -> np.ndarray:
        """Returns a tile as it lies in shared memory; what is outside of the rows is zero."""
        found = np.zeros((self.box_rows, ROW_BYTES), np.uint8)
        count = min(ROW_BYTES, self.row_bytes - byte)
        for i in range(min(self.box_rows, self.rows - row) if count > 0 else 0):
            at = np.array([self.address + (row + i) * self.stride_bytes + byte], np.uint64)
            view, place = memory.one(at, count, writes=False)
            found[i, :count] = view[place[0] : place[0] + count]
        parts = found.reshape(self.box_rows, ROW_BYTES // PART_BYTES, PART_BYTES)
        rows, places = np.indices(parts.shape[:2])
        swizzled = np.empty_like(parts)
        swizzled[rows, places ^ rows % 8] = parts
        return swizzled.reshape(-1)

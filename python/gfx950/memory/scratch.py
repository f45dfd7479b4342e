"""Private memory (`scratch_*`): spilled registers and arrays that did not fit registers.

    scratch_store_dword off, v1, s33 offset:8        address = scalar + lane's + constant
    scratch_load_dword v1, v2, off

Every lane of a wave owns `scratch_bytes` bytes; bytes that nothing has written are undefined.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gfx950.isa.asm import Operand
from gfx950.isa.operands import Build, Decoded
from gfx950.isa.state import LANES, Waves
from gfx950.memory.access import (
    LOADS,
    STORES,
    Capture,
    LoadFormat,
    MemoryOp,
    runs_through_memory,
    source_rows,
    write_loaded,
)
from gfx950.memory.islands import ISLAND_BITS, SCRATCH_ISLAND, MemoryFault
from gfx950.memory.vmem import CACHE_BITS

U8, U32, I64 = np.uint8, np.uint32, np.int64


class Scratch:
    """Private bytes of all lanes of a batch of waves."""

    def __init__(self, waves: int, size: int):
        self.size = size
        self.data = np.zeros(waves * LANES * size, U8)
        self.undefined = np.ones(waves * LANES * size, bool)

    def positions(self, w: Waves, local: np.ndarray, size: int) -> np.ndarray:
        """Turns each lane's address into a position in `data`; raises outside its bytes."""
        outside = w.exec_mask & ((local < 0) | (local + size > self.size))
        if outside.any():
            row, lane = np.argwhere(outside)[0]
            where = int(local[row, lane])
            raise MemoryFault(
                f"{size}-byte access to byte {where} of {self.size} bytes of scratch, lane {lane}"
            )
        owner = w.ids[:, None] * LANES + np.arange(LANES)
        return owner * self.size + np.where(w.exec_mask, local, 0)

    def addresses(self, at: np.ndarray, waves: np.ndarray, size: int) -> np.ndarray:
        """Turns positions into addresses that the timing model can count.

        The hardware interleaves the lanes of a wave, so that an access is contiguous. `waves` are
        the waves' numbers in the grid.
        """
        first = (SCRATCH_ISLAND << ISLAND_BITS) + waves[:, None].astype(I64) * LANES * self.size
        return first + at % self.size * LANES + np.arange(LANES) * size

    def load(self, at: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Reads registers [count, waves, lanes] and whether they are undefined."""
        shape = ((size + 3) // 4, *at.shape)
        words, undefined = np.zeros(shape, U32), np.zeros(shape, bool)
        for byte in range(size):
            words[byte // 4] |= self.data[at + byte].astype(U32) << U32(8 * (byte % 4))
            undefined[byte // 4] |= self.undefined[at + byte]
        return words, undefined

    def store(self, cap: Capture, size: int) -> None:
        """Writes the captured data of the active lanes."""
        at = cap.private[cap.exec_mask]
        for byte in range(size):
            words = cap.data[:, byte // 4][cap.exec_mask] >> U32(8 * (byte % 4))
            self.data[at + byte] = words.astype(U8)
            marks = False if cap.undefined is None else cap.undefined[:, byte // 4][cap.exec_mask]
            self.undefined[at + byte] = marks


def _address(b: Build, lane: Operand, scalar: Operand) -> Callable:
    readers = (b.vector_source, lane), (b.uniform_source, scalar)
    parts = [read(op, "i32") for read, op in readers if op.value != "off"]
    constant = int(b.mod("offset", 0))
    for bit in CACHE_BITS:
        b.mod(bit)

    def find(w: Waves) -> np.ndarray:
        total = np.full((w.count, LANES), constant, I64)
        for part in parts:
            total = total + part(w)
        return total

    return find


def _decode_load(b: Build, form: LoadFormat) -> Decoded:
    index = b.vector_index(b.operand(0), form.registers)
    b.v_writes += range(index, index + form.registers)
    if form.half:
        b.v_kept.append(index)
    find = _address(b, b.operand(1), b.operand(2))

    def capture(m, w: Waves) -> Capture:
        return Capture(w.exec_mask.copy(), private=m.scratch.positions(w, find(w), form.size))

    def complete(m, w: Waves, rows, cap: Capture) -> None:
        words, undefined = m.scratch.load(cap.private, form.size)
        write_loaded(w, rows, index, words, cap, form=form, undefined=undefined)

    op = MemoryOp(capture, complete, ("vm",), is_load=True, global_bytes=form.size)
    return b.finish(runs_through_memory, "vmem", strict=True, info={"memory": op})


def _decode_store(b: Build, size: int, shift: int) -> Decoded:
    count = (size + 3) // 4
    data = b.vector(1, f"x{count}")
    registers = tuple(b.v_reads)
    find = _address(b, b.operand(0), b.operand(2))

    def capture(m, w: Waves) -> Capture:
        undefined = None
        if not all(w.v_clean[r] for r in registers):
            undefined = w.v_undef[list(registers)].transpose(1, 0, 2).copy()
        return Capture(
            w.exec_mask.copy(),
            data=source_rows(data(w), w.count) >> U32(shift),
            undefined=undefined,
            private=m.scratch.positions(w, find(w), size),
        )

    def complete(m, w: Waves, rows, cap: Capture) -> None:
        m.scratch.store(cap, size)

    op = MemoryOp(capture, complete, ("vm",), is_store=True, global_bytes=size)
    facts = {"memory": op, "data": registers}
    return b.finish(runs_through_memory, "vmem", info=facts)


def decode_scratch(b: Build) -> Decoded | None:
    """Decodes a `scratch_*` instruction, or returns None if it is none."""
    space, _, rest = b.ins.name.partition("_")
    kind, _, suffix = rest.partition("_")
    if space != "scratch":
        return None
    if kind == "load" and suffix in LOADS:
        return _decode_load(b, LOADS[suffix])
    if kind == "store" and suffix in STORES:
        return _decode_store(b, *STORES[suffix])
    return None

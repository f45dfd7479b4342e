"""Global, flat and buffer memory instructions.

    global   v[2:3], off offset:16          64-bit address per lane
             v0, s[2:3] offset:16           32-bit offset per lane from a scalar base
    buffer   v7, s[16:19], s3 offen         descriptor: base, size; lanes beyond it read zero
             ... lds                        straight to LDS at M0 + offset + lane * size
             v7, s[16:19], s3 idxen         index * stride of the descriptor is added

A buffer without swizzle is checked dword by dword: offset + 4 <= num_records - soffset.
Cache bits (sc0, sc1, nt) do not change results here, except sc0 of an atomic: it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gfx950.isa.asm import M0, Operand
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
from gfx950.memory.islands import ATOMICS, AtomicOp

U32, I32, U64, I64 = np.uint32, np.int32, np.uint64, np.int64
CACHE_BITS = ("sc0", "sc1", "nt", "glc", "slc", "dlc", "nv")
STRIDE_MASK, SWIZZLE_BIT = 0x3FFF, 1 << 31
_LANE = np.arange(LANES, dtype=I64)


class Address:
    """Address operands of one instruction: `find(w)` gives addresses and dwords in range."""

    def __init__(self, b: Build, vaddr: int, last: int, size: int):
        self.size = size
        self.offset = int(b.mod("offset", 0))
        for bit in CACHE_BITS:
            b.mod(bit)
        if b.ins.name.startswith("buffer_"):
            self._buffer(b, b.operand(vaddr), b.operand(vaddr + 1), b.operand(last))
        else:
            self._flat(b, vaddr, b.operand(last))

    def _flat(self, b: Build, position: int, saddr: Operand) -> None:
        vaddr = b.operand(position)
        offset = I64(self.offset)
        if b.ins.name.startswith("flat_") or saddr.value == "off":
            wide = b.vector(position, "u64")
            self.find = lambda w: (_lanes(wide(w).view(I64) + offset, w), None)
            return
        base = b.uniform_source(saddr, "u64")
        if vaddr.value == "off":
            self.find = lambda w: (_lanes(base(w).view(I64) + offset, w), None)
            return
        narrow = b.vector(position, "u32")
        self.find = lambda w: (_lanes(base(w).view(I64) + narrow(w) + offset, w), None)

    def _buffer(self, b: Build, vaddr: Operand, descriptor: Operand, soffset: Operand) -> None:
        if b.mods.get("addr64"):
            raise b.unknown("addressing mode")
        record = voffset = None
        if b.mod("idxen", False):
            record = b.vector_source(replace(vaddr, count=1), "u32")
            vaddr = replace(vaddr, index=vaddr.index + 1, count=1)
        if b.mod("offen", False):
            voffset = b.vector_source(vaddr, "u32")
        index = b.scalar_index(descriptor, 4, b.s_reads)
        scalar = b.uniform_source(soffset, "u32")
        ends = (4 * np.arange((self.size + 3) // 4) + min(4, self.size))[None, :, None]

        def find(w: Waves):
            word1 = w.s[index + 1]
            if (word1 & U32(SWIZZLE_BIT)).any():
                raise b.unknown("swizzled buffer")
            base = w.s[index].astype(I64) | ((word1 & U32(0xFFFF)).astype(I64) << 32)
            shift = np.broadcast_to(scalar(w), (w.count, 1)).astype(I64)
            local = _lanes(I64(self.offset) + (0 if voffset is None else voffset(w)), w)
            if record is not None:
                stride = (word1 >> U32(16) & U32(STRIDE_MASK)).astype(I64)[:, None]
                local += stride * record(w)
            limit = w.s[index + 2].astype(I64)[:, None] - shift
            inside = local[:, None, :] + ends <= limit[:, None, :]
            return base[:, None] + shift + local, None if inside.all() else inside

        self.find = find


def _lanes(x: np.ndarray, w: Waves) -> np.ndarray:
    return np.broadcast_to(np.asarray(x, I64), (w.count, LANES)).copy()


def per_dword(load: Callable, cap: Capture, size: int) -> np.ndarray:
    """Loads dword by dword where a buffer's end cuts a lane's access."""
    if cap.inside is None:
        return load(cap.address, cap.exec_mask, size)
    if cap.inside.all(1).any() and not (cap.inside.any(1) & ~cap.inside.all(1)).any():
        return load(cap.address, cap.exec_mask & cap.inside[:, 0], size)
    parts = [
        load(cap.address + 4 * i, cap.exec_mask & cap.inside[:, i], min(4, size))
        for i in range(cap.inside.shape[1])
    ]
    return np.concatenate(parts)


def _decode_load(b: Build, form: LoadFormat, counters: tuple[str, ...]) -> Decoded:
    count = form.registers
    index = b.vector_index(b.operand(0), count)
    b.v_writes += range(index, index + count)
    if form.half:
        b.v_kept.append(index)
    address = Address(b, 1, len(b.ins.operands) - 1, form.size)

    def capture(m, w: Waves) -> Capture:
        where, inside = address.find(w)
        return Capture(w.exec_mask.copy(), where, inside=inside)

    def complete(m, w: Waves, rows, cap: Capture) -> None:
        words = per_dword(m.memory.load, cap, form.size)
        write_loaded(w, rows, index, words, cap, form=form)

    op = MemoryOp(capture, complete, counters, is_load=True, global_bytes=form.size)
    return b.finish(runs_through_memory, "vmem", strict=True, info={"memory": op})


def _decode_direct(b: Build, size: int) -> Decoded:
    """A load whose data goes to LDS at M0 + offset + lane * size."""
    address = Address(b, 0, len(b.ins.operands) - 1, size)
    b.s_reads.append(M0)

    def capture(m, w: Waves) -> Capture:
        where, inside = address.find(w)
        start = w.s[M0].astype(I64)[:, None] + address.offset
        local = start + _LANE * size
        cap = Capture(w.exec_mask.copy(), where, local[..., None], m.lds_base(w), inside=inside)
        m.lds.check_range(b.ins, cap, size)
        return cap

    def complete(m, w: Waves, rows, cap: Capture) -> None:
        words = per_dword(m.memory.load, cap, size)
        m.lds.store(cap, 0, words, size)

    op = MemoryOp(
        capture, complete, ("vm",), is_load=True, lds_kind="direct", lds_bytes=size,
        global_bytes=size,
    )  # fmt: skip
    return b.finish(runs_through_memory, "vmem", strict=True, info={"memory": op})


def _decode_store(b: Build, size: int, shift: int, counters: tuple[str, ...]) -> Decoded:
    is_buffer = b.ins.name.startswith("buffer_")
    count = (size + 3) // 4
    data = b.vector(0 if is_buffer else 1, f"x{count}")
    registers = tuple(b.v_reads)
    address = Address(b, 1 if is_buffer else 0, len(b.ins.operands) - 1, size)

    def capture(m, w: Waves) -> Capture:
        where, inside = address.find(w)
        words = source_rows(data(w), w.count) >> U32(shift)
        return Capture(w.exec_mask.copy(), where, data=words, inside=inside)

    def complete(m, w: Waves, rows, cap: Capture) -> None:
        words = cap.data.transpose(1, 0, 2)
        if cap.inside is None:
            m.memory.store(cap.address, cap.exec_mask, words, size)
            return
        for i in range(count):
            lanes = cap.exec_mask & cap.inside[:, i]
            m.memory.store(cap.address + 4 * i, lanes, words[i : i + 1], min(4, size))

    op = MemoryOp(capture, complete, counters, is_store=True, global_bytes=size)
    return b.finish(
        runs_through_memory, "vmem", strict=True, info={"memory": op, "data": registers}
    )


def _decode_atomic(b: Build, atomic: AtomicOp, counters: tuple[str, ...]) -> Decoded:
    returns = bool(b.mods.get("sc0"))
    is_buffer = b.ins.name.startswith("buffer_")
    count = atomic.registers * atomic.data_values
    first = 1 if returns and not is_buffer else 0
    data = b.vector(0 if is_buffer else first + 1, f"x{count}")
    registers = tuple(b.v_reads)
    address = Address(b, 1 if is_buffer else first, len(b.ins.operands) - 1, 4 * atomic.registers)
    index = -1
    if returns:
        index = b.vector_index(b.operand(0), atomic.registers)
        b.v_writes += range(index, index + atomic.registers)

    def capture(m, w: Waves) -> Capture:
        where, inside = address.find(w)
        return Capture(w.exec_mask.copy(), where, data=source_rows(data(w), w.count), inside=inside)

    def perform(m, cap: Capture) -> None:
        lanes = cap.exec_mask if cap.inside is None else cap.exec_mask & cap.inside.all(1)
        old = m.memory.atomic(cap.address, lanes, cap.data.transpose(1, 0, 2), atomic)
        cap.data = old.transpose(1, 0, 2)

    def complete(m, w: Waves, rows, cap: Capture) -> None:
        if returns:
            old = cap.data.transpose(1, 0, 2)
            write_loaded(w, rows, index, old, cap, form=LoadFormat(4 * atomic.registers))

    op = MemoryOp(
        capture, complete, counters, perform, is_load=returns, is_store=True,
        global_bytes=4 * atomic.registers,
    )  # fmt: skip
    return b.finish(
        runs_through_memory, "vmem", strict=True, info={"memory": op, "data": registers}
    )


def decode_memory(b: Build) -> Decoded | None:
    """Decodes an instruction of this module, or returns None if it is none."""
    name = b.ins.name
    space, _, rest = name.partition("_")
    if space not in ("global", "flat", "buffer"):
        return None
    counters = ("vm", "lgkm") if space == "flat" else ("vm",)
    kind, _, suffix = rest.partition("_")
    if kind == "load":
        if suffix.startswith("lds_"):
            return _decode_direct(b, LOADS[suffix.removeprefix("lds_")].size)
        if b.mod("lds", False):
            return _decode_direct(b, LOADS[suffix].size)
        return _decode_load(b, LOADS[suffix], counters) if suffix in LOADS else None
    if kind == "store" and suffix in STORES:
        return _decode_store(b, *STORES[suffix], counters)
    if kind == "atomic" and suffix in ATOMICS:
        return _decode_atomic(b, ATOMICS[suffix], counters)
    if name in ("buffer_wbl2", "buffer_inv"):
        device = bool(b.mod("sc1"))
        for bit in CACHE_BITS:
            b.mod(bit)
        return b.finish(lambda w: None, "cache", info={"device": device})
    return None

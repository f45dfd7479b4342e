"""Scalar memory instructions: one address a wave, answered in any order.

s_load_dwordx4 s[4:7], s[0:1], 0x20     from a base
s_buffer_load_dword s4, s[8:11], s3     from a descriptor
s_store_dword s4, s[0:1], s3            and back
s_atomic_dec s4, s[0:1], s3 glc         glc returns what was there
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gfx950.isa.operands import Build, Decoded
from gfx950.isa.state import Waves
from gfx950.memory.access import Capture, MemoryOp, runs_through_memory
from gfx950.memory.islands import ATOMICS, AtomicOp
from gfx950.memory.vmem import CACHE_BITS, per_dword

U32, I64 = np.uint32, np.int64
WIDTHS = {"dword": 1, "dwordx2": 2, "dwordx4": 4, "dwordx8": 8, "dwordx16": 16}


def _address(b: Build, count: int) -> Callable:
    """Returns a function that gives addresses [waves, 1] and words inside a descriptor's range."""
    is_buffer = b.ins.name.startswith("s_buffer")
    for bit in CACHE_BITS:
        b.mod(bit)
    constant = int(b.mod("offset", 0))
    offset = b.scalar(2, "i32")
    if is_buffer:
        descriptor = b.scalar_index(b.operand(1), 4, b.s_reads)
    else:
        base = b.scalar(1, "u64")

    def find(w: Waves):
        local = offset(w).astype(I64) + constant
        inside = None
        if is_buffer:
            high = (w.s[descriptor + 1] & U32(0xFFFF)).astype(I64) << 32
            start = w.s[descriptor].astype(I64) | high
            ends = local[:, None] + 4 * np.arange(count) + 4
            inside = (ends <= w.s[descriptor + 2].astype(I64)[:, None])[..., None]
        else:
            start = base(w).view(I64)
        return ((start + local) & ~I64(3))[:, None], inside

    return find


def _write_back(w: Waves, rows, index: int, words: np.ndarray) -> None:
    """Writes what came back, [count, waves], to scalar registers."""
    registers = range(index, index + len(words))
    w.s[registers.start : registers.stop, rows] = words
    w.s_undef[registers.start : registers.stop, rows] = False
    for register in registers:
        w.s_clean[register] = not w.s_undef[register].any()


def _decode_load(b: Build, count: int) -> Decoded:
    index = b.scalar_index(b.operand(0), count, b.s_writes)
    find = _address(b, count)

    def capture(m, w: Waves) -> Capture:
        where, inside = find(w)
        return Capture(np.ones((w.count, 1), bool), where, inside=inside)

    def complete(m, w: Waves, rows, cap: Capture) -> None:
        _write_back(w, rows, index, per_dword(m.memory.load, cap, 4 * count)[..., 0])

    op = MemoryOp(capture, complete, ("lgkm",), scalar=True, is_load=True, global_bytes=4 * count)
    return b.finish(runs_through_memory, "smem", masked=False, strict=True, info={"memory": op})


def _decode_store(b: Build, count: int) -> Decoded:
    index = b.scalar_index(b.operand(0), count, b.s_reads)
    find = _address(b, count)

    def capture(m, w: Waves) -> Capture:
        where, inside = find(w)
        data = w.s[index : index + count].T[:, :, None].copy()
        return Capture(np.ones((w.count, 1), bool), where, data=data, inside=inside)

    def complete(m, w: Waves, rows, cap: Capture) -> None:
        m.memory.store(cap.address, cap.exec_mask, cap.data.transpose(1, 0, 2), 4 * count)

    op = MemoryOp(capture, complete, ("lgkm",), scalar=True, is_store=True, global_bytes=4 * count)
    return b.finish(runs_through_memory, "smem", masked=False, strict=True, info={"memory": op})


def _decode_atomic(b: Build, atomic: AtomicOp) -> Decoded:
    returns = bool(b.mods.get("glc"))
    count = atomic.registers * atomic.data_values
    index = b.scalar_index(b.operand(0), count, b.s_reads)
    if returns:
        b.scalar_index(b.operand(0), atomic.registers, b.s_writes)
    find = _address(b, atomic.registers)

    def capture(m, w: Waves) -> Capture:
        where, inside = find(w)
        data = w.s[index : index + count].T[:, :, None].copy()
        return Capture(np.ones((w.count, 1), bool), where, data=data, inside=inside)

    def perform(m, cap: Capture) -> None:
        old = m.memory.atomic(cap.address, cap.exec_mask, cap.data.transpose(1, 0, 2), atomic)
        cap.data = old.transpose(1, 0, 2)

    def complete(m, w: Waves, rows, cap: Capture) -> None:
        if returns:
            _write_back(w, rows, index, cap.data[..., 0].T)

    op = MemoryOp(
        capture, complete, ("lgkm",), perform, scalar=True, is_load=returns, is_store=True,
        global_bytes=4 * atomic.registers,
    )  # fmt: skip
    return b.finish(runs_through_memory, "smem", masked=False, strict=True, info={"memory": op})


def _decode_clock(b: Build) -> Decoded:
    """s_memtime and s_memrealtime: the number of instructions the wave has issued."""
    index = b.scalar_index(b.operand(0), 2, b.s_writes)

    def capture(m, w: Waves) -> Capture:
        return Capture(np.ones((w.count, 1), bool))

    def complete(m, w: Waves, rows, cap: Capture) -> None:
        time = np.array([[w.clock & 0xFFFFFFFF], [0]], U32)
        _write_back(w, rows, index, np.broadcast_to(time, (2, len(cap.exec_mask))))

    op = MemoryOp(capture, complete, ("lgkm",), scalar=True, is_load=True)
    return b.finish(runs_through_memory, "smem", masked=False, info={"memory": op})


def decode_scalar_memory(b: Build) -> Decoded | None:
    """Decodes an instruction of this module, or returns None if it is none."""
    name = b.ins.name
    if name in ("s_memtime", "s_memrealtime"):
        return _decode_clock(b)
    kind, _, suffix = name.removeprefix("s_").removeprefix("buffer_").partition("_")
    if not name.startswith("s_") or (suffix not in WIDTHS and suffix not in ATOMICS):
        return None
    if kind == "load" and suffix in WIDTHS:
        return _decode_load(b, WIDTHS[suffix])
    if kind == "store" and WIDTHS.get(suffix, 8) <= 4:
        return _decode_store(b, WIDTHS[suffix])
    if kind == "atomic" and suffix in ATOMICS:
        return _decode_atomic(b, ATOMICS[suffix])
    return None

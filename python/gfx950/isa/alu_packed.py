"""Packed maths (VOP3P): two or more values per register pair, and small dot products.

half of the result   low            high
source half          op_sel[i]      op_sel_hi[i]    (default 0 and 1)
negated if           neg_lo[i]      neg_hi[i]
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gfx950.isa.alu_table import maximum_number, minimum_number
from gfx950.isa.formats import bf16_to_f32, fma
from gfx950.isa.operands import Build, Decoded, Reader, write_register, write_registers
from gfx950.isa.results import result_function, result_modifiers
from gfx950.isa.state import Waves

U16, U32, I16 = np.uint16, np.uint32, np.int16
F16, F32 = np.float16, np.float32


def _shift_amount(n):
    return n & n.dtype.type(15)


_HALF_OPS: dict[str, tuple[str, int, Callable]] = {
    "v_pk_add_f16": ("f16", 2, lambda a, b: a + b),
    "v_pk_mul_f16": ("f16", 2, lambda a, b: a * b),
    "v_pk_fma_f16": ("f16", 3, lambda a, b, c: fma(a, b, c, F16)),
    "v_pk_min_f16": ("f16", 2, minimum_number),
    "v_pk_max_f16": ("f16", 2, maximum_number),
    "v_pk_minimum3_f16": ("f16", 3, lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "v_pk_maximum3_f16": ("f16", 3, lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "v_pk_lshlrev_b16": ("u16", 2, lambda n, a: a << _shift_amount(n)),
    "v_pk_lshrrev_b16": ("u16", 2, lambda n, a: a >> _shift_amount(n)),
    "v_pk_ashrrev_i16": ("i16", 2, lambda n, a: a >> _shift_amount(n)),
    "v_pk_mul_lo_u16": ("u16", 2, lambda a, b: a * b),
}
for _t in ("u16", "i16"):
    _HALF_OPS |= {
        f"v_pk_add_{_t}": (_t, 2, lambda a, b: a + b),
        f"v_pk_sub_{_t}": (_t, 2, lambda a, b: a - b),
        f"v_pk_min_{_t}": (_t, 2, np.minimum),
        f"v_pk_max_{_t}": (_t, 2, np.maximum),
        f"v_pk_mad_{_t}": (_t, 3, lambda a, b, c: a * b + c),
    }
_WORD_OPS: dict[str, tuple[int, Callable]] = {
    "v_pk_add_f32": (2, lambda a, b: a + b),
    "v_pk_mul_f32": (2, lambda a, b: a * b),
    "v_pk_fma_f32": (3, fma),
}
_NARROW = {"f16": F16, "u16": U16, "i16": I16}


def _selects(b: Build, sources: int) -> tuple[list, list]:
    """Consumes the VOP3P modifiers: per source (half, negate) for the low and high result."""
    low, high = b.mod("op_sel", (0,) * sources), b.mod("op_sel_hi", (1,) * sources)
    neg_low, neg_high = b.mod("neg_lo", (0,) * sources), b.mod("neg_hi", (0,) * sources)
    pairs = [list(zip(s, n, strict=False)) for s, n in ((low, neg_low), (high, neg_high))]
    if any(len(p) < sources for p in pairs):
        raise b.unknown("modifier length")
    return pairs[0], pairs[1]


def _decode_halves(b: Build) -> Decoded:
    type_, sources, fn = _HALF_OPS[b.ins.name]
    low, high = _selects(b, sources)
    dtype = _NARROW[type_]
    fn = result_function(b, b.ins.name, type_, fn)
    words = [b.src(i + 1, "b32" if o.kind != "float" else type_, hi=False)
             for i, o in enumerate(b.ins.operands[1 : 1 + sources])]  # fmt: skip
    index = b.vector_index(b.operand(0), 1)
    b.v_writes.append(index)

    def pick(word: np.ndarray, half: int, negate: int) -> np.ndarray:
        x = word.view(U32) if word.dtype.itemsize == 4 else word.view(U16).astype(U32)
        x = (x >> U32(16 * half)).astype(U16).view(dtype)
        return -x if negate else x

    def run(w: Waves) -> None:
        values = [word(w) for word in words]
        halves = [
            fn(*[pick(x, *s) for x, s in zip(values, part, strict=True)]) for part in (low, high)
        ]
        lower, upper = (h.view(U16).astype(U32) for h in halves)
        write_register(w, index, lower | (upper << U32(16)))

    return b.finish(run, "valu")


def _decode_words(b: Build) -> Decoded:
    """v_pk_*_f32 and v_pk_mov_b32: a pair of registers each."""
    is_move = b.ins.name == "v_pk_mov_b32"
    sources, fn = (2, None) if is_move else _WORD_OPS[b.ins.name]
    low, high = _selects(b, sources)
    finish = result_modifiers(b, "f32")
    pairs = [_pair(b, i + 1) for i in range(sources)]
    index = b.vector_index(b.operand(0), 2)
    b.v_writes += [index, index + 1]

    def pick(pair: np.ndarray, half: int, negate: int) -> np.ndarray:
        x = pair[half].view(F32)
        return -x if negate else x

    def run(w: Waves) -> None:
        values = [pair(w) for pair in pairs]
        if is_move:
            parts = [values[0][low[0][0]], values[1][low[1][0]]]
        else:
            parts = [
                finish(fn(*[pick(x, *s) for x, s in zip(values, part, strict=True)])).view(U32)
                for part in (low, high)
            ]
        shape = w.exec_mask.shape
        write_registers(w, index, np.stack([np.broadcast_to(p, shape) for p in parts]))

    return b.finish(run, "valu")


def _pair(b: Build, position: int) -> Reader:
    """Reads a register pair; a constant stands in both halves."""
    op = b.operand(position)
    if op.kind in ("int", "float"):
        word = b.src(position, "f32")
        return lambda w: np.stack([word(w).view(U32)] * 2)
    return b.src(position, "x2")


def _decode_mix(b: Build) -> Decoded:
    """v_fma_mix_f32, _mixlo_f16, _mixhi_f16: op_sel_hi picks float16 sources."""
    select = b.mod("op_sel", (0, 0, 0, 0))
    is_half = b.mod("op_sel_hi", (0, 0, 0))
    name = b.ins.name
    finish = result_modifiers(b, "f32")
    reads = []
    for i in range(3):
        if is_half[i]:
            half = b.src(i + 1, "f16", hi=bool(select[i]))
            reads.append(lambda w, half=half: half(w).astype(F32))
        else:
            reads.append(b.src(i + 1, "f32"))
    index = b.vector_index(b.operand(0), 1)
    b.v_writes.append(index)
    if name.endswith("f16"):
        b.v_kept.append(index)

    def run(w: Waves) -> None:
        values = [read(w) for read in reads]
        if name.endswith("f32"):
            write_register(w, index, finish(fma(*values)).view(U32))
            return
        half = finish(fma(*values, F16)).view(U16).astype(U32)
        old = w.v[index]
        if "mixlo" in name:
            write_register(w, index, (old & U32(0xFFFF0000)) | half)
        else:
            write_register(w, index, (old & U32(0xFFFF)) | (half << U32(16)))

    return b.finish(run, "valu")


def _split(word: np.ndarray, bits: int, signed: bool) -> list[np.ndarray]:
    """Splits uint32 into small integers as int64."""
    parts = []
    for shift in range(0, 32, bits):
        x = ((word >> U32(shift)) & U32((1 << bits) - 1)).astype(np.int64)
        parts.append(np.where(x >> (bits - 1), x - (1 << bits), x) if signed else x)
    return parts


def _decode_dot(b: Build) -> Decoded:
    """v_dot2 / dot4 / dot8: a sum of products plus a 32-bit addend."""
    name = b.ins.name
    accumulates = name.split("_")[1].endswith("c")
    element = name.rsplit("_", 1)[1]
    if any(
        b.mod(m, (default,) * 3) != (default,) * 3
        for m, default in (("op_sel", 0), ("op_sel_hi", 1), ("neg_lo", 0), ("neg_hi", 0))
    ):
        raise b.unknown("modifier")  # fmt: skip
    first, second = b.src(1, "b32"), b.src(2, "b32")
    is_float = element in ("f16", "bf16")
    type_ = "f32" if is_float else "i32"
    addend, write = b.src(0 if accumulates else 3, type_), b.dst(0, type_)
    finish = result_modifiers(b, type_)
    widen = bf16_to_f32 if element == "bf16" else (lambda h: h.astype(U16).view(F16).astype(F32))

    def run(w: Waves) -> None:
        a, c, total = first(w), second(w), addend(w)
        if is_float:
            for shift in (0, 16):
                x, y = (widen((v >> U32(shift)) & U32(0xFFFF)) for v in (a, c))
                total = fma(x, y, total)
            write(w, finish(total))
            return
        signed, bits = element[0] == "i", int(element[1:])
        products = zip(_split(a, bits, signed), _split(c, bits, signed), strict=True)
        write(w, (total.astype(np.int64) + sum(x * y for x, y in products)).astype(np.int32))

    return b.finish(run, "dot")


def decode_packed(b: Build) -> Decoded | None:
    """Decodes an instruction of this module, or returns None if it is none."""
    name = b.ins.name
    if name in _HALF_OPS:
        return _decode_halves(b)
    if name in _WORD_OPS or name == "v_pk_mov_b32":
        return _decode_words(b)
    if name.startswith(("v_fma_mix", "v_mad_mix")):
        return _decode_mix(b)
    if name.startswith("v_dot"):
        return _decode_dot(b)
    return None

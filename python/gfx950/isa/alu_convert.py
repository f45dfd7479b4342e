"""Conversions between float32, float16, bfloat16 and the 8, 6 and 4-bit floats.

The scaled family `v_cvt_scalef32_*` multiplies by 2^(e - 127) when it widens and divides when it
narrows, where e is the exponent field of the float32 scale operand; sign and mantissa of the
scale do not matter. op_sel picks the byte or word of the register that holds the small side:

    v_cvt_scalef32_pk_fp4_bf16 v2, v1, s6 op_sel:[0,0,1,1]      writes byte 3 of v2
    v_cvt_scalef32_pk_f32_fp4 v[0:1], v5, s2 op_sel:[1,0,0]     reads byte 1 of v5
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from gfx950.isa.formats import (
    SCALES,
    SMALL_FLOATS,
    SmallFloat,
    bf16_to_f32,
    f32_to_bf16,
    f32_to_f16,
)
from gfx950.isa.lanes import sdwa_source
from gfx950.isa.operands import Build, Decoded, Reader, write_register, write_registers
from gfx950.isa.state import Waves

U16, U32, F16, F32, F64 = np.uint16, np.uint32, np.float16, np.float32, np.float64
_SMALL = "fp4|fp6|bf6|fp8|bf8"
_NARROW = re.compile(rf"v_cvt_scalef32_(pk|pk32|2xpk16)_({_SMALL})_(f32|f16|bf16)$")
_WIDEN = re.compile(rf"v_cvt_scalef32_(?:(pk|pk32)_)?(f32|f16|bf16)_({_SMALL})$")


def _scale(bits: np.ndarray) -> np.ndarray:
    """Returns 2^(e - 127) as float64; the all-ones exponent is NaN."""
    return SCALES.take(bits >> U32(23) & U32(0xFF))


def _elements(words: np.ndarray, type_: str) -> np.ndarray:
    """Unpacks registers [count, ...] to float64 elements [elements, ...]."""
    if type_ == "f32":
        return words.view(F32).astype(F64)
    halves = np.stack([words & U32(0xFFFF), words >> U32(16)], 1).reshape(-1, *words.shape[1:])
    if type_ == "bf16":
        return bf16_to_f32(halves).astype(F64)
    return halves.astype(U16).view(F16).astype(F64)


def _pack_elements(x: np.ndarray, type_: str) -> np.ndarray:
    """Rounds float64 elements [elements, ...] to registers [count, ...]."""
    if type_ == "f32":
        return x.astype(F32).view(U32)
    bits = f32_to_bf16(x.astype(F32)) if type_ == "bf16" else x.astype(F16).view(U16).astype(U32)
    return bits[0::2] | (bits[1::2] << U32(16))


def pack_codes(codes: np.ndarray, bits: int) -> np.ndarray:
    """Packs small codes [elements, ...] densely into registers [count, ...]."""
    count = len(codes) * bits // 32
    words = np.zeros((count, *codes.shape[1:]), U32)
    for i, code in enumerate(codes):
        word, shift = divmod(i * bits, 32)
        words[word] |= code << U32(shift)
        if shift + bits > 32:
            words[word + 1] |= code >> U32(32 - shift)
    return words


def unpack_codes(words: np.ndarray, bits: int) -> np.ndarray:
    """Splits registers [count, ...] into small codes [elements, ...]."""
    count = len(words) * 32 // bits
    codes = np.empty((count, *words.shape[1:]), U32)
    for i in range(count):
        word, shift = divmod(i * bits, 32)
        code = words[word] >> U32(shift)
        if shift + bits > 32:
            code = code | (words[word + 1] << U32(32 - shift))
        codes[i] = code & U32((1 << bits) - 1)
    return codes


def _partial_writer(b: Build, width: int, position: int) -> Callable:
    """Writes `width` bits at `position` times `width` and keeps the rest of the register."""
    index = b.vector_index(b.operand(0), 1)
    b.v_writes.append(index)
    b.v_kept.append(index)
    shift, mask = U32(width * position), U32(((1 << width) - 1) << (width * position))

    def write(w: Waves, bits: np.ndarray) -> None:
        write_register(w, index, (w.v[index] & ~mask) | ((bits << shift) & mask))

    return write


def _source(b: Build, position: int, type_: str, count: int) -> Reader:
    """Reads `count` registers as uint32 [count, waves, 64], with float modifiers on one."""
    op = b.operand(position)
    if count == 1:
        one = b.src(position, "f32" if type_ == "f32" else "b32")
        return lambda w: one(w).view(U32)[None]
    if op.neg or op.abs:
        raise b.unknown("modifier")
    return b.src(position, f"x{count}")


def _decode_narrow(b: Build, form: str, target: SmallFloat, source: str) -> Decoded:
    select = b.mod("op_sel", (0, 0, 0, 0))
    elements = {"pk": 2, "pk32": 32, "2xpk16": 32}[form]
    registers = elements if source == "f32" else elements // 2
    pair = form == "2xpk16" or (form == "pk" and source == "f32")
    if pair:
        halves = [_source(b, i, source, registers // 2) for i in (1, 2)]
    else:
        halves = [_source(b, 1, source, registers)]
    scale = b.src(3 if pair else 2, "b32")
    if form == "pk":
        position = select[2] + 2 * select[3] if target.bits == 4 else select[-1]
        write = _partial_writer(b, 2 * target.bits, position)
    else:
        index = b.vector_index(b.operand(0), 6)
        b.v_writes += range(index, index + 6)

    def run(w: Waves) -> None:
        parts = [_elements(half(w), source) for half in halves]
        if len(parts) == 2:
            parts = [np.stack(np.broadcast_arrays(*parts), 1).reshape(-1, *parts[0].shape[1:])]
        codes = target.encode(parts[0] / _scale(scale(w)))
        if form == "pk":
            write(w, codes[0] | (codes[1] << U32(target.bits)))
        else:
            write_registers(w, index, pack_codes(codes, target.bits))

    facts = {"part": position > 0} if form == "pk" else {}
    return b.finish(run, "convert", info=facts)


def _decode_widen(b: Build, form: str | None, target: str, source: SmallFloat) -> Decoded:
    select = b.mod("op_sel", (0, 0, 0, 0))
    elements = {None: 1, "pk": 2, "pk32": 32}[form]
    words = b.src(1, "x6" if form == "pk32" else "x1")
    scale = b.src(2, "b32")
    by_byte = form is None or source.bits == 4
    shift = 8 * (select[0] + 2 * select[1]) if by_byte else 16 * select[0]
    registers = elements if target == "f32" else max(1, elements // 2)
    if form is None and target != "f32":
        write_half = _partial_writer(b, 16, select[-1])
    else:
        index = b.vector_index(b.operand(0), registers)
        b.v_writes += range(index, index + registers)

    def run(w: Waves) -> None:
        raw = words(w)
        codes = unpack_codes(raw if form == "pk32" else raw >> U32(shift), source.bits)
        values = source.decode(codes[:elements]).astype(F64) * _scale(scale(w))
        if form is None and target != "f32":
            write_half(w, f32_to_f16(values[0].astype(F32)))
        else:
            write_registers(w, index, _pack_elements(values, target))

    return b.finish(run, "convert")


def _decode_unscaled(b: Build) -> Decoded | None:
    """v_cvt_pk_fp8_f32, v_cvt_f32_fp8, v_cvt_pk_f32_fp8, v_cvt_pk_bf16_f32 and bf8 forms."""
    name = b.ins.name
    if name == "v_cvt_pk_bf16_f32":
        first, second, write = b.src(1, "f32"), b.src(2, "f32"), b.dst(0, "b32")
        run = lambda w: write(w, f32_to_bf16(first(w)) | (f32_to_bf16(second(w)) << U32(16)))  # noqa: E731
        return b.finish(run, "convert")
    if match := re.match(r"v_cvt_pk_(fp8|bf8)_f32$", name):
        target = SMALL_FLOATS[match.group(1)]
        select = b.mod("op_sel", (0, 0, 0))
        first, second = b.src(1, "f32"), b.src(2, "f32")
        write_word = _partial_writer(b, 16, select[-1])

        def narrow(w: Waves) -> None:
            low, high = (target.encode(x(w).astype(F64)) for x in (first, second))
            write_word(w, low | (high << U32(8)))

        return b.finish(narrow, "convert", info={"part": bool(select[-1])})
    if match := re.match(r"v_cvt_(pk_)?f32_(fp8|bf8)$", name):
        source = SMALL_FLOATS[match.group(2)]
        count = 2 if match.group(1) else 1
        select = b.mod("op_sel", (0, 0))
        shift = (16 if count == 2 else 8) * select[0] + (0 if count == 2 else 16 * select[1])
        sdwa = b.ins.encoding == "sdwa"
        word = sdwa_source(b, 1, "b32", 0) if sdwa else b.src(1, "b32")
        index = b.vector_index(b.operand(0), count)
        b.v_writes += range(index, index + count)

        def widen(w: Waves) -> None:
            codes = word(w) >> U32(shift)
            parts = [source.decode(codes >> U32(8 * i) & U32(0xFF)) for i in range(count)]
            write_registers(w, index, np.stack(parts).view(U32))

        return b.finish(widen, "convert")
    return None


def decode_convert(b: Build) -> Decoded | None:
    """Decodes an instruction of this module, or returns None if it is none."""
    if match := _NARROW.match(b.ins.name):
        form, target, source = match.groups()
        return _decode_narrow(b, form, SMALL_FLOATS[target], source)
    if match := _WIDEN.match(b.ins.name):
        form, target, source = match.groups()
        return _decode_widen(b, form, target, SMALL_FLOATS[source])
    return _decode_unscaled(b)

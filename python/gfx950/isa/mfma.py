"""Matrix instructions: D = A @ B + C on fragments spread over the 64 lanes of a wave.

One lane holds E = M * K / 64 elements of one row of A (and of one column of B), lane l row
l % M and K group g = l / M:

    k of element e    g * E + e                             usual
                      (e / 16) * K/2 + 16 * g + e % 16      8-bit operands of *_f8f6f4
    C and D           column l % N, row 4 * (l / N) + r          16x16, r = 0..3
                      column l % N, row 8 * (r/4) + 4 * (l / N) + r % 4   32x32, r = 0..15

A scale register holds four bytes, one chosen by op_sel: lane l's byte scales the 32 elements
k = 32 * g .. 32 * g + 31 of its row by 2^(byte - 127), whatever the operand format.

Each product sum is formed in float64 and rounded once, with C, to float32. The hardware's
internal width and order are not published, so results agree to the rounding of a float32 sum,
not to the bit. Integer instructions are exact. EXEC does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from gfx950.isa.formats import MFMA_FORMATS, SCALES, SMALL_FLOATS, bf16_to_f32
from gfx950.isa.operands import Build, Decoded, Reader
from gfx950.isa.state import LANES, Waves

U32, F32, F64 = np.uint32, np.float32, np.float64
_NAME = re.compile(r"v_mfma_(scale_)?(f32|i32)_(16|32)x(?:16|32)x(\d+)_(.+)$")
_SHAPES = {
    "f16": {(16, 16), (16, 32), (32, 8), (32, 16)},
    "bf16": {(16, 16), (16, 32), (32, 8), (32, 16)},
    "f32": {(16, 4), (32, 2)},
    "i8": {(16, 32), (16, 64), (32, 16), (32, 32)},
    "f8": {(16, 32), (32, 16)},
    "f8f6f4": {(16, 128), (32, 64)},
}
SCALE_BLOCK = 32


def _byte_decoder(bits: int, decode: Callable) -> Callable:
    """Decodes bytes [..., count] to float64 elements [..., count * 8 / bits]."""
    if bits == 4:
        pairs = np.arange(256)
        table = np.stack([decode(pairs & 15), decode(pairs >> 4)], -1).astype(F64)
        return lambda raw: table.take(raw, axis=0).reshape(*raw.shape[:-1], -1)
    if bits == 6:
        table = decode(np.arange(64)).astype(F64)

        def decode6(raw: np.ndarray) -> np.ndarray:
            octets = raw.reshape(*raw.shape[:-1], -1, 3).astype(U32)
            word = octets[..., 0] | (octets[..., 1] << U32(8)) | (octets[..., 2] << U32(16))
            codes = (word[..., None] >> np.arange(0, 24, 6, dtype=U32)) & U32(63)
            return table.take(codes).reshape(*raw.shape[:-1], -1)

        return decode6
    table = decode(np.arange(256)).astype(F64)
    return table.take


_DECODE = {f.name: _byte_decoder(f.bits, f.decode) for f in SMALL_FLOATS.values()} | {
    "f16": lambda raw: raw.view(np.float16).astype(F64),
    "bf16": lambda raw: bf16_to_f32(raw.view(np.uint16)).astype(F64),
    "f32": lambda raw: raw.view(F32).astype(F64),
    "i8": lambda raw: raw.view(np.int8).astype(F64),
}
_BITS = {f.name: f.bits for f in SMALL_FLOATS.values()} | {
    "f16": 16, "bf16": 16, "f32": 32, "i8": 8,
}  # fmt: skip


def passes(name: str, formats: tuple[str, str]) -> int:
    """Returns the passes (groups of four cycles) that a matrix instruction takes."""
    match = _NAME.match(name)
    size, kind = int(match.group(3)), match.group(5)
    if kind == "f8f6f4":
        wide = any(_BITS[f] == 8 for f in formats)
        return {16: 4, 32: 8}[size] * (2 if wide else 1)
    if kind == "f32":
        return {16: 8, 32: 16}[size]
    return {16: 4, 32: 8}[size]


def _matrix(words: np.ndarray, format_: str, rows: int, split: bool) -> np.ndarray:
    """Assembles registers [count, waves, 64] to a float64 matrix [waves, rows, K]."""
    lanes_first = np.ascontiguousarray(np.moveaxis(words, 0, -1))
    raw = lanes_first.view(np.uint8).reshape(words.shape[1], LANES, -1)
    elements = _DECODE[format_](raw)
    groups = LANES // rows
    parts = elements.reshape(words.shape[1], groups, rows, -1)
    if not split:
        return parts.transpose(0, 2, 1, 3).reshape(words.shape[1], rows, -1)
    halves = parts.reshape(words.shape[1], groups, rows, 2, 16)
    return halves.transpose(0, 2, 3, 1, 4).reshape(words.shape[1], rows, -1)


def _scale_factors(bits: np.ndarray, rows: int) -> np.ndarray:
    """Turns scale bytes [waves, 64] into factors [waves, rows, groups]."""
    return SCALES.take(bits).reshape(len(bits), LANES // rows, rows).transpose(0, 2, 1)


def _scaled(matrix: np.ndarray, factors: np.ndarray) -> np.ndarray:
    shape = matrix.shape
    blocks = matrix.reshape(*shape[:2], -1, SCALE_BLOCK)
    return (blocks * factors[..., None]).reshape(shape)


def _to_registers(result: np.ndarray, size: int) -> np.ndarray:
    """Spreads [waves, rows, columns] over registers [count, waves, 64]."""
    waves, groups = len(result), LANES // size
    tiles = result.reshape(waves, size // (4 * groups), groups, 4, size)
    return tiles.transpose(1, 3, 0, 2, 4).reshape(-1, waves, LANES)


def _operand_formats(b: Build, kind: str) -> tuple[str, str]:
    if kind == "f8f6f4":
        codes = int(b.mod("cbsz", 0)), int(b.mod("blgp", 0))
        if max(codes) >= len(MFMA_FORMATS):
            raise b.unknown("operand format")
        return tuple(MFMA_FORMATS[c].name for c in codes)
    for broadcast in ("cbsz", "abid", "blgp"):
        if b.mods.get(broadcast):
            raise b.unknown("modifier")
        b.mods.pop(broadcast, None)
    if kind in ("f16", "bf16", "f32", "i8"):
        return kind, kind
    return tuple(kind.split("_"))


def _scale_reader(b: Build, position: int, select: int) -> Reader:
    word, shift = b.src(position, "b32"), U32(8 * select)

    def read(w: Waves) -> np.ndarray:
        return np.broadcast_to((word(w) >> shift) & U32(0xFF), (w.count, LANES))

    return read


def _accumulator(b: Build, position: int, count: int, integer: bool) -> Reader:
    """Reads C; a constant fills the whole matrix."""
    op = b.operand(position)
    if op.is_vector:
        return b.src(position, f"x{count}")
    return b.src(position, "i32" if integer else "f32")


def _copier(addend: Reader, index: int, count: int) -> Callable[[Waves], None]:
    """Returns what an instruction does whose product is zeros."""

    def copy(w: Waves) -> None:
        w.v[index : index + count] = addend(w)

    return copy


def _undefined_rows(b: Build, w: Waves, position: int, count: int, size: int) -> np.ndarray:
    """Returns which rows [waves, size] of an operand hold an undefined value."""
    op = b.operand(position)
    if op.kind == "s":
        marks = np.repeat(w.s_undef[op.index][:, None], LANES, 1)
    elif op.is_vector:
        first = b.vector_index(op, count)
        marks = w.v_undef[first : first + count].any(0)
    else:
        marks = np.zeros((w.count, LANES), bool)
    return marks.reshape(w.count, -1, size).any(1)


def decode_mfma(b: Build) -> Decoded | None:
    """Decodes a matrix instruction, or returns None if it is none."""
    name = b.ins.name.removesuffix("_1k")
    match = _NAME.match(name)
    if not match:
        return None
    scaled, result, size, depth, kind = match.groups()
    size, depth = int(size), int(depth)
    family = "f8" if kind.count("8") == 2 and kind != "f8f6f4" else kind
    if (size, depth) not in _SHAPES.get(family, ()) or (result == "i32") != (kind == "i8"):
        raise b.unknown()

    formats = _operand_formats(b, kind)
    counts = [size * depth * _BITS[f] // (LANES * 32) for f in formats]
    sources = [b.src(i + 1, f"x{n}") for i, n in enumerate(counts)]
    accumulators = size * size // LANES
    integer = result == "i32"
    addend = _accumulator(b, 3, accumulators, integer)
    index = b.vector_index(b.operand(0), accumulators)
    b.v_writes += range(index, index + accumulators)
    split = [kind == "f8f6f4" and _BITS[f] == 8 for f in formats]
    scales: list[Reader] = []
    if scaled:
        low, high = b.mod("op_sel", (0, 0, 0)), b.mod("op_sel_hi", (0, 0, 0))
        scales = [_scale_reader(b, 4 + i, low[i] + 2 * high[i]) for i in range(2)]
    dtype = np.int32 if integer else F32

    def run(w: Waves) -> None:
        left, right = (
            _matrix(read(w), f, size, s) for read, f, s in zip(sources, formats, split, strict=True)
        )
        if scales:
            left, right = (
                _scaled(m, _scale_factors(s(w), size))
                for m, s in zip((left, right), scales, strict=True)
            )
        product = _to_registers(left @ right.transpose(0, 2, 1), size)
        total = product + addend(w).view(dtype)
        rows = w.v[index : index + accumulators]
        if integer:
            rows[...] = total.astype(np.int64).astype(np.int32).view(U32)
        else:
            rows[...] = total.astype(F32).view(U32)

    def spread(w: Waves) -> np.ndarray:
        """An undefined operand spoils its row or column, an undefined addend its element."""
        rows, columns = (
            _undefined_rows(b, w, i, n, size) for i, n in ((1, counts[0]), (2, counts[1]))
        )
        if scales:
            rows |= _undefined_rows(b, w, 4, 1, size)
            columns |= _undefined_rows(b, w, 5, 1, size)
        marks = _to_registers(rows[:, :, None] | columns[:, None, :], size)
        if b.operand(3).is_vector:
            first = b.vector_index(b.operand(3), accumulators)
            marks = marks | w.v_undef[first : first + accumulators]
        return marks

    layout = {
        "passes": passes(name, formats), "formats": formats, "size": size,
        "result": (index, accumulators),
    }  # fmt: skip
    if b.operand(3).is_vector:
        layout["addend"] = b.vector_index(b.operand(3), accumulators), accumulators
    if layout.get("addend") != layout["result"]:
        layout["copy_addend"] = _copier(addend, index, accumulators)
    return b.finish(run, "mfma", masked=False, spread=spread, info=layout)

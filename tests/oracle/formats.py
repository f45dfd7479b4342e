"""Elements, scales and block formats; quantize and dequantize.

An element is the values of its codes. A scale rule is the interval into which
it brings the largest element of a block, `amax / 2**exponent`, and every
interval spans exactly one octave, which ends at

    floor  twice 2**emax              and below it
    even   where a mantissa of the element's bits carries, and below it
    ceil   2**emax                    and at it
    rceil  the largest element        and at it

    top of      E2M1   E4M3    E5M2    INT8       E2M3   E3M2
    floor       8      512     65536   2          8      32
    even        7      496     61440   255/128    7.75   30
    ceil        4      256     32768   1          4      16
    rceil       6      448     57344   127/64     7.5    28

Above the largest element, elements saturate. Blocks are neighbours along the
last axis; codes are packed densely, the first element in the lowest bits.

A float32 scale is `amax / largest element`, rounded to float32, by the rule
"even"; by "rceil" it is the power of two above. Half the smallest element
under it is no subnormal float32. Numbers are divided by it in float32. Such
blocks may be of several rows, and are cut where rows or the matrix end.

E4M3 scales go with a float32 for each row, the tensor scale, whose four bytes
lie behind those of the row's scales. It is the largest finite magnitude over
6 * 448, or given; a block's scale is its largest magnitude over 6 tensor
scales; numbers are divided by scale times tensor scale; each operation is
rounded to float32. No block has scale 0: that of zeros is 1, others at least
the smallest E4M3 number. A block with a NaN or an infinity has NaN.

Source: OCP Microscaling Formats (MX) Specification v1.0, sections 5 and 6;
for float32 scales DeepSeek-V3, whose scale is amax / 448 for 128 elements; for
E4M3 scales NVIDIA's ModelOpt 0.47, `NVFP4QTensor`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .floats import FLOATS, round_to

BLOCK = 32
WHOLE_ROW = 1 << 62
BIAS = 127
NAN_SCALE = 255
ONE_SCALE = BIAS


# Elements


@dataclass(frozen=True, eq=False)
class Element:
    """A number of few bits: its mantissa's width, and the value of every code."""

    name: str
    bits: int
    mantissa_bits: int
    values: np.ndarray

    @property
    def largest(self) -> float:
        """The largest magnitude that encoding produces."""
        return float(self.magnitudes[-1])

    @property
    def emax(self) -> int:
        """Exponent of the largest power of two among the elements."""
        return int(np.frexp(self.largest)[1]) - 1

    @property
    def magnitudes(self) -> np.ndarray:
        """The finite values of the codes from 0 up, which ascend."""
        positive = self.values[: len(self.values) // 2]
        return positive[np.isfinite(positive)]

    @property
    def negatives(self) -> np.ndarray:
        """The code of each magnitude's negative; without a minus zero, zero's is zero."""
        is_negative = np.signbit(self.values)
        codes = [np.flatnonzero(is_negative & (self.values == -value)) for value in self.magnitudes]
        return np.array([code[0] if len(code) else 0 for code in codes], np.uint8)

    @property
    def special_codes(self) -> np.ndarray:
        """The codes of infinities and NaN, which encoding never produces."""
        return np.flatnonzero(~np.isfinite(self.values)).astype(np.uint8)

    def decode(self, codes):
        """Returns the values of codes."""
        return self.values[np.asarray(codes)]

    def encode(self, values):
        """Rounds to the nearest code, ties to the even code, saturating."""
        values = np.asarray(values, np.float64)
        if np.isnan(values).any():
            raise ValueError(f"encoding to {self.name} makes no NaN")
        magnitudes = self.magnitudes
        middles = (magnitudes[:-1] + magnitudes[1:]) / 2
        below, reached = (np.searchsorted(middles, abs(values), side) for side in ("left", "right"))
        codes = np.where(below % 2 == 0, below, reached)
        return np.where(np.signbit(values), self.negatives[codes], codes).astype(np.uint8)


def _float_element(name: str, exponent_bits: int, mantissa_bits: int, specials: dict) -> Element:
    """Enumerates sign, exponent, mantissa with the bias of IEEE; `specials` are magnitudes."""
    bias = 2 ** (exponent_bits - 1) - 1
    magnitudes = []
    for exponent in range(2**exponent_bits):
        for mantissa in range(2**mantissa_bits):
            fraction = mantissa / 2**mantissa_bits
            if exponent == 0:
                magnitudes.append(fraction * 2.0 ** (1 - bias))
            else:
                magnitudes.append((1 + fraction) * 2.0 ** (exponent - bias))
    for code, value in specials.items():
        magnitudes[code] = value
    values = np.concatenate([magnitudes, np.negative(magnitudes)])
    return Element(name, 1 + exponent_bits + mantissa_bits, mantissa_bits, values)


def _integer_element(name: str, bits: int) -> Element:
    """Enumerates two's complement with all bits but sign and units behind the point."""
    codes = np.arange(2**bits)
    integers = np.where(codes < len(codes) // 2, codes, codes - 2**bits)
    return Element(name, bits, bits - 2, integers * 2.0 ** (2 - bits))


_E5M2_SPECIALS = {0x7C: np.inf, 0x7D: np.nan, 0x7E: np.nan, 0x7F: np.nan}
ELEMENTS = {
    element.name: element
    for element in (
        _float_element("e2m1", 2, 1, {}),
        _float_element("e2m3", 2, 3, {}),
        _float_element("e3m2", 3, 2, {}),
        _float_element("e4m3", 4, 3, {0x7F: np.nan}),
        _float_element("e5m2", 5, 2, _E5M2_SPECIALS),
        _integer_element("int8", 8),
    )
}


def pack(codes, bits: int = 4):
    """Packs codes `[..., K]` into bytes `[..., K * bits / 8]`."""
    codes = np.asarray(codes, np.uint8)
    each_bit = codes[..., None] >> np.arange(bits, dtype=np.uint8) & 1
    each_bit = each_bit.reshape(*codes.shape[:-1], codes.shape[-1] * bits)
    return np.packbits(each_bit, -1, bitorder="little")


def unpack(packed, bits: int = 4):
    """Returns the codes `[..., K]` of bytes `[..., K * bits / 8]`."""
    each_bit = np.unpackbits(np.asarray(packed, np.uint8), -1, bitorder="little")
    each_bit = each_bit.reshape(*each_bit.shape[:-1], each_bit.shape[-1] // bits, bits)
    return (each_bit << np.arange(bits, dtype=np.uint8)).sum(-1, dtype=np.uint8)


# Scales


def decode_e8m0(scales):
    """Returns `2**(byte - 127)`, NaN for byte 255."""
    scales = np.asarray(scales)
    return np.where(scales == NAN_SCALE, np.nan, np.ldexp(1.0, scales.astype(np.int32) - BIAS))


def encode_e8m0(exponents):
    """Returns the byte of `2**exponent`, clamped to what E8M0 can hold."""
    return np.clip(np.asarray(exponents) + BIAS, 0, NAN_SCALE - 1).astype(np.uint8)


TENSOR_SCALE_BYTES = 4


def decode_e4m3(scales):
    """Returns the products of E4M3 bytes and the tensor scale behind those of their row."""
    scales = np.asarray(scales, np.uint8)
    return ELEMENTS["e4m3"].decode(scales[..., :-TENSOR_SCALE_BYTES]) * tensor_scales(scales)


def tensor_scales(scales):
    """Returns the tensor scales [..., 1] of rows of E4M3 scales, as float64."""
    behind = np.ascontiguousarray(np.asarray(scales, np.uint8)[..., -TENSOR_SCALE_BYTES:])
    return behind.view("<f4").astype(np.float64)


_SCALES = {
    "e8m0": decode_e8m0,
    "float32": lambda scales: np.asarray(scales, np.float64),
    "e4m3": decode_e4m3,
}

# A function of the element that returns the octave's end, and whether the end belongs to it.
_OCTAVES = {
    "floor": lambda element: (2 * 2.0**element.emax, False),
    "even": lambda element: ((2 - 2.0 ** -(element.mantissa_bits + 1)) * 2.0**element.emax, False),
    "ceil": lambda element: (2.0**element.emax, True),
    "rceil": lambda element: (element.largest, True),
}
ROUNDINGS = tuple(_OCTAVES)


def octave_top(scale_rule: str, element: Element):
    """Returns where the rule's octave ends, and whether that end belongs to it."""
    return _OCTAVES[scale_rule](element)


def scale_exponent(amax, scale_rule: str, element: Element):
    """Returns the one exponent that brings each positive `amax` into its rule's octave."""
    amax = np.asarray(amax, np.float64)
    top, top_belongs = octave_top(scale_rule, element)
    near = np.frexp(amax)[1] - element.emax
    found, hits = np.zeros(amax.shape, np.int32), np.zeros(amax.shape, np.int32)
    for exponent in (near - 2, near - 1, near, near + 1):
        scaled = np.ldexp(amax, -exponent)
        if top_belongs:
            inside = (scaled > top / 2) & (scaled <= top)
        else:
            inside = (scaled >= top / 2) & (scaled < top)
        found, hits = np.where(inside, exponent, found), hits + inside
    assert (hits == 1).all(), "the octaves of neighbouring exponents tile the axis"
    return found


# Block formats


@dataclass(frozen=True, eq=False)
class Format:
    """Elements, and a scale for each block of `block_rows` x `block_k` of them."""

    name: str
    element: Element
    scale: str = "e8m0"
    block_rows: int = 1
    block_k: int = BLOCK

    def packed_bytes(self, count: int) -> int:
        """Returns the bytes of `count` densely packed codes."""
        return count * self.element.bits // 8


FORMATS = {
    row.name: row
    for row in (
        Format("mxfp4", ELEMENTS["e2m1"]),
        Format("mxfp8", ELEMENTS["e4m3"]),
        Format("mxfp8_e5m2", ELEMENTS["e5m2"]),
        Format("mxint8", ELEMENTS["int8"]),
        Format("fp8", ELEMENTS["e4m3"], "float32", block_k=WHOLE_ROW),
        Format("fp8_e5m2", ELEMENTS["e5m2"], "float32", block_k=WHOLE_ROW),
        Format("fp8_block", ELEMENTS["e4m3"], "float32", block_k=128),
        Format("fp8_block_2d", ELEMENTS["e4m3"], "float32", 128, 128),
        Format("mxfp6", ELEMENTS["e2m3"]),
        Format("mxfp6_e3m2", ELEMENTS["e3m2"]),
        Format("nvfp4", ELEMENTS["e2m1"], "e4m3", block_k=16),
    )
}


def quantize(x, scale_rule: str = "even", format: str = "mxfp4", tensor_scale=None):
    """Returns `(codes [..., packed K], scales [..., K/32])` of values `[..., K]`."""
    kind = FORMATS[format]
    x = np.asarray(x, np.float64)
    if kind.scale == "e4m3":
        assert scale_rule == "even", scale_rule
        return _quantize_by_e4m3(x, kind, tensor_scale)
    if kind.scale == "float32":
        return _quantize_by_floats(x, scale_rule, kind)
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // kind.block_k, kind.block_k)
    is_nan = ~np.isfinite(blocks).all(-1)
    blocks = np.where(is_nan[..., None], 0.0, blocks)
    amax = abs(blocks).max(-1)
    exponent = scale_exponent(np.where(amax > 0, amax, 1.0), scale_rule, kind.element)
    scales = encode_e8m0(np.where(amax > 0, exponent, -BIAS))
    codes = kind.element.encode(blocks / decode_e8m0(scales)[..., None]).reshape(x.shape)
    return pack(codes, kind.element.bits), np.where(is_nan, NAN_SCALE, scales).astype(np.uint8)


def round_to_mxint16(x):
    """Returns values [..., K] as 16-bit integers under powers of two, one a block.

    A block's unit is 2**-13 of the power of two that its largest magnitude has reached, so that
    integers are at most 2**14; it is no less than an E8M0 scale's 2**-6.
    """
    x = np.asarray(x, np.float64)
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK)
    is_nan = ~np.isfinite(blocks).all(-1, keepdims=True)
    blocks = np.where(is_nan, 0.0, blocks)
    exponent = np.frexp(abs(blocks).max(-1, keepdims=True))[1] - 1
    unit = 2.0 ** np.maximum(exponent - 13, -BIAS - 6)
    return np.where(is_nan, np.nan, np.rint(blocks / unit) * unit).reshape(x.shape)


def float_scale(amax, scale_rule: str, element: Element):
    """Returns the float32 scale of blocks with these largest magnitudes, as float64."""
    amax = np.asarray(amax, np.float64)
    if scale_rule == "rceil":
        scale = np.ldexp(1.0, scale_exponent(np.where(amax > 0, amax, 1.0), scale_rule, element))
        scale = np.where(amax > 0, scale, 0.0)
    else:
        assert scale_rule == "even", scale_rule
        scale = round_to(amax / element.largest, "float32")
    unit = element.magnitudes[1]
    return np.maximum(scale, 2.0 ** FLOATS["float32"].min_exponent / (unit / 2))


def _quantize_by_floats(x, scale_rule: str, kind: Format):
    """Returns codes, and scales [..., blocks of rows, blocks of K] as float32."""
    k, tall = x.shape[-1], kind.block_rows > 1
    block_k = min(kind.block_k, k)
    rows = x if tall else x[..., None, :]
    codes = np.empty(rows.shape, np.uint8)
    starts = [
        (r, c) for r in range(0, rows.shape[-2], kind.block_rows) for c in range(0, k, block_k)
    ]
    grid = (-(-rows.shape[-2] // kind.block_rows), -(-k // block_k))
    scales = np.empty((*rows.shape[:-2], *grid), np.float32)
    for r, c in starts:
        place = (..., slice(r, r + kind.block_rows), slice(c, c + block_k))
        block = rows[place]
        is_nan = ~np.isfinite(block).all((-2, -1))
        block = np.where(is_nan[..., None, None], 0.0, block)
        scale = float_scale(abs(block).max((-2, -1)), scale_rule, kind.element)
        codes[place] = kind.element.encode(round_to(block / scale[..., None, None], "float32"))
        scales[..., r // kind.block_rows, c // block_k] = np.where(is_nan, np.nan, scale)
    return codes.reshape(x.shape), scales if tall else scales[..., 0, :]


def _quantize_by_e4m3(x, kind: Format, given):
    """Returns codes, and scales [..., blocks of K, and the bytes of a float32]."""
    scale_element = ELEMENTS["e4m3"]
    finite = np.where(np.isfinite(x), x, 0.0)
    largest = kind.element.largest * scale_element.largest
    unit = kind.element.magnitudes[1] * scale_element.magnitudes[1]
    tensor = round_to(abs(finite).max(-1, keepdims=True) / largest, "float32")
    tensor = np.maximum(tensor, 2.0 ** FLOATS["float32"].min_exponent / (unit / 2))
    if given is not None:
        tensor = np.broadcast_to(np.asarray(given, np.float64)[..., None], tensor.shape)
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // kind.block_k, kind.block_k)
    is_nan = ~np.isfinite(blocks).all(-1)
    blocks = np.where(is_nan[..., None], 0.0, blocks)
    amax = abs(blocks).max(-1)
    quotient = round_to(amax / round_to(kind.element.largest * tensor, "float32"), "float32")
    scales = np.maximum(scale_element.encode(quotient), 1)
    scales = np.where(amax > 0, scales, scale_element.encode(1.0)).astype(np.uint8)
    divisors = round_to(scale_element.decode(scales) * tensor, "float32")
    codes = kind.element.encode(round_to(blocks / divisors[..., None], "float32"))
    scales[is_nan] = scale_element.special_codes[0]
    behind = np.ascontiguousarray(tensor.astype("<f4")).view(np.uint8)
    return pack(codes.reshape(x.shape), kind.element.bits), np.concatenate([scales, behind], -1)


def dequantize(codes, scales, format: str | Format = "mxfp4"):
    """Returns the exact values `[..., K]` of plain codes and scales.

    A block of more than one row spans the second last axis too.
    """
    kind = FORMATS[format] if isinstance(format, str) else format
    elements = kind.element.decode(unpack(codes, kind.element.bits))
    block_k = min(kind.block_k, elements.shape[-1])
    spread = np.repeat(_SCALES[kind.scale](scales), block_k, -1)[..., : elements.shape[-1]]
    if kind.block_rows > 1:
        spread = np.repeat(spread, kind.block_rows, -2)[..., : elements.shape[-2], :]
    with np.errstate(invalid="ignore"):  # an infinity under a scale that is NaN
        return elements * spread

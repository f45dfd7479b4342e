"""MXFP4 as the OCP Microscaling text defines it, in NumPy and nothing else.

This is the independent witness: it imports no code of ours and takes no
short cut that ours could share. Values are float64, in which everything that
MXFP4 can say is exact; exponents come from `frexp`, never from bit patterns.

A scale rule is the interval into which it brings the largest element of a
block, `amax / 2**exponent`, and every interval spans exactly one octave:

    floor  [4, 8)      even  [3.5, 7)      ceil  (2, 4]      rceil  (3, 6]

Above 6 elements saturate. Rows are blocks of 32 along the last axis; codes
are packed two to a byte, the even element in the low nibble.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BLOCK = 32
BIAS = 127
NAN_SCALE = 255
ONE_SCALE = BIAS
E2M1_MAGNITUDES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
SIGN = 8

_OCTAVES = {
    "floor": lambda scaled: (scaled >= 4.0) & (scaled < 8.0),
    "even": lambda scaled: (scaled >= 3.5) & (scaled < 7.0),
    "ceil": lambda scaled: (scaled > 2.0) & (scaled <= 4.0),
    "rceil": lambda scaled: (scaled > 3.0) & (scaled <= 6.0),
}
ROUNDINGS = tuple(_OCTAVES)


@dataclass(frozen=True)
class FloatType:
    """A binary floating-point type of IEEE shape."""

    precision: int
    min_exponent: int
    max_exponent: int

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding a normal value to nearest."""
        return 2.0**-self.precision

    @property
    def underflow(self) -> float:
        """Largest absolute error of rounding a subnormal value to nearest."""
        return 2.0 ** (self.min_exponent - self.precision)

    @property
    def largest(self) -> float:
        return (2.0 - 2.0 ** (1 - self.precision)) * 2.0**self.max_exponent


FLOATS = {
    "bfloat16": FloatType(8, -126, 127),
    "float16": FloatType(11, -14, 15),
    "float32": FloatType(24, -126, 127),
}


def decode_bfloat16(bits):
    """Returns the values of 16-bit patterns: the upper half of a float32."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return (np.asarray(bits, np.uint32) << 16).view(np.float32).astype(np.float64)


def round_to(values, dtype: str):
    """Rounds to nearest, ties to even, to what `dtype` can hold; overflow is infinite."""
    kind, values = FLOATS[dtype], np.asarray(values, np.float64)
    finite = np.where(np.isfinite(values), values, 0.0)
    exponent = np.maximum(np.frexp(finite)[1] - 1, kind.min_exponent)
    spacing = np.ldexp(1.0, exponent - kind.precision + 1)
    rounded = np.rint(finite / spacing) * spacing
    rounded = np.where(abs(rounded) > kind.largest, np.copysign(np.inf, finite), rounded)
    return np.where(np.isfinite(values), rounded, values)


# Elements and scales


def decode_e2m1(codes):
    """Returns the values of 4-bit codes; code 8 is minus zero."""
    codes = np.asarray(codes)
    magnitude = E2M1_MAGNITUDES[codes % SIGN]
    return np.where(codes & SIGN, -magnitude, magnitude)


def encode_e2m1(values):
    """Rounds to the nearest code, ties to the even code, saturating at +-6."""
    values = np.asarray(values, np.float64)
    if np.isnan(values).any():
        raise ValueError("E2M1 has no NaN")
    magnitude, code = abs(values), np.zeros(values.shape, np.uint8)
    for lower in range(len(E2M1_MAGNITUDES) - 1):
        middle = (E2M1_MAGNITUDES[lower] + E2M1_MAGNITUDES[lower + 1]) / 2
        passes = magnitude >= middle if lower % 2 else magnitude > middle
        code += passes.astype(np.uint8)
    return code | np.where(np.signbit(values), SIGN, 0).astype(np.uint8)


def decode_e8m0(scales):
    """Returns `2**(byte - 127)`, NaN for byte 255."""
    scales = np.asarray(scales)
    return np.where(scales == NAN_SCALE, np.nan, np.ldexp(1.0, scales.astype(np.int32) - BIAS))


def encode_e8m0(exponents):
    """Returns the byte of `2**exponent`, clamped to what E8M0 can hold."""
    return np.clip(np.asarray(exponents) + BIAS, 0, NAN_SCALE - 1).astype(np.uint8)


def scale_exponent(amax, rounding: str):
    """Returns the one exponent that brings each positive `amax` into its rule's octave."""
    amax = np.asarray(amax, np.float64)
    near = np.frexp(amax)[1]
    found, hits = np.zeros(amax.shape, np.int32), np.zeros(amax.shape, np.int32)
    for exponent in (near - 4, near - 3, near - 2, near - 1):
        inside = _OCTAVES[rounding](np.ldexp(amax, -exponent))
        found, hits = np.where(inside, exponent, found), hits + inside
    assert (hits == 1).all(), "the octaves of neighbouring exponents tile the axis"
    return found


# Tensors


def pack(codes):
    """Packs 4-bit codes `[..., K]` into bytes `[..., K/2]`."""
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


def unpack(packed):
    """Returns the 4-bit codes `[..., K]` of bytes `[..., K/2]`."""
    packed = np.asarray(packed, np.uint8)
    nibbles = np.stack([packed & 15, packed >> 4], -1)
    return nibbles.reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def quantize(x, rounding: str = "even"):
    """Returns `(codes [..., K/2], scales [..., K/32])` of values `[..., K]`."""
    x = np.asarray(x, np.float64)
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK)
    is_nan = ~np.isfinite(blocks).all(-1)
    blocks = np.where(is_nan[..., None], 0.0, blocks)
    amax = abs(blocks).max(-1)
    exponent = np.where(amax > 0, scale_exponent(np.where(amax > 0, amax, 1.0), rounding), -BIAS)
    scales = encode_e8m0(exponent)
    codes = encode_e2m1(blocks / decode_e8m0(scales)[..., None]).reshape(x.shape)
    return pack(codes), np.where(is_nan, NAN_SCALE, scales).astype(np.uint8)


def dequantize(codes, scales):
    """Returns the exact values `[..., K]` of plain codes and scales."""
    return decode_e2m1(unpack(codes)) * np.repeat(decode_e8m0(scales), BLOCK, -1)


# Layouts


@dataclass(frozen=True)
class Layout:
    """A byte order: axes to split each operand into, and the order to store them in."""

    row_multiple: int
    scale_row_multiple: int
    scale_k_multiple: int
    code_split: tuple
    code_order: tuple
    scale_split: tuple
    scale_order: tuple

    def store(self, codes, scales):
        """Pads and permutes plain `(codes [N, K/2], scales [N, K/32])`."""
        codes = _pad(codes, self.row_multiple, 1, 0)
        scales = _pad(scales, self.scale_row_multiple, self.scale_k_multiple, ONE_SCALE)
        return (
            _permute(codes, self.code_split, self.code_order),
            _permute(scales, self.scale_split, self.scale_order),
        )


def _pad(array, row_multiple, column_multiple, fill):
    rows, columns = array.shape
    widths = ((0, -rows % row_multiple), (0, -columns % column_multiple))
    return np.pad(array, widths, constant_values=fill)


def _permute(array, split, order):
    """Splits `[rows, columns]` into `split` (-1 = the rest of that axis), reorders, flattens."""
    rows, columns = array.shape
    row_split, column_split = split
    axes = array.reshape(
        rows // int(np.prod(row_split)),
        *row_split,
        columns // int(np.prod(column_split)),
        *column_split,
    )
    return np.ascontiguousarray(axes.transpose(order)).reshape(rows, columns)


# The comments name the axes of the split; the order lists them from slowest to fastest.
LAYOUTS = {
    "plain": Layout(1, 1, 1, ((), ()), (0, 1), ((), ()), (0, 1)),
    "preshuffled_cdna4": Layout(
        16,
        32,
        8,
        # row tile, row of 16 | byte group, byte of 16
        ((16,), (16,)),
        (0, 2, 1, 3),
        # row tile, row half, row of 16 | scale tile, scale half, scale of 4
        ((2, 16), (2, 4)),
        (0, 3, 5, 2, 4, 1),
    ),
    "preshuffled_cpu": Layout(
        16,
        16,
        1,
        # row tile, row of 16 | block, word of 4, byte of 4
        ((16,), (4, 4)),
        (0, 2, 3, 1, 4),
        # row tile, row of 16 | scale
        ((16,), ()),
        (0, 2, 1),
    ),
    "preshuffled_cuda": Layout(
        32,
        32,
        1,
        # row tile, row group of 4, row of 8 | block, word of 4, byte of 4
        ((4, 8), (4, 4)),
        (0, 3, 2, 4, 1, 5),
        # row tile, row group of 4, row of 8 | scale
        ((4, 8), ()),
        (0, 3, 2, 1),
    ),
}


def code_offset(layout: str, n, kb, row_bytes: int):
    """Returns where the code byte of (row `n`, byte `kb`) lies: the closed formula."""
    if layout == "plain":
        return n * row_bytes + kb
    if layout == "preshuffled_cuda":
        tile = n // 32 * 32 * row_bytes + kb // 16 * 512
        return tile + n % 8 * 64 + kb % 16 // 4 * 16 + n % 32 // 8 * 4 + kb % 4
    tile = n // 16 * 16 * row_bytes + kb // 16 * 256
    if layout == "preshuffled_cdna4":
        return tile + n % 16 * 16 + kb % 16
    return tile + kb % 16 // 4 * 64 + n % 16 * 4 + kb % 4


def scale_offset(layout: str, n, s, row_scales: int):
    """Returns where the scale of (row `n`, block `s`) lies, `row_scales` with padding."""
    if layout == "plain":
        return n * row_scales + s
    if layout == "preshuffled_cdna4":
        tile = n // 32 * 32 * row_scales + s // 8 * 256
        return tile + s % 4 * 64 + n % 16 * 4 + s % 8 // 4 * 2 + n % 32 // 16
    if layout == "preshuffled_cuda":
        return n // 32 * 32 * row_scales + s * 32 + n % 8 * 4 + n % 32 // 8
    return n // 16 * 16 * row_scales + s * 16 + n % 16


# Products and their bounds


def matmul_reference(a, b, bias=None):
    """Returns `a @ b.T + bias` in float64 for values `a [M, K]`, `b [N, K]`."""
    with np.errstate(invalid="ignore"):
        product = np.asarray(a, np.float64) @ np.asarray(b, np.float64).T
    return product if bias is None else product + bias


def error_bound(a, b, bias=None):
    """Returns how far a float32 accumulation may be from `matmul_reference`.

    The products of two elements are exact, so what is left is at most `n`
    float32 additions in any order, `n*u/(1-n*u) * sum|a*b|`, and for each of
    them a rounding in float32's subnormal range; then the same for the
    float64 additions of the reference. The output cast is `assert_matmul`'s.
    """
    additions = a.shape[-1] + (bias is not None)
    magnitude = matmul_reference(abs(a), abs(b), None if bias is None else abs(bias))

    def gamma(unit_roundoff):
        return additions * unit_roundoff / (1 - additions * unit_roundoff)

    single = FLOATS["float32"]
    relative = gamma(single.unit_roundoff) + gamma(2.0**-53)
    return relative * magnitude + additions * single.underflow


# Assertions


def assert_bitwise_equal(got, expected, *, zeros_are_the_claim: bool = False):
    """Raises AssertionError with coordinates and both byte patterns where the arrays differ.

    Any NaN equals any NaN. Comparing zeros with zeros proves nothing, so it
    fails unless the caller says that zeros are what it claims.
    """
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype, f"got dtype {got.dtype}, expected {expected.dtype}"
    assert got.shape == expected.shape, f"got shape {got.shape}, expected {expected.shape}"
    assert expected.any() or expected.size == 0 or zeros_are_the_claim, "zeros against zeros"
    word = np.dtype(f"u{got.dtype.itemsize}")
    got_bits = np.ascontiguousarray(got).view(word).reshape(got.shape)
    expected_bits = np.ascontiguousarray(expected).view(word).reshape(got.shape)
    differs = got_bits != expected_bits
    if got.dtype.kind == "f":
        differs &= ~(np.isnan(got) & np.isnan(expected))
    if differs.any():
        digits = 2 * got.dtype.itemsize
        lines = [
            f"  {tuple(map(int, at))}: got 0x{got_bits[tuple(at)]:0{digits}x} ({got[tuple(at)]}), "
            f"expected 0x{expected_bits[tuple(at)]:0{digits}x} ({expected[tuple(at)]})"
            for at in np.argwhere(differs)[:8]
        ]
        raise AssertionError(f"{differs.sum()} of {got.size} differ\n" + "\n".join(lines))


def assert_matmul(got, a, b, out_dtype: str = "float32", bias=None):
    """Raises AssertionError unless `got` is `a @ b.T + bias` within the derived bound.

    Rounding is monotone, so the cast of a sum within `error_bound` lies
    between the casts of both ends. Where products of both signs may overflow
    float32, the order of additions decides, and any value is right.
    """
    got, reference = np.asarray(got, np.float64), matmul_reference(a, b, bias)
    assert got.shape == reference.shape, f"got shape {got.shape}, expected {reference.shape}"
    assert reference.any() or reference.size == 0, "zeros against zeros"
    error = error_bound(a, b, bias)
    magnitude = matmul_reference(abs(a), abs(b), None if bias is None else abs(bias))
    mixed_signs = magnitude > abs(reference) + error
    order_decides = mixed_signs & (magnitude + error > FLOATS["float32"].largest)
    low, high = (round_to(reference + end, out_dtype) for end in (-error, error))
    right = (low <= got) & (got <= high) | order_decides | (np.isnan(reference) & np.isnan(got))
    if not right.all():
        lines = [
            f"  {tuple(map(int, at))}: got {got[tuple(at)]!r}, "
            f"expected {low[tuple(at)]!r} to {high[tuple(at)]!r}"
            for at in np.argwhere(~right)[:8]
        ]
        raise AssertionError(f"{(~right).sum()} of {right.size} are wrong\n" + "\n".join(lines))

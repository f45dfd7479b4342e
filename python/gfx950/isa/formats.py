"""Bit patterns of the small float formats: decode tables and rounding encoders.

| format | bits | exponent, mantissa | largest | above the largest        |
|--------|------|--------------------|---------|--------------------------|
| fp8    | 8    | 4, 3 (OCP E4M3)    | 448     | NaN, the only special    |
| bf8    | 8    | 5, 2 (OCP E5M2)    | 57344   | infinity, NaN            |
| fp6    | 6    | 2, 3               | 7.5     | saturates                |
| bf6    | 6    | 3, 2               | 28      | saturates                |
| fp4    | 4    | 2, 1               | 6       | saturates                |

Encoders round to nearest, ties to the even code. gfx950 uses the OCP encodings.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

U16, U32 = np.uint16, np.uint32
F16, F32, F64 = np.float16, np.float32, np.float64


@dataclass(frozen=True)
class SmallFloat:
    """One format of the table above."""

    name: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    special: str = "none"
    """"nan" (only the all-ones code), "ieee" (infinity and NaN), or "none"."""
    values: np.ndarray = field(init=False, repr=False, compare=False)
    """float32 value of each code."""
    codes: int = field(init=False)
    """Number of finite non-negative codes."""

    def __post_init__(self):
        half = 1 << (self.bits - 1)
        bias = (1 << (self.exponent_bits - 1)) - 1
        magnitudes = []
        for code in range(half):
            exponent, mantissa = divmod(code, 1 << self.mantissa_bits)
            fraction = mantissa / (1 << self.mantissa_bits)
            scale = 2.0 ** (max(exponent, 1) - bias)
            magnitudes.append(scale * (fraction + (exponent > 0)))
        finite = half
        if self.special == "nan":
            magnitudes[-1], finite = np.nan, half - 1
        elif self.special == "ieee":
            first = half - (1 << self.mantissa_bits)
            magnitudes[first], finite = np.inf, first
            magnitudes[first + 1 :] = [np.nan] * (half - first - 1)
        positive = np.array(magnitudes, F32)
        object.__setattr__(self, "values", np.concatenate([positive, -positive]))
        object.__setattr__(self, "codes", finite)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Returns the float32 values of `codes`."""
        return self.values[codes]

    def encode(self, x: np.ndarray) -> np.ndarray:
        """Rounds float64 `x` to nearest even and returns codes."""
        table = self.values[: self.codes].astype(F64)
        magnitude = np.abs(x)
        nan = np.isnan(x)
        upper = np.searchsorted(table, np.where(nan, 0, magnitude)).clip(0, self.codes - 1)
        lower = np.maximum(upper - 1, 0)
        middle = (table[lower] + table[upper]) / 2
        up = (magnitude > middle) | ((magnitude == middle) & (upper % 2 == 0))
        code = np.where(up | (upper == lower), upper, lower)
        return self._finish(code, x, magnitude, nan)

    def _finish(self, code, x, magnitude, nan) -> np.ndarray:
        largest = float(self.values[self.codes - 1])
        step = largest - float(self.values[self.codes - 2])
        tie = largest + step / 2
        over = (magnitude > tie) | ((magnitude == tie) & (self.codes % 2 == 0))
        half = 1 << (self.bits - 1)
        if self.special == "nan":
            code = np.where(over | nan, half - 1, code)
        elif self.special == "ieee":
            code = np.where(over, self.codes, code)
            code = np.where(nan, half - 1, code)
        else:
            code = np.where(over | nan, self.codes - 1, code)
        return (code + half * np.signbit(x)).astype(U32)


FP8 = SmallFloat("fp8", 8, 4, 3, "nan")
BF8 = SmallFloat("bf8", 8, 5, 2, "ieee")
FP6 = SmallFloat("fp6", 6, 2, 3)
BF6 = SmallFloat("bf6", 6, 3, 2)
FP4 = SmallFloat("fp4", 4, 2, 1)
SMALL_FLOATS = {f.name: f for f in (FP8, BF8, FP6, BF6, FP4)}
MFMA_FORMATS = (FP8, BF8, FP6, BF6, FP4)
"""Indexed by the cbsz / blgp field of the f8f6f4 instructions."""
SCALES = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan)
"""What E8M0 bytes stand for, as float64."""


def bf16_to_f32(bits: np.ndarray) -> np.ndarray:
    """Widens bfloat16 bits (any unsigned type) to float32."""
    return (np.asarray(bits).astype(U32) << U32(16)).view(F32)


def f32_to_bf16(x: np.ndarray) -> np.ndarray:
    """Rounds float32 to bfloat16 bits in uint32, ties to even, NaN kept quiet."""
    bits = np.ascontiguousarray(x, F32).view(U32)
    rounded = (bits + U32(0x7FFF) + ((bits >> U32(16)) & U32(1))) >> U32(16)
    return np.where(np.isnan(x), (bits >> U32(16)) | U32(0x40), rounded)


def f16_to_f32(bits: np.ndarray) -> np.ndarray:
    """Widens float16 bits (any unsigned type) to float32."""
    return np.asarray(bits).astype(U16).view(F16).astype(F32)


def f32_to_f16(x: np.ndarray) -> np.ndarray:
    """Rounds float32 to float16 bits in uint32, ties to even."""
    return np.asarray(x, F32).astype(F16).view(U16).astype(U32)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray, dtype=F32) -> np.ndarray:
    """Returns a*b+c rounded once, for operands of at most 24 significant bits.

    The product is exact in float64. The sum is rounded to odd there, so that the final
    rounding to `dtype` sees which side of a tie the exact value lies on.
    """
    product = np.asarray(a, F64) * np.asarray(b, F64)
    addend = np.asarray(c, F64)
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    inexact = (error != 0) & np.isfinite(total)
    if inexact.any():
        bits = np.ascontiguousarray(total).view(np.int64)
        above = inexact & ((error > 0) != (total > 0))
        bits = (bits - above) | inexact
        total = bits.view(F64)
    return total.astype(dtype)

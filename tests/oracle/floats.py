"""The binary floating-point types that tensors come in, and rounding to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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

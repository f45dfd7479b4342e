"""Assertions that report coordinates and bytes."""

from __future__ import annotations

import numpy as np

from .floats import FLOATS, round_to
from .products import error_bound, finite_magnitude, matmul_reference


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


class Product:
    """What `a @ b.T + bias` may be after float32 sums in any order and a cast to `out_dtype`.

    Rounding is monotone, so the cast of a sum within `error_bound` lies
    between the casts of both ends. Infinities and NaN among the operands decide
    their sums alone. Where products of both signs, or against such an
    infinity, may overflow float32, the order of additions decides, and any
    value is right.
    """

    def __init__(
        self, a, b, out_dtype: str = "float32", bias=None, scale_roundings: int = 0, more_error=0.0
    ):
        self.reference = matmul_reference(a, b, bias)
        error = error_bound(a, b, bias, scale_roundings) + more_error
        magnitude = finite_magnitude(a, b, bias)
        mixed_signs = (magnitude > abs(self.reference) + error) | ~np.isfinite(self.reference)
        self.order_decides = mixed_signs & (magnitude + error > FLOATS["float32"].largest)
        self.low, self.high = (round_to(self.reference + end, out_dtype) for end in (-error, error))

    def check(self, got, where: str = ""):
        """Raises AssertionError, with coordinates, unless `got` is such a product."""
        got, is_nan = np.asarray(got, np.float64), np.isnan(self.reference)
        shape = self.reference.shape
        assert got.shape == shape, f"{where} got shape {got.shape}, expected {shape}"
        assert self.reference.any() or self.reference.size == 0, "zeros against zeros"
        right = (self.low <= got) & (got <= self.high) | self.order_decides & ~is_nan
        right |= is_nan & np.isnan(got)
        if not right.all():
            lines = [
                f"  {tuple(map(int, at))}: got {got[tuple(at)]!r}, "
                f"expected {self.low[tuple(at)]!r} to {self.high[tuple(at)]!r}"
                for at in np.argwhere(~right)[:8]
            ]
            number = f"{where} {(~right).sum()} of {right.size} are wrong".lstrip()
            raise AssertionError("\n".join([number, *lines]))


def assert_matmul(
    got, a, b, out_dtype: str = "float32", bias=None, *, scale_roundings: int = 0, more_error=0.0
):
    """Raises AssertionError unless `got` is `a @ b.T + bias` within the derived bound.

    `more_error` is what hardware may lose beside the roundings of float32 sums.
    """
    Product(a, b, out_dtype, bias, scale_roundings, more_error).check(got)

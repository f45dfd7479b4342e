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


def assert_matmul(got, a, b, out_dtype: str = "float32", bias=None):
    """Raises AssertionError unless `got` is `a @ b.T + bias` within the derived bound.

    Rounding is monotone, so the cast of a sum within `error_bound` lies
    between the casts of both ends. Infinities and NaN among the operands decide
    their sums alone. Where products of both signs, or against such an
    infinity, may overflow float32, the order of additions decides, and any
    value is right.
    """
    got, reference = np.asarray(got, np.float64), matmul_reference(a, b, bias)
    assert got.shape == reference.shape, f"got shape {got.shape}, expected {reference.shape}"
    assert reference.any() or reference.size == 0, "zeros against zeros"
    error, magnitude = error_bound(a, b, bias), finite_magnitude(a, b, bias)
    mixed_signs = (magnitude > abs(reference) + error) | ~np.isfinite(reference)
    order_decides = mixed_signs & (magnitude + error > FLOATS["float32"].largest)
    low, high = (round_to(reference + end, out_dtype) for end in (-error, error))
    right = (low <= got) & (got <= high) | order_decides & ~np.isnan(reference)
    right |= np.isnan(reference) & np.isnan(got)
    if not right.all():
        lines = [
            f"  {tuple(map(int, at))}: got {got[tuple(at)]!r}, "
            f"expected {low[tuple(at)]!r} to {high[tuple(at)]!r}"
            for at in np.argwhere(~right)[:8]
        ]
        raise AssertionError(f"{(~right).sum()} of {right.size} are wrong\n" + "\n".join(lines))

"""Norms of rows, and rotations, each float32 operation as the definition has it.

segments     512 neighbours, zeros behind the end of a row
in one       t[i] = s[i] + s[i + 256], squares fused: fma(x[i + 256], x[i + 256], x[i] * x[i]);
             then t[i] + t[i + n / 2], n halved until one is left
the row      sums of segments in order, in float64
mean         float32 of sum * (1 / K)
reciprocal   float32 of (sum * (1 / K) + eps) ** -0.5, the sum in the root rounded once
number       (x - mean) * reciprocal, then fma(that, weight + offset, bias)
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np

from .experts import fused_multiply_add
from .floats import round_to

SEGMENT = 512


def row_sum(x, *, squares: bool):
    """Returns the float64 sums of rows [..., K] of float32."""
    x = np.asarray(x, np.float32)
    missing = -x.shape[-1] % SEGMENT
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
    x = x.reshape(*x.shape[:-1], -1, SEGMENT)
    first, second = np.split(x, 2, -1)
    t = fused_multiply_add(second, second, first * first) if squares else first + second
    while t.shape[-1] > 1:
        first, second = np.split(t, 2, -1)
        t = first + second
    total = np.zeros(t.shape[:-2])
    for segment in range(t.shape[-2]):
        total = total + t[..., segment, 0].astype(np.float64)
    return total


def reciprocal(total: float, k: int, eps: float) -> np.float32:
    """Returns what multiplies a row with this sum of squares."""
    if not np.isfinite(total):
        return np.float32(0 if total == np.inf else np.nan)
    v = float(Fraction(float(total)) * Fraction(1 / k) + Fraction(eps))
    if v == 0:
        return np.float32(np.inf)
    with localcontext() as context:
        context.prec = 60
        return np.float32(float(1 / Decimal(v).sqrt()))


def norm(
    x,
    weight=None,
    bias=None,
    *,
    dtype: str,
    is_centered: bool = False,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    rounds: str = "each",
):
    """Returns the float64 values of normalized rows.

    Args:
        x: rows [..., K] that `dtype` holds.
        weight: [K] that float32 holds; None for none.
        bias: likewise.
        dtype: the type of the rows.
        is_centered: whether the mean is taken off.
        eps: is added to the mean of squares.
        weight_offset: is added to the weight.
        rounds: "each", "result" or "none".
    """
    x, k = np.asarray(x, np.float32), np.shape(x)[-1]
    with np.errstate(all="ignore"):
        if is_centered:
            mean = (row_sum(x, squares=False) * (1 / k)).astype(np.float32)
            x = x - mean[..., None]
        totals = row_sum(x, squares=True)
        factors = [reciprocal(total, k, eps) for total in totals.ravel()]
        y = x * np.array(factors, np.float32).reshape(*totals.shape, 1)
        if rounds == "each":
            y = round_to(y, dtype).astype(np.float32)
        if weight is not None:
            factor = np.asarray(weight, np.float32)
            if weight_offset:
                factor = factor + np.float32(weight_offset)
            y = y * factor if bias is None else fused_multiply_add(y, factor, np.float32(bias))
        return round_to(y, "float32" if rounds == "none" else dtype)


def rotated(x, block: int, dtype: str):
    """Returns rows [..., K] times Hadamard matrices of `block`, halves added first, rounded."""
    y = np.asarray(x, np.float32).reshape(*np.shape(x)[:-1], -1, block)
    with np.errstate(all="ignore"):
        half = block // 2
        while half:
            pairs = y.reshape(*y.shape[:-1], -1, 2, half)
            low, high = pairs[..., 0, :], pairs[..., 1, :]
            y = np.stack([low + high, low - high], -2).reshape(y.shape)
            half //= 2
        y = y * np.float32(block**-0.5)
    return round_to(y.reshape(np.shape(x)), dtype)

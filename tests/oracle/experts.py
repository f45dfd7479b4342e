"""Layers of experts: gated activations with their bounds, and sums over slots.

A gated activation is a handful of float32 operations. With u = 2**-24 their relative errors are

    z = alpha * gate            computed here the same way: one float32 product, so none
    e = exp(-|z|)               2u, a unit in the last place
    gate * e, 1 + e             u; 3u, as e's comes on top
    their quotient              u
    up + 1, the product         u; u                            together 9u: 10u with their products

Beyond |z| = 87, where e is no longer regular, sigmoid may be taken for 0.
"""

from __future__ import annotations

import numpy as np

RELATIVE_ERROR = 10 * 2.0**-24
LARGEST_EXPONENT = 87.0


def gated(sums, activation: str, limit: float = 7.0, alpha: float = 1.702):
    """Returns the hidden numbers of float32 sums [..., 2I], and how far float32 may be from them.

    Returns:
        Float64 values and absolute errors.
    """
    sums = np.asarray(sums, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        if activation == "silu":
            gate, up = np.split(sums.astype(np.float64), 2, -1)
            z, factor = gate, up
        else:
            limit = np.float32(limit)
            gate = np.minimum(sums[..., ::2], limit)
            z = (gate * np.float32(alpha)).astype(np.float64)
            gate = gate.astype(np.float64)
            factor = np.clip(sums[..., 1::2], -limit, limit).astype(np.float64) + 1
        # Overflow of exp is infinite, and sigmoid 0.
        exact = factor * (gate / (1 + np.exp(-z)))
        flushed = abs(factor * gate) * np.exp(-LARGEST_EXPONENT)
        return exact, RELATIVE_ERROR * abs(exact) + np.where(np.isfinite(flushed), flushed, 0.0)


def fused_multiply_add(a, b, c):
    """Returns `a * b + c` of float32 arrays, rounded once.

    The product is exact in float64, their sum may not be: what it lacks decides ties, so its last
    bit is set where something is missing ("round to odd").
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    c = np.asarray(c, np.float64)
    total = product + c
    with np.errstate(invalid="ignore"):
        of_c = total - product
        missing = (product - (total - of_c)) + (c - of_c)
        bits = total.view(np.int64)
        away = np.sign(missing) == np.sign(total)
        odd = np.where(bits % 2 == 0, bits + np.where(away, 1, -1), bits)
        is_exact = (missing == 0) | ~np.isfinite(total)
        exact = np.where(is_exact, total, odd.view(np.float64))
    with np.errstate(over="ignore"):
        return exact.astype(np.float32)

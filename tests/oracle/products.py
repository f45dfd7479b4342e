"""The float64 product of dequantized operands, and how far float32 sums may be from it.

A product of two elements, of an element and a bfloat16, or of two scaled
elements has at most 7 + 8 bits and lies within 2**+-300: float64 holds it.
What float64 and float32 make of the sums differs by format:

    one block's products   multiples of   at most       bits of the sum
    E2M1 x E2M1            2**-2          36            13: exact in float32
    E2M3 x E2M3            2**-6          56.25         17: exact in float32
    E3M2 x E3M2            2**-8          784           23: exact in float32
    INT8 x INT8            2**-12         4 (-2 * -2)   19: exact in float32
    E4M3 x E4M3            2**-18         2**17.7       41: exact in float64
    E5M2 x E5M2            2**-32         2**31.7       69: exact in neither

So nothing is claimed to be exact: both sums are bounded as n additions in any
order, each of which may round.
"""

from __future__ import annotations

import numpy as np

from .floats import FLOATS


def matmul_reference(a, b, bias=None):
    """Returns `a @ b.T + bias` in float64 for values `a [M, K]`, `b [N, K]`."""
    with np.errstate(invalid="ignore"):
        product = np.asarray(a, np.float64) @ np.asarray(b, np.float64).T
    return product if bias is None else product + bias


def finite_magnitude(a, b, bias=None):
    """Returns the sums of the magnitudes of all addends, those not finite left out."""
    a, b, bias = (
        None if values is None else np.where(np.isfinite(values), abs(np.asarray(values)), 0.0)
        for values in (a, b, bias)
    )
    return matmul_reference(a, b, bias)


def error_bound(a, b, bias=None, scale_roundings: int = 0):
    """Returns how far a float32 accumulation may be from `matmul_reference`.

    Products are exact, and so is every multiplication of a partial sum by a
    scale, a power of two. What is left is at most `n` float32 additions in any
    order, `n*u/(1-n*u) * sum|a*b|`, and for each of them a rounding in
    float32's subnormal range; then the same for the float64 additions of the
    reference. The output cast is `Product`'s.

    Scales that are no powers of two round: their product once, and the sum that
    is multiplied by it. `scale_roundings` says how often, 2 at most.

    It holds for any grouping: block by block with the scale of one side in the
    elements and the other's behind the block's sum, scales last, or scales first.
    """
    additions = a.shape[-1] + (bias is not None) + scale_roundings

    def gamma(unit_roundoff):
        return additions * unit_roundoff / (1 - additions * unit_roundoff)

    single = FLOATS["float32"]
    relative = gamma(single.unit_roundoff) + gamma(2.0**-53)
    return relative * finite_magnitude(a, b, bias) + additions * single.underflow


def fp8_cutoff_bound(a, b, stage=128):
    """Returns what FP8 tensor cores may lose of `a @ b.T` beside float32's roundings.

    An instruction adds 32 products to the sum so far and cuts each addend, that sum included, off
    2**-13 below the largest one. After a stage of K the sum is added to another in float32.
    """
    instruction = 32
    lost = np.zeros((len(a), len(b)))
    for first in range(0, a.shape[-1], stage):
        so_far = np.zeros_like(lost)
        for k in range(first, min(first + stage, a.shape[-1]), instruction):
            products = abs(a[:, None, k : k + instruction] * b[None, :, k : k + instruction])
            largest = np.maximum(products.max(-1), so_far)
            so_far += products.sum(-1)
            lost += (instruction + 1) * 2.0**-13 * largest
    return lost


def common_scale_bound(a, b, stage=128):
    """Returns what `a @ b.T` loses if blocks of MXFP8 get the largest scale of their neighbours.

    Those are a row of `a` in a stage of K, and a whole row of `b`. The largest element there is at
    least 2**8 times that scale, and E4M3 numbers are rounded by at most 2**-10 times it.
    """
    moved = 2.0**-18
    of_b = moved * abs(b).max(-1)[None]
    lost = abs(a).sum(-1)[:, None] * of_b
    for first in range(0, a.shape[-1], stage):
        x, y = abs(a[:, first : first + stage]), abs(b[:, first : first + stage])
        lost += moved * x.max(-1)[:, None] * (y.sum(-1)[None] + y.shape[-1] * of_b)
    return lost

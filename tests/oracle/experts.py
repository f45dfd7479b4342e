"""Layers of experts: activations with their bounds, and sums over slots.

An activation is a handful of float32 operations. With u = 2**-24 their relative errors are

    z = alpha * gate            computed here the same way: one float32 product, so none
    e = exp(-z)                 2u, a unit in the last place
    1 + e                       3u, as e's comes on top
    gate over that              1.04u, hardly more than half such a unit
    times up + 1                u, rounded once             together 5.04u: 6u with their products

Beyond |z| = 87, where e is no longer regular, sigmoid may be taken for 0. What some have beside:

    gelu_tanh     z = gate * (A + A * C * gate**2): of the constant, the square, the sum and the
                  product a term has four, 5u with their products: 5u * |z| * sigmoid(-z) of a
                  sigmoid
    situ          cap * tanh(x / cap), twice. 2 / cap and its product with x are 2u of tanh. With
                  m = exp(-2 |x| / cap) - 1 to 5u, half by the polynomial and half by the last
                  sum, tanh is -m / (2 + m), whose error is up to twice that of m, and u for the
                  sum, the quotient and the product with cap: 15u. Where x / cap is subnormal,
                  cap * 2**-149
    relu2         one product: u
"""

from __future__ import annotations

import numpy as np

UNIT = 2.0**-24
RELATIVE_ERROR = 6 * UNIT
OF_GELU_EXPONENT = 5 * UNIT
OF_CAP = 15 * UNIT
LARGEST_EXPONENT = 87.0
GELU_ALPHA, GELU_CUBIC = 2 * (2 / np.pi) ** 0.5, 0.044715
INTERLEAVED = {"swiglu_oai"}
"""Activations whose gates and ups take turns unless one says otherwise."""
NUMBERS = {
    "swiglu_oai": {"limit": 7.0, "alpha": 1.702},
    "silu": {"limit": np.inf, "alpha": 1.0},
    "swiglu_step": {"limit": 7.0},
    "gelu_tanh": {"limit": np.inf},
    "situ": {"beta": 4.0, "linear_beta": 25.0},
    "relu2": {},
}
"""What activations have beside, unless one says otherwise."""


def gated(sums, hidden_act: str, interleaved: bool | None = None, **numbers):
    """Returns the hidden numbers of float32 sums, and how far float32 may be from them.

    Args:
        sums: [..., 2I], or [..., I] without a gate.
        hidden_act: a name of `NUMBERS`.
        interleaved: whether gates and ups take turns, else they are halves.
        numbers: those of the activation.

    Returns:
        Float64 values and absolute errors.
    """
    sums = np.asarray(sums, np.float32)
    numbers = NUMBERS[hidden_act] | numbers
    assert numbers.keys() == NUMBERS[hidden_act].keys(), numbers
    with np.errstate(over="ignore", invalid="ignore"):
        if hidden_act == "relu2":
            exact = np.where(sums < 0, 0, sums).astype(np.float64) ** 2
            return exact, UNIT * abs(exact)
        if hidden_act in INTERLEAVED if interleaved is None else interleaved:
            gate, up = sums[..., ::2], sums[..., 1::2]
        else:
            gate, up = np.split(sums, 2, -1)
        if hidden_act == "situ":
            return _situ(gate.astype(np.float64), up.astype(np.float64), **numbers)
        limit = np.float32(numbers["limit"])
        factor = np.clip(up, -limit, limit).astype(np.float64) + (hidden_act == "swiglu_oai")
        if hidden_act != "swiglu_step":
            gate = np.minimum(gate, limit)
        z, more = (gate * np.float32(numbers.get("alpha", 1))).astype(np.float64), 0
        gate = gate.astype(np.float64)
        if hidden_act == "gelu_tanh":
            z = GELU_ALPHA * (gate + GELU_CUBIC * gate**3)
            more = OF_GELU_EXPONENT * np.nan_to_num(abs(z) * _sigmoid(-z))
        product = gate * _sigmoid(z)
        if hidden_act == "swiglu_step":
            product = np.minimum(product, np.float64(limit))
        return _with_error(factor * product, factor * gate, RELATIVE_ERROR + more)


def _situ(gate, up, beta: float, linear_beta: float):
    """Returns the same of numbers in float64."""
    beta, linear_beta = float(np.float32(beta)), float(np.float32(linear_beta))
    capped = beta * np.tanh(gate / beta)
    factor = up if linear_beta == np.inf else linear_beta * np.tanh(up / linear_beta)
    exact, error = _with_error(
        factor * (capped * _sigmoid(gate)), factor * capped, RELATIVE_ERROR + 2 * OF_CAP
    )
    lost = 2.0**-149 * beta * abs(factor)
    if linear_beta != np.inf:
        lost = lost + 2.0**-149 * linear_beta * abs(capped)
    return exact, error + lost


def _sigmoid(z):
    """Returns 1 / (1 + exp(-z)); where exp overflows, it is infinite and this 0."""
    return 1 / (1 + np.exp(-z))


def _with_error(exact, without_sigmoid, relative):
    """Returns values and their errors: relative ones, and that of a sigmoid that is taken for 0."""
    flushed = abs(without_sigmoid) * np.exp(-LARGEST_EXPONENT) * (1 + 2.0**-14)
    return exact, relative * abs(exact) + np.where(np.isfinite(flushed), flushed, 0.0)


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

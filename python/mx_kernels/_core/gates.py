"""Activations of experts: what a call says of one, what is meant, and its derivatives by torch.

The table is the extension's, `mojo_kernels/numbers/gates.mojo`, which has the formulas.
"""

from __future__ import annotations

from functools import lru_cache
from numbers import Real
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from mx_kernels._core.facts import Activation, facts
from mx_kernels._core.protocol import Gate
from mx_kernels.hints import GateName

_LARGEST = float(np.finfo(np.float32).max)


class GateOptions(NamedTuple):
    """What a call says of the activation of experts; None is the activation's own."""

    hidden_act: GateName
    interleaved: bool | None = None
    limit: float | None = None
    alpha: float | None = None
    beta: float | None = None
    linear_beta: float | None = None

    def plain(self) -> GateOptions:
        """Returns them with numbers of Python's."""
        numbers = (None if number is None else float(number) for number in self[2:])
        return GateOptions(*self[:2], *numbers)


class GateChoice(NamedTuple):
    """An activation, with all that a call may leave open."""

    row: Activation
    interleaved: bool
    limit: float
    alpha: float


def check_gate(options: GateOptions) -> Gate:
    """Checks the name of an activation, its order and its numbers; returns what a call has."""
    return gate_of(chosen_gate(options))


def gate_of(chosen: GateChoice) -> Gate:
    """Returns what a call has of an activation."""
    row, interleaved, *numbers = chosen
    return Gate(row.code, int(interleaved), *map(_bits_of, numbers))


@lru_cache
def _bits_of(number: float) -> int:
    """Returns the bits of a number as float32 has it."""
    return int(np.float32(number).view(np.uint32))


def chosen_gate(options: GateOptions) -> GateChoice:
    """Checks the same; returns what is meant."""
    name, interleaved, known = options.hidden_act, options.interleaved, facts().gates
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"hidden_act: got {name!r}, expected {' or '.join(map(repr, known))}")
    row = known[name]
    if interleaved is None:
        interleaved = bool(row.is_interleaved)
    elif not isinstance(interleaved, bool):
        raise TypeError(f"interleaved: got {type(interleaved).__name__}, expected a bool")
    elif not row.is_gated:
        raise ValueError(
            f"interleaved: got {interleaved} with hidden_act={name!r}, expected None: it has no "
            "gates, only ups"
        )
    limit, alpha = row.limit, row.alpha
    for given in GateOptions._fields[2:]:
        number = getattr(options, given)
        if number is None:
            continue
        if given not in row.numbers:
            of = [repr(other.name) for other in known.values() if given in other.numbers]
            raise ValueError(
                f"{given}: got {number} with hidden_act={name!r}, which has none, expected None; "
                f"{' or '.join(of)} has one"
            )
        if given == row.alpha_name:
            alpha = _within(given, _positive(given, number), row.most)
        elif number == np.inf:
            limit = np.inf
        else:
            limit = _within(given, _positive(given, number), row.most)
    return GateChoice(row, interleaved, limit, alpha)


def _within(name: str, number: float, most: float) -> float:
    """Checks that a number is from 1 / most to most; returns it."""
    if not 1 / most <= number <= most:
        raise ValueError(f"{name}: got {number}, expected a number from {1 / most} to {most}")
    return number


def _positive(name: str, number: float) -> float:
    """Checks that float32 holds a number that is positive; returns it."""
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"{name}: got {type(number).__name__}, expected a number")
    try:
        value = float(number)
    except OverflowError:
        # Of so many digits that Python may refuse to print them.
        number, value = "a number beyond float64", np.inf
    if not (value <= _LARGEST and np.float32(value) > 0):
        raise ValueError(f"{name}: got {number}, expected a positive number that float32 holds")
    return value


def gated(sums: Tensor, options: GateOptions) -> Tensor:
    """Returns the hidden numbers of sums [..., rows of gate_up], as torch differentiates them."""
    row, interleaved, limit, alpha = chosen_gate(options)
    if not row.is_gated:
        return functional.relu(sums).square()
    gate, up = (sums[..., ::2], sums[..., 1::2]) if interleaved else sums.chunk(2, -1)
    if row.name == "situ":
        return _capped(gate, alpha) * torch.sigmoid(gate) * _capped(up, limit)
    up = up.clamp(-limit, limit)
    if row.name == "swiglu_step":
        return functional.silu(gate).clamp(max=limit) * up
    gate = gate.clamp(max=limit)
    if row.name == "gelu_tanh":
        return functional.gelu(gate, approximate="tanh") * up
    product = gate * torch.sigmoid(alpha * gate)
    return (up + 1) * product if row.name == "swiglu_oai" else up * product


def _capped(x: Tensor, cap: float) -> Tensor:
    """Returns x with a smooth limit; x itself for an infinite one."""
    return x if cap == np.inf else cap * torch.tanh(x / cap)

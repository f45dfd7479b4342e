"""What a class of experts does between its two products: found out by asking it.

`KNOWN` says what it may do, and where it has the numbers of that. A row is what a class does if
both make the same hidden numbers of sums beyond any limit. In transformers 5.24 they are found so:

    silu                  Qwen3-MoE, Mixtral, DeepSeek-V3 and most others
    silu, a limit         DeepSeek-V4, Hy4, GLM5-next
    swiglu_oai            gpt-oss, whose rows take turns; MiniMax-M3, in halves
    swiglu_step           the rule of Step-3.7, whose class is not one of transformers' experts
    gelu_tanh             Gemma 4
    situ                  Inkling 2, and Kimi-K3 where its class has `beta` and `linear_beta`
    relu2, without a gate Nemotron-H
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import inf

import torch
from torch import Tensor, nn

from mx_kernels._core.facts import facts
from mx_kernels._core.gates import GateOptions, gated

_LIMIT = {"limit": ("limit", "swiglu_limit")}
_ALPHA = {"alpha": ("alpha", "swiglu_alpha")}
_CAPS = {
    "beta": ("act_fn.beta", "act_fn.gate_softcap.softcap"),
    "linear_beta": ("act_fn.linear_beta", "act_fn.up_softcap.softcap"),
}
KNOWN: list[tuple[str, dict[str, tuple[str, ...]]]] = [
    ("silu", {}),
    ("silu", _LIMIT),
    ("swiglu_oai", _LIMIT | _ALPHA),
    ("swiglu_step", _LIMIT),
    ("gelu_tanh", {}),
    ("situ", _CAPS),
    ("relu2", {}),
]
"""Activations, and by what names a class may have each of their numbers."""
SPAN = 40.0
"""Sums between which an activation is looked at, at least: their sigmoids are 0 and 1."""


@dataclass(frozen=True)
class Gate:
    """The activation of a module, whose rows lie as `options` say."""

    options: GateOptions

    def __call__(self, sums: Tensor) -> Tensor:
        """Computes what the module makes of sums."""
        return gated(sums, self.options)

    @property
    def is_reordered(self) -> bool:
        """Says whether our modules have the rows in the other order, which kernels are best at."""
        own = bool(facts().gates[self.options.activation].is_interleaved)
        return self.options.interleaved not in {None, own}

    def told(self) -> dict:
        """Returns what MXExperts is told."""
        return self.options._replace(interleaved=None)._asdict()

    def ordered(self, rows: Tensor, *, back: bool = False) -> Tensor:
        """Gives rows of gate and up [E, 2I, ...] the order of our modules, or the module's."""
        if not self.is_reordered:
            return rows
        lead = (2, -1) if self.options.interleaved == back else (-1, 2)
        return rows.unflatten(1, lead).transpose(1, 2).flatten(1, 2)


@torch.no_grad()
def gate_of(module: nn.Module) -> Gate | None:
    """Returns the gate that makes the hidden numbers that a module makes, None if none does."""
    weight = module.gate_up_proj if module.has_gate else module.up_proj
    device = "cpu" if weight.is_meta else weight.device
    candidates = [gate for name, named in KNOWN for gate in _candidates(module, name, named)]
    numbers = (number for gate in candidates for number in gate.options[2:] if number is not None)
    span = 2 * max(SPAN / 2, *numbers, 0.0)
    # In an order that tells gates from ups.
    width = weight.shape[2 if module.is_transposed else 1]
    sums = torch.linspace(-span, span, 3 * width + 1, device=device, dtype=torch.float32)[:-1]
    generator = torch.Generator().manual_seed(0)
    sums = sums[torch.randperm(3 * width, generator=generator, device="cpu")].view(3, width)
    got = module._apply_gate(sums) if module.has_gate else module.act_fn(sums)
    for gate in candidates:
        expected = gate(sums)
        if got.shape == expected.shape and torch.allclose(got, expected, rtol=1e-4, atol=1e-5):
            return gate
    return None


def _candidates(module: nn.Module, activation: str, named: dict[str, tuple[str, ...]]) -> list:
    """Returns what an activation may be in a module: none without its numbers, or of other rows."""
    is_gated = bool(facts().gates[activation].is_gated)
    numbers = {name: _number(module, paths) for name, paths in named.items()}
    if is_gated != module.has_gate or None in numbers.values():
        return []
    orders = (False, True) if is_gated else (None,)
    return [Gate(GateOptions(activation, order, **numbers)) for order in orders]


def _number(module: nn.Module, paths: tuple[str, ...]) -> float | None:
    """Returns the first positive number that a module has under one of some names."""
    for path in paths:
        value = reduce(lambda part, name: getattr(part, name, None), path.split("."), module)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf:
            return float(value)
    return None

"""What a class of experts does between its two products: found out by asking it.

`KNOWN` says what it may do, and where it has the numbers of that. A row is what a class does if
both make the same hidden numbers of sums beyond any limit. In transformers 5.24 they are found so:

    silu                  Qwen3-MoE, Mixtral, DeepSeek-V3, Llama 4 and most others
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
from mx_kernels.hints import GateName

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
ROWS_OF_EACH = ("Llama4TextExperts",)
"""Classes that are given rows of each expert in turn; their rows of gate and up are in halves."""
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
    def wants_turns(self) -> bool:
        """Says whether rows of gate and up take turns in our modules, which kernels are best at."""
        return bool(facts().gates[self.options.hidden_act].is_interleaved)

    @property
    def is_reordered(self) -> bool:
        """Says whether our modules have the rows in the other order."""
        return self.options.interleaved not in {None, self.wants_turns}

    def told(self) -> dict[str, GateName | float | bool | None]:
        """Returns what MXExperts is told."""
        return self.options._replace(interleaved=None)._asdict()

    def ordered(self, rows: Tensor, *, back: bool = False) -> Tensor:
        """Gives rows of gate and up [E, 2I, ...] the order of our modules, or the module's."""
        if not self.is_reordered:
            return rows
        lead = (2, -1) if self.options.interleaved == back else (-1, 2)
        return rows.unflatten(1, lead).transpose(1, 2).flatten(1, 2)


@dataclass(frozen=True)
class Traits:
    """What a class of experts is like."""

    has_gate: bool = True
    is_transposed: bool = False
    """Whether weights are [E, K, N]."""
    has_norm: bool = False
    """Whether there is a norm of each expert's result."""
    takes_rows: bool = False
    """Whether it is given rows of each expert in turn, instead of tokens and ids."""


def traits_of(module: nn.Module) -> Traits | None:
    """Returns what experts are like, None if they are of a form that is not known."""
    if type(module).__name__ in ROWS_OF_EACH:
        return Traits(is_transposed=True, takes_rows=True)
    flags = ("has_gate", "has_bias", "has_post_expert_norm", "is_transposed", "_apply_gate")
    if not all(hasattr(module, flag) for flag in flags):
        return None
    return Traits(module.has_gate, module.is_transposed, module.has_post_expert_norm)


def _hidden_of(module: nn.Module, traits: Traits, sums: Tensor) -> Tensor:
    """Returns the hidden numbers that a module makes of sums."""
    if traits.takes_rows:
        gate, up = sums.chunk(2, -1)
        return module.act_fn(gate) * up
    return module._apply_gate(sums) if traits.has_gate else module.act_fn(sums)


@torch.no_grad()
def gate_of(module: nn.Module) -> Gate | None:
    """Returns the gate that makes the hidden numbers that a module makes, None if none does."""
    traits = traits_of(module)
    weight = module.gate_up_proj if traits.has_gate else module.up_proj
    device = "cpu" if weight.is_meta else weight.device
    known = ((module, traits, name, named) for name, named in KNOWN)
    candidates = [gate for of_one in known for gate in _candidates(*of_one)]
    numbers = (number for gate in candidates for number in gate.options[2:] if number is not None)
    span = 2 * max(SPAN / 2, *numbers, 0.0)
    # In an order that tells gates from ups.
    width = weight.shape[2 if traits.is_transposed else 1]
    sums = torch.linspace(-span, span, 3 * width + 1, device=device, dtype=torch.float32)[:-1]
    generator = torch.Generator().manual_seed(0)
    sums = sums[torch.randperm(3 * width, generator=generator, device="cpu")].view(3, width)
    got = _hidden_of(module, traits, sums)
    for gate in candidates:
        expected = gate(sums)
        if got.shape == expected.shape and torch.allclose(got, expected, rtol=1e-4, atol=1e-5):
            return gate
    return None


def _candidates(
    module: nn.Module, traits: Traits, hidden_act: str, named: dict[str, tuple[str, ...]]
) -> list[Gate]:
    """Returns what an activation may be in a module, nothing if that has other numbers or rows."""
    is_gated = bool(facts().gates[hidden_act].is_gated)
    numbers = {name: _number(module, paths) for name, paths in named.items()}
    if is_gated != traits.has_gate or None in numbers.values():
        return []
    orders = (False, True) if is_gated else (None,)
    return [Gate(GateOptions(hidden_act, order, **numbers)) for order in orders]


def _number(module: nn.Module, paths: tuple[str, ...]) -> float | None:
    """Returns the first positive number that a module has under one of some names."""
    for path in paths:
        value = reduce(lambda part, name: getattr(part, name, None), path.split("."), module)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf:
            return float(value)
    return None

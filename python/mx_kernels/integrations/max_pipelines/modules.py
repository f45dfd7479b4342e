"""Modules of `max.nn` that multiply by quantized weights.

    MXLinear     x @ w.T + bias, in one call            [T, K] -> [T, N]
    Rows         layers whose results lie side by side, where their weights could not be joined
    GatedMLP     down(silu(gate) * up), gate and up in one call where their weights are joined
    Experts      a router and one call for all experts

Which weights are quantized is told by the state dict; the others are MAX's own `Linear`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from max.dtype import DType
from max.graph import DeviceRef, TensorValue, Weight, ops
from max.graph.weights import WeightData
from max.nn.layer import Module
from max.nn.linear import Linear

from mx_kernels import max_graph
from mx_kernels.integrations import ACTIVATIONS
from mx_kernels.integrations.max_pipelines.weights import PREFIX, ROWS, MXWeightData


@dataclass(frozen=True)
class State:
    """What modules are made of."""

    weights: Mapping[str, WeightData]
    device: DeviceRef
    dtype: DType
    """Of floats."""
    activations: str | Mapping[str, str] | None = None
    """What the checkpoint says that activations are multiplied as."""

    def has(self, name: str) -> bool:
        """Says whether there is a weight, as codes or as floats."""
        return name in self.weights or f"{name}.codes" in self.weights

    def linear(self, name: str) -> Module:
        """Returns the layer whose weight has a name, without `.weight`.

        Raises:
            ValueError: if there is no such weight.
        """
        if (said := self.weights.get(f"{name}.weight.codes")) is not None:
            return MXLinear(said, self, name)
        if (found := self.weights.get(f"{name}.weight")) is None:
            raise ValueError(f"{name}.weight: got no such weight in the checkpoint, expected it")
        rows, k = map(int, found.shape)
        has_bias = f"{name}.bias" in self.weights
        return Linear(k, rows, self.dtype, self.device, has_bias=has_bias)

    def rows(self, whole: str, parts: list[str]) -> Module:
        """Returns one layer of all rows, or the layers of their parts beside each other."""
        if self.has(f"{whole}.weight"):
            return self.linear(whole)
        return Rows({part.rpartition(".")[2]: self.linear(part) for part in parts})

    def mode(self, name: str) -> str | None:
        """Returns what a layer's activations are multiplied as, None for the device's best.

        Raises:
            ValueError: if the checkpoint says several of layers whose rows became one weight.
        """
        if asked := os.environ.get(ACTIVATIONS):
            return asked
        if isinstance(said := self.activations, Mapping):
            names = {name}
            for whole, parts in ROWS.items():
                if name.endswith(whole):
                    names |= {name.removesuffix(whole) + part for part in parts}
            found = {said[key] for key in said if key.removeprefix(PREFIX) in names}
            if len(found) > 1:
                raise ValueError(
                    f"{name}: got activations {sorted(found)} of its parts, expected one for all; "
                    f"name it in {ACTIVATIONS}"
                )
            said = found.pop() if found else None
        return said


class MXWeight(Module):
    """Codes and scales of one weight."""

    def __init__(self, said: MXWeightData, scales: WeightData, device: DeviceRef):
        super().__init__()
        self.said = said
        self.codes = Weight("codes", said.dtype, list(said.shape), device)
        self.scales = Weight("scales", scales.dtype, list(scales.shape), device)

    def __call__(self) -> max_graph.MXValue:
        """Returns the weight as a value of the graph."""
        facts_of = {"format": self.said.format, "layout": self.said.layout}
        codes, scales = TensorValue(self.codes), TensorValue(self.scales)
        return max_graph.MXValue(codes, scales, shape=self.said.logical, **facts_of)


def weight_of(state: State, name: str) -> MXWeight:
    """Returns the codes and scales of a name."""
    codes, scales = (state.weights[f"{name}.{part}"] for part in ("codes", "scales"))
    return MXWeight(codes, scales, state.device)


def bias_of(state: State, name: str) -> Weight | None:
    """Returns a bias, None where the checkpoint has none."""
    found = state.weights.get(name)
    if found is None:
        return None
    return Weight(name.rpartition(".")[2], found.dtype, list(found.shape), state.device)


class MXLinear(Module):
    """A linear layer: activations are quantized in the call, or kept."""

    def __init__(self, said: MXWeightData, state: State, name: str):
        super().__init__()
        self.weight = weight_of(state, f"{name}.weight")
        self.activations = state.mode(name)
        self.bias = bias_of(state, f"{name}.bias")

    def __call__(self, x: TensorValue) -> TensorValue:
        """Returns [T, N] of x [T, K]."""
        bias = None if self.bias is None else TensorValue(self.bias)
        return max_graph.linear(x, self.weight(), bias=bias, activations=self.activations)


class Rows(Module):
    """Layers of one input, under the names that a checkpoint has for them."""

    def __init__(self, layers: dict[str, Module]):
        super().__init__()
        self._names = list(layers)
        for name, layer in layers.items():
            setattr(self, name, layer)

    @property
    def _omit_module_attr_name(self) -> bool:
        """Says that weights are not called after this module."""
        return True

    def __call__(self, x: TensorValue) -> TensorValue:
        """Returns all results side by side."""
        return ops.concat([getattr(self, name)(x) for name in self._names], axis=-1)


class GatedMLP(Module):
    """What Llama has behind attention."""

    def __init__(self, state: State, name: str):
        super().__init__()
        parts = [f"{name}.gate_proj", f"{name}.up_proj"]
        self.gate_up_proj = state.rows(f"{name}.gate_up_proj", parts)
        self.down_proj = state.linear(f"{name}.down_proj")

    def __call__(self, x: TensorValue) -> TensorValue:
        """Returns [T, H] of x [T, H]."""
        both = self.gate_up_proj(x)
        inner = int(both.shape[-1]) // 2
        gate, up = ops.split(both, [inner, inner], axis=-1)
        return self.down_proj(ops.silu(gate) * up)


class Experts(Module):
    """A layer of experts, with its router.

    Args:
        state: what it is made of.
        name: of the layer, `layers.0.mlp`.
        router: what the checkpoint calls the router in it.
        active: experts of a token.
        gate: the activation and its numbers, as `max_graph.moe` takes them.
        softmax_first: whether shares are of all experts, before the best are taken.
        normalized: whether shares are divided by the sum of those that are taken.
    """

    def __init__(
        self,
        state: State,
        name: str,
        *,
        router: str,
        active: int,
        gate: dict[str, Any],
        softmax_first: bool,
        normalized: bool,
    ):
        super().__init__()
        setattr(self, router, state.linear(f"{name}.{router}"))
        self._router = router
        self.active: int = active
        self.softmax_first: bool = softmax_first
        self.normalized: bool = normalized
        self.experts = ExpertWeights(state, f"{name}.experts")
        self.activations = state.mode(f"{name}.experts")
        self._rules = dict(gate)
        if self.experts.gate_up_proj.said.has_halves:
            self._rules["interleaved"] = False

    def __call__(self, x: TensorValue) -> TensorValue:
        """Returns [T, H] of x [T, H]."""
        scores = ops.cast(getattr(self, self._router)(x), DType.float32)
        if self.softmax_first:
            scores = ops.softmax(scores)
        shares, ids = ops.top_k(scores, k=self.active, axis=-1)
        if not self.softmax_first:
            shares = ops.softmax(shares)
        elif self.normalized:
            shares = shares / ops.sum(shares, axis=-1)
        own = self.experts
        return max_graph.moe(
            x,
            own.gate_up_proj(),
            own.down_proj(),
            ids,
            shares,
            bias_gate_up=own.gate_up_proj_bias,
            bias_down=own.down_proj_bias,
            activations=self.activations,
            **self._rules,
        )


class ExpertWeights(Module):
    """The weights of all experts of a layer, [E, 2I, H] and [E, H, I]."""

    def __init__(self, state: State, name: str):
        super().__init__()
        self.gate_up_proj = weight_of(state, f"{name}.gate_up_proj")
        self.down_proj = weight_of(state, f"{name}.down_proj")
        self.gate_up_proj_bias = bias_of(state, f"{name}.gate_up_proj_bias")
        self.down_proj_bias = bias_of(state, f"{name}.down_proj_bias")

    def __call__(self) -> None:
        """Raises: a layer of experts takes them."""
        raise NotImplementedError("ExpertWeights: got a call, expected that of Experts")

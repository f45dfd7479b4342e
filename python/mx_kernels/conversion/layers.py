"""Layers that can be converted: how they are known, what stands in the way, what they become.

    Linear      nn.Linear                    weight [N, K]                       MXLinear
    Conv1D      transformers' Conv1D         weight [K, N]                       MXLinear
    experts     transformers' experts        gate_up_proj, down_proj, 3-D        MXExperts
                without a gate               up_proj, down_proj

Classes of other packages are known by their names and by what they have: none is imported. What
a class of experts does between its two products is found out by asking it, see `gates`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mx_kernels._core.checks import mode_rounding
from mx_kernels.conversion.gates import Traits, gate_of, traits_of
from mx_kernels.experts import MXExperts
from mx_kernels.hints import ActivationsName, FormatName, ScaleRule
from mx_kernels.modules import MXLinear, MXModule, parameter, quantized
from mx_kernels.tensor import MXTensor

PARAMETERS = {
    "Linear": (("weight",), ("bias",)),
    "Conv1D": (("weight",), ("bias",)),
    "experts": (("gate_up_proj", "down_proj"), ("gate_up_proj_bias", "down_proj_bias")),
}
"""The weights and biases of each kind of layer."""
WITHOUT_GATE = ("up_proj", "down_proj"), ("up_proj_bias", "down_proj_bias")
"""Those of experts that have no gate."""

SAME_AS_LINEAR = ("FalconLinear",)
"""Subclasses of nn.Linear with a forward of their own that computes what nn.Linear does."""

READ_BY_PARENT = (
    (r"WavLMAttention", r"\w+_proj"),
    (r"\w*Mamba\w*Mixer", r"dt_proj"),
    (r"\w*MHAttentionMap", r"k_(proj|linear)"),
    (r"DisentangledSelfAttention", r"in_proj"),
    (r"MobileBertLMPredictionHead", r"dense|decoder"),
    (r"\w*LSHSelfAttention", r"query_key|value"),
    (r"ParamWrapper", r"base_layer"),
)
"""Classes that compute with the float weights of a layer instead of calling it, and its name."""

CARRIED_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
)
STATE_DICT_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


@dataclass(eq=False)
class Layer:
    """A module that could be converted, under the names of all its places."""

    kind: str
    module: nn.Module
    names: list[str]
    parents: list[nn.Module] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its first name; "model" for the model itself."""
        return self.names[0] or "model"

    @property
    def weights(self) -> dict[str, Tensor]:
        """Its weights by name, in the shapes that the module gives them."""
        return self._own(0)

    @property
    def biases(self) -> dict[str, Tensor]:
        """Its biases by name, those that it has."""
        return self._own(1)

    def _own(self, which: int) -> dict[str, Tensor]:
        own = self.module._parameters
        names = parameters_of(self.kind, self.module)[which]
        return {name: own[name] for name in names if own.get(name) is not None}

    @property
    def shape(self) -> tuple[int, ...]:
        """[out, in]; of experts [E, 2I, H]."""
        module = self.module
        if self.kind == "Linear":
            return module.out_features, module.in_features
        if self.kind == "Conv1D":
            return module.nf, module.nx
        first = next(p for p in module._parameters.values() if p is not None and p.ndim == 3)
        sizes = tuple(next(iter(self.weights.values()), first).shape)
        return (sizes[0], *sizes[:0:-1]) if _traits(module).is_transposed else sizes


def parameters_of(kind: str, module: nn.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the weights and biases of a layer."""
    has_gate = kind != "experts" or _traits(module).has_gate
    return PARAMETERS[kind] if has_gate else WITHOUT_GATE


def _traits(module: nn.Module) -> Traits:
    """Returns what experts are like, also those of a form that is not known."""
    return traits_of(module) or Traits()


def kind_of(module: nn.Module) -> str | None:
    """Returns what kind of layer a module is, None for others."""
    if isinstance(module, MXModule):
        return None
    if isinstance(module, nn.Linear):
        return "Linear"
    own = module._parameters
    name = type(module).__name__
    if name == "Conv1D" and hasattr(module, "nf"):
        return "Conv1D"
    is_3d = any(p is not None and not nn.parameter.is_lazy(p) and p.ndim == 3 for p in own.values())
    if is_3d and ("Experts" in name or {"gate_up_proj", "down_proj"} <= set(own)):
        return "experts"
    return None


def obstacle(layer: Layer, block: int) -> str | None:
    """Returns why a layer cannot be converted and still do what it does, None if it can."""
    for name, parent in zip(layer.names, layer.parents, strict=True):
        reason = _reading(parent, name.rpartition(".")[2])
        if reason:
            return reason
    module = layer.module
    if any(map(nn.parameter.is_lazy, module.parameters(recurse=False))):
        return "it has no weights yet; call the model once"
    if "forward" in vars(module):
        return "its forward was replaced"
    if parametrize.is_parametrized(module):
        return "its weight is parametrized; see torch.nn.utils.parametrize"
    if any(getattr(module, hooks) for hooks in STATE_DICT_HOOKS):
        return "its state-dict hooks expect float weights"
    if layer.kind == "experts":
        return _of_experts(layer, block)
    return _of_linear(layer, block)


def _reading(parent: nn.Module | None, leaf: str) -> str | None:
    """Says who computes with the weights of `leaf` itself, None if nobody does."""
    if isinstance(parent, nn.MultiheadAttention) and leaf == "out_proj":
        return "MultiheadAttention reads its weight"
    for of_parent, of_leaf in READ_BY_PARENT:
        if re.fullmatch(of_leaf, leaf):
            for base in type(parent).__mro__:
                if re.fullmatch(of_parent, base.__name__):
                    return f"{base.__name__} reads its weight"
    if leaf == "base_layer" and len(getattr(parent, "lora_magnitude_vector", ())):
        return "DoRA reads its weight"
    return None


def _of_linear(layer: Layer, block: int) -> str | None:
    """The same for one matrix."""
    module = layer.module
    own = {"weight", "bias"}
    name = type(module).__name__
    is_own = type(module).forward is not nn.Linear.forward and name not in SAME_AS_LINEAR
    if layer.kind == "Linear" and is_own:
        return f"{name}, a subclass of nn.Linear, has a forward of its own"
    held = {*module._parameters, *module._buffers, *module._modules}
    computed = sorted(own - set(module._parameters))
    if computed:
        return f"its {computed[0]} is computed in every call (weight_norm, pruning, ...)"
    if held - own:
        return f"it also holds {', '.join(sorted(held - own))}"
    reason = _of_tensors(layer)
    if reason:
        return reason
    k = module.weight.shape[1 if layer.kind == "Linear" else 0]
    return f"in_features {k} is no multiple of {block}" if k % block or not k else None


def _of_tensors(layer: Layer) -> str | None:
    for name, t in (layer.weights | layer.biases).items():
        if type(t) is not nn.Parameter:
            return f"its {name} is of type {type(t).__name__}"
    return None


def _of_experts(layer: Layer, block: int) -> str | None:
    """The same for experts."""
    module = layer.module
    traits = traits_of(module)
    if len(layer.weights) < 2 or traits is None:
        return f"{type(module).__name__}: experts of a form that is not known"
    if traits.has_norm:
        return f"{type(module).__name__}: a norm of each expert is not supported"
    reason = _of_tensors(layer)
    if reason:
        return reason
    for name, w in layer.weights.items():
        k = w.shape[1 if traits.is_transposed else 2]
        if k % block or not k:
            return f"{name}: K {k} is no multiple of {block}"
    if gate_of(module) is None:
        return f"{type(module).__name__}: its activation is not known"
    return None


# What they become.


Way = Callable[[Tensor], Tensor]


def arrangements(layer: Layer) -> dict[str, Way]:
    """Returns, by name, how weights and biases get the order in which we multiply by them.

    Those without an entry have it already.
    """
    module = layer.module
    if layer.kind == "Linear":
        return {"weight": Tensor.contiguous}
    if layer.kind == "Conv1D":
        return {"weight": lambda w: w.t().contiguous()}
    gate = gate_of(module)
    is_transposed = _traits(module).is_transposed
    first, second = parameters_of(layer.kind, module)[0]

    def as_rows(w: Tensor) -> Tensor:
        return (w.transpose(1, 2) if is_transposed else w).contiguous()

    ways = {first: lambda w: gate.ordered(as_rows(w)), second: as_rows}
    if f"{first}_bias" in layer.biases and gate.is_reordered:
        ways[f"{first}_bias"] = gate.ordered
    return ways


def replace(
    layer: Layer,
    made: dict[Hashable, nn.Parameter],
    *,
    format: FormatName,
    scale_rule: ScaleRule,
    device: str | torch.device | None,
    activations: ActivationsName,
) -> MXModule:
    """Returns what a layer becomes; a weight that `made` has already is not made again."""
    module, ways = layer.module, arrangements(layer)
    rules = {"scale_rule": mode_rounding(activations, scale_rule), "activations": activations}
    choices = {"format": format, "scale_rule": scale_rule, "device": device}

    def weight(name: str) -> nn.Parameter:
        key = (layer.kind, identity(layer.weights[name]))
        if key not in made:
            rows = ways[name](layer.weights[name].detach())
            made[key] = parameter(quantized(rows, **choices))
        return made[key]

    if layer.kind == "experts":
        biases = dict(layer.biases)
        for name in set(biases) & set(ways):
            bias = biases[name]
            biases[name] = nn.Parameter(ways[name](bias.detach()), bias.requires_grad)
        weights, added = parameters_of(layer.kind, module)
        named = zip(PARAMETERS[layer.kind][1], map(biases.get, added), strict=True)
        told = gate_of(module).told() | {"takes_rows": _traits(module).takes_rows}
        new = MXExperts(*map(weight, weights), **dict(named), **told, **rules)
    else:
        new = MXLinear(weight("weight"), module.bias, **rules)
    if layer.kind == "Linear":
        for name, value in vars(module).items():
            vars(new).setdefault(name, value)
    for hooks in CARRIED_HOOKS:
        vars(new)[hooks] = vars(module)[hooks]
    return new.train(module.training)


def restored(
    ours: MXModule, former: nn.Module, made: dict[int, nn.Parameter], dtype: torch.dtype
) -> nn.Module:
    """Returns a layer as it was before, with the numbers of ours: `replace`, backwards.

    Args:
        ours: what became of it.
        former: such a layer, whose parameters may be on meta.
        made: float weights by the id of what they were made of, so that shared ones stay shared.
        dtype: of the weights.
    """
    kind = kind_of(former)
    gate = gate_of(former) if kind == "experts" else None
    is_turned = kind == "Conv1D" or (kind == "experts" and _traits(former).is_transposed)
    weights, biases = parameters_of(kind, former)
    for name in (*weights, *biases):
        own = ours._parameters.get(name)
        if own is None or id(own) in made:
            former._parameters[name] = own if own is None else made[id(own)]
            continue
        t = own.detach().dequantize(dtype) if isinstance(own, MXTensor) else own.detach()
        t = gate.ordered(t, back=True) if gate and name.startswith("gate_up_proj") else t
        t = t.transpose(-1, -2).contiguous() if is_turned and name in weights else t
        former._parameters[name] = made[id(own)] = nn.Parameter(t)
    for hooks in CARRIED_HOOKS:
        vars(former)[hooks] = vars(ours)[hooks]
    return former.train(ours.training)


def identity(t: Tensor) -> Hashable:
    """Returns what tensors have in common that are the same memory."""
    if type(t) is not nn.Parameter or t.is_meta or not t.numel():
        return id(t)
    return t.device, t.data_ptr(), tuple(t.shape)

"""Layers joined: MXNorm gives codes to converted layers that alone read a norm, MXMLP is one MLP.

    norm        transformers' decoder layers, by name: it is known who reads a norm, and of norms
                where they round
    mlp         any module whose forward is the code of `_dense`: most gated MLPs of transformers
    residual    stays: x + residual is an expression of a decoder layer's forward, no module, and
                what takes the place of that forward would not follow its next version

A forward that was replaced is neither. What stands in the way is a reason of the report.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from mx_kernels._core.facts import facts
from mx_kernels.conversion.layers import CARRIED_HOOKS
from mx_kernels.conversion.report import FusedReport
from mx_kernels.fused import MXMLP, MXNorm
from mx_kernels.hints import RoundsName
from mx_kernels.modules import MXLinear, MXModule
from mx_kernels.tensor import MXTensor

FUSES = ("norms",)
_HOME = "transformers.models."
_PRE_MLP, _PRE_FEEDFORWARD = "post_attention_layernorm", "pre_feedforward_layernorm"
_LAYERS = {
    "LlamaDecoderLayer": ("LlamaAttention", _PRE_MLP),
    "MistralDecoderLayer": ("MistralAttention", _PRE_MLP),
    "Qwen2DecoderLayer": ("Qwen2Attention", _PRE_MLP),
    "Qwen3DecoderLayer": ("Qwen3Attention", _PRE_MLP),
    "Qwen3MoeDecoderLayer": ("Qwen3MoeAttention", _PRE_MLP),
    "GptOssDecoderLayer": ("GptOssAttention", _PRE_MLP),
    "GemmaDecoderLayer": ("GemmaAttention", _PRE_MLP),
    "Gemma2DecoderLayer": ("Gemma2Attention", _PRE_FEEDFORWARD),
    "Gemma3DecoderLayer": ("Gemma3Attention", _PRE_FEEDFORWARD),
}
"""Decoder layers: the attention behind the first norm, whose q, k and v alone read it, and the norm
that the MLP alone reads."""


class _Norm(NamedTuple):
    """What a norm computes."""

    rounds: RoundsName
    eps: str = "variance_epsilon"
    """The attribute that has it."""
    weight_offset: float = 0.0


_NORMS = {
    **dict.fromkeys(
        ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "Qwen3MoeRMSNorm"),
        _Norm("each"),
    ),
    "GptOssRMSNorm": _Norm("result"),
    **dict.fromkeys(
        ("GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm"), _Norm("result", "eps", 1.0)
    ),
}


def fuse_layers(model: nn.Module) -> tuple[FusedReport, ...]:
    """Joins what can be; returns what became of each place that could be known."""
    layers = [(name, module) for name, module in model.named_modules() if _is(module, _LAYERS)]
    rows = [row for name, layer in layers for row in _fuse_norms(name, layer)]
    made: dict[int, MXMLP] = {}
    for name, mlp in list(model.named_modules(remove_duplicate=False)):
        if not _is_dense(mlp):
            continue
        names = "gate_proj", "up_proj"
        if id(mlp) not in made:
            reason = _obstacle_of_mlp(mlp) if name else "it is the model itself"
            format = mlp.gate_proj.activations if reason is None else None
            rows.append(FusedReport(name, names, format, reason, "mlp"))
            if reason is not None:
                continue
            made[id(mlp)] = _joined(mlp)
        _put(model, name, made[id(mlp)])
    for name, layer in layers:
        reason = f"an expression of {type(layer).__name__}'s forward, no module"
        rows.append(FusedReport(name, (), None, reason, "residual"))
    return tuple(rows)


def former_layers(model: nn.Module) -> Iterator[tuple[str, MXModule]]:
    """Yields our layers by their names before MLPs were joined, and so some of them twice."""
    for name, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, MXModule):
            continue
        parent, _, leaf = name.rpartition(".")
        is_joined = leaf == "gate_up_proj" and isinstance(model.get_submodule(parent), MXMLP)
        names = (f"{parent}.gate_proj", f"{parent}.up_proj") if is_joined else (name,)
        yield from ((former, module) for former in names)


def split_layers(model: nn.Module, former: nn.Module) -> None:
    """Puts MLPs and norms of `former`, which is like the model was, where ours are.

    Norms have the weights of ours then, MLPs the layers of ours.
    """
    made: dict[int, nn.Module] = {}
    for name, ours in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(ours, MXNorm | MXMLP):
            continue
        if id(ours) not in made:
            made[id(ours)] = theirs = former.get_submodule(name).train(ours.training)
            if isinstance(ours, MXNorm):
                theirs.weight = ours.weight
            else:
                theirs.gate_proj, theirs.up_proj = ours.split()
                theirs.down_proj, theirs.act_fn = ours.down_proj, ours.act_fn
        _put(model, name, made[id(ours)])


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)


# Norms.


def _fuse_norms(name: str, layer: nn.Module) -> Iterator[FusedReport]:
    """Replaces the norms of a decoder layer by MXNorm where it can be; yields their rows."""
    _, second = _LAYERS[type(layer).__name__]
    is_joined = isinstance(layer.mlp, MXMLP)
    of_mlp = ("gate_up_proj",) if is_joined else ("gate_proj", "up_proj")
    places = (
        ("input_layernorm", "self_attn", ("q_proj", "k_proj", "v_proj")),
        (second, "mlp", of_mlp),
    )
    for leaf, owner, readers in places:
        norm = getattr(layer, leaf)
        if isinstance(norm, MXNorm):
            continue
        full_name = f"{name}.{leaf}" if name else leaf
        names = tuple(f"{owner}.{reader}" for reader in readers)
        linears = [getattr(getattr(layer, owner), reader, None) for reader in readers]
        reason = _obstacle_of_norm(layer, owner, norm, linears, names)
        format = None
        if reason is None:
            rounds, eps, offset = _NORMS[type(norm).__name__]
            format, scale_rule = linears[0].activations, linears[0].scale_rule
            ours = MXNorm(
                norm.weight, eps=getattr(norm, eps), rounds=rounds, weight_offset=offset,
                format=format, scale_rule=scale_rule,
            )  # fmt: skip
            setattr(layer, leaf, ours.train(norm.training))
        yield FusedReport(full_name, names, format, reason)


def _is(module: nn.Module, names) -> bool:
    """Says whether a module is one of transformers' by these names, with the forward of these."""
    kind = type(module)
    is_own = kind.__module__.startswith(_HOME) and "forward" not in vars(module)
    return is_own and kind.__name__ in names


def _obstacle_of_norm(layer, owner: str, norm, linears: list, names: tuple[str, ...]) -> str | None:
    """Says why a norm cannot give codes; None if it can."""
    reader, (attention, _) = getattr(layer, owner), _LAYERS[type(layer).__name__]
    is_known = _is(reader, [attention]) if owner == "self_attn" else _is_mlp(reader)
    if not is_known:
        return f"{owner} is a {type(reader).__name__}, which reads floats"
    if not _is(norm, _NORMS):
        return f"a {type(norm).__name__} is no norm whose rounding is known"
    for module in (norm, reader):
        hooks = module._forward_hooks, module._forward_pre_hooks
        if any(hooks):
            return f"a {type(module).__name__} with hooks, which read floats"
    for linear, name in zip(linears, names, strict=True):
        if type(linear) is not MXLinear or not isinstance(linear.weight, MXTensor):
            return f"{name} is a {type(linear).__name__}"
        if linear._forward_hooks or linear._forward_pre_hooks:
            return f"{name} has hooks, which read floats"
        if linear.hadamard is not None:
            return f"{name} rotates what it is given"
    rules = {(linear.activations, linear.scale_rule) for linear in linears}
    if len(rules) > 1:
        return "its readers differ in activations"
    ((activations, _),) = rules
    if activations not in facts().formats:
        return "activations stay floats"
    if facts().formats[activations].block_rows > 1:
        return f"{activations} has blocks of several rows"
    return None


# MLPs.


def _dense(self, x):
    """What MXMLP computes, step by step as transformers writes it; nobody calls it."""
    down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
    return down_proj


def _is_dense(module: nn.Module) -> bool:
    """Says whether a module's forward is the code of `_dense`."""
    code = getattr(type(module).forward, "__code__", None)
    known = _dense.__code__
    is_same = (code.co_code, code.co_names) == (known.co_code, known.co_names) if code else False
    return is_same and "forward" not in vars(module)


def _is_mlp(module: nn.Module) -> bool:
    return isinstance(module, MXMLP) or _is_dense(module)


def _obstacle_of_mlp(mlp: nn.Module) -> str | None:
    """Says why gates and ups cannot be one product; None if they can."""
    for name in ("gate_proj", "up_proj"):
        if any(getattr(getattr(mlp, name), hooks) for hooks in CARRIED_HOOKS[:-1]):
            return f"{name} has hooks"
    extra = mlp._modules.keys() - {"gate_proj", "up_proj", "down_proj", "act_fn"}
    extra |= mlp._parameters.keys() | mlp._buffers.keys()
    if extra:
        return f"it also holds {', '.join(sorted(extra))}"
    return MXMLP.obstacle(mlp.gate_proj, mlp.up_proj)


def _joined(mlp: nn.Module) -> MXMLP:
    """Returns an MLP of the layers of another, with its hooks and attributes."""
    ours = MXMLP(mlp.gate_proj, mlp.up_proj, mlp.down_proj, mlp.act_fn).train(mlp.training)
    for name, value in vars(mlp).items():
        vars(ours).setdefault(name, value)
    for hooks in CARRIED_HOOKS:
        vars(ours)[hooks] = vars(mlp)[hooks]
    return ours

"""Norms that give codes: MXNorm takes the place of a norm that converted layers alone read.

Layers of which it is known who reads a norm, and norms of which it is known where they round, are
those of transformers below, by name; a forward that was replaced is not that. What stands in the
way is a reason of the report.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from mx_kernels._core.facts import KEPT_FLOATS, facts
from mx_kernels.conversion.report import FusedReport
from mx_kernels.fused import MXNorm
from mx_kernels.modules import MXLinear
from mx_kernels.tensor import MXTensor

FUSES = ("norms",)
_HOME = "transformers.models."
_SECOND = ("LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP")
"""Modules behind the second norm whose `gate_proj` and `up_proj` alone read it."""
_LAYERS = {
    "LlamaDecoderLayer": "LlamaAttention",
    "MistralDecoderLayer": "MistralAttention",
    "Qwen2DecoderLayer": "Qwen2Attention",
    "Qwen3DecoderLayer": "Qwen3Attention",
    "Qwen3MoeDecoderLayer": "Qwen3MoeAttention",
    "GptOssDecoderLayer": "GptOssAttention",
}
"""Decoder layers, and the attention behind the first norm, whose q, k and v alone read it."""
_ROUNDS = {
    "LlamaRMSNorm": "each",
    "MistralRMSNorm": "each",
    "Qwen2RMSNorm": "each",
    "Qwen3RMSNorm": "each",
    "Qwen3MoeRMSNorm": "each",
    "GptOssRMSNorm": "result",
}
"""Norms, and where they round."""


def fuse_norms(model: nn.Module) -> tuple[FusedReport, ...]:
    """Replaces norms by MXNorm where it can be; returns what became of each that could be known."""
    rows = []
    for name, layer in model.named_modules():
        for leaf, owner, readers in _places(layer):
            norm = getattr(layer, leaf)
            if isinstance(norm, MXNorm):
                continue
            full_name = f"{name}.{leaf}" if name else leaf
            names = tuple(f"{owner}.{reader}" for reader in readers)
            linears = [getattr(getattr(layer, owner), reader, None) for reader in readers]
            reason = _obstacle(layer, owner, norm, linears, names)
            if reason is None:
                first = linears[0]
                codes = {"format": first.activations, "rounding": first.rounding}
                rounds = _ROUNDS[type(norm).__name__]
                ours = MXNorm(norm.weight, eps=norm.variance_epsilon, rounds=rounds, **codes)
                setattr(layer, leaf, ours.train(norm.training))
                rows.append(FusedReport(full_name, names, first.activations, None))
            else:
                rows.append(FusedReport(full_name, names, None, reason))
    return tuple(rows)


def unfuse_norms(model: nn.Module, former: nn.Module) -> None:
    """Puts norms of `former`, which is like the model was, where MXNorm is, with its weights."""
    places = [name for name, module in model.named_modules() if isinstance(module, MXNorm)]
    for name in places:
        norm, ours = former.get_submodule(name), model.get_submodule(name)
        norm.weight = ours.weight
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, norm.train(ours.training))


def _places(layer: nn.Module) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yields the norms of a decoder layer, the modules behind them, and the linears there."""
    if not _is(layer, _LAYERS):
        return
    yield "input_layernorm", "self_attn", ("q_proj", "k_proj", "v_proj")
    yield "post_attention_layernorm", "mlp", ("gate_proj", "up_proj")


def _is(module: nn.Module, names) -> bool:
    """Says whether a module is one of transformers' by these names, with the forward of these."""
    kind = type(module)
    is_own = kind.__module__.startswith(_HOME) and "forward" not in vars(module)
    return is_own and kind.__name__ in names


def _obstacle(layer, owner: str, norm, linears: list, names: tuple[str, ...]) -> str | None:
    """Says why a norm cannot give codes; None if it can."""
    reader = getattr(layer, owner)
    expected = [_LAYERS[type(layer).__name__]] if owner == "self_attn" else _SECOND
    if not _is(reader, expected):
        return f"{owner} is a {type(reader).__name__}, which reads floats"
    if not _is(norm, _ROUNDS):
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
    rules = {(linear.activations, linear.rounding) for linear in linears}
    if len(rules) > 1:
        return "its readers differ in activations"
    ((activations, _),) = rules
    if activations == KEPT_FLOATS:
        return "activations stay floats"
    if facts().formats[activations].block_rows > 1:
        return f"{activations} has blocks of several rows"
    return None

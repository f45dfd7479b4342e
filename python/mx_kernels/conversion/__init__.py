"""Replaces the layers of a model by ours, keeps what loses most by it, and reports both.

convert(model)               the model itself, with MXLinear and MXExperts inside
conversion_report(model)     what became of which layer, and why

__init__.py   convert: decide, check, replace, report
rules.py      which layers are kept, and why
layers.py     what a layer is, what stands in its way, what it becomes
fusing.py     norms that give codes, MLPs of one product
report.py     the table
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TypeVar

import torch
from torch import nn

from mx_kernels._core.arrays import check_floats, show
from mx_kernels._core.checks import check_hadamard, check_mode, format_named, mode_rounding
from mx_kernels._core.facts import (
    DEFAULT_FORMAT,
    DEFAULT_ROUNDING,
    activations_for,
    weights_format,
)
from mx_kernels._core.moved import renamed
from mx_kernels.conversion.fusing import FUSES, former_layers, fuse_layers, split_layers
from mx_kernels.conversion.gates import Gate, gate_of, traits_of
from mx_kernels.conversion.layers import (
    Layer,
    Way,
    arrangements,
    kind_of,
    obstacle,
    replace,
    restored,
)
from mx_kernels.conversion.report import (
    ATTRIBUTE,
    FusedReport,
    LayerReport,
    Report,
    bytes_of_all,
    conversion_report,
)
from mx_kernels.conversion.rules import (
    Activations,
    Pattern,
    Tree,
    activations_of,
    check_patterns,
    decide,
    is_of_rest,
    patterns_of,
)
from mx_kernels.hints import FormatName, ScaleRule
from mx_kernels.modules import MXLinear, MXModule, quantized

__all__ = ["FusedReport", "LayerReport", "Report", "conversion_report", "convert"]

FINISHED: list[Callable[[nn.Module], None]] = []
"""What is called with each model that `convert` returns."""


Model = TypeVar("Model", bound=nn.Module)


@renamed(rounding="scale_rule")
def convert(
    model: Model,
    filter: Callable[[str, nn.Module], bool] | None = None,
    *,
    keep: Pattern | Iterable[Pattern] = (),
    include: Pattern | Iterable[Pattern] = (),
    format: FormatName = DEFAULT_FORMAT,
    scale_rule: ScaleRule = DEFAULT_ROUNDING,
    device: str | torch.device | None = None,
    activations: Activations = None,
    fuse: str | None = None,
    rest: FormatName | None = None,
) -> Model:
    """Replaces layers of `model` in place by MXLinear and MXExperts; returns the model.

    Layers are `nn.Linear`, transformers' `Conv1D`, and its experts with 3-D weights. Kept as they
    are, unless `include` names them:

    * output heads, routers, and adapters beside a base layer, which is converted;
    * vision and audio towers beside a language model, and projectors that join the two;
    * layers whose weight is also that of a module that is kept, like an embedding;
    * subclasses of `nn.Linear` that compute what it computes;
    * layers of so few outputs that no memory is saved, like a classifier of two classes.

    Kept in any case, because the result would be another model: layers whose in_features is no
    multiple of the block size; subclasses and instances with a forward of their own; weights that
    are parametrized or computed in every call; layers with state-dict hooks, parameters or modules
    of their own; layers whose weights another module reads, like `nn.MultiheadAttention`; experts
    whose activation `mx_kernels.moe` does not have.

    Forward and backward hooks move to the new module, and their handles still remove them. A layer
    in several places stays one layer, and a weight in several layers one weight.
    `nn.TransformerEncoder` is told to call its layers instead of reading their weights.
    `conversion_report(model)` says what became of every layer.

    Args:
        model: any module; a layer itself comes back as another module.
        filter: called as `filter(name, module)` for each layer that would be converted; False
            keeps it. None converts all.
        keep: names of modules to be left alone with all that is in them. A name may be the end
            of one, and * stands for anything: "lm_head", "layers.0", "layers.*.self_attn".
        include: names of modules to be converted although a rule would keep them; `keep` goes
            before.
        format: what weights are quantized to, see `quantize`; "fp8_block" is "fp8_block_2d" for
            them.
        scale_rule: how weights and activations are quantized; see `MXLinear.from_linear`.
        device: whose layout the weights get; see `MXLinear.from_linear`.
        activations: what activations are multiplied as; see `MXLinear.from_linear`. For choices
            by layer a mapping from names as in `keep`, the first that fits, or a function of a
            layer's name; layers without a choice get the default.
        fuse: "norms" joins what stands beside the layers, also those of an earlier call or of a
            checkpoint. Norms of transformers' Llama, Mistral, Qwen2, Qwen3, gpt-oss and Gemma give
            their readers codes at once, where all of these are converted to the same activations;
            where a gradient is wanted they give floats, as before. Gates and ups of MLPs become
            one product, with the bits of two on a CPU. The report says which, and why others stay.
        rest: what output heads are quantized to that have a weight of their own: "mxint8" halves
            what a token reads of them, at 1 % of error. None keeps them; the report says what they
            weigh.

    Raises:
        TypeError: if an argument is of another kind, or the weights of a selected layer are of
            another type than bfloat16, float16 or float32.
        ValueError: if nothing was selected, unless there is something to fuse; if there is no
            output head for `rest`; if a name fits nothing, `include` names a layer that cannot be
            converted, or weights are on the meta device. Nothing is replaced then.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: got {type(model).__name__}, expected an nn.Module")
    if filter is not None and not callable(filter):
        raise TypeError(
            f"filter: got {type(filter).__name__}, expected a function of a name and a module; "
            "for names see keep and include"
        )
    if fuse is not None and fuse not in FUSES:
        raise ValueError(f"fuse: got {fuse!r}, expected None or {' or '.join(map(repr, FUSES))}")
    patterns = {"keep": patterns_of("keep", keep), "include": patterns_of("include", include)}
    choices = {"format": format, "scale_rule": scale_rule, "device": device}
    is_ours = fuse is not None and any(isinstance(inner, MXLinear) for inner in model.modules())
    decided = _decided(
        model, filter, patterns, choices, activations, rest=rest, needs_some=not is_ours
    )
    for layer in decided[1]:
        _check_weights(layer)
    model = _replaced(model, *decided, choices)
    if fuse is not None:
        report = vars(model)[ATTRIBUTE]
        fusions = (*report.fusions, *fuse_layers(model))
        setattr(model, ATTRIBUTE, dataclasses.replace(report, fusions=fusions))
    for listener in FINISHED:
        listener(model)
    return model


def convert_skeleton(
    model: nn.Module,
    *,
    keep: Iterable[Pattern],
    include: Iterable[Pattern],
    format: FormatName,
    scale_rule: ScaleRule,
    device: str | torch.device,
    activations: Activations,
) -> dict[str, Way]:
    """Does what `convert` would do to a model whose weights, on meta, are still to be loaded.

    Args:
        model: a module on the meta device; its quantized weights are there too, and plain.
        keep: as for `convert`, like all that follows.
        include: names.
        format: of the weights.
        scale_rule: of weights and activations.
        device: where the weights will lie.
        activations: what they are multiplied as.

    Returns:
        For each parameter that cannot be loaded as it is, by name, the function that gives floats
        the order in which they are quantized, or kept.
    """
    patterns = {"keep": tuple(keep), "include": tuple(include)}
    choices = {"format": format, "scale_rule": scale_rule, "device": device}
    reasons, chosen = _decided(model, None, patterns, choices, activations)
    ways = {
        f"{name}.{of}": way
        for layer in chosen
        for name in layer.names
        for of, way in arrangements(layer).items()
    }
    _replaced(model, reasons, chosen, choices | {"device": None})
    return ways


def restore_skeleton(
    model: nn.Module,
    weights: Mapping[str, tuple[str, tuple[int, ...]]],
    *,
    scale_rule: Activations,
    device: str | torch.device,
    activations: Activations,
    hadamard: Mapping[str, int],
) -> set[str]:
    """Puts MXLinear and MXExperts on meta where quantized weights will be loaded.

    Args:
        model: a module on the meta device.
        weights: format and shape of each quantized weight, by the name of the parameter.
        scale_rule: of the activations, for all layers or by name as `activations`.
        device: where the weights will lie.
        activations: what they are multiplied as.
        hadamard: how many of their neighbours are rotated together, by the names of layers.

    Returns:
        The names of weights that no layer of ours multiplies by.

    Raises:
        ValueError: if experts cannot be ours, or a weight is of another shape.
    """
    left, made = dict(weights), {}
    for layer in Tree(model).layers:
        names = [f"{layer.name}.{of}" for of in layer.weights]
        found = {name: left[name] for name in names if name in left}
        if not found:
            continue
        formats = {format for format, _ in found.values()}
        if len(found) < len(names) or len(formats) > 1:
            raise ValueError(f"got {found}, expected {' and '.join(names)} in one format")
        (format,) = formats
        hindrance = obstacle(layer, format_named(format).k_multiple)
        if hindrance and layer.kind == "experts":
            raise ValueError(f"{layer.name}: got quantized weights, but {hindrance}")
        if hindrance:
            continue
        for name in layer.names:
            for of in layer.weights:
                left.pop(f"{name}.{of}", None)
        rule = activations_of(layer, scale_rule) or DEFAULT_ROUNDING
        mode = _mode_of(layer, activations, rule, device, format)
        choices = {"format": format, "scale_rule": rule, "device": None}
        layer.module = replace(layer, made, activations=mode, **choices)
        if block := hadamard.get(layer.names[0]):
            weight = layer.module.weight
            layer.module.hadamard = check_hadamard(block, weight)
        _put(model, layer)
        for name, (_, shape) in found.items():
            own = tuple(model.get_parameter(name).shape)
            if own != tuple(shape):
                raise ValueError(f"{name}: got {show(shape)}, expected {show(own)}")
    _call_layers(model)
    return set(left)


def row_orders(
    model: nn.Module, weights: Container[str], *, halves: Container[str] = ()
) -> dict[str, Way]:
    """Returns how rows of stored experts get the order in which our modules have them.

    Args:
        model: a module on the meta device.
        weights: names of weights whose rows lie as the module reads them.
        halves: names of those whose rows of gate and up are in halves, whatever the module reads.

    Returns:
        For each weight, and each bias that one of them may have, whose rows lie otherwise, a
        function of tensors [E, 2I, ...].
    """
    orders = {}
    for layer in Tree(model).layers:
        first = next(iter(layer.weights), "")
        name = f"{layer.name}.{first}"
        is_asked = layer.kind == "experts" and name in weights and traits_of(layer.module)
        gate = gate_of(layer.module) if is_asked else None
        if gate is None or gate.options.interleaved is None:
            continue
        stored = Gate(gate.options._replace(interleaved=False)) if name in halves else gate
        # A bias lies as the module reads it, whatever its weights do.
        pairs = {name: stored, f"{name}_bias": gate}
        orders |= {key: of.ordered for key, of in pairs.items() if of.is_reordered}
    return orders


def revert(model: nn.Module, former: nn.Module, dtype: torch.dtype) -> None:
    """Makes float layers of ours again, as they were before `convert`.

    Args:
        model: a converted one.
        former: one like it was, on meta; gives its layers away.
        dtype: of the weights.

    Raises:
        ValueError: if a layer of ours has no counterpart there. Nothing is replaced then.
    """
    layers = dict(former.named_modules(remove_duplicate=False))
    for name, _ in former_layers(model):
        if kind_of(layers.get(name, former)) is None:
            raise ValueError(
                f"{name}: got {type(layers.get(name)).__name__} in {type(former).__name__}, "
                "expected the layer that was converted"
            )
    split_layers(model, former)
    weights, made = {}, {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(module, MXModule):
            continue
        if id(module) not in made:
            made[id(module)] = restored(module, layers[name], weights, dtype)
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, made[id(module)])
    vars(model).pop(ATTRIBUTE, None)


# The two steps.


def _decided(
    model: nn.Module,
    filter: Callable[[str, nn.Module], bool] | None,
    patterns: dict[str, tuple[Pattern, ...]],
    choices: dict,
    activations: Activations,
    *,
    rest: FormatName | None = None,
    needs_some: bool = True,
) -> tuple[dict[Layer, str | None], dict[Layer, dict[str, str]]]:
    """Returns why each layer is kept, and what weights and activations of the others become."""
    fmt = format_named(choices["format"])
    scale_rule, device = choices["scale_rule"], choices["device"]
    quantized(torch.zeros(1, fmt.k_multiple, device="cpu"), **choices)  # Raises if a name is wrong.
    fmt = format_named(weights_format(fmt.name))
    of_rest = None if rest is None else format_named(weights_format(format_named(rest).name))
    tree = Tree(model)
    _check_activations(activations, scale_rule, tree)
    reasons = decide(tree, fmt, device=device, filter=filter, rest=of_rest, **patterns)
    chosen = [layer for layer, reason in reasons.items() if reason is None]
    if needs_some:
        _check_some(reasons, chosen)
    heads = {layer for layer in chosen if of_rest and is_of_rest(tree, layer, patterns["include"])}
    if of_rest and not heads:
        found = [f"{la.name} ({why})" for la, why in reasons.items() if is_of_rest(tree, la, ())]
        raise ValueError(
            f"rest: got {rest!r}, expected None, for there is no output head to convert"
            + (f": {', '.join(found)}" if found else "")
        )
    formats = {layer: (of_rest if layer in heads else fmt).name for layer in chosen}
    return reasons, {
        layer: {
            "format": name,
            "activations": _mode_of(layer, activations, scale_rule, device, name),
        }
        for layer, name in formats.items()
    }


def _replaced(
    model: nn.Module,
    reasons: dict[Layer, str | None],
    chosen: dict[Layer, dict[str, str]],
    choices: dict,
) -> nn.Module:
    """Puts our layers where they belong, and the report into the model; returns it."""
    bytes_before, rows = bytes_of_all(model), _rows_before(reasons)
    made: dict = {}
    for layer, own in chosen.items():
        # The float weights are freed one by one: a layer lets go of the module it was.
        layer.module = replace(layer, made, **(choices | own))
        model = _put(model, layer)
    _call_layers(model)
    report = _report(model, reasons, rows, bytes_before)
    setattr(model, ATTRIBUTE, report)
    return model


# What is refused before anything is replaced.


def _check_activations(activations: Activations, scale_rule: str, tree: Tree) -> None:
    if activations is None or callable(activations):
        return
    if isinstance(activations, Mapping):
        check_patterns("activations", patterns_of("activations", activations), tree.modules)
        modes = activations.values()
    elif isinstance(activations, str):
        modes = [activations]
    else:
        raise TypeError(
            f"activations: got {type(activations).__name__}, expected a name, a mapping from names "
            "of layers, or a function of one"
        )
    for mode in modes:
        if mode is not None:
            check_mode(mode, mode_rounding(mode, scale_rule))


def _check_some(reasons: dict[Layer, str | None], chosen: list[Layer]) -> None:
    if chosen:
        return
    if not reasons:
        raise ValueError(
            "model: got one without nn.Linear, Conv1D or experts that are not converted yet, "
            "expected at least one"
        )
    listed = [f"{layer.name} ({reason})" for layer, reason in reasons.items()]
    shown, more = listed[:5], len(listed) - 5
    raise ValueError(
        f"got no layer to convert: {', '.join(shown)}{f' and {more} more' if more > 0 else ''}; "
        "expected at least one, see filter, keep and include"
    )


def _check_weights(layer: Layer) -> None:
    for name, t in (layer.weights | layer.biases).items():
        full_name = f"{layer.name}.{name}"
        if t.is_meta:
            raise ValueError(
                f"{full_name}: got a tensor on meta, which has no numbers, expected one in memory; "
                "load the model without offloading, or to_empty() and then its weights, or name "
                "the layer in keep"
            )
        check_floats(t, full_name)


def _mode_of(layer: Layer, activations: Activations, scale_rule: str, device, format: str) -> str:
    """Returns what the activations of a layer become."""
    mode = activations_of(layer, activations)
    if mode is None:
        mode = activations_for(device or next(iter(layer.weights.values())).device, format)
    check_mode(mode, mode_rounding(mode, scale_rule))
    return mode


# Places.


def _put(model: nn.Module, layer: Layer) -> nn.Module:
    """Puts a layer's module in all its places; returns the model, which it may be itself."""
    for name, parent in zip(layer.names, layer.parents, strict=True):
        if parent is None:
            return layer.module
        setattr(parent, name.rpartition(".")[2], layer.module)
    return model


def _call_layers(model: nn.Module) -> None:
    """Makes torch's encoders call their layers, where in eval mode they would read the weights.

    These are the facts that their own checks ask for before that.
    """
    for module in model.modules():
        is_ours = any(isinstance(inner, MXLinear) for inner in module.modules())
        if is_ours and isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        if is_ours and isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False


# The report.


def _rows_before(layers: Iterable[Layer]) -> dict[Layer, dict]:
    """Returns what the report says of layers as they were."""
    counted: set[int] = set()
    return {
        layer: {
            "kind": type(layer.module).__name__,
            "shape": layer.shape,
            "bytes_before": bytes_of_all(layer.module, counted),
        }
        for layer in layers
    }


def _report(
    model: nn.Module, reasons: dict[Layer, str | None], rows: dict[Layer, dict], bytes_before: int
) -> Report:
    """Returns the report of this call, behind what an earlier call has converted."""
    counted: set[int] = set()
    layers = []
    for layer, reason in reasons.items():
        ours = layer.module if reason is None else None
        layers.append(
            LayerReport(
                name=layer.name,
                reason=reason,
                format=ours and ours.format,
                activations=ours and ours.activations,
                bytes_after=bytes_of_all(layer.module, counted),
                **rows[layer],
            )
        )
    former, norms = vars(model).get(ATTRIBUTE), ()
    if former is not None:
        layers, bytes_before = [*former.converted, *layers], former.bytes_before
        norms = former.fused
    return Report(tuple(layers), bytes_before, bytes_of_all(model), norms)

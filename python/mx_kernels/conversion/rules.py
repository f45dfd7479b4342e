"""Which layers of a model stay floats, and why: patterns of names, and rules for what loses most.

A pattern is a name or the end of one, where * stands for anything. It means a module and all that
is in it:

    "lm_head"              lm_head, model.lm_head
    "layers.0"             model.layers.0.mlp.up_proj, encoder.layers.0.mlp.up_proj, ...
    "layers.*.self_attn"   model.layers.7.self_attn.q_proj, ...

The rules know heads, routers, adapters and towers by the names that models give them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from fnmatch import fnmatchcase

import torch
from torch import nn

from mx_kernels._core.facts import Format, facts
from mx_kernels._core.storage import storage_of
from mx_kernels.conversion.layers import SAME_AS_LINEAR, Layer, identity, kind_of, obstacle
from mx_kernels.hints import ActivationsName

HEADS = ("lm_head", "embed_out")
"""Names of output layers; transformers' models also tell theirs: `get_output_embeddings`."""

HEAD = "output head"
"""Why they are kept."""

ROUTER_CLASS = re.compile(r"Router|MoE\w*Gate")
ROUTER_NAME = re.compile(r"router|^shared_experts?_gate$")
GATE_NAMES = ("gate", "wg")
"""Names of routers where there are experts beside them; elsewhere they are common linear layers."""

TOWERS = re.compile(
    r"(high_res_)?(vision|visual|image|video|audio|speech)"
    r"(_(tower|model|encoder|backbone|tokenizer|adapter|proj\w*|embed\w*))?"
    r"|(multi_?modal|mm|modality|language)_proj\w*|embed_(vision|audio)"
    r"|projector|connector|aligner|resampler(_model)?|qformer|vpm|apm"
)
"""Names of what reads pictures or sound for a language model, and of what joins the two."""
LANGUAGE = ("language_model", "text_model", "llm")
"""Names of language models; what lies beside them is a tower too."""
TEXT = re.compile(
    "|".join((*LANGUAGE, "lm_head", "text_(en|de)coder", "embed_tokens", "word_embeddings", "wte"))
)
"""Names of what models of language have; without any a model has no towers, it is one."""

EXPERT_COUNTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_routed_experts",
)

Pattern = str
Choice = ActivationsName | None
Activations = Choice | Mapping[Pattern, Choice] | Callable[[str], Choice]


class Tree:
    """A model's modules by name, and the layers among them that could be converted."""

    def __init__(self, model: nn.Module):
        self.modules: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
        self.heads: set[int] = _heads(self.modules.values())
        self.holders: dict[Hashable, dict[int, str]] = {}
        layers: dict[int, Layer] = {}
        for name, module in self.modules.items():
            key = id(module)
            if key in layers:
                layers[key].names.append(name)
            elif kind := kind_of(module):
                layers[key] = Layer(kind, module, [name])
            for of_parameter, t in module._parameters.items():
                if t is not None and not nn.parameter.is_lazy(t):
                    place = f"{name}.{of_parameter}" if name else of_parameter
                    self.holders.setdefault(identity(t), {}).setdefault(key, place)
        for name, other in (getattr(model, "all_tied_weights_keys", None) or {}).items():
            self._tie(name, other)
        for layer in layers.values():
            layer.parents = [self.parent(name) if name else None for name in layer.names]
        self.layers: list[Layer] = list(layers.values())
        self.towers: set[str] = in_towers(self.modules)

    def _tie(self, name: str, to: str) -> None:
        """Joins the holders of two weights on meta that transformers will make one."""
        held = [self.parent(at)._parameters.get(at.rpartition(".")[2]) for at in (name, to)]
        if all(t is not None and t.is_meta for t in held):
            mine, others = map(identity, held)
            self.holders[others].update(self.holders[mine])
            self.holders[mine] = self.holders[others]

    def parent(self, name: str) -> nn.Module:
        """Returns the module that holds the one of that name."""
        return self.modules[name.rpartition(".")[0]]

    def path(self, name: str) -> list[tuple[str, nn.Module]]:
        """Returns the modules from the model's child down to `name`, with their last names."""
        parts = name.split(".")
        return [(part, self.modules[".".join(parts[: i + 1])]) for i, part in enumerate(parts)]


def decide(
    tree: Tree,
    fmt: Format,
    *,
    device: str | torch.device | None,
    filter: Callable[[str, nn.Module], bool] | None,
    keep: tuple[Pattern, ...],
    include: tuple[Pattern, ...],
    rest: Format | None = None,
) -> dict[Layer, str | None]:
    """Returns for every layer why it is kept, None for those to be converted.

    With a `rest`, output heads get that format, unless `include` names them.

    Raises:
        ValueError: if a layer that `include` names cannot be converted, or a pattern fits nothing.
    """
    check_patterns("keep", keep, tree.modules)
    check_patterns("include", include, tree.modules)
    reasons, impossible = {}, []
    for layer in tree.layers:
        if fits_any(layer.names, keep):
            reasons[layer] = "named in keep"
            continue
        own = rest if rest is not None and is_of_rest(tree, layer, include) else fmt
        hindrance = obstacle(layer, own.k_multiple)
        if fits_any(layer.names, include):
            reasons[layer] = hindrance
            if hindrance:
                impossible.append(f"{layer.name} ({hindrance})")
            continue
        rule = None if own is rest else _rule_of(tree, layer)
        reasons[layer] = rule or hindrance or _doubt(layer, own, device)
        if (
            reasons[layer] is None
            and filter is not None
            and not filter(layer.names[0], layer.module)
        ):
            reasons[layer] = "left out by filter"
    if impossible:
        raise ValueError(
            f"include: got {', '.join(impossible)}, expected layers that can be converted; name "
            "these in keep"
        )
    _keep_ties(tree, reasons, include)
    for layer, reason in reasons.items():
        others = _others(tree, layer, {id(layer.module)}) if reason == HEAD else ()
        if others:
            reasons[layer] = f"{HEAD}, shares its weight with {others[0]}"
    return reasons


def _keep_ties(tree: Tree, reasons: dict[Layer, str | None], include: tuple[Pattern, ...]) -> None:
    """Keeps layers whose weights are also those of a module that is kept."""
    chosen = {id(layer.module): layer for layer, reason in reasons.items() if reason is None}
    is_settled = False
    while not is_settled:
        is_settled = True
        for key, layer in list(chosen.items()):
            others = _others(tree, layer, chosen)
            if others and not fits_any(layer.names, include):
                reasons[layer] = f"shares its weight with {others[0]}"
                del chosen[key]
                is_settled = False


def _others(tree: Tree, layer: Layer, known: Container[int]) -> list[str]:
    """Returns the places of a layer's weights in modules that are not known, by their ids."""
    holders = [tree.holders[identity(w)] for w in layer.weights.values()]
    return [place for of in holders for other, place in of.items() if other not in known]


def is_of_rest(tree: Tree, layer: Layer, include: tuple[Pattern, ...]) -> bool:
    """Says whether a layer is an output head that `include` does not name."""
    is_named = any(name.rpartition(".")[2] in HEADS for name in layer.names)
    is_head = is_named or id(layer.module) in tree.heads
    return is_head and not fits_any(layer.names, include)


def _rule_of(tree: Tree, layer: Layer) -> str | None:
    """Returns which rule keeps a layer, None if none does."""
    if is_of_rest(tree, layer, ()):
        return HEAD
    for name in layer.names:
        path = tree.path(name)
        if _is_adapter(tree, name, path):
            return "adapter"
        if layer.kind != "experts" and _is_router(tree.parent(name), path, layer):
            return "router"
        if name in tree.towers:
            return "tower or projector"
    return None


def _doubt(layer: Layer, fmt: Format, device: str | torch.device | None) -> str | None:
    """Returns why a layer is better left alone, though it could be converted."""
    if layer.kind == "experts":
        return None
    name = type(layer.module).__name__
    is_plain = type(layer.module) is nn.Linear or name in SAME_AS_LINEAR
    if layer.kind == "Linear" and not is_plain:
        return f"{name}, a subclass of nn.Linear"
    # Layouts pad the rows.
    (weight,) = layer.weights.values()
    place = device or weight.device
    layout = facts().layout_for(place, fmt.name, layer.shape[-1]) or facts().plain
    codes, scales = map(math.prod, storage_of(layer.shape, fmt, layout))
    after = codes + scales * fmt.scale_bytes
    return None if after < weight.nbytes else f"{layer.shape[0]} outputs are too few to save memory"


def _heads(modules: Iterable[nn.Module]) -> set[int]:
    """Returns the output layers that models tell, as ids."""
    heads = set()
    for module in modules:
        tell = getattr(module, "get_output_embeddings", None)
        if callable(tell):
            try:
                heads.add(id(tell()))
            except (AttributeError, NotImplementedError):
                continue  # A model without one.
    return heads - {id(None)}


def _is_adapter(tree: Tree, name: str, path: list) -> bool:
    """Says whether a layer is what PEFT added beside a base layer, or trains instead of one."""
    parts = [part for part, _ in path]
    if any(part.startswith("lora_") or part == "modules_to_save" for part in parts):
        return True
    inner = parts[1:]
    holders = [module for _, module in path[:-1]]
    return any(
        "base_layer" in holder._modules and part != "base_layer"
        for holder, part in zip(holders, inner, strict=True)
    )


def _is_router(parent: nn.Module, path: list, layer: Layer) -> bool:
    """Says whether a layer chooses experts."""
    leaf = path[-1][0]
    if any(ROUTER_CLASS.search(type(module).__name__) for _, module in path):
        return True
    if any(ROUTER_NAME.search(part) for part, _ in path):
        return True
    beside = [module for name, module in parent._modules.items() if "experts" in name]
    if leaf in GATE_NAMES and beside:
        return True
    counts = {getattr(module, name, 0) for module in (parent, *beside) for name in EXPERT_COUNTS}
    counts |= {len(module) for module in beside if isinstance(module, nn.ModuleList)}
    rows = layer.shape[0]
    return rows > 1 and rows in {count for count in counts if isinstance(count, int)}


def in_towers(names: Iterable[str]) -> set[str]:
    """Returns the names, of modules or parameters, that are of towers and projectors.

    `names` are all of a model.
    """
    paths = {name: name.split(".") for name in names}
    # What holds a language model, and so what lies beside it.
    holders = {tuple(p[:i]) for p in paths.values() for i, part in enumerate(p) if part in LANGUAGE}

    def is_tower(path: list[str], i: int) -> bool:
        is_beside = tuple(path[:i]) in holders and path[i] not in LANGUAGE
        return is_beside or bool(TOWERS.fullmatch(path[i]))

    found = {name for name, p in paths.items() if any(is_tower(p, i) for i in range(len(p)))}
    speaks = any(TEXT.fullmatch(part) for name in paths.keys() - found for part in paths[name])
    return found if speaks else set()


# Patterns.


def fits(name: str, pattern: Pattern) -> bool:
    """Says whether a pattern means the module of this name, or one that it is in."""
    parts = name.split(".")
    wholes = (".".join(parts[: i + 1]) for i in range(len(parts)))
    return any(fnmatchcase(whole, end) for whole in wholes for end in (pattern, "*." + pattern))


def fits_any(names: Iterable[str], patterns: Iterable[Pattern]) -> bool:
    """Says whether one of the patterns means a module with these names."""
    return any(fits(name, pattern) for name in names for pattern in patterns)


def patterns_of(what: str, patterns: Pattern | Iterable[Pattern]) -> tuple[Pattern, ...]:
    """Returns patterns as a tuple: one, or several.

    Raises:
        TypeError: if they are something else.
    """
    listed = (patterns,) if isinstance(patterns, str) else patterns
    if not isinstance(listed, Iterable) or not all(isinstance(p, str) for p in (*listed,)):
        raise TypeError(
            f"{what}: got {patterns!r}, expected names or patterns of names: "
            f'{what}=["lm_head", "layers.*.self_attn"]'
        )
    return tuple(listed)


def check_patterns(what: str, patterns: Iterable[Pattern], names: Iterable[str]) -> None:
    """Raises if a pattern fits no module.

    Raises:
        ValueError: naming it, because it is probably misspelt.
    """
    for pattern in patterns:
        if not any(fits(name, pattern) for name in names):
            raise ValueError(
                f"{what}: got {pattern!r}, which fits no module, expected names as in "
                "model.named_modules(), or their ends, with * for anything"
            )


def activations_of(layer: Layer, activations: Activations) -> Choice:
    """Returns what the activations of a layer become, None for what its device is best at."""
    if isinstance(activations, Mapping):
        if layer.name in activations:
            return activations[layer.name]
        fitting = (mode for p, mode in activations.items() if fits_any(layer.names, [p]))
        return next(fitting, None)
    return activations(layer.names[0]) if callable(activations) else activations

"""What a weight of floats is: one that stays, or one whose K lies along an axis.

Names alone tell which stay:

    embeddings  tables of tokens, positions, patches, in which rows are looked up
    heads       output layers, where an error is one of the answer
    routers     which experts: small matrices, and an error there changes everything
    norms       and what modulates them; biases that are tables
    towers      what reads pictures or sound for a language model, and what joins the two; but
                where nothing else is there, the tower is the model

`conversion.rules` knows more of a model than a file does, and is the home of the names that both
ask about. Where a name could be either, the weight is kept: `include` of `convert` overrules it.

Blocks lie along K, and products sum along it:

    [..., N, K]   nn.Linear, and experts of most models
    [..., K, N]   Conv1D of GPT-2, experts of gpt-oss, Llama 4 and Aria

The sizes in a config tell, or the type of the model; a shape alone does not, since a matrix may be
square. What neither tells is refused: an axis exchanged gives other products. Files of Qwen3-VL's
experts have either, by who wrote them, so that only sizes tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from mx_kernels._core.arrays import show
from mx_kernels.conversion.rules import GATE_NAMES, HEADS, ROUTER_NAME, TOWERS, in_towers

EMBEDDING = re.compile(r"\w*embed\w*|w[tp]e|(\w+_)?emb|pos\w*_enc\w*|positions?", re.I)
"""Last names of modules that are embeddings."""
EMBEDDINGS = re.compile(r"(\w+_)?(embed(ding)?s?|embedder|emb)", re.I)
"""Names of modules that hold embeddings."""
HEAD = re.compile(r"(\w+_)?heads?|scores?|\w*classifier\w*|qa_outputs|cls", re.I)
"""Names of modules that are output layers, or hold them."""
OUTPUT = re.compile(r"output(_layer|_projection)?|proj_out|decoder|final_linear|shared", re.I)
"""Last names of output layers outside of numbered layers, and of T5's embedding."""
GATE = re.compile(rf"((moe|mlp|ffn|experts?)_)?({'|'.join(GATE_NAMES)})|(moe_)?gating", re.I)
"""Names of modules that are routers, or hold one, but for experts' own."""
OF_AN_EXPERT = re.compile(r"(^|\.)experts\.\d+(\.|$)")
NORM = re.compile(r"norm|(^|_)ln(_|\d*$)", re.I)
BIAS = re.compile(r"(^|_)(bias(es)?|relative|rel_pos)(_|$)", re.I)

_EXPERTS = re.compile(r"experts\.(gate_up_proj|down_proj|fc1\.weight|fc2\.weight)$")
_CONV1D = re.compile(r"(^|\.)(c_attn|c_proj|c_fc|q_attn)\.weight$")
TURNED = {
    "gpt_oss": _EXPERTS,
    "openai_privacy_filter": _EXPERTS,
    "llama4": _EXPERTS,
    "llama4_text": _EXPERTS,
    "aria": _EXPERTS,
    "aria_text": _EXPERTS,
    "gpt2": _CONV1D,
    "openai-gpt": _CONV1D,
    "imagegpt": _CONV1D,
    "decision_transformer": _CONV1D,
    "clvp": _CONV1D,
    "clvp_decoder": _CONV1D,
}
"""The names of the weights that models of a type keep as [..., K, N]."""
HIDDEN = ("hidden_size", "d_model", "n_embd")
"""What configs call the elements of a token."""
_FROM_HIDDEN = re.compile(
    r"(gate|up|gate_up|gate_and_up|w1|w3|w13|v1|wi|fc1)(_projs?)?(\.weight)?$"
)
_TO_HIDDEN = re.compile(r"(down|w2|wo|fc2)(_projs?)?(\.weight)?$")


def kept(names: Iterable[str]) -> set[str]:
    """Returns the names of parameters, of all of a checkpoint's, that stay floats."""
    names = list(names)
    stay = {name for name in names if _is_kept(name)}
    # A part of a checkpoint may have none of the names of a language model.
    towers = in_towers(names)
    towers |= {name for name in names if any(map(TOWERS.fullmatch, name.split(".")))}
    is_whole = all(name in stay | towers for name in names if name.endswith("weight"))
    return stay if is_whole else stay | towers


def _is_kept(name: str) -> bool:
    """Says whether a parameter stays as it is, whatever is beside it."""
    modules = name.split(".")[:-1]
    if not modules:
        return False
    last = modules[-1]
    is_numbered = any(part.isdigit() for part in modules)
    return bool(
        EMBEDDING.fullmatch(last)
        or BIAS.search(last)
        or (OUTPUT.fullmatch(last) and not is_numbered)
        or any(map(EMBEDDINGS.fullmatch, modules))
        or any(part in HEADS or HEAD.fullmatch(part) for part in modules)
        or any(map(ROUTER_NAME.search, modules))
        or (any(map(GATE.fullmatch, modules)) and not OF_AN_EXPERT.search(name))
        or any(map(NORM.search, modules))
    )


def is_turned(
    name: str, shape: tuple[int, ...], config: Mapping[str, Any], k_axis: int | None = None
) -> bool:
    """Says whether a weight of floats is stored as [..., K, N].

    Args:
        name: of the parameter.
        shape: as it is stored.
        config: the content of config.json, empty if there is none.
        k_axis: -1 or -2, for what the config leaves open.

    Raises:
        ValueError: if that is open, and `k_axis` does not say it.
    """
    if not needs_telling(name, shape):
        return False
    types = _types(config)
    is_known = any(TURNED[kind].search(name) for kind in types & TURNED.keys())
    if len(shape) == 2:
        told = is_known if types else None
    else:
        told = _by_sizes(name, shape, config)
        told = True if told is None and is_known else told
    if told is not None:
        if k_axis not in (None, -2 if told else -1):
            raise ValueError(
                f"{name}: got k_axis {k_axis} for {show(shape)}, expected "
                f"{-2 if told else -1}, as model_type and sizes of config.json say"
            )
        return told
    if k_axis is None:
        said = f"of model_type {' and '.join(sorted(types))}" if types else "without a model_type"
        raise ValueError(
            f"{name}: got {show(shape)} {said}, which may be [..., N, K] or [..., K, N], "
            "expected k_axis (--k-axis) -1 or -2, or a config.json that tells it"
        )
    return k_axis == -2


def needs_telling(name: str, shape: tuple[int, ...]) -> bool:
    """Says whether a name and a shape leave open which axis is K."""
    return len(shape) > 2 or (len(shape) == 2 and bool(_CONV1D.search(name)))


def are_turned(name: str, shape: tuple[int, ...], config: Mapping[str, Any]) -> bool:
    """Says whether codes are [..., K, N], as the config tells: blocks would lie across the sums."""
    is_known = any(TURNED[kind].search(name) for kind in _types(config) & TURNED.keys())
    return len(shape) > 2 and is_known and _by_sizes(name, shape, config) is not False


def _types(config: Mapping[str, Any]) -> set[str]:
    """Returns the types of a model and of the models in it."""
    places = [config, *(value for value in config.values() if isinstance(value, Mapping))]
    found = (place.get("model_type") for place in places)
    return {kind for kind in found if isinstance(kind, str)}


def _by_sizes(name: str, shape: tuple[int, ...], config: Mapping[str, Any]) -> bool | None:
    """Says whether experts are [E, K, N] by the size of a token, None if that does not tell."""
    text = config.get("text_config")
    places = (config, text if isinstance(text, Mapping) else {})
    hidden = {place.get(name) for place in places for name in HIDDEN} - {None}
    first, last = (size in hidden for size in shape[-2:])
    if first == last:
        return None
    if _FROM_HIDDEN.search(name):
        return first
    return last if _TO_HIDDEN.search(name) else None

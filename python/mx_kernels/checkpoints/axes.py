"""Which axis of a weight of floats is K, along which blocks lie and products sum.

    [..., N, K]   nn.Linear, and experts of most models
    [..., K, N]   Conv1D of GPT-2, experts of gpt-oss, Llama 4 and Aria

The sizes in a config tell, or the type of the model; a shape alone does not, since a matrix may be
square. What neither tells is refused: an axis exchanged gives other products. Files of Qwen3-VL's
experts have either, by who wrote them, so that only sizes tell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mx_kernels._core.arrays import show

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


def is_turned(
    name: str, shape: tuple[int, ...], config: Mapping, k_axis: int | None = None
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


def check_codes(name: str, shape: tuple[int, ...], config: Mapping) -> None:
    """Raises if codes are [..., K, N]: their blocks would lie across the sums.

    Raises:
        ValueError: naming them.
    """
    is_known = any(TURNED[kind].search(name) for kind in _types(config) & TURNED.keys())
    if len(shape) > 2 and is_known and _by_sizes(name, shape, config) is not False:
        raise ValueError(
            f"got {name} {show(shape)}, which this type of model keeps as [..., K, N], expected "
            "codes [..., N, K]"
        )


def _types(config: Mapping) -> set[str]:
    """Returns the types of a model and of the models in it."""
    places = [config, *(value for value in config.values() if isinstance(value, Mapping))]
    found = (place.get("model_type") for place in places)
    return {kind for kind in found if isinstance(kind, str)}


def _by_sizes(name: str, shape: tuple[int, ...], config: Mapping) -> bool | None:
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

"""Tensors that are in no pair of codes and scales: which may stand alone, and which are refused.

    refused                                     for instance
    what only other quantizations have          qweight, weight_global_scale, pre_quant_scale
    codes without scales                        float8 matrices; bytes that are called weight
    scales without codes                        weight_scale, float8_e8m0fnu of any name
    codes beside a scale of an unknown name     int32 weight and scales, of MLX
    a scale more than a form has                weight_scale beside scale_weight, bias_scale

Scales, zero points and the like of activations and of caches stay tensors: weights mean the same
without them. Floats may be called scale, as in norms, where no codes are beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch

from mx_kernels._core.arrays import show
from mx_kernels.checkpoints.files import Part

FOREIGN = {
    "qweight": "GPTQ or AWQ, which are integers",
    "qzeros": "GPTQ or AWQ, which are integers",
    "g_idx": "GPTQ, whose columns are in another order",
    "weight_g_idx": "of compressed-tensors, whose columns are in another order",
    "weight_zero_point": "integers of compressed-tensors",
    "weight_shape": "integers of compressed-tensors",
    "weight.absmax": "bitsandbytes",
    "weight.quant_map": "bitsandbytes",
    "SCB": "bitsandbytes",
    "weight.bitmask": "sparse, of compressed-tensors",
    "bitmask": "sparse, of compressed-tensors",
    "weight.compressed": "sparse, of compressed-tensors",
    "pre_quant_scale": "AWQ of ModelOpt, which scales the activations",
    "input_quantizer._pre_quant_scale": "AWQ of ModelOpt, which scales the activations",
    "act.scales": "AWQ, which scales the activations",
    "smooth_scale": "SmoothQuant, which scales the activations",
    "smooth_factor": "SmoothQuant, which scales the activations",
    "smoothquant_scale": "SmoothQuant, which scales the activations",
    "weight_quantizer._amax": "ModelOpt, before it is exported",
}
"""How names end that only quantizations of other kinds have."""

TENSOR_SCALES = (".weight_global_scale", "_scale_2")
"""How names of tensor scales end, of weights unless they are of activations."""

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
INTEGERS = (
    torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32,
)  # fmt: skip
"""Dtypes that codes of several bits are packed into."""

_SCALE = re.compile(
    r"scale|zero_?point|(^|_)(zeros?|qzeros|zp)$|abs_?max|amax|g_idx|quant_(map|state)"
    r"|codebook|(^|_)lut$|rotation|hadamard|smooth|perm(utation)?$",
    re.IGNORECASE,
)
"""Last names of what changes the numbers of codes beside it."""
_PLAIN = re.compile(r"scales?|zeros?|zero_?points?|zp|abs_?max|codebooks?", re.IGNORECASE)
"""Last names that say no more, and so are of what is in the same module."""
_ACTIVATIONS = re.compile(
    r"(^|_)(input|output|act|activations?|q|k|v|kv|[kv]_cache|kv_cache|prob|softmax)_(global_)?"
    r"(scales?(_2)?|scale_inv|zero_?point|amax)$"
    r"|(^|_)q?scale_(input|output|act(ivations?)?)$",
    re.IGNORECASE,
)
"""Last names of what is about activations or caches."""
_OF_WEIGHTS = re.compile(
    r"(^|[._])(weight|kernel|w\d*|fc\d*|qkv|dense|linear|\w*proj|experts?)(_packed)?"
    r"_(scales?|scale_inv)$"
    r"|_scale_inv$|(^|[._])q?scale_weight$",
    re.IGNORECASE,
)
"""Names of scales of weights, whatever is beside them."""
_WEIGHT = re.compile(r"^_?q?weight")
_BYTES = (torch.uint8, torch.int8)
OWN = ".codes"
"""How codes of our own form end, where its metadata are lost."""
SWIZZLED = "comfy_quant"
"""Beside MX, ComfyUI's scales are in the order of a tensor core."""


def check(
    parts: Mapping[str, Part],
    alone: Iterable[str],
    codes: Mapping[str, bool],
    forms: tuple,
    is_quantized: bool,
) -> None:
    """Raises unless tensors that are in no pair can be parameters of their own.

    Args:
        parts: all tensors.
        alone: the names of those.
        codes: the names of the codes of pairs, and whether their scales are E8M0.
        forms: the rows of `forms.FORMS`.
        is_quantized: whether the config says that bytes called weight are codes.

    Raises:
        ValueError: naming the tensor, and the one beside it.
    """
    alone = list(alone)
    for name in alone:
        _check_foreign(name, parts[name])
    packed = [name for name in alone if _may_be_codes(name, parts[name])]
    beside = _beside(alone, codes, packed)
    for scale, of in beside.items():
        if SWIZZLED in scale and not codes.get(of, True):
            continue
        _refuse_beside(scale, of, parts, forms, is_pair=of in codes)
    for name in alone:
        _check_half(name, parts[name], forms, is_quantized)


def described(part: Part) -> str:
    """Prints what is known of a tensor."""
    return f"{str(part.dtype).removeprefix('torch.')} {show(part.shape)}"


def _check_foreign(name: str, part: Part) -> None:
    """Raises if a tensor is what only other quantizations have."""
    for end, what in FOREIGN.items():
        if name == end or name.endswith(f".{end}"):
            raise ValueError(f"got {name} {described(part)}, which is {what}, expected MX")
    if name.endswith(TENSOR_SCALES) and not _ACTIVATIONS.search(name.rpartition(".")[2]):
        raise ValueError(
            f"got {name} {described(part)}, a tensor scale of NVFP4, expected codes of four bits, "
            "as uint8, and E4M3 scales beside it"
        )


def _may_be_codes(name: str, part: Part) -> bool:
    """Says whether a tensor could hold codes."""
    is_scale = _SCALE.search(name.rpartition(".")[2])
    return len(part.shape) > 1 and part.dtype in (*FLOAT8, *INTEGERS) and not is_scale


def _beside(alone: Iterable[str], codes: Iterable[str], packed: list[str]) -> dict[str, str]:
    """Returns the tensors that look like scales of some codes, and these codes.

    Args:
        alone: where to look.
        codes: those of pairs; of a module if they are called weight, else under their own name.
        packed: what may be codes, of any name where the scales' own says no more.
    """
    known = {*codes, *packed}
    holders = {name.rpartition(".")[0]: name for name in packed}
    modules = {}
    for name in (*codes, *packed):
        module, _, last = name.rpartition(".")
        if _WEIGHT.match(last):
            modules[module] = name
    found = {}
    for name in alone:
        module, _, last = name.rpartition(".")
        is_scale = _SCALE.search(last) and not _ACTIVATIONS.search(last)
        if name in known or not (is_scale or last == SWIZZLED):
            continue
        words = last.split("_")
        stems = ["_".join(words[:count]) for count in range(len(words) - 1, 0, -1)]
        owners = [f"{module}.{stem}" if module else stem for stem in stems]
        near = [owner for owner in (module, *owners) if owner in known]
        near += [modules[owner] for owner in (module, *owners) if owner in modules]
        near += [holders[module]] if _PLAIN.fullmatch(last) and module in holders else []
        if near:
            found[name] = near[0]
    return found


def _refuse_beside(
    scale: str, of: str, parts: Mapping[str, Part], forms: tuple, is_pair: bool
) -> None:
    """Raises for a tensor that looks like a scale of some codes."""
    got = f"{of} {described(parts[of])} and beside it {scale} {described(parts[scale])}"
    if is_pair:
        raise ValueError(f"got {got}, expected codes with the scales of one form and no other")
    hint = "; a file of mx_kernels tells in its metadata what they are" if OWN in of else ""
    raise ValueError(
        f"got {got}, which are codes and scales of no form that is read, expected scales "
        f"{' or '.join(_scales_of(of, forms))}{hint}"
    )


def _check_half(name: str, part: Part, forms: tuple, is_quantized: bool) -> None:
    """Raises if a tensor is codes without scales, or scales without codes."""
    if _is_scales(name, part, forms):
        wanted = _codes_of(name, forms)
        raise ValueError(
            f"got scales {name} {described(part)}, expected codes "
            f"{' or '.join(wanted)} of a quantized dtype beside them"
        )
    if _is_codes(name, part, is_quantized):
        wanted = " or ".join(_scales_of(name, forms))
        hint = ""
        if part.dtype in FLOAT8:
            hint = "; numbers that have none can be bfloat16, which is exact"
        raise ValueError(
            f"got codes {name} {described(part)}, expected scales {wanted} beside them{hint}"
        )


def _is_scales(name: str, part: Part, forms: tuple) -> bool:
    """Says whether a tensor can only be the scales of weights."""
    last = name.rpartition(".")[2]
    if part.dtype == torch.float8_e8m0fnu:
        return True
    if _ACTIVATIONS.search(last):
        return False
    ends = tuple(form.scales for form in forms)
    is_bytes = part.dtype == torch.uint8 and name.endswith(ends)
    is_many = last == "scales" and len(part.shape) > 1
    return bool(is_bytes or is_many or _OF_WEIGHTS.search(name))


def _is_codes(name: str, part: Part, is_quantized: bool) -> bool:
    """Says whether a tensor can only be the codes of weights."""
    is_matrix = len(part.shape) > 1
    if part.dtype in FLOAT8:
        return is_matrix or (is_quantized and name.endswith("weight"))
    if name.endswith(("_blocks", "weight_packed")):
        return part.dtype in (*_BYTES, *INTEGERS)
    is_weight = name.rpartition(".")[2].endswith("weight")
    return part.dtype in _BYTES and is_weight and (is_matrix or is_quantized)


def _scales_of(name: str, forms: tuple) -> list[str]:
    """Returns what the scales of codes may be called."""
    ends = [form for form in forms if form.codes and name.endswith(form.codes)]
    special = [form for form in ends if not form.codes.endswith(".weight")]
    fitting = special or [form for form in forms if not form.codes]
    return [name.removesuffix(form.codes) + form.scales for form in fitting]


def _codes_of(name: str, forms: tuple) -> list[str]:
    """Returns what the codes of scales may be called."""
    fitting = [form for form in forms if name.endswith(form.scales)]
    names = [name.removesuffix(form.scales) + form.codes for form in fitting]
    return names or ["of some name"]

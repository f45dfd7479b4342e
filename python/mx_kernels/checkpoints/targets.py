"""What a parameter is called in each form that is written, and which formats that form can hold.

    form                formats          of a parameter P.weight
    mx_kernels          all              P.weight.codes, P.weight.scales
    compressed-tensors  MXFP4, 6, 8      P.weight_packed or P.weight (MXFP8), P.weight_scale
                        NVFP4            and P.weight_global_scale, what values are divided by
    quark               MXFP4, 6, 8      P.weight, P.weight_scale
                        NVFP4            and P.weight_scale_2
    modelopt            MXFP4, 8, NVFP4  the same names
    fp8                 FP8 of 128 x 128 P.weight, P.weight_scale_inv, as DeepSeek has them; fused
                                         experts P, P_scale_inv, as transformers has them
    gpt-oss             MXFP4            P_blocks, P_scales; experts [E, N, K] alone

Experts of gpt-oss are called P, not P.weight, and their bias P_bias; Quark calls these P.weight
and P.bias. So a checkpoint of gpt-oss gets Quark's names, and its own ones back.

Others than ours keep one tensor scale of NVFP4 for a matrix, where ours has one for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mx_kernels._core.arrays import show
from mx_kernels._core.checks import format_named
from mx_kernels._core.storage import DTYPES, split_scales
from mx_kernels.checkpoints.configs import OURS
from mx_kernels.checkpoints.forms import FORMS, OWN, Form
from mx_kernels.checkpoints.methods import BLOCK_2D, COMPRESSED, QUARK

WEIGHT = "weight"
BYTE_BITS = 8
FUSIONS = "fusion_config"
IMPORT_US = "none; these are weights of mx_kernels, import mx_kernels.transformers before they load"
"""A name among transformers' fusions, which it refuses; see `guarded`. Files have it: it stays."""
MODELOPT = {"mxfp4": "MXFP4", "mxfp8": "MXFP8", "nvfp4": "W4A16_NVFP4"}
"""What ModelOpt calls weights of formats, with the activations that their files leave open."""
_FORMS = {form.name: form for form in FORMS}


@dataclass(frozen=True)
class Target:
    """A form to write."""

    forms: Mapping[str, Form]
    """What the parts are called, by format."""
    config: Callable[[Mapping[str, str], Sequence[str]], dict]
    """Returns the quantization_config for the formats of modules, and those of floats."""
    parameter: Callable[[str], str] = lambda name: name
    """Returns what a quantized parameter is called there."""
    bias: tuple[str, str] = ("", "")
    """How the bias of a quantized parameter is called here, and there, beside its name."""
    ndim: tuple[int, ...] = ()
    """The dimensions that it can have; empty for any."""
    ending: str = ""
    """How its name has to end."""


def _with_weight(name: str) -> str:
    """Returns the name of a parameter that is a module's weight."""
    return name if name.rpartition(".")[2] == WEIGHT else f"{name}.{WEIGHT}"


# The quantization_config of each form.


def _quark_weight(format: str) -> dict[str, Any]:
    """Returns Quark's words for weights of a format, activations left as they are."""
    elements, fmt = {name: element for element, name in QUARK.items()}, format_named(format)
    is_nvfp4 = fmt.has_tensor_scales
    weight = {
        "dtype": elements["mxfp4" if is_nvfp4 else format],
        "qscheme": "per_group",
        "group_size": fmt.block_k,
        "ch_axis": -1,
        "is_dynamic": False,
        "scale_format": "float32" if is_nvfp4 else "e8m0",
        "scale_type": "float32" if is_nvfp4 else "float",
        "symmetric": None,
        "round_method": "half_even",
        "scale_calculation_mode": None if is_nvfp4 else "even",
        "observer_cls": "PerBlockMXObserver",
        "is_scale_quant": False,
        "mx_element_dtype": None,
    }
    of_scales = weight | {
        "dtype": "fp8_e4m3",
        "qscheme": "per_tensor",
        "group_size": None,
        "ch_axis": None,
        "scale_format": None,
        "symmetric": True,
        "observer_cls": "PerTensorMinMaxObserver",
        "is_scale_quant": True,
    }
    nothing = {"input_tensors": None, "output_tensors": None, "bias": None, "target_device": None}
    return {"weight": [weight, of_scales] if is_nvfp4 else weight, **nothing}


def quark_config(formats: Mapping[str, str], kept: Sequence[str]) -> dict[str, Any]:
    """Returns a quantization_config of Quark.

    Args:
        formats: the format of each module.
        kept: modules whose weights are floats.
    """
    first = next(iter(formats.values()))
    others = {module: _quark_weight(name) for module, name in formats.items() if name != first}
    return {
        "quant_method": "quark",
        "quant_mode": "eager_mode",
        "global_quant_config": _quark_weight(first),
        "layer_quant_config": others,
        "layer_type_quant_config": {},
        "exclude": list(kept),
        "algo_config": None,
        "export": {
            "kv_cache_group": [],
            "min_kv_scale": 0.0,
            "pack_method": "reorder",
            "weight_format": "real_quantized",
            "weight_merge_groups": None,
        },
    }


def compressed_config(formats: Mapping[str, str], kept: Sequence[str]) -> dict[str, Any]:
    """Returns a quantization_config of compressed-tensors; arguments as in `quark_config`."""
    names = {name: stored for stored, name in COMPRESSED.items()}
    used = list(dict.fromkeys(formats.values()))
    groups = {}
    for number, name in enumerate(used):
        modules = [module for module, other in formats.items() if other == name]
        fmt = format_named(name)
        groups[f"group_{number}"] = {
            "format": names[name],
            "targets": ["Linear"] if len(used) == 1 else modules,
            "weights": {
                "num_bits": fmt.element_bits,
                "type": "float",
                "strategy": "tensor_group" if fmt.has_tensor_scales else "group",
                "group_size": fmt.block_k,
                "symmetric": True,
                "dynamic": False,
                "scale_dtype": f"torch.{DTYPES[fmt.scale] if fmt.has_tensor_scales else 'uint8'}",
            },
            "input_activations": None,
            "output_activations": None,
        }
    return {
        "quant_method": "compressed-tensors",
        "format": names[used[0]] if len(used) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": list(kept),
    }


def modelopt_config(formats: Mapping[str, str], kept: Sequence[str]) -> dict[str, Any]:
    """Returns a quantization_config of ModelOpt; arguments as in `quark_config`."""
    layers = {
        module: {"quant_algo": MODELOPT[format], "group_size": format_named(format).block_k}
        for module, format in formats.items()
    }
    is_one = len(set(formats.values())) == 1
    said = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    said = next(iter(layers.values())) if is_one else said
    return {"quant_method": "modelopt", **said, "ignore": list(kept)}


def gpt_oss_config(formats: Mapping[str, str], kept: Sequence[str]) -> dict[str, Any]:
    """Returns a quantization_config of gpt-oss; arguments as in `quark_config`."""
    return {"quant_method": "mxfp4", "modules_to_not_convert": list(kept)}


def deepseek_config(formats: Mapping[str, str], kept: Sequence[str]) -> dict[str, Any]:
    """Returns a quantization_config of DeepSeek; arguments as in `quark_config`."""
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": BLOCK_2D,
        "modules_to_not_convert": list(kept),
    }


def guarded(config: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Returns a config.json that transformers refuses to load weights by, unless it knows ours.

    It warns of a quant_method that it does not know, and goes on with new random weights. A fusion
    that it does not know is an error; what `integrations.transformers` registers takes that out.
    """
    fusions = {**(config.get(FUSIONS) or {}), IMPORT_US: True}
    if method != OURS:
        del fusions[IMPORT_US]
    rest = {name: value for name, value in config.items() if name != FUSIONS}
    return {**rest, FUSIONS: fusions} if fusions else rest


def own_config(formats: Mapping[str, str], kept: Sequence[str]) -> dict[str, Any]:
    """Returns a quantization_config of ours: each file says the rest."""
    return {"quant_method": OURS}


TARGETS = {
    OURS: Target({"": OWN}, own_config),
    "compressed-tensors": Target(
        {
            "mxfp4": _FORMS["compressed-tensors"],
            "mxfp6": _FORMS["compressed-tensors"],
            "nvfp4": _FORMS["compressed-tensors"],
            "mxfp8": _FORMS["Quark"],
        },
        compressed_config,
        ndim=(2,),
        ending=WEIGHT,
    ),
    "quark": Target(
        dict.fromkeys(("mxfp4", "mxfp6", "mxfp6_e3m2", "mxfp8", "nvfp4"), _FORMS["Quark"]),
        quark_config,
        _with_weight,
        ("_bias", ".bias"),
        (2, 3),
    ),
    "modelopt": Target(
        dict.fromkeys(MODELOPT, _FORMS["Quark"]), modelopt_config, ndim=(2, 3), ending=WEIGHT
    ),
    "fp8": Target({"fp8_block_2d": _FORMS["DeepSeek"]}, deepseek_config, ndim=(2, 3)),
    "gpt-oss": Target(
        {"mxfp4": _FORMS["gpt-oss"]},
        gpt_oss_config,
        lambda name: name.removesuffix(f".{WEIGHT}"),
        (".bias", "_bias"),
        (3,),
    ),
}


def parts_of(
    to: str, name: str, format: str, shape: tuple[int, ...]
) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Returns names, dtypes and shapes of a parameter's codes and scales.

    Raises:
        ValueError: if the form cannot hold it.
    """
    target, fmt = TARGETS[to], format_named(format)
    form = target.forms.get(format) or target.forms.get("")
    if form is None:
        raise ValueError(
            f"{name}: got {format} to write as {to}, expected {' or '.join(target.forms)}"
        )
    if target.ndim and len(shape) not in target.ndim:
        wanted = " or ".join(map(str, target.ndim))
        raise ValueError(f"{name}: got {show(shape)} to write as {to}, expected {wanted} axes")
    there = target.parameter(name)
    if not there.endswith(target.ending):
        raise ValueError(f"{name}: got this name to write as {to}, expected *.{target.ending}")
    codes, scales = form.names(there)
    *lead, k = shape
    blocks = fmt.k_blocks(k)
    stored = (blocks, fmt.packed_bytes(fmt.block_k)) if form.has_block_axis else (
        fmt.packed_bytes(k),
    )  # fmt: skip
    is_bytes = form is OWN or fmt.element_bits < BYTE_BITS
    dtype = torch.uint8 if is_bytes else getattr(torch, DTYPES[fmt.element])
    parts = {codes: (dtype, (*lead, *stored))}
    if not has_one_scale(to, format):
        return parts | {scales: (fmt.scale_dtype, fmt.scales_of(shape))}
    if 0 in shape:
        raise ValueError(f"{name}: got {show(shape)} to write as {to}, expected numbers")
    parts[scales] = getattr(torch, DTYPES[fmt.scale]), (*lead, blocks)
    # compressed-tensors has an axis where others have a number.
    of_one = (1,) if form.is_reciprocal else ()
    return parts | {form.whole_name(codes): (torch.float32, tuple(lead[:-1]) or of_one)}


def has_one_scale(to: str, format: str) -> bool:
    """Says whether a form has one tensor scale for a matrix, where ours has one for each row."""
    form = TARGETS[to].forms.get(format)
    return bool(form and form.whole) and format_named(format).has_tensor_scales


def as_parts(to: str, format: str, codes: Tensor, scales: Tensor) -> list[Tensor]:
    """Returns plain codes and scales as the parts of a form, before they get its dtypes."""
    if not has_one_scale(to, format):
        return [codes, scales]
    of_blocks, of_rows = split_scales(scales, format_named(format))
    whole = of_rows.contiguous().view(torch.float32)[..., 0, 0]
    is_reciprocal = TARGETS[to].forms[format].is_reciprocal
    return [codes, of_blocks.contiguous(), whole.reciprocal() if is_reciprocal else whole]


def scale_to_write(to: str, format: str, scale: Tensor) -> Tensor:
    """Returns a tensor scale as a form gives it back: of two reciprocals each is rounded."""
    is_reciprocal = TARGETS[to].forms[format].is_reciprocal
    return scale.reciprocal().reciprocal() if is_reciprocal else scale


def plain_name(to: str, name: str, quantized: Mapping[str, str]) -> str:
    """Returns what a tensor that is not quantized is called.

    Args:
        to: the form.
        name: what it is called here.
        quantized: the parameters that are.
    """
    target = TARGETS[to]
    here, there = target.bias
    if here and name.endswith(here):
        base = name.removesuffix(here)
        for parameter in (base, f"{base}.{WEIGHT}"):
            moved = target.parameter(parameter) != parameter
            if parameter in quantized and moved:
                return base + there
    return name

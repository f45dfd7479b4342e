"""What a parameter is called in each form that is written, and which formats that form can hold.

    form                formats          of a parameter P.weight
    mx_kernels          all              P.weight.codes, P.weight.scales
    compressed-tensors  MXFP4, MXFP8     P.weight_packed (MXFP4) or P.weight (MXFP8), P.weight_scale
    quark               MXFP4, MXFP8     P.weight, P.weight_scale
    fp8                 FP8 of 128 x 128 P.weight, P.weight_scale_inv, as DeepSeek has them
    gpt-oss             MXFP4            P_blocks, P_scales; experts [E, N, K] alone

Experts of gpt-oss are called P, not P.weight, and their bias P_bias; Quark calls these P.weight
and P.bias. So a checkpoint of gpt-oss gets Quark's names, and its own ones back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from mx_kernels._arrays import show
from mx_kernels._checks import format_named
from mx_kernels._storage import DTYPES
from mx_kernels.checkpoints import configs
from mx_kernels.checkpoints.forms import FORMS, OWN, Form

WEIGHT = "weight"
BYTE_BITS = 8
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


def _with_weight(name: str) -> str:
    """Returns the name of a parameter that is a module's weight."""
    return name if name.rpartition(".")[2] == WEIGHT else f"{name}.{WEIGHT}"


TARGETS = {
    configs.OURS: Target({"": OWN}, configs.own_config),
    "compressed-tensors": Target(
        {"mxfp4": _FORMS["compressed-tensors"], "mxfp8": _FORMS["Quark"]},
        configs.compressed_config,
        ndim=(2,),
    ),
    "quark": Target(
        {"mxfp4": _FORMS["Quark"], "mxfp8": _FORMS["Quark"]},
        configs.quark_config,
        _with_weight,
        ("_bias", ".bias"),
        (2, 3),
    ),
    "fp8": Target({"fp8_block_2d": _FORMS["DeepSeek"]}, configs.deepseek_config, ndim=(2, 3)),
    "gpt-oss": Target(
        {"mxfp4": _FORMS["gpt-oss"]},
        configs.gpt_oss_config,
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
    if not there.endswith(form.parameter):
        raise ValueError(f"{name}: got this name to write as {to}, expected *.{form.parameter}")
    codes, scales = form.names(there)
    *lead, k = shape
    blocks = fmt.k_blocks(k)
    stored = (blocks, fmt.packed_bytes(fmt.block_k)) if form.has_block_axis else (
        fmt.packed_bytes(k),
    )  # fmt: skip
    is_bytes = form is OWN or fmt.element_bits < BYTE_BITS
    dtype = torch.uint8 if is_bytes else getattr(torch, DTYPES[fmt.element])
    return {codes: (dtype, (*lead, *stored)), scales: (fmt.scale_dtype, fmt.scales_of(shape))}


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

"""Weights of a checkpoint as a decoder wants them, read one at a time.

    layers.0.self_attn.q_proj.weight      rows of q, k and v become one weight, and so do those of
    layers.0.self_attn.k_proj.weight      gate and up; experts that have a tensor each become one
    layers.0.self_attn.v_proj.weight      tensor of all

    layers.0.self_attn.qkv_proj.weight.codes      in the layout of the device that multiplies
    layers.0.self_attn.qkv_proj.weight.scales

What is in a checkpoint is told by `checkpoints`. Which floats are quantized is what
`checkpoints.convert` says, and experts; those that are left, if a format is named for them, are the
output head, and of a checkpoint that is quantized already the linear layers that are not.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from max.driver import accelerator_architecture_name
from max.dtype import DType
from max.graph import Shape
from max.graph.weights import WeightData
from max.pipelines.lib.config.model_config import _select_quantization_encoding
from max.pipelines.modeling.config_enums import supported_encoding_dtype
from torch import Tensor

from mx_kernels._core.devices import give_back_free_memory
from mx_kernels._core.facts import DEFAULT_FORMAT, facts, weights_format
from mx_kernels.checkpoints.converting import Axes, to_quantize
from mx_kernels.checkpoints.files import Checkpoint, let_go, open_model
from mx_kernels.checkpoints.forms import FLOATS, Parameter, plan, warn_of_floats
from mx_kernels.checkpoints.joining import Joined, join, joined
from mx_kernels.checkpoints.rest import HEAD, with_quantized, with_rest
from mx_kernels.integrations import REST
from mx_kernels.tensor import MXTensor

FORMAT = "MX_KERNELS_FORMAT"
"""The variable that names what floats are quantized to."""
DEFAULT_ENCODING = "float32"
"""What MAX calls models whose floats are float32, as all are on its CPUs."""
EMBEDDING = "embed_tokens.weight"
PREFIX = "model."
"""What names begin with in files, and not here."""
ROWS = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
"""Layers whose rows are multiplied at once, and what checkpoints call their parts."""
EXPERTS = re.compile(r"\.experts\.(gate_up_proj|down_proj)$")
"""How the names of experts in one tensor end."""
HALVES = 2
"""Pieces of an expert, where gates and ups are apart."""


@dataclass
class MXWeightData(WeightData):
    """Codes or scales, and what they are."""

    format: str = ""
    layout: str = ""
    logical: tuple[int, ...] = ()
    """The shape [..., N, K] of the weight."""
    has_halves: bool = False
    """Whether gates come before ups, where both were apart in the checkpoint."""


def adapt(
    state_dict: Mapping[str, Any], huggingface_config: Any, pipeline_config: Any, **kwargs: Any
) -> dict[str, WeightData]:
    """Returns the weights of a model by name, as MAX asks a weight adapter for them.

    Args:
        state_dict: the tensors as MAX sees them, which are not read: the files are.
        huggingface_config: of the model.
        pipeline_config: says where the files are, and what becomes of floats.
        kwargs: whatever else MAX says.

    Raises:
        ValueError: if the checkpoint is not one that `mx_kernels.load` reads.
    """
    model = pipeline_config.model
    encoding = _select_quantization_encoding(model, DEFAULT_ENCODING)
    dtype = FLOATS[supported_encoding_dtype(encoding).name]
    device = "cpu" if model.default_device_spec.device_type == "cpu" else _architecture()
    parameters = parameters_of(open_model(map(Path, model.resolved_weight_paths())))
    weights = dict(
        part for parameter in parameters for part in _parts(parameter, dtype, device).items()
    )
    give_back_free_memory()
    return weights


def parameters_of(checkpoint: Checkpoint) -> list[Parameter]:
    """Returns what a checkpoint becomes, which has not been read; see the module.

    Raises:
        ValueError: as `plan` does; if a variable names no format, or a rest and there is none.
    """
    parameters = plan(checkpoint)
    warn_of_floats(parameters, checkpoint.where)
    if not any(it.meaning for it in parameters):
        format = weights_format(os.environ.get(FORMAT) or DEFAULT_FORMAT)
        tell = Axes(checkpoint.config)
        found = to_quantize(parameters, format, (), (), tell)
        found |= {it.name: tell.right(it) for it in parameters if EXPERTS.search(it.name)}
        parameters = with_quantized(parameters, found, format)
    if rest := os.environ.get(REST):
        parameters = with_rest(checkpoint, _with_head(parameters), rest, REST)
    parameters = joined(checkpoint, parameters)
    parameters = [replace(it, name=it.name.removeprefix(PREFIX)) for it in parameters]
    return _with_rows_joined(parameters)


def planned_bytes(pipeline_config: Any) -> int:
    """Returns the bytes of all weights as they are kept, from the headers of the files."""
    model = pipeline_config.model
    size = supported_encoding_dtype(
        _select_quantization_encoding(model, DEFAULT_ENCODING)
    ).size_in_bytes
    parameters = parameters_of(open_model(map(Path, model.resolved_weight_paths())))
    return sum(it.nbytes if it.format else math.prod(it.shape) * size for it in parameters)


def _with_head(parameters: list[Parameter]) -> list[Parameter]:
    """Returns parameters with a head that is tied to the embeddings as one more weight.

    The rows that tokens look up stay.
    """
    if any(it.name == HEAD for it in parameters):
        return parameters
    tied = (it for it in parameters if it.name.removeprefix(PREFIX) == EMBEDDING)
    return [*parameters, *(replace(it, name=HEAD) for it in tied)]


def _with_rows_joined(parameters: list[Parameter]) -> list[Parameter]:
    """Returns parameters with the parts of `ROWS` as one, where they fit."""
    by_name = {it.name: it for it in parameters}
    for whole, parts in ROWS.items():
        for name in list(by_name):
            if not name.endswith(f".{parts[0]}.weight"):
                continue
            layer = name.removesuffix(f"{parts[0]}.weight")
            weights = [by_name.get(f"{layer}{part}.weight") for part in parts]
            biases = [by_name.get(f"{layer}{part}.bias") for part in parts]
            has_biases = all(biases)
            if not all(it and it.format for it in weights) or any(biases) != has_biases:
                continue
            made = join(f"{layer}{whole}.weight", [weights], are_experts=False)
            if made is None:
                continue
            gone = {piece.name for piece in weights}
            by_name[made.name] = made
            if has_biases:
                made = join(f"{layer}{whole}.bias", [biases], are_experts=False)
                gone |= {piece.name for piece in biases}
                by_name[made.name] = made
            by_name = {n: it for n, it in by_name.items() if n not in gone}
    return list(by_name.values())


def _parts(it: Parameter, dtype: torch.dtype, device: str) -> dict[str, WeightData]:
    """Reads a parameter: codes and scales in the layout of a device, or floats."""
    if not it.format:
        (value,) = it.read()
        # MAX has memory of its own for what it copies to a GPU, and the pages of files go.
        value = value.to(dtype) if value.is_floating_point() else value
        return {it.name: _data(it.name, value.contiguous())}
    codes, scales = it.read()
    w = MXTensor(codes, scales, format=it.format, dtype=it.dtype)
    layout = facts().layout_for(device, it.format, it.shape[-1])
    if layout not in (None, facts().plain):
        w = w.preshuffle(device)
        let_go(codes)
        let_go(scales)
    elif not it.has_own_memory:
        w = MXTensor(codes.clone(), scales.clone(), format=it.format, dtype=it.dtype)
    halves = isinstance(it, Joined) and len(it.pieces[0]) == HALVES
    said = {
        "format": it.format,
        "layout": w.byte_layout,
        "logical": tuple(it.shape),
        "has_halves": halves,
    }
    parts = {"codes": w.codes, "scales": w.scales}
    return {
        f"{it.name}.{name}": MXWeightData(**vars(_data(f"{it.name}.{name}", part)), **said)
        for name, part in parts.items()
    }


def _data(name: str, value: Tensor) -> WeightData:
    """Returns a tensor as MAX takes weights."""
    dtype = DType[str(value.dtype).removeprefix("torch.")]
    if value.dtype.itemsize == 1 and value.dtype != torch.bool:
        value, dtype = value.view(torch.uint8), DType.uint8
    return WeightData(value.detach(), name, dtype, Shape(value.shape))


def _architecture() -> str:
    """Returns what GPU MAX runs on."""
    return accelerator_architecture_name()

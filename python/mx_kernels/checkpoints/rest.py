"""Floats of a checkpoint that are quantized when they are read.

    quantized(parameter, format)          codes and scales that have not been made
    with_rest(checkpoint, all, format)    all parameters, and the linear layers that are floats so

The rest of a checkpoint that is quantized already is its linear layers that are not, and its output
head unless it is tied; of one that is not, all of them. What is kept, `floats` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mx_kernels import ops
from mx_kernels._core.checks import format_named
from mx_kernels._core.facts import weights_format
from mx_kernels.checkpoints import floats
from mx_kernels.checkpoints.files import Checkpoint, Part, let_go
from mx_kernels.checkpoints.forms import FLOATS, Parameter
from mx_kernels.checkpoints.scales import Meaning

HEAD = "lm_head.weight"


class _Once:
    """Codes and scales of floats that are quantized when the first of the two is read."""

    def __init__(self, it: Parameter, format: str):
        self.it, self.format = it, format
        self.made: dict[str, Tensor] = {}

    def take(self, name: str) -> Tensor:
        """Returns one of the two, which is let go."""
        if name not in self.made:
            (values,) = self.it.read()
            q = ops.quantize(values, format=self.format)
            let_go(values)
            self.made = {"codes": q.codes, "scales": q.scales}
        return self.made.pop(name)


def quantized(it: Parameter, format: str) -> Parameter:
    """Returns floats as codes and scales that have not been made."""
    fmt, once = format_named(format), _Once(it, format)
    *lead, k = it.shape
    shapes = {"codes": (*lead, fmt.packed_bytes(k)), "scales": fmt.scales_of(it.shape)}
    dtypes = {"codes": torch.uint8, "scales": fmt.scale_dtype}
    parts = tuple(
        Part(dtypes[name], shapes[name], lambda name=name: once.take(name)) for name in shapes
    )
    meaning = Meaning(format, it.shape, (fmt.block_rows, fmt.block_k))
    return Parameter(it.name, parts, it.shape, it.dtype, format, meaning)


def with_quantized(
    parameters: Sequence[Parameter], found: Mapping[str, Parameter], format: str
) -> list[Parameter]:
    """Returns parameters, those found as codes and scales that have not been made."""
    return [quantized(found[it.name], format) if it.name in found else it for it in parameters]


def with_rest(
    checkpoint: Checkpoint, parameters: Sequence[Parameter], format: str, asked: str
) -> list[Parameter]:
    """Returns parameters, those of linear layers that are floats yet in a format.

    Args:
        checkpoint: theirs.
        parameters: all of it.
        format: as `quantize` names it; square blocks if there are.
        asked: what named it, for the error.

    Raises:
        ValueError: if there are no such layers, or no such format.
    """
    block = format_named(format).k_multiple
    stay = floats.kept(it.name for it in parameters)
    found = {
        it.name: it
        for it in parameters
        if not it.meaning and it.dtype in FLOATS.values() and it.name.endswith(".weight")
        if it.name == HEAD or it.name not in stay
        if len(it.shape) == 2 and it.shape[-1] % block == 0
        if not (it.parts[0].is_encoded or floats.needs_telling(it.name, it.shape))
    }
    if not found:
        raise ValueError(
            f"{asked}: got {format!r}, expected none: {checkpoint.where} has no linear layers that "
            "are floats without it"
        )
    return with_quantized(parameters, found, weights_format(format))

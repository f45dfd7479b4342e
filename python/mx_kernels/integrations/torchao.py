"""MXLinear by torchao's `quantize_`.

    from torchao.quantization import quantize_
    from mx_kernels.integrations.torchao import MXConfig

    quantize_(model, MXConfig(activations="mxint8"))

Torchao picks the layers: by its `filter_fn`, all linear ones without it, output heads too. Rules,
names and a report are `mx_kernels.convert`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torchao.core.config import AOBaseConfig
from torchao.quantization.transform_module import register_quantize_module_handler

from mx_kernels._core.checks import check_mode, check_rounding, format_named, mode_rounding
from mx_kernels._core.facts import DEFAULT_FORMAT, DEFAULT_ROUNDING
from mx_kernels.hints import ActivationsName, FormatName, ScaleRule
from mx_kernels.modules import MXLinear


@dataclass(frozen=True)
class MXConfig(AOBaseConfig):
    """Asks `quantize_` for MXLinear.

    Raises:
        ValueError: if a name is unknown.
    """

    format: FormatName = DEFAULT_FORMAT
    """What weights are quantized to, see `mx_kernels.quantize`."""
    activations: ActivationsName | None = None
    """What activations are multiplied as; None is what the device is best at."""
    scale_rule: ScaleRule = DEFAULT_ROUNDING
    """How scales are chosen."""

    def __post_init__(self) -> None:
        format_named(self.format)
        check_rounding(self.scale_rule)
        mode = self.activations
        if mode is not None:
            check_mode(mode, mode_rounding(mode, self.scale_rule))


@register_quantize_module_handler(MXConfig)
def _linear_of(module: nn.Module, config: MXConfig) -> nn.Module:
    """Returns the layer that takes a module's place; one of ours stays.

    Raises:
        TypeError: if the module is no linear layer, or computes something of its own.
        ValueError: if its in_features do not divide into blocks.
    """
    if isinstance(module, MXLinear):
        return module
    if type(module).forward is not nn.Linear.forward or "forward" in vars(module):
        raise TypeError(
            f"quantize_ with MXConfig: got {type(module).__name__}, expected an nn.Linear without "
            "a forward of its own; filter_fn can leave it out"
        )
    return MXLinear.from_linear(
        module, format=config.format, activations=config.activations, scale_rule=config.scale_rule
    )

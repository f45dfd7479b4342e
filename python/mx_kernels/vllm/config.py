"""Checkpoints of our own in vLLM: what `save_pretrained` of a model with MXLinear wrote.

The headers of the files say which weights are quantized, as for transformers; the config says what
activations are multiplied as. Weights that vLLM joins, such as q, k and v, have one format.
Experts of such a checkpoint are refused: in the form of gpt-oss they are served, which
`python -m mx_kernels convert --to gpt-oss` writes.
"""

# ruff: noqa: PLR0917  vLLM calls methods with its own arguments

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase, LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.utils import set_weight_attrs

from mx_kernels._arrays import show
from mx_kernels._checks import format_named
from mx_kernels._facts import facts
from mx_kernels._storage import storage_of
from mx_kernels.checkpoints.configs import OURS
from mx_kernels.checkpoints.files import open_path
from mx_kernels.checkpoints.forms import plan
from mx_kernels.vllm.linear import activations_of, multiply, packed

WEIGHT = "weight"


class MXVllmConfig(QuantizationConfig):
    """What config.json says of one of our checkpoints, and what its files hold."""

    def __init__(self, activations: str | dict[str, str] | None):
        super().__init__()
        self.activations = activations
        self.formats: dict[str, str] = {}
        """Of the quantized weights, by module."""

    @classmethod
    def get_name(cls) -> str:
        """Returns the name of the method."""
        return OURS

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        """Returns what activations may be."""
        return list(facts().torch_dtypes)

    @classmethod
    def get_min_capability(cls) -> int:
        """Returns the oldest GPU: the portable kernel asks for bfloat16."""
        return 80

    @classmethod
    def get_config_filenames(cls) -> list[str]:
        """Returns nothing: all is in config.json."""
        return []

    @classmethod
    def from_config(cls, config: dict) -> MXVllmConfig:
        """Takes what config.json says."""
        return cls(config.get("activations"))

    def maybe_update_config(self, model_name: str, **kwargs) -> None:
        """Reads the headers of the files."""
        if not Path(model_name).is_dir():
            raise ValueError(
                f"{model_name}: got no folder, expected one with the checkpoint, whose files say "
                "which weights are quantized; download it first"
            )
        self.formats = {
            p.name.removesuffix(f".{WEIGHT}"): p.format
            for p in plan(open_path(model_name))
            if p.format
        }

    def get_quant_method(self, layer: nn.Module, prefix: str):
        """Returns ours for layers whose weights are quantized."""
        if isinstance(layer, RoutedExperts):
            if any(name.startswith(prefix) for name in self.formats):
                raise NotImplementedError(
                    f"{prefix}: got experts in the form of mx_kernels, expected gpt-oss' form: "
                    "python -m mx_kernels convert --to gpt-oss"
                )
            return None
        if not isinstance(layer, LinearBase):
            return None
        parts = self._parts(prefix)
        formats = {self.formats.get(part) for part in parts}
        if len(formats) > 1:
            raise ValueError(
                f"{prefix}: got {', '.join(f'{p} as {self.formats.get(p)}' for p in parts)}, "
                "expected one format for what vLLM joins"
            )
        (format,) = formats
        if format is None:
            return UnquantizedLinearMethod()
        said = self.activations
        said = said.get(parts[0]) if isinstance(said, dict) else said
        return MXLinearMethod(format, said)

    def _parts(self, prefix: str) -> list[str]:
        """Returns what a layer is called in the checkpoint: several, if vLLM joins them."""
        above, _, name = prefix.rpartition(".")
        names = self.packed_modules_mapping.get(name, [name])
        return [f"{above}.{part}" if above else part for part in names]


class MXLinearMethod(LinearMethodBase):
    """A linear layer with MX weights."""

    def __init__(self, format: str, activations: str | None):
        self.format, self.said = format, activations

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs,
    ) -> None:
        """Makes room for codes and scales, under the names that our files have."""
        fmt = format_named(self.format)
        shape = sum(output_partition_sizes), input_size_per_partition
        if input_size_per_partition % fmt.block_k:
            raise ValueError(
                f"weight: got {show(shape)} of {input_size} inputs on this rank, expected a "
                f"multiple of {fmt.block_k}; choose another tensor parallel size"
            )
        layer.params_dtype = params_dtype
        layer.weight = nn.Module()
        for name, stored in zip(
            ("codes", "scales"), storage_of(shape, fmt, facts().plain), strict=True
        ):
            part = nn.Parameter(torch.empty(stored, dtype=torch.uint8), requires_grad=False)
            set_weight_attrs(part, {"input_dim": 1, "output_dim": 0, **extra_weight_attrs})
            layer.weight.register_parameter(name, part)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Joins them."""
        parts = layer.weight.codes.data, layer.weight.scales.data
        self.activations = activations_of(self.said, parts[0].device)
        del layer.weight
        layer.weight = packed(*parts, self.format, layer.params_dtype)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiplies."""
        return multiply(layer, x, bias, self.activations)

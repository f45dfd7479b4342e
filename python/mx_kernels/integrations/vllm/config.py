"""Checkpoints of our own in vLLM: what `save_pretrained` of a model with MXLinear wrote.

The headers of the files say which weights are quantized, as for transformers; the config says what
activations are multiplied as. Weights that vLLM joins, such as q, k and v, have one format. Names
are the files' until vLLM has made the model, and then what vLLM calls its layers.

    experts.gate_up_proj.codes [E, ...]    ->    experts.routed_experts.w13_codes
    experts.7.gate_proj.weight.codes       ->    experts.7.gate_proj.codes, the same of one expert
"""

# ruff: noqa: PLR0917  vLLM calls methods with its own arguments

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase, LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.utils import WeightsMapper
from vllm.model_executor.parameter import BlockQuantScaleParameter
from vllm.model_executor.utils import set_weight_attrs

from mx_kernels._core.arrays import show
from mx_kernels._core.checks import format_named
from mx_kernels._core.facts import facts
from mx_kernels._core.storage import storage_of
from mx_kernels.checkpoints.configs import OURS
from mx_kernels.checkpoints.files import open_path, some
from mx_kernels.checkpoints.forms import plan
from mx_kernels.hints import ActivationsName, FormatName
from mx_kernels.integrations.vllm.experts import WEIGHTS, OwnExperts, gate_of
from mx_kernels.integrations.vllm.linear import activations_of, multiply, packed

WEIGHT = "weight"
NAMES = {
    re.compile(rf"\.experts\.{name}\.(codes|scales)$"): rf".experts.routed_experts.{theirs}_\1"
    for name, theirs in WEIGHTS.items()
} | {re.compile(r"(\.experts\.\d+\.\w+)\.weight\.(codes|scales)$"): r"\1.\2"}
"""How our files end the names of experts' parts, and what vLLM's models take."""


class MXVllmConfig(QuantizationConfig):
    """What config.json says of one of our checkpoints, and what its files hold."""

    def __init__(self, activations: str | dict[str, str] | None):
        super().__init__()
        self.activations: str | dict[str, str] | None = activations
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
    def from_config(cls, config: dict[str, Any]) -> MXVllmConfig:
        """Takes what config.json says."""
        return cls(config.get("activations"))

    def maybe_update_config(self, model_name: str, **kwargs: object) -> None:
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

    def apply_vllm_mapper(self, hf_to_vllm_mapper: WeightsMapper) -> None:
        """Calls layers what vLLM does."""
        self.formats = hf_to_vllm_mapper.apply_dict(self.formats)
        if isinstance(self.activations, dict):
            self.activations = hf_to_vllm_mapper.apply_dict(self.activations)

    @staticmethod
    def get_checkpoint_weight_mapper() -> WeightsMapper:
        """Returns what the parts of experts are called in vLLM's models."""
        return WeightsMapper(orig_to_new_regex=NAMES)

    def get_quant_method(
        self, layer: nn.Module, prefix: str
    ) -> OwnExperts | UnquantizedLinearMethod | MXLinearMethod | None:
        """Returns ours for layers whose weights are quantized."""
        if isinstance(layer, RoutedExperts):
            return self._experts_method(layer, prefix)
        if isinstance(layer, ParallelLMHead) and prefix in self.formats:
            raise NotImplementedError(
                f"{prefix}: got an output head in {self.formats[prefix]}, expected floats: vLLM "
                "makes it of the embedding's layer; keep it when the model is quantized"
            )
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
        return MXLinearMethod(format, self._said(parts[0]))

    def _experts_method(self, layer: RoutedExperts, prefix: str) -> OwnExperts | None:
        """Returns ours if all weights of a layer of experts are of one format."""
        found = {name: f for name, f in self.formats.items() if name.startswith(f"{prefix}.")}
        if not found:
            return None
        config, names = layer.moe_config, {name.removeprefix(f"{prefix}.") for name in found}
        gate, format = facts().gates[gate_of(config)["hidden_act"]], next(iter(found.values()))
        parts = {name.partition(".")[2] for name in names if name.partition(".")[0].isdigit()}
        each = {f"{i}.{part}" for i in range(config.num_logical_experts) for part in parts}
        count = 2 + gate.is_gated
        is_whole = names == each and len(parts) == count if parts else len(names) == 2
        if not is_whole or len(set(found.values())) > 1:
            said = some([f"{name} as {format}" for name, format in found.items()])
            raise ValueError(
                f"{prefix}: got {said}, expected two of {', '.join(WEIGHTS)} of all experts, or "
                f"{count} weights of each of {config.num_logical_experts}, in one format"
            )
        if parts and gate.is_interleaved and format_named(format).block_rows > 1:
            raise ValueError(
                f"{prefix}: got gates and ups apart in {format}, expected another format: their "
                "rows are taken in turn, and a block has several rows"
            )
        return OwnExperts(config, format, self._said(prefix))

    def _said(self, name: str) -> str | None:
        """Returns what the config says of a layer's activations."""
        said = self.activations
        return said.get(name) if isinstance(said, dict) else said

    def _parts(self, prefix: str) -> list[str]:
        """Returns what a layer is called in the checkpoint: several, if vLLM joins them."""
        above, _, name = prefix.rpartition(".")
        names = self.packed_modules_mapping.get(name, [name])
        return [f"{above}.{part}" if above else part for part in names]


class MXLinearMethod(LinearMethodBase):
    """A linear layer with MX weights."""

    activations: ActivationsName

    def __init__(self, format: FormatName, activations: ActivationsName | None):
        self.format: FormatName = format
        self.said: ActivationsName | None = activations

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: object,
    ) -> None:
        """Makes room for codes and scales, under the names that our files have."""
        fmt = format_named(self.format)
        shape = sum(output_partition_sizes), input_size_per_partition
        is_cut = input_size_per_partition != input_size, shape[0] != output_size
        if is_cut[0] and input_size_per_partition % fmt.k_cut:
            raise ValueError(
                f"weight: got {show(shape)} of {input_size} inputs on this rank, expected a "
                f"multiple of {fmt.k_cut}; choose another tensor parallel size"
            )
        # Several weights in one, or a part of one: blocks of rows stay whole.
        is_joined = len(output_partition_sizes) > 1
        if (is_joined or is_cut[1]) and any(n % fmt.block_rows for n in output_partition_sizes):
            raise ValueError(
                f"weight: got {output_partition_sizes} rows on this rank, expected multiples of "
                f"{fmt.block_rows}, the rows of a block of {fmt.name}; choose another tensor "
                "parallel size or format"
            )
        layer.params_dtype = params_dtype
        layer.weight = nn.Module()
        codes, scales = storage_of(shape, fmt, facts().plain)
        axes = {"input_dim": 1, "output_dim": 0}
        part = nn.Parameter(torch.empty(codes, dtype=torch.uint8), requires_grad=False)
        set_weight_attrs(part, axes | extra_weight_attrs)
        layer.weight.register_parameter("codes", part)
        data = torch.empty(scales, dtype=fmt.scale_dtype)
        if fmt.block_rows > 1:
            # By this class and this size vLLM knows how many rows of scales a rank has.
            layer.weight_block_size = [fmt.block_rows, fmt.block_k]
            part = BlockQuantScaleParameter(data=data, **axes, **extra_weight_attrs)
        else:
            part = nn.Parameter(data, requires_grad=False)
            if fmt.has_whole_rows:
                # Parts of a row all have its scale.
                del axes["input_dim"]
            set_weight_attrs(part, axes | extra_weight_attrs)
        layer.weight.register_parameter("scales", part)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Joins them."""
        parts = layer.weight.codes.data, layer.weight.scales.data
        self.activations = activations_of(self.said, parts[0].device, self.format)
        del layer.weight
        layer.weight = packed(*parts, self.format, layer.params_dtype)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiplies."""
        return multiply(layer, x, bias, self.activations)

"""from_pretrained and register: checkpoints that are MX already, in their own bits."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import PreTrainedModel
from transformers.quantizers import HfQuantizer, auto
from transformers.utils.quantization_config import QuantizationConfigMixin

from mx_kernels._core.checks import format_named
from mx_kernels.checkpoints.configs import OURS
from mx_kernels.conversion import convert
from mx_kernels.integrations.transformers.config import MXConfig
from mx_kernels.integrations.transformers.quantizer import MXQuantizer

GPT_OSS = "mxfp4"
"""What the configs of gpt-oss call their method."""
_THEIRS = auto.AUTO_QUANTIZER_MAPPING[GPT_OSS]


def from_pretrained(
    path: str | Path,
    *,
    activations: str | Mapping[str, str] | None = None,
    rest: str | None = None,
    model_class: type = AutoModelForCausalLM,
    **kwargs,
) -> PreTrainedModel:
    """Loads a model whose checkpoint is MX: of gpt-oss, or one that was saved with our layers.

    The bytes of the checkpoint are what is multiplied by: nothing is dequantized, no weight is
    rounded again. They get the layout of their device, and the file's are let go.

    >>> model = from_pretrained("gpt-oss-20b", rest="mxint8")
    >>> model.generate(**tokens, max_new_tokens=32)

    Args:
        path: what transformers takes: a folder, or a repository's name.
        activations: as for `MXConfig`. None is what was saved, else what the device is best at.
        rest: the format that linear layers which the checkpoint has as floats are quantized to,
            the output head too unless it is tied: "mxint8" halves them at 1 % of error, and in
            gpt-oss they are most of what a token reads. None leaves them alone.
        model_class: whose `from_pretrained` is called.
        kwargs: are passed on to it: dtype, device_map, attn_implementation, revision, ...

    Raises:
        ValueError: if the checkpoint is quantized in another way, or not at all, or has no rest.
    """
    if rest is not None:
        format_named(rest)
    if "quantization_config" in kwargs:
        raise ValueError(
            "quantization_config: got one, expected none, because the checkpoint has its own; "
            "see activations, and AutoModelForCausalLM.from_pretrained to quantize floats"
        )
    named = ("revision", "token", "cache_dir", "local_files_only", "subfolder", "trust_remote_code")
    where = {name: kwargs[name] for name in named if name in kwargs}
    config = copy.deepcopy(kwargs.pop("config", None) or AutoConfig.from_pretrained(path, **where))
    said = getattr(config, "quantization_config", None) or {}
    said = said.to_dict() if isinstance(said, QuantizationConfigMixin) else said
    method = said.get("quant_method")
    if method not in (OURS, GPT_OSS):
        raise ValueError(
            f"{path}: got quant_method {method!r}, expected {OURS} or {GPT_OSS}; floats are "
            "quantized by AutoModelForCausalLM.from_pretrained(path, "
            "quantization_config=MXConfig()), other MX checkpoints rewritten by "
            "`python -m mx_kernels convert`"
        )
    said = dict(said) if method == OURS else {"quant_method": OURS}
    if activations is not None:
        said |= {"activations": activations}
    MXConfig(**said)  # Raises if a name is unknown.
    config.quantization_config = said
    model = model_class.from_pretrained(path, config=config, **kwargs)
    if rest is None:
        return model
    return convert(model, format=rest, include=_own_head(model), activations=activations)


def _own_head(model: PreTrainedModel) -> list[str]:
    """Returns the name of the output layer, none if it has no weight of its own."""
    head = model.get_output_embeddings()
    if head is None or head.weight is model.get_input_embeddings().weight:
        return []
    return [name for name, module in model.named_modules() if module is head]


def register(*, activations: str | Mapping[str, str] | None = None) -> None:
    """Makes transformers itself load checkpoints of gpt-oss as `from_pretrained` here does.

    For programs that call `AutoModelForCausalLM.from_pretrained` on their own: it takes over the
    method "mxfp4" in this process. `Mxfp4Config(dequantize=True)` still dequantizes.

    Args:
        activations: as for `MXConfig`.
    """
    config = MXConfig(activations=activations)

    def quantizer(
        given: QuantizationConfigMixin, *, pre_quantized: bool = True, **kwargs
    ) -> HfQuantizer:
        if given.dequantize or not pre_quantized:
            return _THEIRS(given, pre_quantized=pre_quantized, **kwargs)
        return MXQuantizer(copy.deepcopy(config), pre_quantized=True, **kwargs)

    auto.AUTO_QUANTIZER_MAPPING[GPT_OSS] = quantizer

"""from_pretrained and register: checkpoints that are MX already, in their own bits."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.quantizers import HfQuantizer, auto
from transformers.utils.quantization_config import QuantizationConfigMixin

from mx_kernels._core.checks import format_named
from mx_kernels.checkpoints.configs import OURS, quantization
from mx_kernels.checkpoints.files import CONFIG, config_in
from mx_kernels.checkpoints.methods import Scheme
from mx_kernels.conversion import convert
from mx_kernels.hints import ActivationsName, FormatName
from mx_kernels.integrations.transformers.config import MXConfig
from mx_kernels.integrations.transformers.quantizer import MXQuantizer

GPT_OSS = "mxfp4"
"""What the configs of gpt-oss call their method."""
_THEIRS = auto.AUTO_QUANTIZER_MAPPING[GPT_OSS]


def from_pretrained(
    path: str | Path,
    *,
    activations: ActivationsName | Mapping[str, ActivationsName] | None = None,
    rest: FormatName | None = None,
    model_class: type = AutoModelForCausalLM,
    **kwargs: object,
) -> PreTrainedModel:
    """Loads a model whose checkpoint is quantized, in any form that `mx_kernels.load` reads.

    The bytes of the checkpoint are what is multiplied by: no weight is rounded again. They get the
    layout of their device, and the file's are let go. Experts that have a tensor each are joined.
    Weights that no layer of ours multiplies by become floats, and a warning names them.

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
    said = _said(config, path)
    if activations is not None:
        said |= {"activations": activations}
    MXConfig(**said)  # Raises if a name is unknown.
    _tell(config, said)
    model = model_class.from_pretrained(path, config=config, **kwargs)
    if rest is None:
        return model
    return convert(model, format=rest, include=_own_head(model), activations=activations)


def _said(config: PreTrainedConfig, path: str | Path) -> dict:
    """Returns what our method says of a checkpoint that is quantized by any that is read.

    Raises:
        ValueError: if it is not quantized, or in a way that is not read.
    """
    content = config.to_dict()
    folder = Path(path)
    found = quantization(config_in(folder) if (folder / CONFIG).is_file() else content)
    if found is None:
        raise ValueError(
            f"{path}: got no quantization_config, expected quantized weights; floats are quantized "
            "by AutoModelForCausalLM.from_pretrained(path, quantization_config=MXConfig())"
        )
    method = Scheme({"quantization_config": found}).method
    return dict(found) if method == OURS else {"quant_method": OURS}


def _tell(config: PreTrainedConfig, said: dict) -> None:
    """Makes ours the method of a model, and of none in it."""
    for inner in vars(config).values():
        if isinstance(inner, PreTrainedConfig) and hasattr(inner, "quantization_config"):
            del inner.quantization_config
    config.quantization_config = said


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

"""What a quantization_config says about weights, and what is written there.

    quant_method            what says which elements and scales
    mxfp4                   gpt-oss: always MXFP4
    mxfp8                   always MXFP8
    fp8                     DeepSeek's: E4M3 with a float scale for 128 x 128, or for a tensor
    quark                   global_quant_config and, by patterns of names, layer_quant_config
    compressed-tensors      the format, of all or of each group
    mx_kernels              each file's own metadata

Any other method is refused by its name: its numbers are not ours. What a module's weights are is
asked when they are found, so a rule that no tensor follows does no harm.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

BLOCK = 32
"""Elements of a scale in every format that these configs can name."""
OURS = "mx_kernels"
BLOCK_2D = [128, 128]
"""The blocks of FP8 with a float scale each."""
COMPRESSED = {"mxfp4-pack-quantized": "mxfp4", "mxfp8-quantized": "mxfp8"}
"""Formats of compressed-tensors that are MX."""
COMPRESSED_FP8 = ("float-quantized", "naive-quantized")
"""Formats of compressed-tensors that may be FP8 with float scales."""
QUARK = {"fp4": "mxfp4", "fp8_e4m3": "mxfp8", "fp8_e5m2": "mxfp8_e5m2"}
"""What Quark calls the elements of formats."""
QUARK_FP8 = {
    "fp8_e4m3": {
        "per_tensor": "fp8",
        "per_channel": "fp8",
        "per_group": "fp8_block",
        "per_block": "fp8_block_2d",
    },
    "fp8_e5m2": {"per_tensor": "fp8_e5m2", "per_channel": "fp8_e5m2"},
}
"""Formats with float scales, by elements and what shares a scale."""
READ = ("mxfp4", "mxfp8", "fp8", "quark", "compressed-tensors", OURS)
OTHERS = {
    "nvfp4": "NVFP4: scales of 16 in E4M3, and one for the tensor",
    "modelopt": "NVIDIA ModelOpt's FP8 or NVFP4",
    "torchao": "torchao's own tensors",
    "gptq": "integers",
    "awq": "integers",
    "bitsandbytes": "its own blocks of 64",
}
"""Methods that are well known and not MX, in a few words."""


@dataclass(frozen=True)
class Spec:
    """What a config says about the weights of a module."""

    format: str
    scale_rows: int = 1
    """Rows of the weights that share a row of scales."""


class Scheme:
    """What a config says about all modules.

    Raises:
        ValueError: if it names a method, or a format of all weights, that is not MX.
    """

    def __init__(self, config: Mapping):
        self._content = _quantization(config)
        self.method = None if self._content is None else self._content.get("quant_method")
        if self._content is None:
            return
        if self.method is None and "config_groups" in self._content:
            self.method = "compressed-tensors"
        if self.method not in READ:
            raise ValueError(
                f"quantization_config: got quant_method {self.method!r:.80}{self._in_words()}, "
                f"expected {' or '.join(READ)}"
            )
        if self._is_compressed:
            self._check_compressed()
        block = self._content.get("weight_block_size")
        if self.method == "fp8" and block not in (None, BLOCK_2D):
            raise ValueError(
                f"quantization_config: got weight_block_size {block!r:.80}, expected {BLOCK_2D}"
            )

    @property
    def _is_compressed(self) -> bool:
        """Whether the rules are those of compressed-tensors, whatever the method is called."""
        return self.method == "compressed-tensors" or "config_groups" in self._content

    def _in_words(self) -> str:
        """Returns what a method is that is none of ours."""
        words = OTHERS.get(self.method) if isinstance(self.method, str) else None
        block = self._content.get("weight_block_size")
        parts = [words, f"weight_block_size {block!r:.80}" if block else None]
        said = "; ".join(filter(None, parts))
        return f" ({said})" if said else ""

    def spec(self, module: str) -> Spec | None:
        """Returns what the weights of a module are, None where the config leaves that open.

        Raises:
            ValueError: if they are not MX.
        """
        if self.method == "quark":
            return _quark(self._quark_rule(module), module)
        if self.method in ("mxfp4", "mxfp8"):
            return Spec(self.method)
        if self.method == "fp8" and not self._is_compressed:
            return Spec("fp8_block_2d" if self._content.get("weight_block_size") else "fp8")
        return None

    def _check_compressed(self) -> None:
        """Raises unless every group has a format that is MX."""
        groups = self._content.get("config_groups")
        groups = groups.values() if isinstance(groups, Mapping) else ()
        formats = [group.get("format") for group in groups if isinstance(group, Mapping)]
        for got in list(filter(None, formats)) or [self._content.get("format")]:
            self._check_format(got)

    def _check_format(self, got: Any) -> None:
        """Raises unless a format of compressed-tensors is MX."""
        if not isinstance(got, str) or got not in (*COMPRESSED, *COMPRESSED_FP8, "dense"):
            words = f" ({OTHERS['nvfp4']})" if str(got).startswith("nvfp4") else ""
            raise ValueError(
                f"quantization_config: got format {got!r:.80} of compressed-tensors{words}, "
                f"expected {' or '.join((*COMPRESSED, *COMPRESSED_FP8))}"
            )

    def _quark_rule(self, module: str) -> Any:
        """Returns what Quark's rules say of the weights of a module."""
        layers = self._content.get("layer_quant_config")
        for pattern, rule in (layers if isinstance(layers, Mapping) else {}).items():
            if fnmatch.fnmatchcase(module, pattern):
                return rule
        return self._content.get("global_quant_config")


def _quantization(config: Mapping) -> Mapping | None:
    """Returns the quantization_config, of the model or of the language model in it.

    Raises:
        ValueError: if it is no object.
    """
    text = config.get("text_config")
    places = (config, text if isinstance(text, Mapping) else {})
    for place in places:
        for name in ("quantization_config", "compression_config"):
            found = place.get(name)
            if found is None:
                continue
            if not isinstance(found, Mapping):
                raise ValueError(f"{name}: got {found!r:.80}, expected an object")
            return found
    return None


def dtype_of(config: Mapping) -> torch.dtype:
    """Returns the dtype that a model computes in, bfloat16 where its config says none of ours."""
    known = {"float32": torch.float32, "float16": torch.float16}
    text = config.get("text_config")
    for place in (config, text if isinstance(text, Mapping) else {}):
        for name in ("dtype", "torch_dtype"):
            if isinstance(said := place.get(name), str):
                return known.get(said.removeprefix("torch."), torch.bfloat16)
    return torch.bfloat16


def _quark(rule: Any, module: str) -> Spec:
    """Returns what a rule of Quark says.

    Raises:
        ValueError: if that is not MX.
    """
    weight = rule.get("weight") if isinstance(rule, Mapping) else None
    if isinstance(weight, Sequence) and not isinstance(weight, str) and len(weight) == 1:
        weight = weight[0]
    weight = weight if isinstance(weight, Mapping) else {}
    dtype, block = weight.get("dtype"), weight.get("block_size")
    scale = weight.get("scale_format") or weight.get("scale_type")
    scheme, size = weight.get("qscheme"), weight.get("group_size")
    if scale in (None, "float", "float32") and isinstance(dtype, str) and isinstance(scheme, str):
        fits = {"per_group": size == BLOCK_2D[1], "per_block": block == BLOCK_2D}
        format = QUARK_FP8.get(dtype, {}).get(scheme)
        if format and fits.get(scheme, True):
            return Spec(format)
    rows = None
    if weight.get("qscheme", "per_group") == "per_group" and size == BLOCK:
        rows = 1
    elif scheme == "per_block" and isinstance(block, Sequence):
        is_pair = len(block) == 2 and all(type(size) is int and size > 0 for size in block)
        rows = block[0] if is_pair and block[1] == BLOCK else None
    is_mx = isinstance(dtype, str) and dtype in QUARK and scale in ("e8m0", "float8_e8m0fnu")
    if not is_mx or rows is None:
        named = ("dtype", "qscheme", "group_size", "block_size", "scale_format", "scale_type")
        got = {name: weight[name] for name in named if weight.get(name) is not None}
        raise ValueError(
            f"quantization_config: got Quark's {got or rule!r:.200} for {module}, expected dtype "
            f"{' or '.join(QUARK)}, per_group of {BLOCK} or per_block of [rows, {BLOCK}], "
            "scale_format e8m0; or fp8_e4m3 with float scales, per_tensor, per_channel, per_group "
            f"of {BLOCK_2D[1]} or per_block of {BLOCK_2D}; or fp8_e5m2 with float scales, "
            "per_tensor or per_channel"
        )
    return Spec(QUARK[dtype], rows)


# What we write.


def _quark_weight(format: str) -> dict:
    """Returns Quark's words for weights of a format, activations left as they are."""
    elements = {name: element for element, name in QUARK.items()}
    weight = {
        "dtype": elements[format],
        "qscheme": "per_group",
        "group_size": BLOCK,
        "ch_axis": -1,
        "is_dynamic": False,
        "scale_format": "e8m0",
        "scale_type": "float",
        "symmetric": None,
        "round_method": "half_even",
        "scale_calculation_mode": "even",
        "observer_cls": "PerBlockMXObserver",
        "is_scale_quant": False,
        "mx_element_dtype": None,
    }
    nothing = {"input_tensors": None, "output_tensors": None, "bias": None, "target_device": None}
    return {"weight": weight, **nothing}


def quark_config(formats: Mapping[str, str], kept: Sequence[str]) -> dict:
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


def compressed_config(formats: Mapping[str, str], kept: Sequence[str]) -> dict:
    """Returns a quantization_config of compressed-tensors; arguments as in `quark_config`."""
    names = {name: stored for stored, name in COMPRESSED.items()}
    used = list(dict.fromkeys(formats.values()))
    groups = {}
    for number, name in enumerate(used):
        modules = [module for module, other in formats.items() if other == name]
        groups[f"group_{number}"] = {
            "format": names[name],
            "targets": ["Linear"] if len(used) == 1 else modules,
            "weights": {
                "num_bits": 4 if name == "mxfp4" else 8,
                "type": "float",
                "strategy": "group",
                "group_size": BLOCK,
                "symmetric": True,
                "dynamic": False,
                "scale_dtype": "torch.uint8",
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


def gpt_oss_config(formats: Mapping[str, str], kept: Sequence[str]) -> dict:
    """Returns a quantization_config of gpt-oss; arguments as in `quark_config`."""
    return {"quant_method": "mxfp4", "modules_to_not_convert": list(kept)}


def deepseek_config(formats: Mapping[str, str], kept: Sequence[str]) -> dict:
    """Returns a quantization_config of DeepSeek; arguments as in `quark_config`."""
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": BLOCK_2D,
        "modules_to_not_convert": list(kept),
    }


def own_config(formats: Mapping[str, str], kept: Sequence[str]) -> dict:
    """Returns a quantization_config of ours: each file says the rest."""
    return {"quant_method": OURS}

"""What each quantization method says of the weights of a module: a table, a row a method.

    quant_method            what says which elements and scales
    mxfp4                   gpt-oss: always MXFP4
    mxfp8                   always MXFP8
    fp8                     DeepSeek's: E4M3 with scales for weight_block_size, or for a tensor
    fbgemm_fp8              always E4M3 with a scale for a row
    quark                   global_quant_config and, by patterns of names, layer_quant_config
    compressed-tensors      the format, of all or of each group
    modelopt                quant_algo, of all or by names of modules
    auto-round              data_type and bits, of all or by names of modules
    mlx                     no quant_method, but a mode, of all or by names of modules
    mx_kernels              each file's own metadata

Any other method is refused by its name: its numbers are not ours. What the weights of a module are
is asked when they are found, so a rule that no tensor follows does no harm. Lists of
compressed-tensors, which may hold regular expressions, are not matched: tensors tell the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mx_kernels._core.builds import troubles
from mx_kernels._core.checks import format_named
from mx_kernels.checkpoints import configs
from mx_kernels.checkpoints.configs import OURS, Rules, Spec
from mx_kernels.checkpoints.rotations import Rotation
from mx_kernels.checkpoints.scales import MX_BLOCK

BLOCK_2D = [128, 128]
"""The blocks of FP8 that most write."""
E4M3 = ("fp8_block_2d", "fp8_block", "mxfp8")
"""Formats of E4M3 in blocks, the largest first."""
COMPRESSED = {
    "mxfp4-pack-quantized": "mxfp4",
    "mxfp6-pack-quantized": "mxfp6",
    "mxfp8-quantized": "mxfp8",
    "nvfp4-pack-quantized": "nvfp4",
}
"""Formats of compressed-tensors without float scales."""
PACKED = ("mxfp4", "mxfp6", "nvfp4")
"""Of those what is packed into bytes."""
COMPRESSED_FP8 = ("float-quantized", "naive-quantized")
"""Formats of compressed-tensors that may be FP8 with float scales."""
READ_WEIGHTS = {
    "num_bits": (4, 6, 8),
    "type": ("float",),
    "strategy": ("group", "tensor", "channel", "block"),
    "symmetric": (True,),
    "actorder": (False, "weight", "static"),
}
"""What it may say of weights in these formats; anything if it says nothing."""
OF_NVFP4 = {"strategy": ("tensor_group", "group")}
"""What differs for weights with tensor scales."""
QUARK = {
    "fp4": "mxfp4",
    "fp6_e2m3": "mxfp6",
    "fp6_e3m2": "mxfp6_e3m2",
    "fp8_e4m3": "mxfp8",
    "fp8_e5m2": "mxfp8_e5m2",
}
"""What Quark calls the elements of formats."""
E8M0 = ("e8m0", "float8_e8m0fnu")
"""What it calls their scales."""
QUARK_FLOATS = {"fp8_e4m3": "fp8", "fp8_e5m2": "fp8_e5m2"}
"""Formats with one float scale for a tensor or a row, by elements."""
_NO_ZERO_POINTS = {"symmetric": (True, None)}
QUARK_NVFP4 = (
    _NO_ZERO_POINTS
    | {"dtype": ("fp4",), "qscheme": ("per_group",), "group_size": (16,)}
    | {"is_scale_quant": (False, None)},
    _NO_ZERO_POINTS
    | {"dtype": ("fp8_e4m3",), "qscheme": ("per_tensor",), "is_scale_quant": (True,)},
)
"""What it may say of codes of NVFP4, and of their scales, which are quantized again."""
LAYERS = "Linear"
"""The type of modules that quantized weights belong to, in Quark's rules by type."""
MODELOPT = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8_block_2d",
    "FP8_PB_REAL": "fp8_block_2d",
    "MXFP8": "mxfp8",
    "MXFP4": "mxfp4",
    "W4A8_MXFP4_FP8": "mxfp4",
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
}
"""What ModelOpt calls formats, with those of the activations."""
AUTO_ROUND = {("mx_fp", 4): "mxfp4", ("mx_fp", 8): "mxfp8", ("nv_fp", 4): "nvfp4", ("fp", 8): ""}
"""Its data types and bits; of FP8 shapes tell what shares a scale."""
MLX = {"mxfp4": "mxfp4", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}
"""MLX's modes."""
OTHERS = {
    "nvfp4": "NVFP4: scales of 16 in E4M3, and one for the tensor",
    "torchao": "torchao's own tensors",
    "gptq": "integers",
    "awq": "integers",
    "affine": "integers",
    "bitsandbytes": "its own blocks of 64",
}
"""Words in names of methods and formats that are well known and not read, in a few words."""


@dataclass(frozen=True)
class Method:
    """How a method's config is read."""

    spec: Callable[[Scheme, str, torch.dtype], Spec] = lambda scheme, module, codes: Spec()
    """Returns what the weights of a module are."""
    has_bare_codes: bool = False
    """Whether bytes called weight are codes."""


class Scheme:
    """What a config says about all modules.

    Raises:
        ValueError: if it names a method, or a format of all weights, that is not read.
    """

    def __init__(self, config: Mapping[str, Any]):
        content = configs.quantization(config)
        self.method: object = None if content is None else _method_of(content)
        self.content: Mapping[str, Any] = content or {}
        self._row = METHODS.get(self.method) if isinstance(self.method, str) else None
        self.rotations: list[Rotation] = []
        self.quark_rotates: str = ""
        """What Quark rotates at run time, in words."""
        if content is None:
            return
        if self._row is None:
            raise ValueError(
                f"quantization_config: got quant_method {self.method!r:.80}{self._in_words()}, "
                f"expected {' or '.join(METHODS)}; {troubles('Checkpoints')}"
            )
        self.rotations = configs.check_run_time(content, config)
        if self.is_compressed:
            _check_compressed(content)
        self.quark_rotates = configs.check_algorithms(content.get("algo_config"))
        self.rules: Rules = Rules(content.get("layer_quant_config"))
        _block_size(content)

    @property
    def is_compressed(self) -> bool:
        """Whether the rules are those of compressed-tensors, whatever the method is called."""
        has_groups = "config_groups" in self.content and self.method != "modelopt"
        return self.method == "compressed-tensors" or has_groups

    @property
    def has_bare_codes(self) -> bool:
        """Whether bytes called weight are codes."""
        return self._row is not None and self._row.has_bare_codes

    def spec(self, module: str, codes: torch.dtype) -> Spec:
        """Returns what the weights of a module are.

        Args:
            module: its name.
            codes: the dtype of its weights.

        Raises:
            ValueError: if they are in no format that is read.
        """
        return Spec() if self._row is None else self._row.spec(self, module, codes)

    def _in_words(self) -> str:
        """Returns what a method is that is none of ours."""
        block = self.content.get("weight_block_size")
        parts = [_words(self.method), f"weight_block_size {block!r:.80}" if block else None]
        said = "; ".join(filter(None, parts))
        return f" ({said})" if said else ""


def _method_of(content: Mapping) -> Any:
    """Returns what a method is called."""
    said = content.get("quant_method")
    if said is None and "config_groups" in content:
        return "compressed-tensors"
    if said is None and {"group_size", "bits"} <= content.keys():
        return "mlx"
    return said


def _words(name: Any) -> str | None:
    """Returns what is known of a name that is not read, None if it is not well known."""
    found = (words for part, words in OTHERS.items() if part in str(name).lower())
    return next(found, None)


def _refused(what: str, got: Any, module: str, expected: Any) -> ValueError:
    """Returns the error for what a config says of a module."""
    words = _words(got)
    return ValueError(
        f"quantization_config: got {what} {got!r:.80}{f' ({words})' if words else ''} for "
        f"{module}, expected {' or '.join(expected)}"
    )


def _entries(content: Mapping, name: str) -> list[Mapping]:
    """Returns the objects under the names of an entry, none if it is no object."""
    said = content.get(name)
    values = said.values() if isinstance(said, Mapping) else ()
    return [it for it in values if isinstance(it, Mapping)]


def _always(*formats: str) -> Callable[[Scheme, str, torch.dtype], Spec]:
    return lambda scheme, module, codes: Spec(formats)


# DeepSeek's FP8.


def _block_size(content: Mapping) -> tuple[int, int] | None:
    """Returns the weight_block_size of a config, None if it has none.

    Raises:
        ValueError: if it is no pair of sizes.
    """
    said = content.get("weight_block_size")
    return None if said is None else _pair("weight_block_size", said)


def _pair(name: str, said: Any) -> tuple[int, int]:
    """Returns two sizes that a config says; raises if they are none."""
    if not _is_pair(said):
        raise ValueError(
            f"quantization_config: got {name} {said!r:.80}, expected two positive integers, as "
            f"{BLOCK_2D}"
        )
    return tuple(said)


def _is_pair(said: Any) -> bool:
    """Says whether something is two sizes."""
    is_listed = isinstance(said, Sequence) and not isinstance(said, str) and len(said) == 2
    return is_listed and all(type(size) is int and size > 0 for size in said)


def _fp8(scheme: Scheme, module: str, codes: torch.dtype) -> Spec:
    # Experts of DeepSeek-V4 in four bits are integers, and follow no weight_block_size.
    if scheme.is_compressed or not codes.is_floating_point:
        return Spec()
    block = _block_size(scheme.content)
    return Spec(E4M3, block) if block else Spec(("fp8",))


# compressed-tensors.


def _compressed(scheme: Scheme, module: str, codes: torch.dtype) -> Spec:
    """Returns the formats of packed codes, of all groups of weights, or the blocks of the only one.

    Where there are several groups of FP8, shapes tell the blocks.
    """
    groups = [it for it in _entries(scheme.content, "config_groups") if it.get("weights")]
    if not codes.is_floating_point:
        said = [COMPRESSED.get(it.get("format") or scheme.content.get("format")) for it in groups]
        return Spec(tuple(dict.fromkeys(name for name in said if name in PACKED)))
    weights = [group["weights"] for group in groups]
    if len(weights) != 1:
        return Spec()
    (weight,) = weights
    said, block, size = map(weight.get, ("strategy", "block_structure", "group_size"))
    if isinstance(block, str):
        block = [int(size) for size in re.findall(r"\d{1,9}", block)]
    if said == "block" and block is not None:
        return Spec(E4M3, _pair("block_structure", block))
    if said == "group" and type(size) is int and size > MX_BLOCK:
        return Spec(E4M3, (1, size))
    return Spec()


def _check_compressed(content: Mapping) -> None:
    """Raises unless every group has a format that is read."""
    default = content.get("format")
    groups = _entries(content, "config_groups")
    of_weights = [group for group in groups if group.get("weights") is not None]
    for group in of_weights:
        format = group.get("format") or default
        _check_format(format)
        _check_weights(group["weights"], format)
    if not of_weights:
        _check_format(next((g["format"] for g in groups if g.get("format")), default))


def _check_format(got: Any) -> None:
    """Raises unless a format of compressed-tensors is read."""
    if not isinstance(got, str) or got not in (*COMPRESSED, *COMPRESSED_FP8, "dense"):
        words = _words(got)
        raise ValueError(
            f"quantization_config: got format {got!r:.80} of compressed-tensors"
            f"{f' ({words})' if words else ''}, expected "
            f"{' or '.join((*COMPRESSED, *COMPRESSED_FP8))}"
        )


def _check_weights(weights: Any, format: str) -> None:
    """Raises unless compressed-tensors says of the weights of a group what can be read.

    Dtypes and shapes of the tensors tell the rest.
    """
    if not isinstance(weights, Mapping):
        raise ValueError(
            f"quantization_config: got weights {weights!r:.80}, expected an object for {format}"
        )
    read = READ_WEIGHTS | (OF_NVFP4 if COMPRESSED.get(format) == "nvfp4" else {})
    for name, values in read.items() if format != "dense" else ():
        got = weights.get(name)
        if got is not None and not any(type(got) is type(v) and got == v for v in values):
            expected = " or ".join(map(repr, values))
            raise ValueError(
                f"quantization_config: got {name} {got!r:.80} for weights of {format}, expected "
                f"{expected}"
            )


# Quark.


def _quark(scheme: Scheme, module: str, codes: torch.dtype) -> Spec:
    """Returns what Quark's rules say of the weights of a module.

    A rule for its name comes before one for linear layers, and that before the one for all.
    """
    rule = scheme.rules.find(module)
    if rule is None:
        types = scheme.content.get("layer_type_quant_config")
        rule = types.get(LAYERS) if isinstance(types, Mapping) else None
    if rule is None:
        rule = scheme.content.get("global_quant_config")
    weight = rule.get("weight") if isinstance(rule, Mapping) else None
    if isinstance(weight, Sequence) and not isinstance(weight, str) and len(weight) == 1:
        weight = weight[0]
    if isinstance(weight, Sequence) and len(weight) == len(QUARK_NVFP4):
        return _quark_nvfp4(weight, module)
    weight = weight if isinstance(weight, Mapping) else {}
    for name, bad in (("symmetric", False), ("is_scale_quant", True)):
        if weight.get(name) is bad:
            raise ValueError(
                f"quantization_config: got {name} {bad} for {module}, expected codes without zero "
                "points, and scales that are not quantized again"
            )
    return _quark_spec(weight, rule, module)


def _quark_nvfp4(levels: Sequence, module: str) -> Spec:
    """Returns what Quark says of weights whose scales are quantized too.

    Raises:
        ValueError: naming the entries that are not those of NVFP4.
    """
    for level, known in zip(levels, QUARK_NVFP4, strict=True):
        said = level if isinstance(level, Mapping) else {}
        others = {name: said.get(name) for name in known if said.get(name) not in known[name]}
        if others:
            expected = {name: known[name][0] for name in others}
            raise ValueError(
                f"quantization_config: got Quark's {others!r:.200} for {module}, expected "
                f"{expected} of weights whose scales are quantized too, which is NVFP4"
            )
    return Spec(("nvfp4",))


def _quark_spec(weight: Mapping, rule: Any, module: str) -> Spec:
    """Returns what Quark says of weights.

    Raises:
        ValueError: naming the entries that are not read.
    """
    dtype, scheme = weight.get("dtype"), weight.get("qscheme", "per_group")
    scale = weight.get("scale_format") or weight.get("scale_type")
    size, block = weight.get("group_size"), weight.get("block_size")
    blocks = {"per_group": [1, size], "per_block": block}
    of = dtype if isinstance(dtype, str) else ""
    unknown = [] if of in QUARK else ["dtype"]
    are_floats = scale in (None, "float", "float32") and of in QUARK_FLOATS
    if not are_floats and scale not in E8M0:
        unknown += ["scale_format", "scale_type"]
    if isinstance(scheme, str) and scheme in blocks:
        if not _is_pair(blocks[scheme]) or blocks[scheme][1] % MX_BLOCK:
            unknown.append("group_size" if scheme == "per_group" else "block_size")
    elif not are_floats or scheme not in ("per_tensor", "per_channel"):
        unknown.append("qscheme")
    if unknown:
        got = {name: weight[name] for name in unknown if weight.get(name) is not None}
        raise ValueError(
            f"quantization_config: got Quark's {got or weight or rule!r:.200} for {module}, "
            f"expected dtype {' or '.join(QUARK)}, per_group of {MX_BLOCK} or more, per_block of "
            f"[rows, {MX_BLOCK} or more], scale_format e8m0; or fp8 with float scales, per_tensor "
            "or per_channel too"
        )
    if scheme not in blocks:
        return Spec((QUARK_FLOATS[of],))
    formats = E4M3 if of == "fp8_e4m3" else (QUARK[of],)
    return Spec(formats, tuple(blocks[scheme]))


# ModelOpt, auto-round, MLX: an entry for all modules, and others by names.


def _modelopt(scheme: Scheme, module: str, codes: torch.dtype) -> Spec:
    """Returns what the algorithm of a module, or of all, has for weights."""
    layers = scheme.content.get("quantized_layers")
    own = layers.get(module) if isinstance(layers, Mapping) else None
    said = (own if isinstance(own, Mapping) else scheme.content).get("quant_algo")
    if said == "MIXED_PRECISION" and own is None:
        # Experts have names of their own that are not always those of tensors.
        return Spec()
    format = MODELOPT.get(said.upper()) if isinstance(said, str) else None
    if format is None:
        raise _refused("quant_algo", said, module, MODELOPT)
    return Spec((format,))


def _auto_round(scheme: Scheme, module: str, codes: torch.dtype) -> Spec:
    """Returns the formats of auto-round's data types, of all modules and of some.

    Names of these may be regular expressions, which are not matched: dtypes tell which it is.
    """
    others = [{**scheme.content, **own} for own in _entries(scheme.content, "extra_config")]
    formats = dict.fromkeys(map(_of_auto_round, (scheme.content, *others)))
    if formats.keys() == {None}:
        kind, bits = scheme.content.get("data_type"), scheme.content.get("bits")
        expected = [f"{of} of {n} bits" for of, n in AUTO_ROUND]
        raise _refused("data_type", f"{kind!r:.40} of {bits!r:.20} bits", module, expected)
    return Spec() if "" in formats else Spec(tuple(filter(None, formats)))


def _of_auto_round(said: Mapping) -> str | None:
    """Returns the format of a data type, None if it is not read; empty if shapes tell it."""
    kind, bits, size = said.get("data_type"), said.get("bits"), said.get("group_size")
    kind = "mx_fp" if str(kind).startswith("mx_fp") else kind
    is_known = isinstance(kind, str) and type(bits) is int
    format = AUTO_ROUND.get((kind, bits)) if is_known else None
    is_block = not format or size in (None, format_named(format).block_k)
    return format if is_block else None


def _mlx(scheme: Scheme, module: str, codes: torch.dtype) -> Spec:
    """Returns MLX's mode of a module, or of all."""
    own = scheme.content.get(module)
    said = (own if isinstance(own, Mapping) else scheme.content).get("mode", "affine")
    format = MLX.get(said) if isinstance(said, str) else None
    if format is None:
        raise _refused("mode", said, module, MLX)
    return Spec((format,))


METHODS = {
    "mxfp4": Method(_always("mxfp4")),
    "mxfp8": Method(_always("mxfp8")),
    "fp8": Method(_fp8, has_bare_codes=True),
    "fbgemm_fp8": Method(_always("fp8"), has_bare_codes=True),
    "quark": Method(_quark, has_bare_codes=True),
    "compressed-tensors": Method(_compressed),
    "modelopt": Method(_modelopt, has_bare_codes=True),
    "auto-round": Method(_auto_round),
    "mlx": Method(_mlx),
    OURS: Method(),
}

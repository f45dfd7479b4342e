"""What a quantization_config says about weights.

    quant_method            what says which elements and scales
    mxfp4                   gpt-oss: always MXFP4
    mxfp8                   always MXFP8
    fp8                     DeepSeek's: E4M3 with a float scale for 128 x 128, or for a tensor
    quark                   global_quant_config and, by patterns of names, layer_quant_config
    compressed-tensors      the format, of all or of each group
    mx_kernels              each file's own metadata

Any other method is refused by its name: its numbers are not ours. So is what changes the meaning of
weights and is not carried out here: rotations of a layer's input at run time, zero points, sparse
weights, columns in another order. What is said of activations and caches changes no weight. What a
module's weights are is asked when they are found, so a rule that no tensor follows does no harm.

A config is read as text that anybody may have written: patterns of names are matched in a time
that grows with their length and no faster, and there is a limit on both length and number. Lists
of compressed-tensors, which may hold regular expressions, are not matched: tensors tell the same.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

ENTRIES = ("quantization_config", "compression_config")
"""Where a config speaks of quantization."""
BLOCK = 32
"""Elements of a scale in every format that these configs can name."""
OURS = "mx_kernels"
BLOCK_2D = [128, 128]
"""The blocks of FP8 with a float scale each."""
COMPRESSED = {"mxfp4-pack-quantized": "mxfp4", "mxfp8-quantized": "mxfp8"}
"""Formats of compressed-tensors that are MX."""
COMPRESSED_FP8 = ("float-quantized", "naive-quantized")
"""Formats of compressed-tensors that may be FP8 with float scales."""
READ_WEIGHTS = {
    "num_bits": (4, 8),
    "type": ("float",),
    "strategy": ("group", "tensor", "channel", "block"),
    "block_structure": (BLOCK_2D, "128x128"),
    "symmetric": (True,),
    "actorder": (False, "weight", "static"),
}
"""What it may say of weights in these formats; anything if it says nothing."""
QUARK = {"fp4": "mxfp4", "fp8_e4m3": "mxfp8", "fp8_e5m2": "mxfp8_e5m2"}
"""What Quark calls the elements of formats."""
E8M0 = ("e8m0", "float8_e8m0fnu")
"""What it calls their scales."""
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
PATTERN_CHARACTERS = 4096
PATTERNS = 2000
"""Limits of a pattern of names, and of patterns that are not plain names; a guess at plenty."""
MERGED = (
    "autoround", "autosmoothquant", "awq", "gptaq", "gptq", "qronos", "rotation", "smooth",
    "smoothquant",
)  # fmt: skip
"""Algorithms of Quark that leave nothing to be done at run time, a rotation unless it says so."""
AT_RUN_TIME = re.compile(r"online|hadamard|^r4$", re.I)
"""Entries of an algorithm that leave something to be done, unless they are false."""
CHANGES = re.compile(
    r"online|hadamard|rotation|zero_?points?$|low_?rank|outlier|codebook|sv_?d|lora|swizzl|shuffl"
    r"|desc_act|permut",
    re.I,
)
"""Entries of a config that change what weights mean, unless they are false."""
E4M3 = ("e4m3", "e4m3fn", "float8_e4m3fn", "e5m2", "float8_e5m2")
"""What `fmt` may say; e4m3fnuz has other numbers in the same bytes."""
LAYERS = "Linear"
"""The type of modules that quantized weights belong to, in Quark's rules by type."""


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
        _check_run_time(self._content, config)
        if self._is_compressed:
            self._check_compressed()
        _check_algorithms(self._content.get("algo_config"))
        if self.method == "quark":
            self._rules = Rules(self._content.get("layer_quant_config"))
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

    def spec(self, module: str, codes: torch.dtype) -> Spec | None:
        """Returns what the weights of a module are, None where the config leaves that open.

        Args:
            module: its name.
            codes: the dtype of its weights.

        Raises:
            ValueError: if they are not MX.
        """
        if self.method == "quark":
            return _quark(self._quark_rule(module), module)
        if self.method in ("mxfp4", "mxfp8"):
            return Spec(self.method)
        # The config of DeepSeek says nothing of experts in four bits.
        if self.method == "fp8" and not self._is_compressed and codes.is_floating_point:
            return Spec("fp8_block_2d" if self._content.get("weight_block_size") else "fp8")
        return None

    def _check_compressed(self) -> None:
        """Raises unless every group has a format that is MX."""
        default = self._content.get("format")
        groups = self._content.get("config_groups")
        groups = groups.values() if isinstance(groups, Mapping) else ()
        groups = [group for group in groups if isinstance(group, Mapping)]
        of_weights = [group for group in groups if group.get("weights") is not None]
        for group in of_weights:
            format = group.get("format") or default
            self._check_format(format)
            _check_weights(group["weights"], format)
        if not of_weights:
            self._check_format(next((g["format"] for g in groups if g.get("format")), default))

    def _check_format(self, got: Any) -> None:
        """Raises unless a format of compressed-tensors is MX."""
        if not isinstance(got, str) or got not in (*COMPRESSED, *COMPRESSED_FP8, "dense"):
            words = f" ({OTHERS['nvfp4']})" if str(got).startswith("nvfp4") else ""
            raise ValueError(
                f"quantization_config: got format {got!r:.80} of compressed-tensors{words}, "
                f"expected {' or '.join((*COMPRESSED, *COMPRESSED_FP8))}"
            )

    def _quark_rule(self, module: str) -> Any:
        """Returns what Quark's rules say of the weights of a module.

        A rule for its name comes before one for linear layers, and that before the one for all.
        """
        if (rule := self._rules.find(module)) is not None:
            return rule
        types = self._content.get("layer_type_quant_config")
        of_layers = types.get(LAYERS) if isinstance(types, Mapping) else None
        return self._content.get("global_quant_config") if of_layers is None else of_layers


class Rules:
    """Rules by patterns of names, the first that matches a name counts.

    Raises:
        ValueError: if a pattern is too long, or there are too many.
    """

    def __init__(self, rules: Any):
        rules = rules if isinstance(rules, Mapping) else {}
        self._rules = list(rules.values())
        self._plain: dict[str, int] = {}
        self._patterns: list[tuple[int, re.Pattern]] = []
        for place, pattern in enumerate(rules):
            if len(pattern) > PATTERN_CHARACTERS:
                raise ValueError(
                    f"quantization_config: got a pattern of {len(pattern)} characters, "
                    f"{pattern!r:.40}, expected at most {PATTERN_CHARACTERS}"
                )
            if set("*?[") & set(pattern):
                self._patterns.append((place, _compiled(pattern)))
            else:
                self._plain[pattern] = place
        if len(self._patterns) > PATTERNS:
            raise ValueError(
                f"quantization_config: got {len(self._patterns)} patterns of names, expected at "
                f"most {PATTERNS}"
            )

    def find(self, name: str) -> Any:
        """Returns the rule for a name, None if there is none."""
        end = self._plain.get(name, len(self._rules))
        for place, pattern in self._patterns:
            if place > end:
                break
            if pattern.match(name):
                return self._rules[place]
        return self._rules[end] if end < len(self._rules) else None


def _compiled(pattern: str) -> re.Pattern:
    """Returns a shell's pattern as a regular expression, in a time that grows with its length."""
    # A bracket that nothing closes means itself; `fnmatch` looks to the end for each of them.
    closed = pattern.rfind("]") + 1
    literal = pattern[closed:].replace("[", "[[]")
    return re.compile(fnmatch.translate(pattern[:closed] + literal))


def _quantization(config: Mapping) -> Mapping | None:
    """Returns the quantization_config, of the model or of a model in it.

    Raises:
        ValueError: if it is no object, or there are several that differ.
    """
    said = []
    for place in _models(config):
        for name in ENTRIES:
            found = place.get(name)
            if found is None:
                continue
            if not isinstance(found, Mapping):
                raise ValueError(f"{name}: got {found!r:.80}, expected an object")
            said.append(found)
    methods = [found.get("quant_method") for found in said]
    if any(method != methods[0] for method in methods[1:]):
        raise ValueError(
            f"quantization_config: got quant_method {methods[0]!r:.80} and {methods[1:]!r:.80} in "
            "one config, expected one"
        )
    return said[0] if said else None


def _models(config: Mapping, depth: int = 3) -> Iterator[Mapping]:
    """Yields the configs of a model and of the models in it, as text_config and thinker_config."""
    yield config
    for name, value in config.items():
        if depth and isinstance(value, Mapping) and name not in ENTRIES:
            yield from _models(value, depth - 1)


def without_quantization(config: Mapping) -> dict:
    """Returns a config that says nothing of quantization, nor do those of the models in it."""
    return {
        name: without_quantization(value) if isinstance(value, Mapping) else value
        for name, value in config.items()
        if name not in ENTRIES
    }


def _check_run_time(content: Mapping, config: Mapping) -> None:
    """Raises if a config changes what weights mean, by something that is not carried out.

    Raises:
        ValueError: naming the entry.
    """
    for place in (content, config):
        sparse = place.get("sparsity_config") or None
        form = sparse.get("format") if isinstance(sparse, Mapping) else sparse
        if sparse is not None and form != "dense":
            raise ValueError(
                f"sparsity_config: got format {form!r:.80}, expected dense: sparse weights are "
                "not read"
            )
        transforms = place.get("transform_config")
        if transforms and (applied := next(_online(transforms), None)):
            raise ValueError(
                f"transform_config: got {applied}, which turns what a layer is given at run time, "
                "and is not carried out; expected weights without it"
            )
    if (fmt := content.get("fmt")) not in (None, *E4M3):
        raise ValueError(f"quantization_config: got fmt {fmt!r:.80}, expected {' or '.join(E4M3)}")
    for name, value in content.items():
        if CHANGES.search(name) and value not in (None, False, [], {}):
            raise ValueError(
                f"quantization_config: got {name} {value!r:.80}, which changes what weights mean "
                "and is not carried out; expected none"
            )


def _online(transforms: Any) -> Iterator[str]:
    """Yields in words what compressed-tensors applies to activations, and what is not known."""
    groups = transforms.get("config_groups") if isinstance(transforms, Mapping) else None
    if not isinstance(groups, Mapping):
        yield f"{transforms!r:.80}"
        return
    for name, scheme in groups.items():
        applied = scheme.get("apply") if isinstance(scheme, Mapping) else None
        for where in applied if isinstance(applied, list) else [None]:
            location = where.get("location") if isinstance(where, Mapping) else None
            if location not in ("weight_input", "weight_output"):
                kind = scheme.get("type") if isinstance(scheme, Mapping) else scheme
                yield f"{name!r:.80} ({kind!r:.80} at {location!r:.80})"


def _check_algorithms(said: Any) -> None:
    """Raises if an algorithm of Quark leaves something to be done at run time.

    Raises:
        ValueError: naming it. A rotation r3 turns queries and keys alike, which no product shows.
    """
    if isinstance(said, Mapping):
        said = [said] if "name" in said else list(said.values())
    for algorithm in said if isinstance(said, list) else [said] if said else []:
        name = algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm
        entries = algorithm if isinstance(algorithm, Mapping) else {}
        online = [entry for entry, on in entries.items() if AT_RUN_TIME.search(entry) and on]
        if online or not isinstance(name, str) or name.lower() not in MERGED:
            what = f"{name!r:.80} with {', '.join(online)}" if online else f"{name!r:.80}"
            raise ValueError(
                f"algo_config: got {what}, which may change what layers are given at run time, "
                f"and is not carried out; expected {' or '.join(MERGED)}, merged into the weights"
            )


def _check_weights(weights: Any, format: str) -> None:
    """Raises unless compressed-tensors says of the weights of a group what can be read.

    Dtypes and shapes of the tensors tell the rest.
    """
    if not isinstance(weights, Mapping):
        raise ValueError(
            f"quantization_config: got weights {weights!r:.80}, expected an object for {format}"
        )
    for name, values in READ_WEIGHTS.items() if format != "dense" else ():
        got = weights.get(name)
        if got is not None and not any(type(got) is type(v) and got == v for v in values):
            expected = " or ".join(map(repr, values))
            raise ValueError(
                f"quantization_config: got {name} {got!r:.80} for weights of {format}, expected "
                f"{expected}"
            )


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
    for name, bad in (("symmetric", False), ("is_scale_quant", True)):
        if weight.get(name) is bad:
            raise ValueError(
                f"quantization_config: got {name} {bad} for {module}, expected codes without zero "
                "points, and scales that are not quantized again"
            )
    if dtype == "fp8_e4m3" and scheme == "per_block" and block == BLOCK_2D:
        # Its E8M0 scales are floats too.
        scale = None if scale in E8M0 else scale
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
    is_mx = isinstance(dtype, str) and dtype in QUARK and scale in E8M0
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

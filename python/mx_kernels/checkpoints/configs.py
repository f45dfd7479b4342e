"""What a config.json says of quantization, found and checked; `methods` says what it means.

It is read as text that anybody may have written. What changes the meaning of weights and is not
carried out is refused: zero points, sparse weights, columns in another order, and what is done at
run time, but for the rotations of `rotations`. What is said of activations and caches changes no
weight. Patterns of names are matched in a time that grows with their length and no faster, and
there is a limit on both length and number.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mx_kernels.checkpoints.rotations import Rotation, rotations_by_layer, rotations_in

ENTRIES = ("quantization_config", "compression_config", "quantization")
"""Where a config speaks of quantization, the last of MLX alone."""
OURS = "mx_kernels"
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


@dataclass(frozen=True)
class Spec:
    """What a config says about the weights of a module."""

    formats: tuple[str, ...] = ()
    """What they may be in, the first that fits; empty where the config leaves that open."""
    block: tuple[int, int] | None = None
    """Rows, and elements along K, that share a scale; None as the format has it."""


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


def quantization(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the quantization_config, of the model or of a model in it.

    Raises:
        ValueError: if it is no object, or there are several that differ.
    """
    said = []
    for place in models(config):
        for name in ENTRIES:
            found = place.get(name)
            if found is None or (name == ENTRIES[-1] and not isinstance(found, Mapping)):
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


def models(config: Mapping[str, Any], depth: int = 3) -> Iterator[Mapping[str, Any]]:
    """Yields the configs of a model and of the models in it, as text_config and thinker_config."""
    yield config
    for name, value in config.items():
        if depth and isinstance(value, Mapping) and name not in ENTRIES:
            yield from models(value, depth - 1)


def without_quantization(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config that says nothing of quantization, nor do those of the models in it."""
    return {
        name: without_quantization(value) if isinstance(value, Mapping) else value
        for name, value in config.items()
        if name not in ENTRIES
    }


def check_run_time(content: Mapping[str, Any], config: Mapping[str, Any]) -> list[Rotation]:
    """Returns what turns the input of layers, all else that is done at run time is refused.

    Raises:
        ValueError: naming the entry.
    """
    found: list[Rotation] = []
    for place in (content, config):
        sparse = place.get("sparsity_config") or None
        form = sparse.get("format") if isinstance(sparse, Mapping) else sparse
        if sparse is not None and form != "dense":
            raise ValueError(
                f"sparsity_config: got format {form!r:.80}, expected dense: sparse weights are "
                "not read"
            )
        if transforms := place.get("transform_config"):
            found += rotations_in(transforms)
    if (fmt := content.get("fmt")) not in (None, *E4M3):
        raise ValueError(f"quantization_config: got fmt {fmt!r:.80}, expected {' or '.join(E4M3)}")
    is_ours = content.get("quant_method") == OURS
    if is_ours:
        found += rotations_by_layer(content.get("hadamard") or {})
    for name, value in content.items():
        if is_ours and name == "hadamard":
            continue
        if CHANGES.search(name) and value not in (None, False, [], {}):
            raise ValueError(
                f"quantization_config: got {name} {value!r:.80}, which changes what weights mean "
                "and is not carried out; expected none"
            )
    return found


def check_algorithms(said: Any) -> str:
    """Returns in words which rotations of Quark are left to be done at run time; empty for none.

    Raises:
        ValueError: naming any other algorithm that leaves something to be done. A rotation r3
            turns queries and keys alike, which no product shows.
    """
    rotations = ""
    if isinstance(said, Mapping):
        said = [said] if "name" in said else list(said.values())
    for algorithm in said if isinstance(said, list) else [said] if said else []:
        name = algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm
        entries = algorithm if isinstance(algorithm, Mapping) else {}
        online = [entry for entry, on in entries.items() if AT_RUN_TIME.search(entry) and on]
        is_known = isinstance(name, str) and name.lower() in MERGED
        if online and is_known and name.lower() == "rotation":
            rotations = f"algo_config: got {name!r} with {', '.join(online)}"
        elif online or not is_known:
            what = f"{name!r:.80} with {', '.join(online)}" if online else f"{name!r:.80}"
            raise ValueError(
                f"algo_config: got {what}, which may change what layers are given at run time, "
                f"and is not carried out; expected {' or '.join(MERGED)}, merged into the weights"
            )
    return rotations


def dtype_of(config: Mapping[str, Any]) -> torch.dtype:
    """Returns the dtype that a model computes in, bfloat16 where its config says none of ours."""
    known = {"float32": torch.float32, "float16": torch.float16}
    text = config.get("text_config")
    for place in (config, text if isinstance(text, Mapping) else {}):
        for name in ("dtype", "torch_dtype"):
            if isinstance(said := place.get(name), str):
                return known.get(said.removeprefix("torch."), torch.bfloat16)
    return torch.bfloat16

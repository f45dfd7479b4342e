"""From one form of checkpoint to another, a parameter at a time.

What is MX already keeps its numbers; only names and places change. Of a checkpoint of floats the
weights of linear layers are quantized: matrices called `*.weight`, but for those that `KEPT`
names. The memory needed is that of the largest parameter.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from mx_kernels import ops
from mx_kernels._arrays import show
from mx_kernels._checks import check_rounding, format_named
from mx_kernels._facts import DEFAULT_FORMAT, DEFAULT_ROUNDING, weights_format
from mx_kernels.checkpoints.configs import OURS
from mx_kernels.checkpoints.files import CONFIG, SUFFIX
from mx_kernels.checkpoints.forms import FLOATS, Parameter, plan
from mx_kernels.checkpoints.loading import bar, open_any
from mx_kernels.checkpoints.targets import TARGETS, parts_of, plain_name
from mx_kernels.checkpoints.writing import (
    Stored,
    check_shards,
    new_folder,
    write_file,
    write_shards,
)

KEPT = (
    "*embed*",  # tables of tokens, positions, patches
    "*wte.*",
    "*wpe.*",
    "*lm_head*",
    "*norm*",
    "*ln_*",
    "*router*",  # which experts: a small matrix, and errors there change everything
    "*.gate.weight",
    "*shared_expert_gate*",
    "*score.weight",
    "*classifier*",
)
"""Patterns of names that stay floats, unless they are asked for."""
LEFT = (SUFFIX, ".index.json", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack")
"""How the names of files end that are weights too, and are not copied."""


@dataclass(frozen=True)
class Conversion:
    """What was done: names of parameters."""

    quantized: tuple[str, ...]
    """Now."""
    rewritten: tuple[str, ...]
    """Were MX before."""
    kept: tuple[str, ...]
    """As they were."""
    bytes_before: int
    bytes_after: int


def convert(
    source: str | Path,
    target: str | Path,
    *,
    to: str = OURS,
    format: str = DEFAULT_FORMAT,
    rounding: str = DEFAULT_ROUNDING,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    max_shard_bytes: int | None = None,
    progress: bool | None = None,
) -> Conversion:
    """Writes a checkpoint in another form; floats are quantized on the way.

    Args:
        source: what `load` reads from: a file, a folder or an index.
        target: a folder that is not there yet or empty, or, for a source without a config,
            `*.safetensors`.
        to: "mx_kernels", "compressed-tensors", "quark", "gpt-oss" or "fp8", which is DeepSeek's.
        format: what floats are quantized to; "fp8_block" is "fp8_block_2d" for weights.
        rounding: how.
        include: patterns of the names to quantize, instead of the usual ones: matrices
            `*.weight` of a checkpoint that holds no MX yet, but for embeddings, norms, routers and
            heads.
        exclude: patterns of names to leave as they are.
        max_shard_bytes: see `save`.
        progress: see `load`.

    Raises:
        FileNotFoundError, ValueError: as `load` does; and if the form cannot hold a parameter.
        FileExistsError: if the target holds something.
    """
    source, target = Path(source), Path(target)
    if to not in TARGETS:
        raise ValueError(f"to: got {to!r}, expected {' or '.join(TARGETS)}")
    format_named(format), check_rounding(rounding)
    asked, format = format, weights_format(format)
    checkpoint = open_any(source)
    if target.suffix == SUFFIX and checkpoint.folder is not None:
        raise ValueError(f"{target}: got a file for a folder's checkpoint, expected a folder")
    parameters = plan(checkpoint)
    chosen = _chosen(parameters, format, tuple(include), tuple(exclude))
    formats = {it.name: it.format or format for it in parameters if it.format or it.name in chosen}
    if not chosen and (asked != DEFAULT_FORMAT or rounding != DEFAULT_ROUNDING):
        raise ValueError(
            f"format and rounding: got {asked!r} and {rounding!r}, expected none: {source} is "
            "quantized already, and its numbers stay; name floats to quantize in include"
        )
    stored = [_stored(it, to, formats, rounding) for it in parameters]
    check_shards(stored, target, max_shard_bytes)
    config = _config(checkpoint.config, to, parameters, formats)
    with bar(progress, f"converting {checkpoint.where}", stored) as done:
        if target.suffix == SUFFIX:
            write_file(target, stored, None, done)
        else:
            with _new_folder(target, checkpoint.folder, config) as folder:
                write_shards(stored, folder, max_shard_bytes, None, done)
    return Conversion(
        quantized=tuple(it.name for it in parameters if it.name in chosen),
        rewritten=tuple(it.name for it in parameters if it.format),
        kept=tuple(it.name for it in parameters if it.name not in formats),
        bytes_before=sum(it.nbytes for it in parameters),
        bytes_after=sum(item.nbytes for item in stored),
    )


def _chosen(
    parameters: list[Parameter], format: str, include: tuple[str, ...], exclude: tuple[str, ...]
) -> set[str]:
    """Returns the names of the floats to quantize.

    Raises:
        ValueError: if a pattern asks for something that cannot be quantized, or for nothing.
    """
    block, has_rows = format_named(format).k_multiple, format_named(format).block_rows > 1
    is_mx = any(it.format for it in parameters)
    chosen = set()
    for it in parameters:
        is_asked = _matches(it.name, include)
        if it.format or _matches(it.name, exclude) or (include and not is_asked):
            continue
        is_weight = it.name.endswith(".weight") or it.name == "weight"
        is_usual = is_weight and len(it.shape) == 2 and not _matches(it.name, KEPT) and not is_mx
        fits = (
            it.dtype in FLOATS.values()
            and len(it.shape) >= (2 if has_rows else 1)
            and it.shape[-1]
            and not it.shape[-1] % block
        )
        if is_asked and not fits:
            raise ValueError(
                f"{it.name}: got {it.dtype} {show(it.shape)}, which --include asks for, expected "
                f"floats with a last axis that is a multiple of {block}"
            )
        if fits and (is_asked or is_usual):
            chosen.add(it.name)
    for pattern in (*include, *exclude):
        found = [it for it in parameters if _matches(it.name, (pattern,))]
        if not found:
            raise ValueError(f"got the pattern {pattern!r}, which matches no name of a parameter")
        if pattern in include and all(it.format for it in found):
            raise ValueError(
                f"include: got {pattern!r}, which names only what is {found[0].format} already, "
                "expected floats to quantize"
            )
    if not chosen and not is_mx:
        raise ValueError(
            "got no weights to quantize, expected matrices *.weight; name some with --include"
        )
    return chosen


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Says whether a name matches one of the patterns."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _stored(it: Parameter, to: str, formats: dict[str, str], rounding: str) -> Stored:
    """Returns what is written of a parameter."""
    if it.name not in formats:
        name = plain_name(to, it.name, formats)
        return Stored({name: (it.dtype, it.shape)}, it.read, {} if to == OURS else None)
    format = formats[it.name]
    parts = parts_of(to, it.name, format, it.shape)
    meaning = {it.name: (format, it.shape, it.dtype)} if to == OURS else None

    def read() -> list[Tensor]:
        pair = it.read()
        if not it.format:
            q = ops.quantize(pair[0].contiguous(), format=format, rounding=rounding)
            pair = q.codes, q.scales
        return [
            t.view(dtype).reshape(s) for t, (dtype, s) in zip(pair, parts.values(), strict=True)
        ]

    return Stored(parts, read, meaning)


def _config(
    config: dict, to: str, parameters: list[Parameter], formats: dict[str, str]
) -> dict | None:
    """Returns the config.json of the result, None if there was none."""
    if not config:
        return None
    target = TARGETS[to]
    modules = {_module(target.parameter(name)): format for name, format in formats.items()}
    kept = [_module(it.name) for it in parameters if it.name not in formats and _is_matrix(it)]
    config = {name: value for name, value in config.items() if name != "compression_config"}
    text = config.get("text_config")
    if isinstance(text, dict):
        others = {n: v for n, v in text.items() if n != "quantization_config"}
        config["text_config"] = others
    return {**config, "quantization_config": target.config(modules, kept)}


def _module(name: str) -> str:
    """Returns the module of a parameter."""
    return name.removesuffix("weight").removesuffix(".")


def _is_matrix(it: Parameter) -> bool:
    """Says whether a parameter could be the weight of a linear layer."""
    return len(it.shape) == 2 and it.name.rpartition(".")[2] == "weight"


@contextlib.contextmanager
def _new_folder(target: Path, source: Path | None, config: dict | None) -> Iterator[Path]:
    """Yields a folder with all that the source's has but its weights.

    Raises:
        FileExistsError: if there is something at the target.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target}: got something there, expected a new or an empty folder")
    with new_folder(target) as folder:
        for file in sorted(source.iterdir()) if source else ():
            if file.is_file() and not file.name.endswith(LEFT) and file.name != CONFIG:
                shutil.copyfile(file, folder / file.name)
        if config is not None:
            (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        yield folder

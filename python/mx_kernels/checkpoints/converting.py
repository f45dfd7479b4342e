"""From one form of checkpoint to another, a parameter at a time.

What is quantized keeps its numbers, unless a format is asked for: then codes of another become
float32 and are quantized anew, some rows at a time. Of a checkpoint of floats the weights of linear
layers are quantized: matrices called `*.weight`, but for those that `floats` names. Weights that a
model keeps as [..., K, N] become [..., N, K], see `floats`. The memory needed is that of the
largest parameter.

Beside the weights everything in the source's folder is copied, also in folders in it, but for
hidden folders. Left out, and named in `Conversion.left_out`, are other files of weights and links
to folders; a folder that modules.json of sentence-transformers names keeps its weights.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mx_kernels import ops
from mx_kernels._core.arrays import show
from mx_kernels._core.checks import check_rounding, check_rule, format_named
from mx_kernels._core.facts import DEFAULT_FORMAT, DEFAULT_ROUNDING, ceil_to, weights_format
from mx_kernels._core.moved import renamed
from mx_kernels._core.storage import split_scales
from mx_kernels.checkpoints import floats
from mx_kernels.checkpoints.configs import OURS, without_quantization
from mx_kernels.checkpoints.files import CONFIG, SUFFIX, Checkpoint, Part
from mx_kernels.checkpoints.forms import FLOATS, Parameter, plan
from mx_kernels.checkpoints.loading import bar, open_any
from mx_kernels.checkpoints.targets import (
    TARGETS,
    as_parts,
    guarded,
    has_one_scale,
    parts_of,
    plain_name,
    scale_to_write,
)
from mx_kernels.checkpoints.writing import (
    Stored,
    check_one_file,
    check_shard_bytes,
    new_folder,
    write_file,
    write_shards,
)
from mx_kernels.conversion.rules import patterns_of
from mx_kernels.tensor import MXTensor

FLOATS_AT_ONCE = 1 << 22
"""Numbers of which the largest is looked for at a time."""
INDEXES = ".index.json"
LEFT = (
    SUFFIX, INDEXES, ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".onnx_data", ".h5",
    ".msgpack", ".tflite", ".ot",
)  # fmt: skip
"""How the names of files end that are weights too, and are not copied."""
MODULES = "modules.json"
"""Names the folders of a model of sentence-transformers."""


@dataclass(frozen=True)
class Conversion:
    """What was done: names of parameters."""

    quantized: tuple[str, ...]
    """Now."""
    rewritten: tuple[str, ...]
    """Were quantized before, and have the same codes."""
    kept: tuple[str, ...]
    """As they were."""
    bytes_before: int
    bytes_after: int
    dequantized: tuple[str, ...] = ()
    """Were codes and are floats, because no block of MX divides their K."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """Of what was in another format the relative error: the root of its mean square."""
    left_out: tuple[str, ...] = ()
    """Paths in the source of files of weights that were not read, and of links to folders."""


@renamed(rounding="scale_rule")
def convert(
    source: str | Path,
    target: str | Path,
    *,
    to: str = OURS,
    format: str | None = None,
    scale_rule: str | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    k_axis: int | None = None,
    max_shard_bytes: int | None = None,
    progress: bool | None = None,
) -> Conversion:
    """Writes a checkpoint in another form; floats are quantized on the way.

    Args:
        source: what `load` reads from: a file, a folder or an index.
        target: a folder that is not there yet or empty, or, for a source without a config,
            `*.safetensors`.
        to: "mx_kernels", "compressed-tensors", "quark", "modelopt", "gpt-oss" or "fp8", which is
            DeepSeek's.
        format: what floats are quantized to, None for "mxfp4"; "fp8_block" is "fp8_block_2d" for
            weights. What is quantized in another format becomes this one too, by float32, if it
            is given.
        scale_rule: how, None for "even".
        include: patterns of the names to quantize, instead of the usual ones: matrices
            `*.weight` of a checkpoint that holds no MX yet, but for embeddings, norms, routers,
            heads, and the towers of other senses than text.
        exclude: patterns of names to leave as they are.
        k_axis: -1 if stacks of matrices that `include` names are [..., N, K], -2 if they are
            [..., K, N], and so Conv1D; None if config.json tells it.
        max_shard_bytes: see `save`.
        progress: see `load`.

    Raises:
        FileNotFoundError, ValueError: as `load` does; if there are no weights to quantize, or not
            as asked; if it is open which axis of a weight is K; if the form cannot hold a
            parameter; if an argument has no effect, as `format` where all is in it already.
        FileExistsError: if the target holds something.
    """
    source, target = Path(source), Path(target)
    if to not in TARGETS:
        raise ValueError(f"to: got {to!r}, expected {' or '.join(TARGETS)}")
    if k_axis not in (None, -1, -2) or isinstance(k_axis, float):
        raise ValueError(f"k_axis: got {k_axis!r:.80}, expected -1 or -2")
    check_shard_bytes(max_shard_bytes)
    include, exclude = patterns_of("include", include), patterns_of("exclude", exclude)
    asked = {"format": format, "scale_rule": scale_rule, "k_axis": k_axis}
    format = DEFAULT_FORMAT if format is None else format
    scale_rule = DEFAULT_ROUNDING if scale_rule is None else scale_rule
    check_rounding(scale_rule)
    check_rule(scale_rule, format_named(format), f"format={format!r}")
    format = weights_format(format)
    checkpoint = open_any(source)
    if target.suffix == SUFFIX and checkpoint.folder is not None:
        raise ValueError(f"{target}: got a file for a folder's checkpoint, expected a folder")
    parameters = plan(checkpoint)
    tell = Axes(checkpoint.config, k_axis)
    _check_patterns(parameters, format if asked["format"] else None, include, exclude)
    chosen = to_quantize(parameters, format, include, exclude, tell)
    if asked["format"] is not None:
        patterns = include, exclude
        chosen |= {it.name: it for it in parameters if _is_anew(it, format, *patterns)}
    _check_used(asked, parameters, chosen, tell)
    parameters = [chosen.get(it.name, it) for it in parameters]
    formats = {it.name: it.format for it in parameters if it.format}
    formats |= dict.fromkeys(chosen, format)
    errors: dict[str, float] = {}
    stored = [_stored(it, to, formats, scale_rule, errors) for it in parameters]
    config = _config(checkpoint.config, to, parameters, formats)
    copied, left_out = _beside(checkpoint, target)
    with bar(progress, f"converting {checkpoint.where}", stored) as done:
        if target.suffix == SUFFIX:
            check_one_file(target, stored, max_shard_bytes)
            write_file(target, stored, None, done)
        else:
            with _new_folder(target, checkpoint.folder, copied, config) as folder:
                write_shards(stored, folder, max_shard_bytes, None, done)
    return Conversion(
        quantized=tuple(it.name for it in parameters if it.name in chosen),
        rewritten=tuple(it.name for it in parameters if it.format and it.name not in chosen),
        kept=tuple(it.name for it in parameters if not it.meaning and it.name not in formats),
        dequantized=tuple(it.name for it in parameters if it.becomes_floats),
        bytes_before=sum(it.nbytes for it in parameters),
        bytes_after=sum(item.nbytes for item in stored),
        left_out=left_out,
        errors=errors,
    )


@dataclass
class Axes:
    """Turns weights that are [..., K, N]; knows whether anybody had to say which are."""

    config: Mapping[str, Any]
    k_axis: int | None = None
    was_asked: bool = False

    def right(self, it: Parameter) -> Parameter:
        """Returns a weight as [..., N, K]."""
        self.was_asked |= floats.needs_telling(it.name, it.shape)
        if not floats.is_turned(it.name, it.shape, self.config, self.k_axis):
            return it
        (part,) = it.parts
        shape = (*it.shape[:-2], it.shape[-1], it.shape[-2])
        read = lambda: part.read().transpose(-1, -2).contiguous()  # noqa: E731
        return replace(it, parts=(Part(part.dtype, shape, read),), shape=shape)


def to_quantize(
    parameters: list[Parameter],
    format: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    tell: Axes,
) -> dict[str, Parameter]:
    """Returns the floats to quantize by name, as [..., N, K].

    Raises:
        ValueError: if a pattern asks for something that cannot be quantized, or for nothing.
    """
    block, has_rows = format_named(format).k_multiple, format_named(format).block_rows > 1
    is_mx = any(it.format for it in parameters)
    stay = floats.kept(it.name for it in parameters)
    chosen = {}
    for it in parameters:
        is_asked = _matches(it.name, include)
        if it.format or _matches(it.name, exclude) or (include and not is_asked):
            continue
        is_weight = it.name.endswith(".weight") or it.name == "weight"
        is_usual = is_weight and len(it.shape) == 2 and it.name not in stay and not is_mx
        is_float = it.dtype in FLOATS.values()
        right = tell.right(it) if is_float and (is_asked or is_usual) else it
        fits = (
            is_float
            and len(it.shape) >= (2 if has_rows else 1)
            and right.shape[-1]
            and not right.shape[-1] % block
        )
        if is_asked and not fits:
            raise ValueError(
                f"{it.name}: got {it.dtype} {show(it.shape)}, which --include asks for, expected "
                f"floats with a last axis that is a multiple of {block}"
            )
        if fits and (is_asked or is_usual):
            chosen[it.name] = right
    if not chosen and not is_mx:
        raise ValueError(
            "got no weights to quantize, expected matrices *.weight; name some with --include"
        )
    return chosen


def _is_anew(
    it: Parameter, format: str, include: tuple[str, ...], exclude: tuple[str, ...]
) -> bool:
    """Says whether codes become others."""
    is_meant = not include or _matches(it.name, include)
    is_other = bool(it.format) and it.format != format
    return is_other and is_meant and not _matches(it.name, exclude)


def _check_patterns(
    parameters: list[Parameter],
    format: str | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
) -> None:
    """Raises if a pattern matches nothing, or only codes that are not quantized anew."""
    named = [("include", pattern) for pattern in include]
    for argument, pattern in (*named, *(("exclude", pattern) for pattern in exclude)):
        matched = [it for it in parameters if _matches(it.name, (pattern,))]
        if not matched:
            raise ValueError(
                f"{argument}: got the pattern {pattern!r}, which matches no name of a parameter"
            )
        if all(it.format and (format is None or it.format == format) for it in matched):
            raise ValueError(
                f"{argument}: got the pattern {pattern!r}, which matches only what is quantized "
                f"already, as {matched[0].name} in {matched[0].format}, expected names of floats: "
                "codes are rewritten as they are"
            )


def _check_used(
    asked: dict[str, str | int | None],
    parameters: list[Parameter],
    chosen: dict[str, Parameter],
    tell: Axes,
) -> None:
    """Raises if something was asked for that has no effect."""
    for name, value in asked.items():
        if value is None or (chosen and (name != "k_axis" or tell.was_asked)):
            continue
        if chosen:
            raise ValueError(
                f"k_axis: got {value}, expected none: no stack of matrices is quantized here"
            )
        formats = sorted({it.format for it in parameters if it.format})
        raise ValueError(
            f"{name}: got {value!r} for a checkpoint that is quantized already, as "
            f"{' and '.join(formats)}, expected none: codes are rewritten as they are, unless "
            "format (--format) is another. It is for floats, those beside codes where include "
            "(--include) names them"
        )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Says whether a name matches one of the patterns."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _stored(
    it: Parameter, to: str, formats: dict[str, str], scale_rule: str, errors: dict[str, float]
) -> Stored:
    """Returns what is written of a parameter; `errors` gets what another format costs it."""
    if it.name not in formats:
        name = plain_name(to, it.name, formats)
        return Stored({name: (it.dtype, it.shape)}, it.read, {} if to == OURS else None)
    format = formats[it.name]
    parts = parts_of(to, it.name, format, it.shape)
    meaning = {it.name: (format, it.shape, it.dtype)} if to == OURS else None
    if it.format == format and has_one_scale(to, format):
        _check_one_scale(it, to)

    def read() -> list[Tensor]:
        pair = it.read()
        rules = {"format": format, "scale_rule": scale_rule}
        if not it.format:
            rules["tensor_scale"] = _tensor_scale(pair[0], to, format)
            q = ops.quantize(pair[0].contiguous(), **rules)
            pair = q.codes, q.scales
        elif it.format != format:
            given = MXTensor(*pair, format=it.format)
            q = ops.requantize(given, **rules, tensor_scale=_tensor_scale(given, to, format))
            pair, errors[it.name] = (q.tensor.codes, q.tensor.scales), q.error
        tensors = as_parts(to, format, *pair)
        return [
            t.view(dtype).reshape(s) for t, (dtype, s) in zip(tensors, parts.values(), strict=True)
        ]

    return Stored(parts, read, meaning)


def _tensor_scale(weight: Tensor | MXTensor, to: str, format: str) -> Tensor | None:
    """Returns the tensor scale that all of a weight gets, None where a form has one for rows."""
    if not has_one_scale(to, format):
        return None
    is_mx = isinstance(weight, MXTensor)
    step = max(1, FLOATS_AT_ONCE // weight.shape[-1])
    step = ceil_to(step, format_named(weight.format).block_rows) if is_mx else step
    matrices = weight.reshape(-1, *weight.shape[-2:]) if weight.ndim > 1 else weight[None, None]
    rows = (m[i : i + step] for m in matrices.unbind() for i in range(0, len(m), step))
    scales = [ops.tensor_scale_of(part.dequantize("float32") if is_mx else part) for part in rows]
    return scale_to_write(to, format, torch.stack(scales).amax())


def _check_one_scale(it: Parameter, to: str) -> None:
    """Raises if rows of a matrix have tensor scales of their own, for a form that has one."""
    if len(it.parts) > len(("codes", "scales")):
        return
    of_rows = split_scales(it.parts[1].read(), format_named(it.format))[1]
    of_rows = of_rows.contiguous().view(torch.float32).squeeze(-1)
    if not torch.equal(of_rows, of_rows[..., :1].expand_as(of_rows)):
        raise ValueError(
            f"{it.name}: got {it.format} with tensor scales from {float(of_rows.min()):.4g} to "
            f"{float(of_rows.max()):.4g}, to write as {to}, expected one for all rows of a matrix, "
            f"as floats get that are converted with --to {to}"
        )


def _config(
    config: Mapping[str, Any], to: str, parameters: list[Parameter], formats: dict[str, str]
) -> dict[str, Any] | None:
    """Returns the config.json of the result, None if there was none."""
    if not config:
        return None
    target = TARGETS[to]
    modules = {_module(target.parameter(name)): format for name, format in formats.items()}
    kept = [_module(it.name) for it in parameters if it.name not in formats and _is_matrix(it)]
    config = guarded(without_quantization(config), to)
    return {**config, "quantization_config": target.config(modules, kept)}


def _module(name: str) -> str:
    """Returns the module of a parameter."""
    return name.removesuffix("weight").removesuffix(".")


def _is_matrix(it: Parameter) -> bool:
    """Says whether a parameter could be the weight of a linear layer."""
    return len(it.shape) == 2 and it.name.rpartition(".")[2] == "weight"


def _beside(checkpoint: Checkpoint, target: Path) -> tuple[list[Path], tuple[str, ...]]:
    """Returns what lies beside the weights, in the source's folder: to copy, and left out."""
    source = checkpoint.folder
    copied, left = [], []
    if source is None:
        return copied, ()
    read = set(map(os.path.realpath, checkpoint.files))
    own, out = _folders_of_modules(source), os.path.realpath(target)
    for here, folders, files in os.walk(source):
        place = Path(here).relative_to(source)
        seen = [name for name in sorted(folders) if not name.startswith(".")]
        left += [f"{place / name}/" for name in seen if os.path.islink(Path(here, name))]
        folders[:] = [name for name in seen if os.path.realpath(Path(here, name)) != out]
        is_own = place.parts and place.parts[0] in own
        for name in sorted(files):
            path = Path(here, name)
            if path == source / CONFIG or os.path.realpath(path) in read:
                continue
            if path.is_file() and (is_own or not name.endswith(LEFT)):
                copied.append(place / name)
            elif not name.endswith(INDEXES):
                left.append(str(place / name))
    return copied, tuple(left)


def _folders_of_modules(source: Path) -> set[str]:
    """Returns the folders that modules.json of sentence-transformers names."""
    try:
        said = json.loads((source / MODULES).read_bytes())
    except (OSError, ValueError, RecursionError):
        return set()
    modules = [module for module in said if isinstance(module, dict)] if said else []
    return {str(module.get("path")).partition("/")[0] for module in modules} - {""}


@contextlib.contextmanager
def _new_folder(
    target: Path, source: Path | None, copied: list[Path], config: dict[str, Any] | None
) -> Iterator[Path]:
    """Yields a folder with what is copied from the source's, and a config.

    Raises:
        FileExistsError: if there is something at the target.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target}: got something there, expected a new or an empty folder")
    with new_folder(target) as folder:
        for file in copied:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / file, folder / file)
        if config is not None:
            (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        yield folder

"""Safetensors files, written a tensor at a time, complete or not at all.

    folder/model.safetensors                        if it fits one file
    folder/model-00001-of-00002.safetensors         else shards, each with whole parameters,
    folder/model.safetensors.index.json             and which of them has which tensor

Our own form keeps an MXTensor as two tensors of bytes, NAME.codes and NAME.scales, and its
format, shape and dtype in the metadata of the same file. It is always in the plain layout: a
preshuffled one serves one device and this version of its kernels, a file outlives both.

Everything is written under another name first. A file then replaces what had its name; a folder
must not hold a checkpoint yet, since the old and the new could not be exchanged at once.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import shutil
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mx_kernels._core.arrays import show
from mx_kernels.checkpoints.configs import OURS
from mx_kernels.checkpoints.files import DTYPES, INDEX, LENGTH_BYTES, METADATA, SUFFIX
from mx_kernels.checkpoints.forms import described
from mx_kernels.checkpoints.targets import parts_of
from mx_kernels.tensor import MXTensor

MAX_SHARD_BYTES = 5 * 10**9
ALIGNMENT = 8
"""Of the first tensor: headers are filled up with spaces."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_count = itertools.count()


@dataclass(frozen=True)
class Stored:
    """What a file keeps of one parameter."""

    parts: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
    """Dtype and shape of each tensor."""
    read: Callable[[], Sequence[Tensor]]
    """Returns these tensors."""
    meanings: Mapping[str, tuple[str, tuple[int, ...], torch.dtype]] | None = None
    """Format, shape and dtype of the parameter, if it is MX; None for other forms than ours."""

    @property
    def nbytes(self) -> int:
        """Returns the bytes of all parts."""
        return sum(_nbytes(*part) for part in self.parts.values())


def save(
    tensors: Mapping[str, MXTensor | Tensor],
    path: str | Path,
    *,
    max_shard_bytes: int | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes MXTensors and tensors by name to safetensors, so that `load` gives them back.

    Equal to the bit, with their dtypes. Files are always in the plain layout, whatever the
    tensors' is: they can be read on any device, and by later versions.

    >>> save({"w": quantize(torch.ones(8, 64)), "bias": torch.ones(8)}, "weights.safetensors")

    Args:
        tensors: MXTensors of any format, shape and layout, and tensors, on any device.
        path: `*.safetensors` is one file, which replaces an older one; any other path a folder,
            made if it is not there, with one file or with shards and an index.
        max_shard_bytes: the most bytes of tensors that a file may hold, unless a single
            parameter has more; None is 5 GB for a folder and without limit for a file.
        metadata: strings by name, put into every file beside ours, "mx_kernels".

    Raises:
        TypeError: if something is no tensor, of a dtype that files do not have, or no string.
        ValueError: if two would get one name, a tensor has no memory (meta, sparse), or one
            file is not enough.
        FileExistsError: if the folder holds a checkpoint.
    """
    check_shard_bytes(max_shard_bytes)
    for name, text in (metadata or {}).items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(f"metadata: got {name!r}: {text!r:.80}, expected strings")
        if name == OURS:
            raise ValueError(f"metadata: got {OURS!r}, which is ours, expected another name")
    items = [stored(name, tensor) for name, tensor in tensors.items()]
    path = Path(path)
    if path.suffix != SUFFIX:
        with new_folder(path) as folder:
            write_shards(items, folder, max_shard_bytes, metadata)
        return
    check_one_file(path, items, max_shard_bytes)
    write_file(path, items, metadata)


def check_shard_bytes(limit: int | None) -> None:
    """Raises unless the most bytes of a file are a number of bytes."""
    if limit is not None and (type(limit) is not int or limit <= 0):
        raise ValueError(
            f"max_shard_bytes: got {limit!r:.80}, expected a positive number of bytes, as an int"
        )


def check_one_file(path: Path, items: Sequence[Stored], limit: int | None) -> None:
    """Raises if parameters do not fit one file of a size."""
    total = sum(item.nbytes for item in items)
    if limit is not None and total > limit and len(items) > 1:
        raise ValueError(
            f"{path}: got {total} bytes for files of {limit}, expected the path of a "
            f"folder, which takes several: {path.with_suffix('')}"
        )


def stored(name: str, tensor: MXTensor | Tensor) -> Stored:
    """Returns what a file in our form keeps of a tensor.

    Raises:
        TypeError: if it is none, or of a dtype that files do not have.
        ValueError: if it has no memory.
    """
    if not isinstance(name, str):
        raise TypeError(f"tensors: got the name {name!r}, expected a string")
    if isinstance(tensor, MXTensor):
        _check_memory(name, tensor.codes)
        parts = parts_of(OURS, name, tensor.format, tuple(tensor.shape))
        meaning = {name: (tensor.format, tuple(tensor.shape), tensor.dtype)}
        return Stored(parts, lambda: _plain(tensor), meaning)
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: got {type(tensor).__name__}, expected an MXTensor or a tensor")
    _check_memory(name, tensor)
    if tensor.dtype not in _NAMES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _NAMES)
        raise TypeError(f"{name}: got dtype {tensor.dtype}, expected one of {known}")
    return Stored({name: (tensor.dtype, tuple(tensor.shape))}, lambda: (tensor,), {})


def _check_memory(name: str, tensor: Tensor) -> None:
    """Raises unless there are bytes to write."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        kind = tensor.device if tensor.device.type == "meta" else tensor.layout
        raise ValueError(f"{name}: got a {kind} tensor, expected one with its numbers in memory")


def _plain(tensor: MXTensor) -> tuple[Tensor, Tensor]:
    """Returns codes and scales in the plain layout."""
    plain = tensor.unshuffle()
    return plain.codes, plain.scales


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields a folder to fill; it, or what is in it, gets to `path` unless something is raised.

    Raises:
        FileExistsError: if there is a checkpoint already, or a file.
    """
    path = Path(os.path.abspath(path))
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"{path}: got a file, expected a folder or *{SUFFIX}")
    held = sorted({*path.glob(f"*{SUFFIX}"), *path.glob(f"*{SUFFIX}.index.json")})
    if held:
        raise FileExistsError(
            f"{path}: got a folder with {held[0].name}, expected one without a checkpoint; take "
            "another name, or remove the old one first"
        )
    scratch = _scratch(path)
    scratch.mkdir(parents=True)
    try:
        yield scratch
        if path.exists() and any(path.iterdir()):
            for file in sorted(scratch.iterdir(), key=lambda file: file.name == INDEX):
                os.replace(file, path / file.name)
            scratch.rmdir()
        else:
            os.replace(scratch, path)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _scratch(path: Path) -> Path:
    """Returns a name beside `path` that nobody else takes."""
    return path.with_name(f".{path.name}.{os.getpid()}-{next(_count)}.part")


def write_shards(
    stored: Sequence[Stored],
    folder: Path,
    max_shard_bytes: int | None = None,
    metadata: Mapping[str, str] | None = None,
    done: Callable[[Stored], None] = lambda item: None,
) -> None:
    """Writes parameters into a folder: one file, or shards and their index."""
    limit = max_shard_bytes or MAX_SHARD_BYTES
    shards: list[list[Stored]] = [[]]
    filled = 0
    for item in stored:
        if shards[-1] and filled + item.nbytes > limit:
            shards.append([])
            filled = 0
        shards[-1].append(item)
        filled += item.nbytes
    if len(shards) == 1:
        write_file(folder / f"model{SUFFIX}", shards[0], metadata, done)
        return
    _check_names(stored)
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}{SUFFIX}"
        write_file(folder / name, shard, metadata, done)
        weight_map |= {part: name for item in shard for part in item.parts}
    total = {"total_size": sum(item.nbytes for item in stored)}
    index = json.dumps({"metadata": total, "weight_map": weight_map}, indent=2)
    (folder / INDEX).write_text(index + "\n", encoding="utf-8")


def _check_names(stored: Sequence[Stored]) -> None:
    """Raises if two tensors have one name."""
    seen = {METADATA}
    for item in stored:
        if twice := seen & set(item.parts):
            raise ValueError(
                f"got the name {twice.pop()!r} twice, or one that files need, expected each once"
            )
        seen |= set(item.parts)


def write_file(
    path: Path,
    stored: Sequence[Stored],
    metadata: Mapping[str, str] | None = None,
    done: Callable[[Stored], None] = lambda item: None,
) -> None:
    """Writes parameters into one file, which appears whole or not at all."""
    _check_names(stored)
    parts = {name: part for item in stored for name, part in item.parts.items()}
    # Wide elements first, so that every tensor is aligned to its own.
    order = sorted(parts, key=lambda name: -parts[name][0].itemsize)
    ends = list(itertools.accumulate(_nbytes(*parts[name]) for name in order))
    begins = dict(zip(order, [0, *ends], strict=False))
    header = {METADATA: _metadata(stored, metadata or {})}
    for name, end in zip(order, ends, strict=True):
        dtype, shape = parts[name]
        offsets = [begins[name], end]
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    data = LENGTH_BYTES + len(text)
    scratch = _scratch(Path(os.path.abspath(path)))
    try:
        with open(scratch, "xb") as file:
            file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
            file.truncate(data + (ends[-1] if ends else 0))
            for item in stored:
                for (name, part), tensor in zip(item.parts.items(), item.read(), strict=True):
                    if (tensor.dtype, tuple(tensor.shape)) != part:
                        raise ValueError(
                            f"{name}: got {tensor.dtype} {show(tensor.shape)}, expected {part[0]} "
                            f"{show(part[1])}, which it was before"
                        )
                    file.seek(data + begins[name])
                    file.write(_bytes(tensor))
                done(item)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def _metadata(stored: Sequence[Stored], metadata: Mapping[str, str]) -> dict[str, str]:
    """Returns what a file says about itself."""
    meanings = [item.meanings for item in stored if item.meanings is not None]
    own = {OURS: described(dict(ChainMap(*meanings)))} if meanings else {}
    return {"format": "pt", **metadata, **own}


def _nbytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    """Returns the bytes of a tensor."""
    return math.prod(shape) * dtype.itemsize


def _bytes(tensor: Tensor) -> memoryview:
    """Returns the memory of a tensor, brought to the CPU and in order."""
    return memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())

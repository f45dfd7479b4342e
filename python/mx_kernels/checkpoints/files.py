"""Tensors of safetensors files: which there are, from the headers alone; read one at a time.

    x.safetensors                           one file
    folder/model.safetensors.index.json     the files that it names
    folder/model.safetensors                this one
    folder/*.safetensors                    all of them, and of shards all that their names count

An index decides which file a tensor is taken from. Where a folder has two checkpoints, or one that
is not whole, it is refused.

A file begins with eight bytes, the length of a JSON header with each tensor's dtype, shape and
place. The safetensors library checks a header against its file and maps the file, so that a
tensor costs memory when it is copied and no sooner. gpt-oss repositories may hold their weights a
second time under other names, `block.0.mlp.mlp1_weight.blocks`: such files are left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from mx_kernels.checkpoints.configs import ENTRIES, OURS, quantization

SUFFIX = ".safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
MODELOPT = "hf_quant_config.json"
"""Where ModelOpt says what it did, if not in the config."""
METADATA = "__metadata__"
LENGTH_BYTES = 8
JSON_DEPTH = 64
"""Limit of objects in objects, so that all can be walked through; configs have about ten."""
OPEN_FILES = 2
"""Files that stay mapped: the parts of a parameter may lie in two."""
SHARD = re.compile(rf"(?P<stem>.*)-\d+-of-(?P<total>\d+){re.escape(SUFFIX)}")
NATIVE = re.compile(r"block\.\d+\.mlp\.mlp[12]_(weight|bias)")
"""What gpt-oss calls its weights in the files of its own format."""

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""What safetensors calls the dtypes of torch."""


@dataclass(frozen=True)
class Part:
    """A tensor of a checkpoint that has not been read."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]
    """Returns the tensor, which may be the file's memory."""
    name: str = ""
    """What files call it."""
    is_own: bool = False
    """Whether it is in a file of our own form."""
    is_encoded: bool = False
    """Whether it is an MXTensor, of a state dict."""

    @property
    def nbytes(self) -> int:
        """Returns how much there is to read."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class Checkpoint:
    """What there is to load."""

    where: str
    """What messages call it."""
    parts: Mapping[str, Part]
    """Tensors by name, in the order of the files."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The content of config.json."""
    metadata: tuple[Mapping[str, str], ...] = ()
    """What each file says about itself."""
    folder: Path | None = None
    files: tuple[Path, ...] = ()
    """That tensors are read from."""
    is_part: bool = False
    """Whether it is one shard of several."""
    twice: frozenset[str] = frozenset()
    """Names of tensors that another file has too, which the index does not mean."""


def open_state_dict(tensors: Mapping[str, Tensor]) -> Checkpoint:
    """Returns a state dict as something to load.

    Raises:
        TypeError: if it holds anything but tensors.
    """
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise TypeError(
                f"state dict: got {type(tensor).__name__} for {name!r}, expected a tensor for "
                "each name; for nested dicts pass the innermost one"
            )
    parts = {
        name: Part(
            tensor.dtype,
            tuple(tensor.shape),
            lambda tensor=tensor: tensor,
            is_encoded=hasattr(tensor, "byte_layout"),
        )
        for name, tensor in tensors.items()
    }
    return Checkpoint("state dict", parts)


def open_path(path: str | Path) -> Checkpoint:
    """Returns what a file or folder holds, after a look at all headers.

    Raises:
        FileNotFoundError: if there is nothing, or not all that an index names.
        ValueError: if a file is not what it says.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        hint = ""
        if not path.is_absolute() and len(path.parts) == 2:
            hint = "; a repository's name is no path: download it first"
        raise FileNotFoundError(f"{path}: got no file or folder, expected a checkpoint{hint}")
    if path.name.endswith(".index.json"):
        return _open_folder(path.parent, path)
    if path.suffix != SUFFIX:
        raise ValueError(
            f"{path}: got a file {path.suffix!r}, expected *{SUFFIX}, its index, or a folder of "
            "such files; others may run code when they are read"
        )
    found = _open_files(str(path), [path], {}, {}, None)
    return replace(found, is_part=SHARD.fullmatch(path.name) is not None)


def open_model(files: Iterable[str | Path]) -> Checkpoint:
    """Returns what files of a model hold together, with the config and the index beside them.

    Raises:
        ValueError: if one is not what it says.
    """
    paths = [Path(file) for file in files]
    if others := [path.name for path in paths if path.suffix != SUFFIX]:
        raise ValueError(f"got files {some(others)}, expected *{SUFFIX}")
    folders = {path.parent for path in paths}
    folder = folders.pop() if len(folders) == 1 else None
    config = config_in(folder) if folder else {}
    index = folder / INDEX if folder else None
    listed = _listed(index) if index and index.is_file() and len(paths) > 1 else {}
    return _open_files(some(list(map(str, paths))), paths, listed, config, folder)


def _open_folder(folder: Path, index: Path | None = None) -> Checkpoint:
    """Opens the files that an index names, or what is in a folder."""
    listed: dict[str, Path] = {}
    is_asked = index is not None
    index = index or _index_of(folder)
    if index is not None:
        listed = _listed(index)
        _check_no_other(folder, index, listed, is_asked)
        files = list(dict.fromkeys(listed.values()))
        if missing := [file.name for file in files if not file.is_file()]:
            raise FileNotFoundError(
                f"{index}: got no file {some(missing)}, which it names; expected all of "
                f"{len(files)} files beside it"
            )
    elif (whole := folder / f"model{SUFFIX}").is_file():
        files = [whole]
    else:
        files = sorted(path for path in folder.glob(f"*{SUFFIX}") if path.is_file())
        _check_shards(folder, files)
    if not files:
        raise FileNotFoundError(f"{folder}: got no *{SUFFIX}, expected a checkpoint")
    return _open_files(str(folder), files, listed, config_in(folder), folder)


def config_in(folder: Path) -> dict[str, Any]:
    """Returns the content of a folder's config, with what ModelOpt says beside it.

    Raises:
        ValueError: if that is no JSON.
    """
    config, beside = folder / CONFIG, folder / MODELOPT
    content = read_json(config) if config.is_file() else {}
    if not beside.is_file() or quantization(content) is not None:
        return content
    said = read_json(beside).get("quantization")
    said = said if isinstance(said, dict) else {}
    return {**content, ENTRIES[0]: {"quant_method": "modelopt", **said}}


def _check_no_other(folder: Path, index: Path, listed: Mapping[str, Path], is_asked: bool) -> None:
    """Raises if a folder has a whole model beside an index that does not name it."""
    whole = folder / f"model{SUFFIX}"
    if not is_asked and whole.is_file() and whole not in listed.values():
        raise ValueError(
            f"{folder}: got {index.name} and {whole.name}, which it does not name, expected one "
            "checkpoint; pass the path of one of them"
        )


def _check_shards(folder: Path, files: Sequence[Path]) -> None:
    """Raises unless files whose names count shards are all there, without an index."""
    counted: dict[str, dict[int, int]] = {}
    for file in files:
        if found := SHARD.fullmatch(file.name):
            totals = counted.setdefault(found["stem"], {})
            totals[int(found["total"])] = totals.get(int(found["total"]), 0) + 1
    for stem, totals in counted.items():
        if len(totals) > 1:
            raise ValueError(
                f"{folder}: got {stem}-*{SUFFIX} of {' and of '.join(map(str, totals))} shards, "
                "expected one checkpoint, or an index that names its files"
            )
        ((total, number),) = totals.items()
        if number != total:
            raise FileNotFoundError(
                f"{folder}: got {number} of {total} shards {stem}-*{SUFFIX}, expected all of them, "
                "or the path of one"
            )


def _index_of(folder: Path) -> Path | None:
    """Returns the index of a folder, if there is one.

    Raises:
        ValueError: if there are several.
    """
    if (index := folder / INDEX).is_file():
        return index
    found = sorted(folder.glob(f"*{SUFFIX}.index.json"))
    if len(found) > 1:
        raise ValueError(
            f"{folder}: got {some([path.name for path in found])}, expected one index; pass the "
            "path of one of them"
        )
    return found[0] if found else None


def _listed(index: Path) -> dict[str, Path]:
    """Returns the file of each tensor, as an index says.

    Raises:
        ValueError: if it is no index, or a path leads out of its folder.
    """
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(
            f"{index}: got no weight_map, expected an object with the file of each tensor"
        )
    for name, file in weight_map.items():
        is_inside = isinstance(file, str) and file.endswith(SUFFIX) and "\0" not in file
        if not is_inside or PurePosixPath(file).is_absolute() or ".." in file.split("/"):
            raise ValueError(
                f"{index}: got {file!r} as the file of {name!r}, expected *{SUFFIX} in its folder"
            )
    return {name: index.parent / file for name, file in weight_map.items()}


def _open_files(
    where: str, files: list[Path], listed: Mapping[str, Path], config: Mapping, folder: Path | None
) -> Checkpoint:
    """Reads all headers; `listed` has the file from which a tensor is taken."""
    opened = _Files()
    headers = {file: opened.header(file) for file in files}
    native = [file for file, header in headers.items() if _is_native(*header)]
    if len(native) == len(files):
        raise ValueError(
            f"{where}: got gpt-oss in its own format ({native[0].name}), expected the files with "
            "names such as model.layers.0.mlp.experts.gate_up_proj_blocks, in the folder above"
        )
    parts: dict[str, Part] = {}
    home: dict[str, Path] = {}
    twice = set()
    for file, (_, found) in headers.items():
        if file in native:
            continue
        for name, part in found.items():
            if listed.get(name, file) != file:
                twice.add(name)
                continue
            if name in parts:
                raise ValueError(
                    f"{where}: got tensor {name!r} in {home[name].name} and in {file.name}, "
                    "expected it once"
                )
            parts[name], home[name] = part, file
    for name, file in listed.items():
        if file in headers and name not in headers[file][1]:
            raise ValueError(
                f"{where}: got no tensor {name!r} in {file.name}, expected it there, where the "
                "index has it"
            )
    metadata = tuple(said for file, (said, _) in headers.items() if file not in native)
    read = tuple(file for file in files if file not in native)
    return Checkpoint(where, parts, config, metadata, folder, read, twice=frozenset(twice))


def _is_native(metadata: Mapping[str, str], parts: Mapping[str, Part]) -> bool:
    """Says whether a file is one of gpt-oss's own format."""
    return OURS not in metadata and any(map(NATIVE.match, parts))


class _Files:
    """Files of a checkpoint, the last few of them mapped."""

    def __init__(self):
        self._open: dict[Path, object] = {}

    def header(self, path: Path) -> tuple[dict[str, str], dict[str, Part]]:
        """Returns what a file says about itself, and its tensors in their order.

        Raises:
            ValueError: if it is not what it says.
        """
        self._handle(path)
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            text = file.read(length)
        header = _parsed(text, f"{path}: header")
        metadata = header.pop(METADATA, None) or {}
        parts = {}
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            if entry["dtype"] not in DTYPES:
                raise ValueError(
                    f"{path}: got dtype {entry['dtype']} of {name!r}, expected one of "
                    f"{', '.join(DTYPES)}"
                )
            read = lambda name=name: self._read(path, name)  # noqa: E731
            dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
            parts[name] = Part(dtype, shape, read, name, is_own=OURS in metadata)
        return metadata, parts

    def _read(self, path: Path, name: str) -> Tensor:
        with _explained(path):
            tensor = self._handle(path).get_tensor(name)
        # The file decides where its tensors begin.
        return tensor.clone() if tensor.data_ptr() % tensor.dtype.itemsize else tensor

    def _handle(self, path: Path):
        """Returns an open file, the last one used."""
        handle = self._open.pop(path, None)
        if handle is None:
            safe_open = _safe_open()
            with _explained(path):
                handle = safe_open(path, framework="pt", device="cpu")
        self._open[path] = handle
        while len(self._open) > OPEN_FILES:
            del self._open[next(iter(self._open))]
        return handle


def let_go(tensor: Tensor) -> None:
    """Takes the pages of a tensor of a mapped file, which was read, out of this process's memory.

    A file stays mapped as a whole while one of its tensors is used. The pages come back when they
    are read again; a tensor that lies in no file is left alone.
    """
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        return
    page = mmap.PAGESIZE
    # Beside it on its first and last page others may lie.
    begin = -(-tensor.data_ptr() // page) * page
    end = (tensor.data_ptr() + tensor.nbytes) // page * page
    if begin < end and _is_of_a_file(begin, end):
        address, size = ctypes.c_void_p(begin), ctypes.c_size_t(end - begin)
        ctypes.CDLL(None).madvise(address, size, mmap.MADV_DONTNEED)


def _is_of_a_file(begin: int, end: int) -> bool:
    """Says whether addresses are those of a mapped file."""
    maps = Path("/proc/self/maps")
    for line in maps.read_text().splitlines() if maps.exists() else ():
        span, _, _, _, inode = line.split()[:5]
        low, high = (int(address, 16) for address in span.split("-"))
        if low <= begin < high:
            return end <= high and inode != "0"
    return False


def _safe_open():
    """Returns the library's class for a file.

    Raises:
        ImportError: if the library is missing.
    """
    try:
        from safetensors import safe_open  # noqa: PLC0415  only who has files needs it
    except ImportError as error:
        raise ImportError(
            "reading a checkpoint needs safetensors: pip install safetensors"
        ) from error
    return safe_open


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turns what the library raises for a broken file into a ValueError with its name."""
    from safetensors import SafetensorError  # noqa: PLC0415  it is there: it was opened

    try:
        yield
    except (SafetensorError, RuntimeError, OverflowError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{path}: got {path.stat().st_size} bytes that are no safetensors file ({reason}), "
            "expected a whole one; was the download complete?"
        ) from None


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file.

    Raises:
        ValueError: if it holds anything else.
    """
    return _parsed(path.read_bytes(), str(path))


def _parsed(text: bytes, what: str) -> dict[str, Any]:
    """Parses a JSON object in which no name stands twice."""
    try:
        parsed = json.loads(text.decode(), object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what}: got no proper JSON ({error}), expected an object") from None
    if not isinstance(parsed, dict):
        raise ValueError(f"{what}: got a JSON {type(parsed).__name__}, expected an object")
    level = [parsed]
    for _ in range(JSON_DEPTH):
        inner = (item.values() if isinstance(item, dict) else item for item in level)
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if not level:
            return parsed
    raise ValueError(f"{what}: got JSON nested deeper than {JSON_DEPTH}, expected a proper object")


def _each_once(pairs: list[tuple[str, object]]) -> dict:
    """Makes a dict of the pairs of a JSON object."""
    found: dict = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} stands there twice")
        found[name] = value
    return found


def some(names: list[str], shown: int = 3) -> str:
    """Prints the first few of a list."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")

"""Safetensors files by struct, json and NumPy: the witness knows neither the library nor us.

A file is eight bytes with the length of a JSON header, the header, and the tensors' bytes.
"""

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np

DTYPES = {
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "I32": np.dtype(np.int32),
    "U32": np.dtype(np.uint32),
    "I64": np.dtype(np.int64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def header_of(tensors, metadata=None) -> dict:
    """Returns the header of a file with these arrays, one after the other."""
    header, begin = {"__metadata__": metadata} if metadata else {}, 0
    for name, array in tensors.items():
        end = begin + array.nbytes
        offsets = [begin, end]
        shape = list(array.shape)
        header[name] = {"dtype": NAMES[array.dtype], "shape": shape, "data_offsets": offsets}
        begin = end
    return header


def data_of(tensors) -> bytes:
    """Returns the bytes of arrays, one after the other."""
    return b"".join(array.tobytes() for array in tensors.values())


def write(path: Path, tensors, metadata=None) -> None:
    """Writes NumPy arrays by name; nothing is aligned."""
    text = json.dumps(header_of(tensors, metadata)).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data_of(tensors))


def read(path: Path):
    """Returns the arrays of a file by name, and its metadata."""
    content = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    found = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        array = np.frombuffer(content[begin:end], DTYPES[entry["dtype"]])
        found[name] = array.reshape(entry["shape"])
    return found, metadata


def write_sharded(folder: Path, tensors, shards: int, *, index: bool = True) -> None:
    """Writes arrays into files in turns, so that parts of one parameter lie apart."""
    names = list(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        mine = names[shard::shards]
        write(folder / file, {name: tensors[name] for name in mine})
        weight_map |= dict.fromkeys(mine, file)
    if index:
        text = json.dumps({"metadata": {}, "weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(text)


def read_folder(folder: Path):
    """Returns the arrays of all files of a folder, and the config, {} if there is none."""
    found = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        arrays, _ = read(file)
        assert not found.keys() & arrays.keys(), "a tensor lies in two files"
        found |= arrays
    index = Path(folder) / "model.safetensors.index.json"
    if index.exists():
        assert json.loads(index.read_text())["weight_map"].keys() == found.keys()
    config = Path(folder) / "config.json"
    return found, json.loads(config.read_text()) if config.exists() else {}


def one_file(folder: Path, arrays) -> None:
    """Writes the arrays of a checkpoint into its one file."""
    write(folder / "model.safetensors", arrays)


def checkpoint(folder: Path, config, arrays, store=one_file) -> Path:
    """Writes a checkpoint, its arrays as `store` does, and returns the folder."""
    store(folder, arrays)
    (folder / "config.json").write_text(json.dumps(config))
    return folder

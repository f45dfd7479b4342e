"""A launch as text: grid, block and arguments of a kernel, from options or from a JSON file.

    --grid 4,2 --block 256 --arg buf:64K:random --arg buf:32K:zeros --arg i32:128

    {"grid": [4, 2], "block": [256],
     "args": [{"buffer": "64K", "fill": "random"}, {"buffer": 32768}, {"i32": 128}]}

Arguments go by position, or all by name where the kernel has names; those not named are zero:

    --arg D=buf:64K --arg Kdim=u32:128
    "args": {"D": {"buffer": "64K"}, "Kdim": {"u32": 128}}

A struct passed by value is its members joined by `+` (`buf:64K+i64:128`), a list in JSON.
Fills: zeros, random (bytes), random=SEED, byte=N, f32 / f16 / bf16 (standard normal numbers of
that type), file=PATH. Sizes are bytes, with K and M for 2**10 and 2**20. Numbers: i32 u32 i64
u64 f32 f64.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gfx950.machine.execute import STEPS

SCALARS = {
    "i32": np.int32, "u32": np.uint32, "i64": np.int64,
    "u64": np.uint64, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}
FILLS = "zeros, random, random=SEED, byte=N, f32, f16, bf16 or file=PATH"
MEMORY_SHARE = 16
"""Most of a buffer is one part in so many of the machine's memory: a run keeps four copies."""


@dataclass
class Launch:
    """What `gfx950.run` needs besides the assembly."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: list | dict = field(default_factory=list)
    """NumPy arrays for buffers, NumPy scalars for numbers, tuples of both for structs."""
    steps: int = STEPS
    timeout: float | None = None


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    """A launch file."""

    grid: list[int]
    block: list[int]
    args: list[Any] | dict[str, Any] = []


class _Buffer(msgspec.Struct, forbid_unknown_fields=True):
    """A buffer in a launch file."""

    buffer: int | str
    fill: str = "zeros"


def parse_size(text) -> int:
    """Parses 512, 64K or 2M."""
    match = re.fullmatch(r"(\d+)([KM]?)", str(text).upper())
    if not match:
        raise ValueError(f"expected a size such as 512, 64K or 2M, got {text!r}")
    size = int(match.group(1)) * UNITS[match.group(2)]
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MEMORY_SHARE
    if size > most:
        raise ValueError(f"got a buffer of {text}, expected at most {most} bytes on this machine")
    return size


def _whole(fill: str, value: str, most: int) -> int:
    """Parses the number of a fill."""
    try:
        number = int(value, 0)
    except ValueError:
        number = -1
    if not 0 <= number <= most:
        raise ValueError(f"fill {fill!r}: expected a number from 0 to {most}")
    return number


def filled(num_bytes: int, fill: str, seed: int) -> np.ndarray:
    """Returns a buffer of `num_bytes` bytes; `seed` is for fills that name none."""
    name, is_more, value = fill.partition("=")
    if name == "byte":
        return np.full(num_bytes, _whole(fill, value, 0xFF), np.uint8)
    if name == "file":
        content = np.fromfile(value, np.uint8, num_bytes + 1)
        if content.size != num_bytes:
            size = "more" if content.size > num_bytes else f"{content.size} bytes"
            raise ValueError(f"{value} has {size}, expected {num_bytes} bytes")
        return content
    if is_more and name != "random":
        raise ValueError(f"unknown fill {fill!r}, expected {FILLS}")
    if name == "zeros":
        return np.zeros(num_bytes, np.uint8)
    rng = np.random.default_rng(_whole(fill, value, (1 << 64) - 1) if is_more else seed)
    if name == "random":
        return rng.integers(0, 256, num_bytes, np.uint8)
    widths = {"f32": 4, "f16": 2, "bf16": 2}
    if name not in widths:
        raise ValueError(f"unknown fill {fill!r}, expected {FILLS}")
    if num_bytes % widths[name]:
        raise ValueError(f"{num_bytes} bytes do not hold whole {name} numbers")
    values = rng.standard_normal(num_bytes // widths[name]).astype(np.float32)
    if name == "bf16":
        return np.ascontiguousarray(values.view(np.uint16)[1::2]).view(np.uint8)
    return values.astype(np.float16 if name == "f16" else np.float32).view(np.uint8)


def scalar(type_name: str, text):
    """Parses one number."""
    if type_name not in SCALARS:
        raise ValueError(f"unknown argument type {type_name!r}, expected buf or {list(SCALARS)}")
    dtype = SCALARS[type_name]
    try:
        if not issubclass(dtype, np.floating):
            return dtype(int(str(text), 0))
        value = float(str(text))
        with np.errstate(over="ignore"):
            found = dtype(value)
        if np.isfinite(value) == np.isfinite(found):
            return found
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"got {text!r}, expected a number that {type_name} holds")


def parse_arg(text: str, index: int):
    """Parses one `--arg`; the index seeds a random fill."""
    if "+" in text:
        return tuple(parse_arg(member, index) for member in text.split("+"))
    kind, _, rest = text.partition(":")
    if kind != "buf":
        return scalar(kind, rest)
    size, _, fill = rest.partition(":")
    return filled(parse_size(size), fill or "zeros", index)


def parse_args(texts: list[str]) -> list | dict:
    """Parses all `--arg`, which go by position or all by name."""
    named = [re.fullmatch(r"([A-Za-z_]\w*)=(.*)", text) for text in texts]
    if not any(named):
        return [parse_arg(text, index) for index, text in enumerate(texts)]
    if not all(named):
        raise ValueError(f"name all arguments or none, got {texts}")
    _refuse_repeated(match[1] for match in named)
    return {match[1]: parse_arg(match[2], index) for index, match in enumerate(named)}


def _refuse_repeated(names: Iterable[str]) -> None:
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"got {repeated[0]!r} more than once")


def parse_extent(text: str, what: str = "grid or block") -> tuple[int, ...]:
    """Parses `4`, `4,2` or `4,2,1` to three numbers."""
    try:
        parts = [int(part) for part in text.replace("x", ",").split(",")]
    except ValueError:
        parts = text
    return _extent(parts, what)


def _extent(parts, what: str) -> tuple[int, ...]:
    if not (isinstance(parts, list) and 1 <= len(parts) <= 3 and min(parts) >= 1):
        raise ValueError(f"{what}: got {parts!r}, expected one to three positive numbers")
    return (*parts, 1, 1)[:3]


def read_launch(path) -> Launch:
    """Reads a JSON launch file; paths in it are relative to the file.

    Raises:
        ValueError: if it is no launch; the message begins with the path.
    """
    path = Path(path)
    try:
        content = json.loads(
            path.read_text(encoding="utf-8"), object_pairs_hook=_object, parse_constant=_refuse
        )
        return _launch(msgspec.convert(content, _Document), path)
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_repeated(key for key, _ in pairs)
    return dict(pairs)


def _refuse(constant: str):
    raise ValueError(f"{constant} is not JSON; a string may hold it")


def _launch(document: _Document, path: Path) -> Launch:
    entries = document.args
    if isinstance(entries, dict):
        args = {name: _entry(e, i, path) for i, (name, e) in enumerate(entries.items())}
    else:
        args = [_entry(e, index, path) for index, e in enumerate(entries)]
    return Launch(_extent(document.grid, "grid"), _extent(document.block, "block"), args)


def _entry(entry, index: int, path: Path):
    """Parses one argument of a launch file."""
    if isinstance(entry, list):
        return tuple(_entry(member, index, path) for member in entry)
    if isinstance(entry, dict) and "buffer" in entry:
        try:
            buffer = msgspec.convert(entry, _Buffer)
        except msgspec.ValidationError as error:
            raise ValueError(f"argument {index}: {error}") from None
        fill = buffer.fill
        if fill.startswith("file="):
            fill = f"file={path.parent / fill.removeprefix('file=')}"
        return filled(parse_size(buffer.buffer), fill, index)
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ValueError(
            f'argument {index}: got {entry!r}, expected {{"buffer": SIZE}} or one number as in '
            '{"i32": 128}'
        )
    ((type_name, value),) = entry.items()
    return scalar(type_name, value)

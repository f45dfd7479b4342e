"""What the extension module knows, as Python objects: formats, layouts, names and their codes.

Nothing here is a second copy. `facts()` asks the extension for its tables once and keeps them
beside the entry points, so that a call needs one look-up. The storage of a `[rows, k]` operand
follows from its layout's row in the table:

    codes  u8 [rows to row_multiple,       packed k]
    scales u8 [rows to scale_row_multiple, blocks to scale_k_multiple]
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, fields
from types import ModuleType

import numpy as np
import torch

from mx_kernels import _native

KEEP = -1
"""The code of no rounding rule: activations stay floats."""


def ceil_to(count: int, multiple: int) -> int:
    """Returns the smallest multiple of `multiple` that is at least `count`."""
    return (count + multiple - 1) // multiple * multiple


@dataclass(frozen=True)
class Format:
    """The columns of the format table that Python needs."""

    name: str
    element_bits: int
    block_size: int

    def packed_bytes(self, count: int) -> int:
        """Returns the bytes that `count` codes occupy."""
        return count * self.element_bits // 8

    def elements(self, packed_bytes: int) -> int:
        """Returns the codes that `packed_bytes` hold."""
        return packed_bytes * 8 // self.element_bits


@dataclass(frozen=True)
class Layout:
    """One row of the layout table; `code` is its number on the native side."""

    name: str
    row_multiple: int
    scale_row_multiple: int
    scale_k_multiple: int
    device: str
    code: int

    def storage(self, rows: int, k: int, fmt: Format) -> tuple[tuple[int, int], tuple[int, int]]:
        """Returns the shapes of codes and scales that hold a `[rows, k]` operand."""
        codes = (ceil_to(rows, self.row_multiple), fmt.packed_bytes(k))
        blocks = ceil_to(k // fmt.block_size, self.scale_k_multiple)
        return codes, (ceil_to(rows, self.scale_row_multiple), blocks)


class Facts:
    """The extension's tables and entry points, and where to find the thread team.

    Attributes:
        formats, layouts: rows by name.
        default_format: what `quantize` writes.
        plain: the layout without a device, row-major.
        roundings, dtypes: native codes by name.
        rules: native codes of what `linear` multiplies x as, by mode and rounding.
        dtype_codes: native codes by `torch.dtype`.
        torch_dtypes: `torch.dtype` by name, and by itself.
        team: address of the `GOMP_parallel` of torch's own OpenMP pool, or 0.
    """

    def __init__(self, native: ModuleType):
        tables = native.tables()
        self.native = native
        self.formats = {row["name"]: _row(Format, row) for row in tables["formats"]}
        self.layouts = {
            row["name"]: _row(Layout, {**row, "code": code})
            for code, row in enumerate(tables["layouts"])
        }
        self.default_format = next(iter(self.formats.values()))
        self.plain = next(row for row in self.layouts.values() if not row.device)
        self.roundings = {name: code for code, name in enumerate(tables["roundings"])}
        self.rules = {("mxfp4", name): code for name, code in self.roundings.items()}
        self.rules["bf16", "even"] = KEEP
        self.dtypes = {name: code for code, name in enumerate(tables["dtypes"])}
        self.dtype_codes = {getattr(torch, name): code for name, code in self.dtypes.items()}
        self.torch_dtypes = {name: getattr(torch, name) for name in self.dtypes}
        self.torch_dtypes |= {dtype: dtype for dtype in self.torch_dtypes.values()}
        self.team = _openmp_team()

    def layout_for(self, device: str | torch.device) -> Layout | None:
        """Returns the layout that the kernels of `device` read fastest, None for none."""
        name = str(device).partition(":")[0]
        if name == "cuda" and torch.version.hip and torch.cuda.is_available():
            name = torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]
        return next((row for row in self.layouts.values() if row.device == name != ""), None)

    def team_of_caller(self) -> int:
        """Returns the team for a launch from this Python thread.

        Asking for torch's number of threads also makes torch apply it to this thread.
        """
        return self.team if torch.get_num_threads() > 1 else 0

    def numpy_dtype(self, name: str) -> np.dtype:
        """Returns the NumPy dtype called `name`; bfloat16 is what ml_dtypes brings."""
        if name != "bfloat16":
            return np.dtype(name)
        try:
            import ml_dtypes  # noqa: PLC0415  optional
        except ImportError as error:
            raise TypeError(
                "a bfloat16 result as a NumPy array needs ml_dtypes, which is not installed; "
                'run `pip install ml_dtypes`, or ask for "float32"'
            ) from error
        return np.dtype(ml_dtypes.bfloat16)


def _row(cls, row: dict):
    """Picks the columns of `row` that the dataclass `cls` has."""
    return cls(**{field.name: row[field.name] for field in fields(cls)})


def _openmp_team() -> int:
    """Returns the address of the process's `GOMP_parallel`, or 0 where OpenMP is another."""
    function = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value


_facts: Facts | None = None


def facts() -> Facts:
    """Returns the tables; the first call finds or builds the extension module."""
    global _facts  # noqa: PLW0603  one extension module a process
    if _facts is None:
        _facts = Facts(_native.load())
    return _facts


def _drop_team() -> None:
    """An OpenMP pool does not survive `fork`: the child computes on its own thread."""
    if _facts is not None:
        _facts.team = 0


os.register_at_fork(after_in_child=_drop_team)

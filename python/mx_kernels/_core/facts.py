"""What the extension module knows, as Python objects: formats, layouts, names and their codes.

Nothing here is a second copy. `facts()` asks the extension for its tables once and keeps them
beside the entry points, so that a call needs one look-up. The storage of a `[rows, k]` operand
follows from its layout's row in the table:

    codes  u8 [rows to row_multiple,       packed k]
    scales u8 [rows to scale_row_multiple, blocks to scale_k_multiple]
           f32 [blocks below each other,   blocks], of formats with float scales, in every layout
           u8 [rows, blocks, and the bytes of a float32], of those with tensor scales: ordered
              and padded like others where a layout does so, else row by row without padding
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from mx_kernels._core.builds import NativeBuildError, troubles
from mx_kernels._core.native import LoadLock, Parts, find_or_load
from mx_kernels._core.protocol import INTEGERS, KEPT, NO_CODE, QUANTIZED
from mx_kernels.hints import ActivationsName, FloatName, FormatName, GateName, LayoutName, ScaleRule

KEPT_FLOATS = "bf16"
"""The name of activations that stay floats, beside the names of the formats."""
WIDE_INTEGERS = "mxint16"
"""The name of activations that become 16-bit integers under E8M0 scales, on a CPU alone."""
DEFAULT_FORMAT: FormatName = "mxfp4"
CDNA4 = "gfx950"
DEFAULT_ROUNDING: ScaleRule = "even"
MAX_K = 1 << 60
"""More elements than any row has."""


def ceil_to(count: int, multiple: int) -> int:
    """Returns the smallest multiple of `multiple` that is at least `count`."""
    return (count + multiple - 1) // multiple * multiple


@dataclass(frozen=True)
class Format:
    """One row of the format table; `code` is its number on the native side."""

    name: FormatName
    element: str
    element_bits: int
    block_rows: int
    has_integers: bool
    """Whether codes are small integers, which a CPU multiplies as such."""
    block_k: int
    """More than any row has, where a block is a whole row."""
    k_multiple: int
    scale: str
    scale_bytes: int
    scale_row_bytes: int
    """Of the tensor scale behind the scales of a row; 0 for none."""
    roundings: list[str]
    code: int

    @property
    def has_float_scales(self) -> bool:
        """Whether scales are floats, and blocks may be cut at the ends of rows."""
        return self.scale == "float32"

    @property
    def has_tensor_scales(self) -> bool:
        """Whether a float32 behind each row's scales multiplies them."""
        return self.scale_row_bytes > 0

    @property
    def scale_dtype(self) -> torch.dtype:
        """What scales are held as."""
        return torch.float32 if self.has_float_scales else torch.uint8

    @property
    def has_whole_rows(self) -> bool:
        """Whether a block is a whole row, so that rows can be cut, but not joined."""
        return self.block_k > MAX_K

    @property
    def k_cut(self) -> int:
        """What K is cut at multiples of: a block, or anything where a row has one scale."""
        return self.k_multiple if self.has_whole_rows else max(self.block_k, self.k_multiple)

    @property
    def cut(self) -> int:
        """What rows can be cut at multiples of, too: rows of one product are K of the next."""
        return math.lcm(self.k_cut, self.block_rows)

    def k_blocks(self, k: int) -> int:
        """Returns the scales of a row of `k`."""
        return 1 if self.has_whole_rows else (k + self.block_k - 1) // self.block_k

    def scales_of(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the plain scales of a tensor of `shape`, as they are held."""
        *lead, k = shape
        if self.block_rows > 1:
            lead[-1] = (lead[-1] + self.block_rows - 1) // self.block_rows
        return (*lead, self.k_blocks(k) + self.scale_row_bytes // self.scale_bytes)

    def packed_bytes(self, count: int) -> int:
        """Returns the bytes that `count` codes occupy."""
        return count * self.element_bits // 8

    def elements(self, packed_bytes: int) -> int:
        """Returns the codes that `packed_bytes` hold."""
        return packed_bytes * 8 // self.element_bits


@dataclass(frozen=True)
class Layout:
    """One row of the layout table; `code` is its number on the native side."""

    name: LayoutName
    row_multiple: int
    byte_multiple: int
    scale_row_multiple: int
    scale_k_multiple: int
    has_float_scales: int
    e4m3_run: int
    """E4M3 scales that lie as one of others; 0 if they stay row by row."""
    device: str
    code: int

    def row_unit(self, fmt: Format) -> int:
        """Rows that fill whole tiles, of codes and of scales, and whole blocks."""
        return math.lcm(self.row_multiple, self._scale_tile(fmt)[0], fmt.block_rows)

    def k_unit(self, fmt: Format) -> int:
        """Elements of a row that fill whole tiles, of codes and of scales."""
        return math.lcm(fmt.k_cut * self._scale_tile(fmt)[1], self.k_multiple(fmt))

    def k_multiple(self, fmt: Format) -> int:
        """What K of an operand of a format is a multiple of: whole blocks, and whole tiles."""
        bits = 8 * self.byte_multiple
        return math.lcm(fmt.k_multiple, bits // math.gcd(bits, fmt.element_bits))

    def keeps_scales(self, fmt: Format) -> bool:
        """Whether scales of a format lie as in the plain layout."""
        return fmt.has_float_scales or (fmt.has_tensor_scales and not self.e4m3_run)

    def scale_tile_rows(self, fmt: Format) -> int:
        """Rows of scales that lie together."""
        return self._scale_tile(fmt)[0]

    def _scale_tile(self, fmt: Format) -> tuple[int, int]:
        return (
            (1, 1) if self.keeps_scales(fmt) else (self.scale_row_multiple, self.scale_k_multiple)
        )

    def storage(self, rows: int, k: int, fmt: Format) -> tuple[tuple[int, int], tuple[int, int]]:
        """Returns the shapes of codes and scales that hold a `[rows, k]` operand."""
        codes = (ceil_to(rows, self.row_multiple), fmt.packed_bytes(k))
        if self.keeps_scales(fmt):
            return codes, fmt.scales_of((rows, k))
        multiple = self.scale_k_multiple * (self.e4m3_run if fmt.has_tensor_scales else 1)
        blocks = ceil_to(fmt.k_blocks(k), multiple) + fmt.scale_row_bytes
        return codes, (ceil_to(rows, self.scale_row_multiple), blocks)


@dataclass(frozen=True)
class Activation:
    """One row of the table of activations of experts; `code` is its number on the native side."""

    name: GateName
    is_gated: int
    """Whether there are gates beside ups."""
    is_interleaved: int
    """Whether rows of gates and ups take turns unless a call says otherwise."""
    limit_name: str
    limit: float
    """The number of that name unless a call says otherwise; without a name there is none."""
    alpha_name: str
    alpha: float
    most: float
    """Numbers are from 1 / most to most, but for an infinite limit."""
    code: int

    @property
    def numbers(self) -> dict[str, float]:
        """What a call may choose, with what it is otherwise."""
        both = (self.limit_name, self.limit), (self.alpha_name, self.alpha)
        return {name: number for name, number in both if name}

    def sums(self, hidden: int) -> int:
        """Returns how many sums make so many hidden numbers: rows of the weights."""
        return 2 * hidden if self.is_gated else hidden


_Row = TypeVar("_Row", Format, Layout, Activation)


class Mode(NamedTuple):
    """What `linear` multiplies its activations as, in the codes of a call."""

    kind: int
    format: int
    scale_rule: int


class Facts:
    """The extension's tables and entry points, and where to find the thread team.

    Attributes:
        formats, layouts: rows by name, in the order of their codes.
        plain: the layout without a device, row-major.
        gates: activations of experts, likewise.
        roundings, dtypes: native codes by name.
        dtype_codes: native codes by `torch.dtype`.
        float_codes: both of these.
        torch_dtypes: every `torch.dtype` by its code.
        activations: the names of what `linear` can multiply activations as.
        modes: the same, by name and rounding.
        team: address of the `GOMP_parallel` of torch's own OpenMP pool, or 0; 0 in a process
            that was forked, see `_drop_team`.
    """

    roundings: dict[ScaleRule, int]
    dtypes: dict[FloatName, int]

    def __init__(self, native: ModuleType | Parts):
        tables = native.tables()
        self.native = native
        self.formats = _rows(Format, tables["formats"])
        self.layouts = _rows(Layout, tables["layouts"])
        self.plain = next(row for row in self.layouts.values() if not row.device)
        self.roundings = {name: code for code, name in enumerate(tables["roundings"])}
        self.dtypes = {name: code for code, name in enumerate(tables["dtypes"])}
        self.gates = _rows(Activation, tables["gates"])
        self.torch_dtypes = [getattr(torch, name) for name in self.dtypes]
        self.dtype_codes = {dtype: code for code, dtype in enumerate(self.torch_dtypes)}
        self.float_codes = self.dtypes | self.dtype_codes
        rows = [fmt for fmt in self.formats.values() if fmt.block_rows == 1]
        self.activations = (*(fmt.name for fmt in rows), WIDE_INTEGERS, KEPT_FLOATS)
        self.modes = {
            (fmt.name, scale_rule): Mode(QUANTIZED, fmt.code, self.roundings[scale_rule])
            for fmt in rows
            for scale_rule in fmt.roundings
        }
        self.modes[KEPT_FLOATS, DEFAULT_ROUNDING] = Mode(KEPT, NO_CODE, 0)
        self.modes[WIDE_INTEGERS, DEFAULT_ROUNDING] = Mode(INTEGERS, NO_CODE, 0)
        self.team = 0 if _is_forked else _openmp_team()

    def float_bytes(self, dtype: int) -> int:
        """Returns the bytes of a float, by the code of its type."""
        return self.torch_dtypes[dtype].itemsize

    def layout_for(self, device: str | torch.device, fmt: str = "", k: int = 0) -> Layout | None:
        """Returns the layout in which a device reads rows of `k` fastest, None for none of its own.

        No format is any whose scales are bytes. Rows that do not fill its tiles stay plain.
        """
        name = device_name(device)
        found = next((row for row in self.layouts.values() if row.device == name != ""), None)
        if found and fmt:
            row = self.formats[fmt]
            is_read = found.has_float_scales or not found.keeps_scales(row)
            return found if is_read and k % found.k_multiple(row) == 0 else self.plain
        return found

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


def of_kind(fmt: Format, block_rows: int) -> FormatName:
    """Returns the format of the same elements, scales and blocks along K, `block_rows` tall."""
    alike = fmt.element, fmt.scale, fmt.block_k, block_rows
    rows = facts().formats.values()
    return next(f.name for f in rows if (f.element, f.scale, f.block_k, f.block_rows) == alike)


def weights_format(name: FormatName) -> FormatName:
    """Returns what the weights of a layer are, asked for as `name`: square blocks if there are."""
    fmt = facts().formats[name]
    try:
        return of_kind(fmt, fmt.block_k)
    except StopIteration:
        return name


def device_name(device: str | torch.device) -> str:
    """Returns "cpu", "cuda" or an AMD GPU's architecture, as the table of layouts has them."""
    name = str(device).partition(":")[0]
    if name == "cuda" and torch.version.hip and torch.cuda.is_available():
        return torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]
    return name


def activations_for(
    device: str | torch.device, weights: FormatName = DEFAULT_FORMAT
) -> ActivationsName:
    """Returns what activations are best multiplied as on a device, by weights of a format.

    Four bits are for who asks for them: they cost a language model more than four-bit weights do,
    where six and eight cost next to nothing. A CPU multiplies four and eight at the same speed,
    CDNA4 four and six; NVIDIA GPUs keep floats, whose few rows they multiply fastest. By FP8 with
    float scales, what its checkpoints mean: the same; by NVFP4 floats, which every device
    multiplies exactly.
    """
    if (fmt := facts().formats[weights]).has_float_scales:
        return of_kind(fmt, 1)
    name = device_name(device)
    if fmt.has_tensor_scales:
        return KEPT_FLOATS
    if name == "cpu":
        return "mxint8"
    if name == CDNA4:
        return "mxfp6" if weights == "mxfp4" else weights
    return KEPT_FLOATS if fmt.element_bits < 8 else weights


def quantized_by(pairs) -> set[str]:
    """Returns the formats of products of gfx950 that its kernels quantize to: no tensor scales."""
    names = {name for pair in pairs for name in pair} - {KEPT_FLOATS}
    return {name for name in names if not facts().formats[name].has_tensor_scales}


def unsupported(activations: str, weights: str, device, pairs) -> ValueError:
    """Returns the error that names the products that a device has kernels for."""
    known = ", ".join(f"{left} x {right}" for left, right in sorted(pairs))
    return ValueError(
        f"formats: got activations {activations!r} x weights {weights!r}, for which {device} has "
        f"no kernel, expected one of {known}; {troubles('Tensors and products')}"
    )


def _rows(cls: type[_Row], table: list[dict[str, Any]]) -> dict[str, _Row]:
    """Makes a row of the dataclass `cls` of each row of a table, by name; its code is its place."""
    names = [field.name for field in fields(cls) if field.name != "code"]
    rows = (cls(**{name: row[name] for name in names}, code=code) for code, row in enumerate(table))
    return {row.name: row for row in rows}


def _openmp_team() -> int:
    """Returns the address of the process's `GOMP_parallel`, or 0 where OpenMP is another."""
    function = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value


_is_forked = False
_facts: Facts | None = None
_lock = LoadLock()


def facts() -> Facts:
    """Returns the tables; the first call finds or builds the extension module.

    Raises:
        NativeBuildError: if it cannot be built or loaded.
    """
    global _facts  # noqa: PLW0603  one extension module a process
    if _facts is None:
        with _lock:
            if _facts is None:
                _facts = _facts_of(find_or_load())
    return _facts


def _facts_of(native: ModuleType | Parts) -> Facts:
    """Returns the tables of a module, which may have been built elsewhere, from other sources."""
    try:
        return Facts(native)
    except (AttributeError, KeyError, TypeError) as error:
        raise NativeBuildError(
            f"{getattr(native, '__file__', native)} is of another version of mx_kernels "
            f"({type(error).__name__}: {error}); build it anew from these sources"
        ) from error


def _drop_team() -> None:
    """An OpenMP pool does not survive `fork`: the child computes on its own thread.

    Also one that torch alone has used, so that a child that loads the module anew has no team.
    """
    global _is_forked  # noqa: PLW0603  of the process
    _is_forked = True
    if _facts is not None:
        _facts.team = 0


os.register_at_fork(after_in_child=_drop_team)

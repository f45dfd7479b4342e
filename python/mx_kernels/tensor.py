"""MXTensor: codes and scales that never part, with the format and layout that give them meaning.

    logical   [..., K] numbers
    codes     u8, densely packed; plain: [..., K] bytes of codes of 8 bits, [..., K/2] of 4,
              the even k in the low nibble
    scales    u8, one E8M0 exponent a block of K; plain: [..., K/32]

A preshuffled MXTensor is two-dimensional and holds the same bytes in another order, padded to
the layout's multiples. The arrays are torch tensors on any device or NumPy arrays; they are
held, not copied. An MXTensor is immutable and equal only to itself.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.utils import _pytree

from mx_kernels import _calls, _facts
from mx_kernels._arrays import (
    PLAIN_TENSORS,
    Array,
    check_device,
    device_of,
    float_code,
    show,
    watched,
)
from mx_kernels._facts import DEFAULT_FORMAT, Layout, facts
from mx_kernels._storage import as_bytes, check_pair, check_shapes


class MXTensor:
    """A quantized tensor of logical shape `[..., K]`.

    Args:
        codes: the packed codes: uint8, or torch's or ml_dtypes' dtype of the format's elements:
            float4_e2m1fn_x2, float8_e4m3fn, float8_e5m2, int8.
        scales: the block scales: uint8 or float8_e8m0fnu.
        shape: the logical shape. None takes it from `codes`, which is exact for the plain
            layout; in a padded layout every stored row then counts.
        format: a name from the format table: "mxfp4", "mxfp8", "mxfp8_e5m2" or "mxint8".
        layout: a name from the layout table; "plain" is row-major.

    Raises:
        TypeError: if the arrays are of the wrong dtype, or one is torch's and one NumPy's.
        ValueError: if shapes, devices, format and layout do not fit together.
    """

    __slots__ = (
        "__weakref__",
        "_checked",
        "_codes",
        "_format",
        "_k",
        "_layout",
        "_native",
        "_rows",
        "_scales",
    )

    def __init__(
        self,
        codes: Array,
        scales: Array,
        *,
        shape: tuple[int, ...] | None = None,
        format: str = DEFAULT_FORMAT,
        layout: str = "plain",
    ):
        for what, name, known in (
            ("format", format, facts().formats),
            ("layout", layout, facts().layouts),
        ):
            if not isinstance(name, str) or name not in known:
                raise ValueError(f"{what}: got {name!r}, expected {' or '.join(known)}")
        row = facts().formats[format]
        codes = as_bytes(codes, "codes", row.element)
        scales = as_bytes(scales, "scales", row.scale)
        check_pair(codes, scales)
        self._codes = codes
        self._scales = scales
        self._k = check_shapes(codes, scales, shape, row, facts().layouts[layout])
        self._rows = None
        if layout != facts().plain.name:
            self._rows = codes.shape[0] if shape is None else shape[0]
        self._format = format
        self._layout = layout
        self._native = row.code, facts().layouts[layout].code
        self._checked = None
        if not torch.compiler.is_compiling():
            self._checked = self._measure()

    @classmethod
    def _trusted(
        cls, codes, scales, k, *, format, rows=None, layout="plain", measure=False
    ) -> MXTensor:
        """Makes one from parts that are known to fit; `rows` is None in the plain layout.

        With `measure`, the parts are plain tensors in memory and in the plain layout, remembered
        as checked.
        """
        table = _facts._facts or facts()
        self = cls.__new__(cls)
        self._codes = codes
        self._scales = scales
        self._k = k
        self._rows = rows
        self._format = format
        self._layout = layout
        row = table.formats[format]
        self._native = row.code, table.layouts[layout].code
        self._checked = None
        if measure:
            blocks = scales.numel()
            self._checked = codes.shape, blocks, blocks * row.block_k // k
        return self

    @property
    def codes(self) -> Array:
        """The packed codes, uint8, in the layout's order."""
        return self._codes

    @property
    def scales(self) -> Array:
        """The block scales, uint8, in the layout's order."""
        return self._scales

    @property
    def format(self) -> str:
        """The name of the number format."""
        return self._format

    @property
    def layout(self) -> str:
        """The name of the byte order."""
        return self._layout

    @property
    def k(self) -> int:
        """The length of the last axis, along which blocks lie."""
        return self._k

    @property
    def rows(self) -> int:
        """The rows of all leading axes together."""
        if self._checked is not None:
            return self._checked[-1]
        return math.prod(self._codes.shape[:-1]) if self._rows is None else self._rows

    @property
    def padded_rows(self) -> int | None:
        """The logical rows where the layout pads them, None in the plain layout."""
        return self._rows

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape `[..., K]`: a `torch.Size` if the arrays are torch tensors."""
        shape = (*self._codes.shape[:-1], self._k) if self._rows is None else (self._rows, self._k)
        return torch.Size(shape) if isinstance(self._codes, torch.Tensor) else shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._codes.ndim

    @property
    def device(self) -> torch.device:
        """Where codes and scales lie."""
        return device_of(self._codes)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales, padding included."""
        return self._codes.nbytes + self._scales.nbytes

    def dequantize(self, dtype="bfloat16") -> Array:
        """Returns the numbers, as `mx_kernels.dequantize` does."""
        self._check("q")
        code = float_code(dtype, "dtype")
        if self._is_watched():
            parts = (self._codes, self._scales, self.shape, self._format, self._layout)
            dtype = facts().torch_dtypes[code]
            return torch.ops.mx_kernels.dequantize(*parts, dtype)
        return _calls.dequantize(self, code)

    def preshuffle(self, device: str | torch.device | None = None) -> MXTensor:
        """Returns these weights in the layout of `device`, as `mx_kernels.preshuffle` does."""
        self._check("q")
        device = self.device if device is None else device
        layout = facts().layout_for(device)
        if layout is None:
            known = " or ".join(repr(row.device) for row in facts().layouts.values() if row.device)
            raise ValueError(
                f"device: got {device!r}, expected {known}; other devices have no layout of their "
                "own and read the plain one"
            )
        return self._relayout(layout)

    def unshuffle(self) -> MXTensor:
        """Returns these weights in the plain layout, as `mx_kernels.unshuffle` does."""
        self._check("q")
        return self._relayout(facts().plain)

    def _relayout(self, layout: Layout) -> MXTensor:
        """Returns these weights in a layout of the table: themselves, if they are in it."""
        if self._layout == layout.name:
            return self
        if self.ndim != 2:
            raise ValueError(
                f"q: got shape {show(self.shape)}, expected weights [N, K]; preshuffle them one "
                "by one"
            )
        rows = self.shape[0]
        if self._is_watched():
            parts = (self._codes, self._scales, rows, self._format, self._layout, layout.name)
            codes, scales = torch.ops.mx_kernels.relayout(*parts)
        else:
            codes, scales = _calls.relayout(self, layout)
        rows = None if layout.name == facts().plain.name else rows
        parts = {"rows": rows, "format": self._format, "layout": layout.name}
        return self._trusted(codes, scales, self._k, **parts)

    def to(self, device: str | torch.device | int) -> MXTensor:
        """Returns the same bytes, in the same layout, on another device.

        Raises:
            TypeError: for a dtype (see `dequantize`), and for NumPy arrays (see `torch`).
        """
        if isinstance(device, torch.dtype):
            raise TypeError(
                f"to: got dtype {device}, expected a device; for floats call dequantize({device})"
            )
        if isinstance(self._codes, np.ndarray):
            raise TypeError(
                f"to: got device {device!r} for NumPy arrays, which live on the CPU; "
                "call .torch() first"
            )
        return self._with(self._codes.to(device), self._scales.to(device))

    def torch(self) -> MXTensor:
        """Returns the same bytes as torch tensors; memory is shared where it is writable."""
        if not isinstance(self._codes, np.ndarray):
            return self
        arrays = (a if a.flags.writeable else a.copy() for a in (self._codes, self._scales))
        return self._with(*map(torch.from_numpy, arrays))

    def numpy(self) -> MXTensor:
        """Returns the same bytes as NumPy arrays that share the CPU tensors' memory."""
        if isinstance(self._codes, np.ndarray):
            return self
        return self._with(self._codes.numpy(), self._scales.numpy())

    def _with(self, codes: Array, scales: Array) -> MXTensor:
        """The same tensor with its bytes elsewhere."""
        return self._trusted(
            codes, scales, self._k, rows=self._rows, format=self._format, layout=self._layout
        )

    def _is_common_on(self, device: int) -> bool:
        """Says whether the arrays are plain tensors in memory, still what they were.

        `device` is the number of a CUDA device, -1 for the CPU.
        """
        known, codes, scales = self._checked, self._codes, self._scales
        return (
            known is not None
            and codes.shape == known[0]
            and scales.numel() == known[1]
            and codes.get_device() == device
            and scales.get_device() == device
            and codes.is_contiguous()
            and scales.is_contiguous()
        )

    def _check(self, name: str) -> None:
        """Raises if the arrays were resized or swapped behind the tensor's back.

        Raises:
            ValueError: because shape and bytes no longer belong together, or the device has no
                kernels.
        """
        codes, scales = self._codes, self._scales
        if self._checked is not None and self._is_common_on(codes.get_device()):
            return
        if torch.compiler.is_compiling():
            return
        try:
            parts = {"shape": self.shape, "format": self._format, "layout": self._layout}
            self._checked = MXTensor(codes, scales, **parts)._checked
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name}: its arrays were changed after it was made: {error}"
            ) from error
        check_device(codes, name)

    def _measure(self) -> tuple[torch.Size, int, int] | None:
        """What `_is_common_on` compares with, None but for plain tensors in memory.

        The shape of the codes, the bytes of the scales, and the rows that they were found to have.
        """
        codes, scales = self._codes, self._scales
        for t in (codes, scales):
            if type(t) not in PLAIN_TENSORS or not (t.is_cpu or t.is_cuda):
                return None
        return codes.shape, scales.numel(), self.rows

    def _is_watched(self) -> bool:
        """Says whether operations on it have to go through torch's dispatcher to be right."""
        return torch.compiler.is_compiling() or watched(self._codes, self._scales)

    def __repr__(self) -> str:
        kind = "numpy" if isinstance(self._codes, np.ndarray) else "torch"
        return (
            f"MXTensor({show(self.shape)}, format={self._format!r}, layout={self._layout!r}, "
            f"{kind} on {self.device}, {_show_bytes(self.nbytes)})"
        )

    def __reduce__(self):
        shape = tuple(self.shape)
        return _rebuild, (self._codes, self._scales, shape, self._format, self._layout)


def _rebuild(codes, scales, shape, format, layout) -> MXTensor:
    """Makes an MXTensor from its pickled parts, which may have been tampered with."""
    return MXTensor(codes, scales, shape=shape, format=format, layout=layout)


def _show_bytes(count: int) -> str:
    """Prints a byte count with a unit that leaves few digits."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def _unflatten(leaves, context) -> MXTensor:
    """Puts leaves back together, whatever a transform made of them."""
    k, rows, format, layout = context
    return MXTensor._trusted(*leaves, k, rows=rows, format=format, layout=layout)


def _flatten(tensor: MXTensor):
    """Takes the arrays apart from their meaning."""
    context = tensor._k, tensor._rows, tensor._format, tensor._layout
    return [tensor._codes, tensor._scales], context


def _flatten_with_keys(tensor: MXTensor):
    """The same, each array with its name."""
    leaves, context = _flatten(tensor)
    keys = _pytree.GetAttrKey("codes"), _pytree.GetAttrKey("scales")
    return list(zip(keys, leaves, strict=True)), context


_pytree.register_pytree_node(
    MXTensor,
    _flatten,
    _unflatten,
    serialized_type_name="mx_kernels.MXTensor",
    flatten_with_keys_fn=_flatten_with_keys,
)
torch.serialization.add_safe_globals([_rebuild])

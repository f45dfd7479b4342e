"""MXTensor: codes and scales that never part, with the format and layout that give them meaning.

    logical   [..., K] numbers
    codes     u8, densely packed; plain: [..., K/2], the even k in the low nibble
    scales    u8, one E8M0 exponent a block of K; plain: [..., K/32]

A preshuffled MXTensor is two-dimensional and holds the same bytes in another order, padded to
the layout's multiples. The arrays are torch tensors on any device or NumPy arrays; they are
held, not copied. An MXTensor is immutable and equal only to itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.utils import _pytree

from mx_kernels._arrays import PLAIN_TENSORS, Array, device_of, dtype_name, kind_of, show
from mx_kernels._facts import Format, facts


class MXTensor:
    """A quantized tensor of logical shape `[..., K]`.

    Args:
        codes: the packed codes: uint8, or `torch.float4_e2m1fn_x2`.
        scales: the block scales: uint8, `torch.float8_e8m0fnu`, or ml_dtypes' float8_e8m0fnu.
        shape: the logical shape. None takes it from `codes`, which is exact for the plain
            layout; in a padded layout every stored row then counts.
        format: a name from the format table.
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
        "_rows",
        "_scales",
        "_short",
    )

    def __init__(
        self,
        codes: Array,
        scales: Array,
        *,
        shape: tuple[int, ...] | None = None,
        format: str = "mxfp4",
        layout: str = "plain",
    ):
        for what, name, known in (
            ("format", format, facts().formats),
            ("layout", layout, facts().layouts),
        ):
            if not isinstance(name, str) or name not in known:
                raise ValueError(f"{what}: got {name!r}, expected {' or '.join(known)}")
        codes = _as_bytes(codes, "codes", "float4_e2m1fn_x2")
        scales = _as_bytes(scales, "scales", "float8_e8m0fnu")
        _check_pair(codes, scales)
        self._codes = codes
        self._scales = scales
        self._k = _check_shapes(codes, scales, shape, facts().formats[format], layout)
        self._rows = None
        if layout != facts().plain.name:
            self._rows = codes.shape[0] if shape is None else shape[0]
        self._format = format
        self._layout = layout
        self._short = self._checked = None
        if not torch.compiler.is_compiling():
            self._short = self._measure()

    @classmethod
    def _trusted(cls, codes, scales, k, *, rows=None, format="mxfp4", layout="plain") -> MXTensor:
        """Makes one from parts that are known to fit; `rows` is None in the plain layout."""
        self = cls.__new__(cls)
        self._codes = codes
        self._scales = scales
        self._k = k
        self._rows = rows
        self._format = format
        self._layout = layout
        self._short = self._checked = None
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
        return len(self._codes.shape)

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
        return _ops().dequantize(self, dtype=dtype)

    def preshuffle(self, device=None) -> MXTensor:
        """Returns these weights in the layout of `device`, as `mx_kernels.preshuffle` does."""
        return _ops().preshuffle(self, device=device)

    def unshuffle(self) -> MXTensor:
        """Returns these weights in the plain layout, as `mx_kernels.unshuffle` does."""
        return _ops().unshuffle(self)

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

    def measure(self) -> tuple[int, int, int, int, int] | None:
        """Returns (layout code, n, k, bytes of codes, bytes of scales) of weights in memory.

        None unless codes and scales fit together and are 2-D CPU or CUDA tensors without
        behaviour of their own. The short way through `linear` compares the bytes, and asks for
        the devices, again in each call.
        """
        if self._short is None:
            try:
                check_storage(self, "w")
            except (TypeError, ValueError):
                return None
            self._short = self._measure()
        return self._short

    def _measure(self) -> tuple[int, int, int, int, int] | None:
        """The part of `measure` after the check."""
        codes, scales = self._codes, self._scales
        for t in (codes, scales):
            if type(t) not in PLAIN_TENSORS or not (t.is_cpu or t.is_cuda):
                return None
        if codes.ndim != 2 or not codes.numel():
            return None
        layout = facts().layouts[self._layout].code
        return layout, self.shape[0], self._k, codes.numel(), scales.numel()

    def _state(self) -> tuple | None:
        """What could change behind the back of plain tensors; None for other arrays."""
        codes, scales = self._codes, self._scales
        if type(codes) not in PLAIN_TENSORS or type(scales) not in PLAIN_TENSORS:
            return None
        contiguous = codes.is_contiguous() and scales.is_contiguous()
        where = codes.device, scales.device
        return codes.shape, scales.shape, codes.dtype, scales.dtype, *where, contiguous

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


def check_storage(tensor: MXTensor, name: str) -> None:
    """Raises if the arrays were resized or swapped behind the tensor's back.

    Raises:
        ValueError: because shape and bytes no longer belong together.
    """
    state = tensor._state()
    if state is not None and state == tensor._checked:
        return
    try:
        MXTensor(
            tensor.codes,
            tensor.scales,
            shape=tensor.shape,
            format=tensor.format,
            layout=tensor.layout,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: its arrays were changed after it was made: {error}") from error
    tensor._checked = state


def _ops():
    """The operations; they import this module."""
    from mx_kernels import ops  # noqa: PLC0415

    return ops


def _as_bytes(array: Array, name: str, dtype: str) -> Array:
    """Views `array` as uint8; `dtype` is the byte-sized element type that also fits."""
    kind = kind_of(array, name)
    got = dtype_name(array)
    if got not in ("uint8", dtype):
        hint = "; these are unpacked, one code a byte: pack two" if got == "float4_e2m1fn" else ""
        raise TypeError(f"{name}: got dtype {got}, expected uint8 or {dtype}{hint}")
    if len(array.shape) == 0:
        raise ValueError(f"{name}: got a single number, expected shape [..., K]")
    contiguous = array.is_contiguous() if kind == "torch" else array.flags.c_contiguous
    if not contiguous:
        call = f"{name}.contiguous()" if kind == "torch" else f"np.ascontiguousarray({name})"
        raise ValueError(f"{name}: got a non-contiguous array, expected a contiguous one: {call}")
    if got == "uint8":
        return array
    return array.view(torch.uint8 if kind == "torch" else np.uint8)


def _check_pair(codes: Array, scales: Array) -> None:
    """Raises unless both arrays are of one kind and on one device."""
    if isinstance(codes, np.ndarray) != isinstance(scales, np.ndarray):
        raise TypeError(
            f"codes and scales: got {type(codes).__name__} and {type(scales).__name__}, "
            "expected both torch tensors or both NumPy arrays"
        )
    if device_of(codes) != device_of(scales):
        raise ValueError(
            f"codes and scales: got {device_of(codes)} and {device_of(scales)}, "
            "expected one device; move both with .to(device)"
        )


def _check_shapes(codes: Array, scales: Array, shape, fmt: Format, layout_name: str) -> int:
    """Raises unless codes and scales can be a tensor of `shape`; returns K."""
    if shape is not None and not isinstance(shape, Sequence):
        raise TypeError(f"shape: got {type(shape).__name__}, expected a tuple of integers")
    layout = facts().layouts[layout_name]
    k = fmt.elements(codes.shape[-1])
    if k == 0 or k % fmt.block_size:
        raise ValueError(
            f"codes: got {show(codes.shape)}, so K = {k}, expected K to be a positive multiple "
            f"of {fmt.block_size}, which is {fmt.packed_bytes(fmt.block_size)} bytes"
        )
    held = (*codes.shape[:-1], k)
    if layout.name == facts().plain.name:
        logical, fits = held, shape is None or tuple(shape) == held
        stored = tuple(codes.shape), (*codes.shape[:-1], k // fmt.block_size)
    else:
        if len(held) != 2:
            raise ValueError(f"codes: got {show(codes.shape)}, but layout {layout_name} is 2-D")
        logical = held if shape is None else tuple(shape)
        fits = len(logical) == 2 and logical[1] == k and _is_count(logical[0])
        stored = layout.storage(logical[0], k, fmt) if fits else None
    if not fits:
        raise ValueError(
            f"shape: got {show(shape)}, but codes {show(codes.shape)} in layout {layout_name} "
            f"hold {show(held)}"
        )
    for name, array, expected in (("codes", codes, stored[0]), ("scales", scales, stored[1])):
        if tuple(array.shape) != tuple(expected):
            raise ValueError(
                f"{name}: got {show(array.shape)}, expected {show(expected)} for "
                f"{show(logical)} in layout {layout_name}"
            )
    return k


def _is_count(rows) -> bool:
    """Says whether `rows` can be a number of rows; it is symbolic while torch compiles."""
    return isinstance(rows, int | torch.SymInt) and rows >= 0


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

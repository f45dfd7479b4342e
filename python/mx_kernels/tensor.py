"""MXTensor: codes and scales that never part, with the format and layout that give them meaning.

A tensor for torch: it has a logical shape and a float dtype, moves, slices, saves, and is a
parameter of a module. What it holds are two tensors of bytes:

    logical   [..., K] numbers
    codes     u8, densely packed; plain: [..., K] bytes of codes of 8 bits, [..., 3K/4] of 6,
              [..., K/2] of 4, the first k in the lowest bits
    scales    u8, one E8M0 exponent a block of K; plain: [..., K/32]
              f32 of FP8 with float scales, in every layout as in the plain one: [..., 1],
              [..., blocks of K], or a block of several rows [..., blocks of N, blocks of K]
              u8 of NVFP4: [..., K/16 + 4], the E4M3 scales of a row and its float32 tensor scale:
              see `block_scales` and `tensor_scale`; GPUs' layouts order and pad them

In a preshuffled layout every matrix holds the same bytes in another order, padded to the
layout's multiples. Leading axes count matrices, each padded and ordered for itself:

    logical   [E, N, K]                             codes of expert e begin at
    codes     [E, padded N,  packed K bytes]        codes.data_ptr() + e * codes.stride(0)
    scales    [E, padded N', padded blocks]         scales.data_ptr() + e * scales.stride(0)

Numbers are computed with in `mx_kernels.linear` and `matmul`, and in `torch.nn.functional.linear`
(`_core.tensor_products`); what else torch can do with codes is in `_core.tensor_ops`. Anything
else raises.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from mx_kernels._core import arrays, calls
from mx_kernels._core import facts as _facts
from mx_kernels._core.arrays import PLAIN_TENSORS, check_device, float_code, show, watched
from mx_kernels._core.facts import DEFAULT_FORMAT, Layout, facts
from mx_kernels._core.storage import (
    as_bytes,
    as_scales,
    check_pair,
    check_shapes,
    split_scales,
    with_tensor_scale,
)
from mx_kernels.hints import AnyArray, Array, FloatType, FormatName, LayoutName
from mx_kernels.integrations import offload

Operator = torch._ops.OpOverload
Args = Sequence[object]
Kwargs = Mapping[str, object]
"""What torch's dispatcher hands over."""
HANDLERS: dict[Operator, Callable[..., object]] = {}
"""What torch can do with an MXTensor, by operator: `handler(operator, *args, **kwargs)`."""

_make = Tensor._make_wrapper_subclass

_Context = tuple[FormatName, LayoutName, torch.dtype, bool]
"""What torch's compiler keeps beside codes and scales; the last: whether it is a copied part."""


class MXTensor(arrays.OwnTensor):
    """A quantized tensor of logical shape `[..., K]`.

    Args:
        codes: the packed codes: uint8, or torch's or ml_dtypes' dtype of the format's elements:
            float4_e2m1fn_x2, float8_e4m3fn, float8_e5m2, int8. A torch tensor, which is held, or
            a NumPy array, whose memory is shared if it is writable. A plain matrix of 8-bit codes
            may lie column by column, strides (1, N): see `matmul`.
        scales: the block scales: uint8 or float8_e8m0fnu; float32 of formats that have such. Of
            "nvfp4" float8_e4m3fn or uint8 [..., K/16] beside `tensor_scale`, or both as the
            property `scales` shows them.
        tensor_scale: of "nvfp4" the float32 that multiplies the scales: one, or one for each row.
        shape: the logical shape. None takes it from `codes`, which is exact for the plain
            layout; in a padded layout every stored row then counts.
        format: a name from the format table, see `quantize`.
        layout: a name from the layout table; "plain" is row-major.
        dtype: what the numbers count as: bfloat16, float16 or float32. It is the dtype of
            `dequantize()`, and changes no byte.

    `MXTensor(q)` holds the bytes of `q`; with `requires_grad=`, it is a parameter: what libraries
    mean that remake one as `type(p)(value, requires_grad=p.requires_grad)`.

    Raises:
        TypeError: if the arrays are of the wrong dtype.
        ValueError: if shapes, devices, format and layout do not fit together.
    """

    if not TYPE_CHECKING:  # Torch declares a method.
        __torch_function__ = torch._C._disabled_torch_function_impl

    _codes: Tensor
    _scales: Tensor
    _format: FormatName
    _layout: LayoutName
    _k: int
    _native: tuple[int, int]
    """The codes of format and layout in the extension's tables."""
    _checked: tuple[torch.Size, int, int] | None
    """What `_common_device` compares with; None where that does not apply."""
    _repeats: dict[torch.Size, tuple]
    """Calls of products with these weights, by the activations' shape: see `_core.products`."""
    _writes: list[int]
    """Counts the writes to a tensor, with all its views in one list."""
    _copied_at: int | None
    """Of a part whose bytes could not be shared with its whole: the whole's writes until then.

    Such a part is no place to write, and after another write to the whole it is not read.
    """

    @staticmethod
    def __new__(  # noqa: D102
        cls,
        codes: Array,
        scales: Array | None = None,
        *,
        shape: tuple[int, ...] | None = None,
        format: FormatName = DEFAULT_FORMAT,
        layout: LayoutName = "plain",
        dtype: FloatType = torch.bfloat16,
        tensor_scale: float | Array | None = None,
        **of_parameter: object,
    ) -> MXTensor:
        if scales is None or of_parameter:
            unsaid = None, DEFAULT_FORMAT, "plain", torch.bfloat16
            given = (shape, format, layout, dtype) != unsaid
            return _remade(codes, scales, given, of_parameter)
        for what, name, known in (
            ("format", format, facts().formats),
            ("layout", layout, facts().layouts),
        ):
            if not isinstance(name, str) or name not in known:
                raise ValueError(f"{what}: got {name!r}, expected {' or '.join(known)}")
        dtype = facts().torch_dtypes[float_code(dtype, "dtype")]
        row = facts().formats[format]
        is_a_byte = layout == facts().plain.name and row.packed_bytes(1) == 1
        codes = as_bytes(codes, "codes", row.element, or_columns=is_a_byte)
        if tensor_scale is not None:
            scales = with_tensor_scale(scales, tensor_scale, row)
        scales = as_scales(scales, row)
        check_pair(codes, scales)
        shape = check_shapes(codes, scales, shape, row, facts().layouts[layout])
        self = cls._trusted(codes, scales, shape, format=format, layout=layout, dtype=dtype)
        self._checked = self._measure()
        return self

    @classmethod
    def _trusted(
        cls, codes, scales, shape, *, format, layout="plain", dtype, measure=False, view_of=None
    ) -> MXTensor:
        """Makes one from parts that are known to fit.

        With `measure`, the parts are plain tensors in memory and in the plain layout, remembered
        as checked.
        """
        table = _facts._facts or facts()
        self = _make(cls, shape, dtype=dtype, device=codes.device)
        row, k, checked = table.formats[format], shape[-1], None
        if measure:
            checked = codes.shape, scales.numel(), codes.numel() // row.packed_bytes(k)
        self.__dict__ = {
            "_codes": codes,
            "_scales": scales,
            "_format": format,
            "_layout": layout,
            "_k": k,
            "_native": (row.code, table.layouts[layout].code),
            "_checked": checked,
            "_repeats": {},
            "_writes": [0] if view_of is None else view_of._writes,
            "_copied_at": None if view_of is None else view_of._copied_at,
        }
        return self

    def _with(self, codes: Tensor, scales: Tensor, shape=None, **changes) -> MXTensor:
        """The same tensor with its bytes elsewhere, and perhaps another part of it."""
        parts = {"format": self._format, "layout": self._layout, "dtype": self.dtype} | changes
        return self._trusted(codes, scales, self.shape if shape is None else shape, **parts)

    def _view_of(self, codes: Tensor, scales: Tensor, shape=None, is_copied=False) -> MXTensor:
        """A view of this tensor: its bytes, or a copy of them, which is no place to write."""
        part = self._with(codes, scales, shape, view_of=self)
        if is_copied and part._copied_at is None:
            part._copied_at = part._writes[0]
        return part

    @property
    def codes(self) -> Tensor:
        """The packed codes, uint8, in the layout's order."""
        return self._codes

    @property
    def scales(self) -> Tensor:
        """The block scales, uint8 in the layout's order, or float32."""
        return self._scales

    @property
    def block_scales(self) -> Tensor:
        """The scales without tensor scales: float8_e4m3fn [..., K/16], a copy; else `scales`."""
        fmt = facts().formats[self._format]
        if not fmt.has_tensor_scales:
            return self._scales
        scales = self._relayout(facts().plain)._scales
        return _copied(split_scales(scales, fmt)[0]).view(torch.float8_e4m3fn)

    @property
    def tensor_scale(self) -> Tensor | None:
        """The float32 tensor scales of all rows [...], a copy; None of formats without them."""
        fmt = facts().formats[self._format]
        if not fmt.has_tensor_scales:
            return None
        scales = self._relayout(facts().plain)._scales
        return _copied(split_scales(scales, fmt)[1]).view(torch.float32).squeeze(-1)

    @property
    def format(self) -> FormatName:
        """The name of the number format."""
        return self._format

    @property
    def byte_layout(self) -> LayoutName:
        """The name of the order of the bytes: "plain", or the preshuffled one of a device."""
        return self._layout

    @property
    def layout(self) -> LayoutName:
        """`byte_layout`, whose older name it is, but for torch's own code.

        There the word means strides or their absence: its serializer and its comparisons are told
        torch.strided, and know no other words. Other libraries that ask see that this is no tensor
        of theirs. Inside compiled functions take `byte_layout`.
        """
        if torch.compiler.is_compiling():
            return self._layout
        return torch.strided if _caller().startswith("torch.") else self._layout

    @property
    def is_quantized(self) -> bool:
        """False, as it is for torch's own types of bytes, but for `torch.testing`.

        That compares what is quantized by `qscheme()` and `dequantize()`.
        """
        return not torch.compiler.is_compiling() and _caller().startswith("torch.testing.")

    def qscheme(self) -> FormatName:
        """The format, in torch's word for it."""
        return self._format

    @property
    def k(self) -> int:
        """The length of the last axis, along which blocks lie."""
        return self._k

    @property
    def rows(self) -> int:
        """The rows of all leading axes together."""
        return self._checked[-1] if self._checked is not None else math.prod(self.shape[:-1])

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales, padding included."""
        return self._codes.nbytes + self._scales.nbytes

    def element_size(self) -> float:
        """Bytes a number on average, scales and padding included, so that sums of sizes are true.

        Float, and `numel() * element_size()` is `nbytes`; without numbers it is the dtype's.
        """
        return self.nbytes / self.numel() if self.numel() else self.dtype.itemsize

    def data_ptr(self) -> int:
        """The address of the codes, which tells tensors of one memory from others."""
        return self._codes.data_ptr()

    @property
    def data(self) -> MXTensor:
        """The same bytes without a gradient; another MXTensor can be put in their place."""
        return self.detach()

    @data.setter
    def data(self, value: MXTensor) -> None:
        if not isinstance(value, MXTensor):
            raise TypeError(
                f"data: got {type(value).__name__}, expected an MXTensor; see quantize(data)"
            )
        Tensor.data.__set__(self, value)
        self.__dict__.update({name: value.__dict__[name] for name in MXTensor.__annotations__})

    def dequantize(
        self, dtype: FloatType | None = None, *, out: AnyArray | None = None
    ) -> Tensor | AnyArray:
        """Returns the numbers, as `mx_kernels.dequantize` does."""
        self._check("q")
        code = float_code(self.dtype if dtype is None else dtype, "dtype")
        if out is not None:
            code = arrays.check_out(out, self, None if dtype is None else code)
        if self._is_watched() or watched(out):
            parts = (self._codes, self._scales, self.shape, self._format, self._layout)
            made = torch.ops.mx_kernels.dequantize(*parts, facts().torch_dtypes[code])
            return made if out is None else arrays.written(out, made)
        return calls.dequantize(self, code, out)

    def preshuffle(self, device: str | torch.device | None = None) -> MXTensor:
        """Returns these weights in the layout of `device`, as `mx_kernels.preshuffle` does."""
        self._check("q")
        device = self.device if device is None else device
        layout = facts().layout_for(device, self._format, self._k)
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
        if self.ndim < 2:
            raise ValueError(f"q: got shape {show(self.shape)}, expected weights [..., N, K]")
        if self._is_watched():
            rows = self.shape[-2]
            parts = (self._codes, self._scales, rows, self._format, self._layout, layout.name)
            codes, scales = torch.ops.mx_kernels.relayout(*parts)
        else:
            codes, scales = calls.relayout(self, layout)
        return self._with(codes, scales, layout=layout.name)

    def numpy(self, *, force: bool = False) -> None:
        """Raises: NumPy has no such dtype.

        Raises:
            TypeError: always, but for accelerate, which writes files: see `integrations.offload`.
        """
        if asker() == offload.WRITER:
            return offload.in_floats(self).numpy()
        raise TypeError(
            f"numpy: got an MXTensor {show(self.shape)}, expected floats; call "
            'dequantize("float32").numpy(), or take the bytes: q.codes.numpy(), q.scales.numpy()'
        )

    def share_memory_(self) -> MXTensor:
        """Moves the bytes to memory that other processes can have."""
        self._codes.share_memory_()
        self._scales.share_memory_()
        return self

    def is_shared(self) -> bool:
        """Says whether other processes can have the bytes."""
        return self._codes.is_shared() and self._scales.is_shared()

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> None:
        """What NumPy asks for; see `numpy`."""
        self.numpy()

    # Torch's side of it.

    @classmethod
    def __torch_dispatch__(
        cls, func: Operator, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        return dispatch(HANDLERS, func, args, kwargs or {})

    def __tensor_flatten__(self) -> tuple[list[str], _Context]:
        is_copied = self._copied_at is not None
        return ["codes", "scales"], (self._format, self._layout, self.dtype, is_copied)

    @staticmethod
    def __tensor_unflatten__(
        inner: Mapping[str, Tensor], context: _Context, outer_size: torch.Size, outer_stride: object
    ) -> MXTensor:
        format, layout, dtype, is_copied = context
        parts = {"format": format, "layout": layout, "dtype": dtype}
        q = MXTensor._trusted(inner["codes"], inner["scales"], outer_size, **parts)
        q._copied_at = 0 if is_copied else None
        return q

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Callable[..., MXTensor], Args]:
        self._check_writes("q")
        parts = (self._codes, self._scales, tuple(self.shape), self._format, self._layout)
        is_parameter = getattr(self, "_is_param", False)
        return _rebuild, (*parts, self.dtype, self.requires_grad, is_parameter)

    def _stable_hash_for_caching(self) -> str:
        """What a compiled graph depends on, for torch's cache of them."""
        sizes = self.shape, self._codes.shape, self._scales.shape
        return repr((sizes, self.__tensor_flatten__(), self.device, self.requires_grad))

    def __copy__(self) -> MXTensor:
        if getattr(self, "_is_param", False):
            return torch.nn.Parameter(self, requires_grad=self.requires_grad)
        return self.detach().requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo: dict[int, object]) -> MXTensor:
        if id(self) not in memo:
            function, (codes, scales, *rest) = self.__reduce_ex__(2)
            copies = [part.clone() for part in (codes, scales)]
            memo[id(self)] = function(*copies, *rest)
        return memo[id(self)]

    def __repr__(self, *, tensor_contents: str | None = None) -> str:
        kind = "Parameter of MXTensor" if getattr(self, "_is_param", False) else "MXTensor"
        return (
            f"{kind}({show(self.shape)}, format={self._format!r}, layout={self._layout!r}, "
            f"dtype={self.dtype}, {self.device}, {_show_bytes(self.nbytes)})"
        )

    # What keeps a kernel from memory that is not there.

    def _common_device(self) -> int | None:
        """Returns where the arrays are, if they are plain tensors in memory, still what they were.

        The number of a CUDA device, -1 for the CPU.
        """
        known, codes, scales = self._checked, self._codes, self._scales
        if (
            known is not None
            and codes.shape == known[0]
            and scales.numel() == known[1]
            and (device := codes.get_device()) == scales.get_device()
            and codes.is_contiguous()
            and scales.is_contiguous()
            and self._copied_at is None
        ):
            return device
        return None

    def _check(self, name: str) -> None:
        """Raises if the arrays were resized or swapped behind the tensor's back.

        Raises:
            ValueError: because shape and bytes no longer belong together, or the device has no
                kernels.
        """
        codes, scales = self._codes, self._scales
        if self._common_device() is not None:
            return
        if torch.compiler.is_compiling():
            return
        self._check_writes(name)
        try:
            parts = {"shape": self.shape, "format": self._format, "layout": self._layout}
            self._checked = MXTensor(codes, scales, **parts)._checked
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name}: its arrays were changed after it was made: {error}"
            ) from error
        check_device(codes, name)

    def _check_writes(self, name: str) -> None:
        """Raises if it is a copied part of what was written since.

        Raises:
            ValueError: because a view would show what was written.
        """
        if self._copied_at is not None and self._copied_at != self._writes[0]:
            raise ValueError(
                f"{name}: got a part whose bytes are a copy, because they were not contiguous, and "
                "whose whole was written to since, expected one that was cut after that; clone() "
                "makes a part that stays as it is"
            )

    def _measure(self) -> tuple[torch.Size, int, int] | None:
        """What `_common_device` compares with, None but for plain tensors in memory.

        The shape of the codes, the number of scales, and the rows that they were found to have.
        """
        codes, scales = self._codes, self._scales
        for t in (codes, scales):
            if type(t) not in PLAIN_TENSORS or not (t.is_cpu or t.is_cuda):
                return None
        return codes.shape, scales.numel(), math.prod(self.shape[:-1])

    def _is_watched(self) -> bool:
        """Says whether operations on it have to go through torch's dispatcher to be right."""
        return torch.compiler.is_compiling() or watched(self._codes, self._scales)


def dispatch(
    handlers: Mapping[Operator, Callable[..., object]], func: Operator, args: Args, kwargs: Kwargs
) -> object:
    """Calls the handler of an operator, or torch's own composition of others that have one.

    Torch composes by itself but in inference mode. There, too, a view of a tensor that was made
    outside is none of inference: torch lets it count the writes to its base.
    """
    for arg in args:
        for t in arg if isinstance(arg, list | tuple) else (arg,):
            if type(t) is MXTensor and t._copied_at is not None:
                t._check_writes(func._opname)
    handler = handlers.get(func)
    if handler is None:
        result = func.decompose(*args, **kwargs)
        if result is NotImplemented:
            raise refusal(func)
        return result
    if func.is_view and torch.is_inference_mode_enabled() and not args[0].is_inference():
        with torch.inference_mode(False), torch.no_grad():
            return handler(func, *args, **kwargs)
    return handler(func, *args, **kwargs)


def refusal(func: Operator) -> NotImplementedError:
    """Returns the error for what torch cannot do with codes."""
    name = func._opname
    if "c10d" in func.namespace:
        return NotImplementedError(
            f"{name}: got an MXTensor, expected plain tensors; send q.codes and q.scales, or shard "
            "what every rank has: parallelize_module(..., src_data_rank=None)"
        )
    hint = next((hint for names, hint in _HINTS.items() if name in names), "")
    return NotImplementedError(
        f"{name}: got an MXTensor, expected floats; codes are multiplied by mx_kernels.linear and "
        f"matmul alone: call dequantize() first{hint}"
    )


_HINTS = {
    ("add", "add_", "sub", "mul", "mul_", "_foreach_mul_", "_foreach_add_", "_foreach_sub"): (
        ". An average of models keeps frozen weights with "
        "AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn())"
    ),
    ("expand", "bmm", "transpose", "permute"): (
        ". vmap maps activations of mx_kernels.linear, along any axis; over weights, loop"
    ),
}
"""What refused operators are most often part of, and what to do there."""


def _remade(value, scales, given: bool, of_parameter: dict) -> MXTensor:
    """Makes an MXTensor, or a parameter, of an MXTensor or of what `offload` made of one.

    Libraries may hand over a parameter's own attributes, which the value has already.
    """
    unknown = of_parameter.keys() - MXTensor.__annotations__.keys() - {"requires_grad", "_is_param"}
    if unknown or given or scales is not None:
        raise TypeError(
            f"MXTensor: got {', '.join(sorted(unknown)) or 'arguments'} beside requires_grad or "
            "without scales, expected codes and scales, or an MXTensor and requires_grad alone"
        )
    if not isinstance(value, MXTensor):
        if not (isinstance(value, Tensor) and value.is_floating_point()):
            raise TypeError(f"scales: got None, expected those of codes {type(value).__name__}")
        codes, scales, meaning, layout = offload.from_floats(value)
        value = MXTensor(codes, scales, **meaning)._relayout(facts().layouts[layout])
    if "requires_grad" not in of_parameter:
        return value.detach()
    return torch.nn.Parameter(value, requires_grad=of_parameter["requires_grad"])


def _rebuild(  # noqa: PLR0917  pickle calls it
    codes, scales, shape, format, layout, dtype=torch.bfloat16, requires_grad=False, is_param=False
) -> MXTensor:
    """Makes an MXTensor from its pickled parts, which may have been tampered with."""
    q = MXTensor(codes, scales, shape=shape, format=format, layout=layout, dtype=dtype)
    if is_param:
        return torch.nn.Parameter(q, requires_grad=requires_grad)
    return q.requires_grad_(requires_grad)


def _caller() -> str:
    """Returns the name of the module whose code asks for a property."""
    return sys._getframe(2).f_globals.get("__name__", "")


def asker() -> str:
    """Returns the name of the module outside of this package that called an operator."""
    frame, name = sys._getframe(1), __name__
    while frame is not None and name.startswith("mx_kernels."):
        frame, name = frame.f_back, frame.f_globals.get("__name__", "")
    return name


def _copied(bytes: Tensor) -> Tensor:
    """Returns a copy of bytes, each behind the other, from where any number may begin."""
    return bytes.clone(memory_format=torch.contiguous_format)


def _show_bytes(count: int) -> str:
    """Prints a byte count with a unit that leaves few digits."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


torch.serialization.add_safe_globals([_rebuild])

"""Torch tensors and NumPy arrays behind one face: what kind, which dtype, where in memory.

The operations take either kind and give back the same kind. Dtypes go by name ("bfloat16",
"float16", "float32"), which both kinds share. `as_matrix` views any array as rows of floats
with one row stride, without a copy where its strides allow that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._C import (
    _get_function_stack_at,
    _get_tracing_state,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from mx_kernels._facts import Facts

Array = Tensor | np.ndarray

PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
"""Tensor types without behaviour of their own: their memory is all there is to them."""
DEVICES = ("cpu", "cuda", "meta")
"""Types of devices that have kernels, and the one that has no numbers."""


class Matrix(NamedTuple):
    """Rows of floats in memory; `owner` keeps the memory alive."""

    address: int
    dtype_code: int
    row_stride: int
    rows: int
    owner: Array | None

    @property
    def floats(self) -> tuple[int, int, int]:
        """What the extension wants to know of floats: address, dtype, row stride."""
        return self[:3]


def show(shape) -> str:
    """Prints a shape the same way for both kinds."""
    return f"[{', '.join(map(str, shape))}]"


def kind_of(value, name: str) -> str:
    """Returns "torch" or "numpy".

    Raises:
        TypeError: for anything else, and for arrays whose bytes are not their whole meaning.
    """
    if isinstance(value, Tensor):
        if value.layout is not torch.strided:
            raise TypeError(
                f"{name}: got a {value.layout} tensor, expected a strided one; "
                f"convert with {name}.to_dense()"
            )
        if value.is_nested:
            raise TypeError(
                f"{name}: got a nested tensor, expected a regular one; "
                f"pad it with {name}.to_padded_tensor(0.0)"
            )
        if value.is_quantized:
            raise TypeError(
                f"{name}: got a quantized tensor ({value.dtype}), expected floats; "
                f"convert with {name}.dequantize()"
            )
        return "torch"
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{name}: got a masked array, expected a plain one; "
            f"say what masked elements count as: {name}.filled(0)"
        )
    if isinstance(value, np.ndarray):
        return "numpy"
    raise TypeError(f"{name}: got {type(value).__name__}, expected a torch tensor or NumPy array")


def dtype_name(array: Array) -> str:
    """Returns the dtype's name without its library's prefix."""
    return str(array.dtype).removeprefix("torch.") if _is_torch(array) else array.dtype.name


def _is_torch(array: Array) -> bool:
    return isinstance(array, Tensor)


def device_of(array: Array) -> torch.device:
    """Returns where the memory is; NumPy's is the CPU's."""
    return array.device if _is_torch(array) else torch.device("cpu")


def check_floats(array: Array, name: str, facts: Facts) -> None:
    """Raises unless `array` holds floats that the kernels read, in this machine's byte order.

    Raises:
        TypeError: with the dtype found, the ones expected and a conversion.
    """
    dtype = dtype_name(array)
    if dtype not in facts.dtypes:
        convert = f"{name}.float()" if _is_torch(array) else f"{name}.astype(np.float32)"
        if dtype.startswith("complex"):
            convert = f"{name}.real"
        raise TypeError(
            f"{name}: got dtype {dtype}, expected {' or '.join(facts.dtypes)}; "
            f"convert first, for example {convert}"
        )
    if not _is_torch(array) and not array.dtype.isnative:
        raise TypeError(
            f"{name}: got dtype {array.dtype.str} in the other byte order, expected this "
            f'machine\'s; convert with {name}.astype({name}.dtype.newbyteorder("="))'
        )


def check_same_kind(first: str, first_kind: str, second: str, second_kind: str) -> None:
    """Raises unless both operands are torch tensors or both are NumPy arrays.

    Raises:
        TypeError: with the conversion that makes them agree.
    """
    if first_kind != second_kind:
        raise TypeError(
            f"{first} and {second}: got {first_kind} and {second_kind}, expected both of one "
            "kind; convert an MXTensor with .torch() or .numpy(), an array with "
            "torch.from_numpy(x), a tensor with x.numpy()"
        )


def check_same_device(first: str, a: torch.device, second: str, b: torch.device) -> None:
    """Raises unless both devices are the same and have kernels.

    Raises:
        ValueError: naming both devices.
    """
    if a != b:
        raise ValueError(
            f"{first} and {second}: got {first} on {a} and {second} on {b}, expected one "
            f"device; move one of them with .to({str(b)!r})"
        )
    check_device(first, a)


def check_device(name: str, device: torch.device) -> None:
    """Raises unless `device` has kernels.

    Raises:
        ValueError: naming the device.
    """
    if device.type not in DEVICES:
        raise ValueError(
            f'{name}: got device {device}, expected cpu or cuda; move it with {name}.to("cpu")'
        )


def empty_like(array: Array, shape: tuple[int, ...], dtype: str, facts: Facts) -> Array:
    """Allocates an array of `array`'s kind and device; `dtype` goes by name."""
    if _is_torch(array):
        return array.new_empty(shape, dtype=getattr(torch, dtype))
    return np.empty(shape, np.uint8 if dtype == "uint8" else facts.numpy_dtype(dtype))


def address_of(array: Array) -> int:
    """Returns the address of the first element.

    Raises:
        ValueError: if the memory was freed under a tensor that still has elements.
    """
    if _is_torch(array):
        address = array.data_ptr()
        if not address and array.numel():
            raise ValueError(
                f"got a tensor {show(array.shape)} whose storage was freed "
                "(untyped_storage().resize_), expected one that still has its memory"
            )
        return address
    return array.__array_interface__["data"][0] if array.size else 0


def as_matrix(array: Array, facts: Facts) -> Matrix:
    """Views validated floats `[..., K]` as rows; copies only if no row stride describes them."""
    if _is_torch(array):
        array = array.resolve_neg()
        stride = row_stride(array.shape, array.stride(), 1)
        if stride is None:
            array = array.contiguous()
    else:
        stride = row_stride(array.shape, array.strides, array.itemsize)
        if stride is None:
            array = np.ascontiguousarray(array)
    k = array.shape[-1]
    rows = 1
    for size in array.shape[:-1]:
        rows *= size
    code = facts.dtypes[dtype_name(array)]
    return Matrix(address_of(array), code, k if stride is None else stride, rows, array)


def row_stride(shape, strides, unit: int) -> int | None:
    """Returns the one stride between rows, in elements, or None if there is no such stride.

    Args:
        shape: `[..., K]`, K more than one.
        strides: steps in memory, in the units of which an element takes `unit`.
        unit: the step between neighbours.
    """
    if strides[-1] != unit:
        return None
    stride = span = None
    for size, step in zip(reversed(shape[:-1]), reversed(strides[:-1]), strict=True):
        if size == 1:
            continue
        if stride is None:
            stride = step
        elif step != span:
            return None
        span = step * size
    if stride is None:
        return shape[-1]
    return stride // unit if stride >= 0 and stride % unit == 0 else None


def intercepted() -> bool:
    """Says whether something wants to see torch operations before they run.

    Dispatch modes (fake tensors, tracing, FLOP counters), function modes, `torch.func`
    transforms, forward-mode AD and `torch.jit.trace` all act through torch's dispatcher.
    """
    return (
        _len_torch_dispatch_stack() > 0
        or (_len_torch_function_stack() > 0 and not _only_default_devices())
        or peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or _get_tracing_state() is not None
    )


def _only_default_devices() -> bool:
    """Says whether all function modes only name a device for tensors made without one."""
    modes = map(_get_function_stack_at, range(_len_torch_function_stack()))
    return all(type(mode) is DeviceContext for mode in modes)


def needs_dispatcher(*arrays: Array | None) -> bool:
    """Says whether a call has to go through torch's dispatcher to be right.

    Plain tensors in plain eager mode need not: the dispatcher costs more than everything else
    that Python does in a call.
    """
    tensors = [array for array in arrays if array is not None]
    if not isinstance(tensors[0], Tensor):
        return False
    plain = all(type(t) in PLAIN_TENSORS and (t.is_cpu or t.is_cuda) for t in tensors)
    return not plain or intercepted()

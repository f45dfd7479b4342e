"""Torch tensors and NumPy arrays behind one face: what kind, which dtype, where in memory.

Floats come as either kind, and go back as the same kind. Dtypes go by name ("bfloat16",
"float16", "float32"), which both kinds share. `as_matrix` views any array as rows of floats
with one row stride, without a copy where its strides allow that.

A check raises unless its argument is as it must be. What is common, plain tensors in memory,
answers a few cheap questions (`is_common`); only the rest is checked, to find out what is wrong,
or what is rare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch._C import (
    _get_function_stack_at,
    _get_tracing_state,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch._C._dynamo.guards import _empty_strided_cpu, _empty_strided_cuda
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from mx_kernels._core import facts as _facts
from mx_kernels._core.cuda import current_device
from mx_kernels._core.facts import Format, facts
from mx_kernels.hints import Array, FloatType

_STRIDED, _BYTES = torch.strided, torch.uint8
_NAMES_OF_DTYPES = (str, torch.dtype)
PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
"""Tensor types without behaviour of their own: their memory is all there is to them."""
if TYPE_CHECKING:

    class OwnTensor(Tensor):
        """A tensor made by a `__new__` of its own, whose arguments are not those of torch's."""

        def __init__(self, *args: object, **kwargs: object) -> None: ...
else:
    OwnTensor = Tensor
_CHARS_OF_TORCH = "?efdFD" + np.typecodes["AllInteger"]
"""What NumPy calls the dtypes that torch has, too."""
DEVICES = ("cpu", "cuda", "meta")
"""Types of devices that have kernels, and the one that has no numbers."""


def show(shape) -> str:
    """Prints a shape the same way for both kinds."""
    return f"[{', '.join(map(str, shape))}]"


def kind_of(value, name: str) -> str:
    """Returns "torch" or "numpy".

    Raises:
        TypeError: for anything else, and for arrays whose bytes are not their whole meaning.
    """
    if isinstance(value, Tensor):
        if hasattr(value, "byte_layout"):
            raise TypeError(
                f"{name}: got an MXTensor, expected floats or bytes; call {name}.dequantize() for "
                f"floats, take {name}.codes and {name}.scales for bytes"
            )
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
    is_torch = isinstance(array, Tensor)
    return str(array.dtype).removeprefix("torch.") if is_torch else array.dtype.name


def torch_dtype(array: Array) -> torch.dtype:
    """Returns the torch dtype of checked floats."""
    if isinstance(array, Tensor):
        return array.dtype
    return facts().torch_dtypes[facts().dtypes[array.dtype.name]]


def device_of(array: Array) -> torch.device:
    """Returns where the memory is; NumPy's is the CPU's."""
    return array.device if isinstance(array, Tensor) else torch.device("cpu")


def is_common(array: Array, dtypes: dict[torch.dtype, int]) -> bool:
    """Says whether `array` is a plain tensor in memory, of one of `dtypes`, no gradient wanted.

    It is right then, and nobody watches it. Anything else is checked, and asked whether it is
    `watched`.
    """
    return (
        type(array) in PLAIN_TENSORS
        and array.dtype in dtypes
        and array.layout is _STRIDED
        and (array.is_cpu or array.is_cuda)
        and not array.is_nested
        and not (array.requires_grad and torch.is_grad_enabled())
    )


def check_floats(array: Array, name: str) -> None:
    """Raises unless `array` holds floats that the kernels read, on a device that has kernels.

    Raises:
        TypeError: with what was found, what is expected and a conversion.
        ValueError: naming the device.
    """
    kind, known = kind_of(array, name), facts().dtypes
    dtype = dtype_name(array)
    if dtype not in known:
        convert = f"{name}.float()" if kind == "torch" else f"{name}.astype(np.float32)"
        if dtype.startswith("complex"):
            convert = f"{name}.real"
        raise TypeError(
            f"{name}: got dtype {dtype}, expected {' or '.join(known)}; "
            f"convert first, for example {convert}"
        )
    if kind == "numpy" and not array.dtype.isnative:
        raise TypeError(
            f"{name}: got dtype {array.dtype.str} in the other byte order, expected this "
            f'machine\'s; convert with {name}.astype({name}.dtype.newbyteorder("="))'
        )
    check_device(array, name)


def check_out(out: Array, q: Tensor, dtype: int | None) -> int:
    """Checks memory for the numbers of `q`; returns the native code of its dtype.

    `dtype` is the code of the dtype that was asked for beside it, None for none.

    Raises:
        TypeError: if it is no array of floats.
        ValueError: if it cannot be written as a whole, or is of another shape, dtype or device.
    """
    check_floats(out, "out")
    check_together("out", out, "q", q)
    code, is_torch = facts().dtypes[dtype_name(out)], isinstance(out, Tensor)
    if dtype not in (None, code):
        raise ValueError(
            f"dtype: got {list(facts().dtypes)[dtype]} beside an out of {dtype_name(out)}, "
            "expected None or that"
        )
    if tuple(out.shape) != tuple(q.shape):
        raise ValueError(f"out: got shape {show(out.shape)}, expected {show(q.shape)}, that of q")
    if not (out.is_contiguous() and not out.is_neg() if is_torch else out.flags.carray):
        steps = out.stride() if is_torch else out.strides
        raise ValueError(
            f"out: got an array of strides {show(steps)}, expected one whose elements lie one "
            "behind another, aligned, and can be written"
        )
    if is_torch and out.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "out: got a tensor that requires a gradient, expected one that does not, as codes have "
            "none; write under torch.no_grad()"
        )
    return code


def written(out: Array, made: Tensor) -> Array:
    """Copies what an operator of torch made to memory that is checked; returns that."""
    tensor_of(out).copy_(made)
    return out


def float_code(dtype: FloatType | None, name: str) -> int:
    """Returns the native code of a float dtype: a name, a torch dtype or a NumPy dtype.

    Raises:
        TypeError: if it is no dtype.
        ValueError: if it is another one.
    """
    known = (_facts._facts or facts()).float_codes
    if type(dtype) in _NAMES_OF_DTYPES and dtype in known:
        return known[dtype]
    is_name = dtype is None or isinstance(dtype, str | torch.dtype)
    got = dtype if is_name else _numpy_name(dtype, name)
    if got not in known:
        raise ValueError(f"{name}: got {dtype!r}, expected {' or '.join(facts().dtypes)}")
    return known[got]


def _numpy_name(dtype, name: str) -> str:
    """Returns the name of what NumPy takes for a dtype."""
    try:
        return np.dtype(dtype).name
    except (TypeError, ValueError):
        raise TypeError(
            f"{name}: got {dtype!r}, expected a dtype or one of {', '.join(facts().dtypes)}"
        ) from None


def check_together(first: str, a: Array, second: str, b: Array) -> None:
    """Raises unless both lie on one device; NumPy arrays lie on the CPU.

    Raises:
        ValueError: naming both devices.
    """
    devices = device_of(a), device_of(b)
    if devices[0] != devices[1]:
        raise ValueError(
            f"{first} and {second}: got {first} on {devices[0]} and {second} on {devices[1]}, "
            f"expected one device; move one of them with .to({str(devices[1])!r})"
        )


def check_same_kind(first: str, a: Array, second: str, b: Array) -> None:
    """Raises unless both are torch tensors or both NumPy arrays.

    Raises:
        TypeError: with the conversion that makes them agree.
    """
    kinds = kind_of(a, first), kind_of(b, second)
    if kinds[0] != kinds[1]:
        raise TypeError(
            f"{first} and {second}: got {kinds[0]} and {kinds[1]}, expected both of one kind; "
            "convert an array with torch.from_numpy(x), a tensor with x.numpy()"
        )


def check_device(array: Array, name: str) -> None:
    """Raises unless `array` lies on a device that has kernels.

    Raises:
        ValueError: naming the device.
    """
    if isinstance(array, Tensor) and array.device.type not in DEVICES:
        raise ValueError(
            f"{name}: got device {array.device}, expected cpu or cuda; move it with "
            f'{name}.to("cpu")'
        )


def address_of(array: Array) -> int:
    """Returns the address of the first element.

    Raises:
        ValueError: if the memory was freed under a tensor that still has elements.
    """
    if isinstance(array, Tensor):
        address = array.data_ptr()
        if address:
            return address
        if array.numel():
            raise ValueError(
                f"got a tensor {show(array.shape)} whose storage was freed "
                "(untyped_storage().resize_), expected one that still has its memory"
            )
        return address
    return array.__array_interface__["data"][0] if array.size else 0


def tensor_over(array: np.ndarray) -> Tensor:
    """Returns the tensor over a NumPy array's memory; over a copy's where torch would not have it.

    Torch warns of what is read-only, and refuses strides that no row of elements has, though
    nobody takes a step along an axis of one.
    """
    array = np.asarray(array)
    fits = all(step >= 0 and step % array.itemsize == 0 for step in array.strides)
    return torch.from_numpy(array if fits and array.flags.writeable else array.copy())


def in_memory(array: Array) -> Array:
    """Returns an array whose memory holds its numbers: itself, or a copy.

    Torch negates lazily, by a bit of the tensor, and knows zeros that have no memory.
    """
    if not isinstance(array, Tensor):
        return array
    if array.is_neg():
        array = array.resolve_neg()
    return array.clone() if array._is_zerotensor() else array


def memory_of(t: Tensor) -> tuple[Tensor, int]:
    """Returns who owns a tensor's numbers, one behind the other, and their address."""
    t = in_memory(t).contiguous()
    return t, address_of(t)


def empty_scales(like: Array, shape: tuple[int, ...], fmt: Format, make=None) -> tuple[Tensor, int]:
    """Allocates scales of a format where `like` lies; returns their address, too."""
    make = make or empty
    if not fmt.has_float_scales:
        return make(like, shape)
    scales, address = make(like, (*shape[:-1], shape[-1] * fmt.scale_bytes))
    return scales.view(fmt.scale_dtype), address


def empty(like: Array, shape: tuple[int, ...], dtype: int | None = None) -> tuple[Array, int]:
    """Allocates floats of a dtype, of the kind of `like`, or bytes, torch's, where `like` lies.

    Matrices, one or many, come from the functions that torch's own compiler calls for its
    allocations, in a fifth of the time of `new_empty`.

    Returns:
        The array and its address.
    """
    torch_dtype = _BYTES if dtype is None else (_facts._facts or facts()).torch_dtypes[dtype]
    if 2 <= len(shape) <= 3 and type(like) in PLAIN_TENSORS:
        strides = (shape[1], 1) if len(shape) == 2 else (shape[1] * shape[2], shape[2], 1)
        if like.is_cpu:
            out = _empty_strided_cpu(shape, strides, torch_dtype)
            return out, out.data_ptr()
        if like.is_cuda and like.get_device() == current_device():
            out = _empty_strided_cuda(shape, strides, torch_dtype)
            return out, out.data_ptr()
    if dtype is None and not isinstance(like, Tensor):
        out = torch.empty(shape, dtype=_BYTES, device="cpu")
        return out, out.data_ptr()
    if isinstance(like, Tensor):
        out = like.new_empty(shape, dtype=torch_dtype)
        return out, out.data_ptr()
    out = np.empty(shape, facts().numpy_dtype(list(facts().dtypes)[dtype]))
    return out, address_of(out)


def rows_of(array: Array, k: int) -> tuple[Array, int, int, int]:
    """Views checked floats `[..., k]` as rows; copies only if no row stride describes them.

    Returns:
        Who owns the memory, the address, the dtype's code and the row stride in elements.
    """
    if isinstance(array, Tensor):
        code = (_facts._facts or facts()).dtype_codes[array.dtype]
        array = in_memory(array)
        stride = k if array.is_contiguous() else row_stride(array.shape, array.stride(), 1)
        if stride is None:
            array, stride = array.contiguous(), k
        return array, array.data_ptr() or address_of(array), code, stride
    code = facts().dtypes[dtype_name(array)]
    stride = row_stride(array.shape, array.strides, array.itemsize)
    if stride is None:
        array, stride = np.ascontiguousarray(array), k
    return array, address_of(array), code, stride


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


def watched(*arrays: Array | None) -> bool:
    """Says whether a call has to go through torch's dispatcher to be right.

    Plain tensors in memory need not, in plain eager mode and where no gradient is wanted: the
    dispatcher costs more than everything else that Python does in a call.
    """
    tensors = [array for array in arrays if isinstance(array, Tensor)]
    return bool(tensors) and (intercepted() or not all(map(_is_plain, tensors)))


def _is_plain(t: Tensor) -> bool:
    """Says whether `t` has no behaviour of its own, but memory, and no gradient is wanted."""
    if type(t) not in PLAIN_TENSORS or not (t.is_cpu or t.is_cuda):
        return False
    return not (t.requires_grad and torch.is_grad_enabled())


def tensor_of(array: Array | None) -> Tensor | None:
    """Returns the tensor over a NumPy array's memory, or a copy's; what is refused stays."""
    is_plain = isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)
    if not is_plain or not array.dtype.isnative:
        return array
    is_bfloat16 = array.dtype.name == "bfloat16"
    if not is_bfloat16 and array.dtype.char not in _CHARS_OF_TORCH:
        return array
    array = np.asarray(array, order="C")
    if is_bfloat16:
        return tensor_over(array.view(np.uint16)).view(torch.bfloat16)
    return tensor_over(array)


def array_of(out: Tensor) -> np.ndarray:
    """Returns the NumPy array over a result's memory."""
    if out.dtype == torch.bfloat16:
        return out.view(torch.uint16).numpy().view(facts().numpy_dtype("bfloat16"))
    return out.numpy()

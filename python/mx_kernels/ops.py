"""The operations on torch tensors and NumPy arrays: validation, messages, launch.

Each public function has the same stages: hand over to torch.library where torch wants to see
the call (compilation, autograd, transforms, fake tensors), else check, allocate, launch. The
`check_*` and `run_*` halves also serve the torch.library implementations in `torch_ops`, so a
rule and its message exist once.

    public function -- plain CPU tensors, NumPy arrays --> check_* -> run_* -> extension module
                    -- everything else ------------------> torch.ops.mx_kernels.* -> the same
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mx_kernels import _autograd, _short_way
from mx_kernels._arrays import (
    Array,
    Matrix,
    address_of,
    as_matrix,
    check_device,
    check_floats,
    check_same_device,
    check_same_kind,
    device_of,
    dtype_name,
    empty_like,
    kind_of,
    needs_dispatcher,
    show,
)
from mx_kernels._facts import KEEP, Layout, facts
from mx_kernels._launch import launcher_of
from mx_kernels.tensor import MXTensor, check_storage


def quantize(x: Array, *, rounding: str = "even") -> MXTensor:
    """Quantizes bfloat16, float16 or float32 `x` of shape [..., K] in blocks along K.

    A block that holds a NaN or an infinity becomes NaN as a whole.

    >>> quantize(torch.randn(4, 64)).shape
    torch.Size([4, 64])

    Args:
        x: torch tensor or NumPy array; K is a multiple of the block size, 32.
        rounding: how the block's scale is chosen: "floor", "even", "ceil" or "rceil".

    Raises:
        TypeError: if x is not an array of floats.
        ValueError: if K is not a positive multiple of 32, or the rounding is unknown.
    """
    if torch.compiler.is_compiling():
        return MXTensor._trusted(*torch.ops.mx_kernels.quantize(x, rounding), x.shape[-1])
    parts = _short_way.quantize(x, rounding)
    if parts is not None:
        return MXTensor._trusted(*parts, x.shape[-1])
    check_quantize(x, rounding)
    if needs_dispatcher(x):
        codes, scales = torch.ops.mx_kernels.quantize(x, rounding)
    else:
        codes, scales = run_quantize(x, rounding)
    return MXTensor._trusted(codes, scales, x.shape[-1])


def dequantize(q: MXTensor, *, dtype="bfloat16") -> Array:
    """Decodes `q`, exactly where `dtype` can hold the numbers, in any layout.

    >>> dequantize(quantize(torch.ones(2, 32)), dtype="float32").sum()
    tensor(64.)

    Args:
        q: the quantized tensor, shape [..., K].
        dtype: bfloat16, float16 or float32, as a name, a torch dtype or a NumPy dtype.

    Raises:
        TypeError: if q is not an MXTensor.
        ValueError: if the dtype is none of the three, or the device has no kernels.
    """
    if torch.compiler.is_compiling():
        op = torch.ops.mx_kernels.dequantize
        return op(q.codes, q.scales, q.shape, q.layout, _torch_dtype(dtype, "dtype"))
    check_operand(q, "q")
    check_device("q", q.device)
    name = float_name(dtype, "dtype")
    if needs_dispatcher(q.codes, q.scales):
        op = torch.ops.mx_kernels.dequantize
        return op(q.codes, q.scales, q.shape, q.layout, facts().torch_dtypes[name])
    return run_dequantize(q, name)


def preshuffle(q: MXTensor, *, device: str | torch.device | None = None) -> MXTensor:
    """Returns the weights `q` [N, K] in the layout that the kernels of `device` read fastest.

    Args:
        q: a 2-D tensor in any layout. One that is already in the wanted layout comes back.
        device: a device of the layout table ("cpu", "cuda", "gfx950") or a torch device.
            None is where q lies.

    Raises:
        TypeError: if q is not an MXTensor.
        ValueError: if q is not 2-D, or no layout belongs to the device.
    """
    check_operand(q, "q")
    device = q.device if device is None else device
    layout = facts().layout_for(device)
    if layout is None:
        known = [repr(row.device) for row in facts().layouts.values() if row.device]
        raise ValueError(
            f"device: got {device!r}, expected {' or '.join(known)}; other devices have no "
            "layout of their own and read the plain one"
        )
    return relayout(q, layout)


def unshuffle(q: MXTensor) -> MXTensor:
    """Returns `q` in the plain layout.

    Raises:
        TypeError: if q is not an MXTensor.
    """
    check_operand(q, "q")
    return relayout(q, facts().plain)


def relayout(q: MXTensor, layout: Layout) -> MXTensor:
    """Moves `q` to `layout`, or returns it if it is there."""
    if q.layout == layout.name:
        return q
    if q.ndim != 2:
        raise ValueError(
            f"q: got shape {show(q.shape)}, expected weights [N, K]; preshuffle them one by one"
        )
    check_device("q", q.device)
    if torch.compiler.is_compiling() or needs_dispatcher(q.codes, q.scales):
        parts = (q.codes, q.scales, q.shape[0], q.layout, layout.name)
        codes, scales = torch.ops.mx_kernels.relayout(*parts)
    else:
        codes, scales = run_relayout(q, layout)
    rows = None if layout is facts().plain else q.shape[0]
    return MXTensor._trusted(codes, scales, q.k, rows=rows, format=q.format, layout=layout.name)


def matmul(a: MXTensor, b: MXTensor, *, out_dtype="bfloat16", bias: Array | None = None) -> Array:
    """Multiplies two MX tensors: returns a @ b.T as [..., N], accumulated in float32.

    Both operands are stored along K, the axis that is summed, so `b` is the weight as
    `nn.Linear` keeps it.

    >>> a, b = quantize(torch.randn(4, 64)), quantize(torch.randn(8, 64))
    >>> matmul(a, b).shape
    torch.Size([4, 8])

    Args:
        a: activations [..., K], plain layout.
        b: weights [N, K], in any layout.
        out_dtype: bfloat16, float16 or float32, as a name, a torch dtype or a NumPy dtype.
        bias: floats [N], added before the result is rounded to `out_dtype`.

    Raises:
        TypeError: if an operand is not an MXTensor, or they are not of one kind.
        ValueError: if shapes, formats, layouts or devices do not fit together.
    """
    if torch.compiler.is_compiling():
        parts = (a.codes, a.scales, b.codes, b.scales, b.layout, b.shape[0])
        return torch.ops.mx_kernels.matmul(*parts, bias, _torch_dtype(out_dtype, "out_dtype"))
    out = _short_way.matmul(a, b, bias, out_dtype)
    if out is not None:
        return out
    check_matmul(a, b, bias)
    name = float_name(out_dtype, "out_dtype")
    if _needs_autograd(bias) or needs_dispatcher(a.codes, a.scales, b.codes, b.scales, bias):
        parts = (a.codes, a.scales, b.codes, b.scales, b.layout, b.shape[0])
        return _autograd.Matmul.apply(*parts, bias, facts().torch_dtypes[name])
    return run_matmul(a, b, bias, name)


def linear(
    x: Array,
    w: MXTensor,
    *,
    bias: Array | None = None,
    rounding: str = "even",
    out_dtype=None,
    activations: str = "mxfp4",
) -> Array:
    """Quantizes `x` and multiplies: `matmul(quantize(x), w, bias=bias)`, bit for bit, in one go.

    With `activations="bf16"` only the weights are quantized: x is multiplied as bfloat16, to
    which it is rounded, to nearest even, if it is not bfloat16 yet.

    The gradient for x is that of multiplying by the dequantized weights: the quantization
    passes gradients straight through. Autocast leaves the call alone: x is quantized from the
    dtype it has, and `out_dtype` alone decides the result's.

    >>> linear(torch.randn(4, 64), quantize(torch.randn(8, 64))).shape
    torch.Size([4, 8])

    Args:
        x: activations [..., K], bfloat16, float16 or float32, any row stride.
        w: weights [N, K], in any layout.
        bias: floats [N], added before the result is rounded to `out_dtype`.
        rounding: how x is quantized: "floor", "even", "ceil" or "rceil".
        out_dtype: None is x's; else a name, a torch dtype or a NumPy dtype.
        activations: what x is multiplied as: "mxfp4" or "bf16", which takes no `rounding`.

    Raises:
        TypeError: if x is not an array of floats, or w not an MXTensor of x's kind.
        ValueError: if shapes, layouts or devices do not fit together, or a name is unknown.
    """
    if torch.compiler.is_compiling():
        if not isinstance(w, MXTensor):
            raise TypeError(f"w: got {type(w).__name__}, expected an MXTensor; see quantize(w)")
        dtype = x.dtype if out_dtype is None else _torch_dtype(out_dtype, "out_dtype")
        parts = (w.codes, w.scales, w.layout, w.shape[0])
        return torch.ops.mx_kernels.linear(x, *parts, bias, rounding, dtype, activations)
    out = _short_way.linear(x, w, bias, rounding, out_dtype, activations=activations)
    if out is not None:
        return out
    check_linear(x, w, bias, rounding, activations)
    name = dtype_name(x) if out_dtype is None else float_name(out_dtype, "out_dtype")
    if _needs_autograd(x, bias) or needs_dispatcher(x, w.codes, w.scales, bias):
        parts = (w.codes, w.scales, w.layout, w.shape[0])
        dtype = facts().torch_dtypes[name]
        return _autograd.Linear.apply(x, *parts, bias, rounding, dtype, activations)
    return run_linear(x, w, bias, rounding, name, activations=activations)


# Checks: each raises unless its operation can take the call.


def check_quantize(x: Array, rounding: str) -> None:
    """Checks the arguments of `quantize`."""
    _check_activations(x, rounding)
    k, block = x.shape[-1], facts().default_format.block_size
    if k == 0 or k % block:
        missing = block - k % block
        pad = f"torch.nn.functional.pad(x, (0, {missing}))"
        if isinstance(x, np.ndarray):
            pad = f"np.pad(x, [(0, 0)] * {len(x.shape) - 1} + [(0, {missing})])"
        raise ValueError(
            f"x: got K = {k} (shape {show(x.shape)}), expected a positive multiple of {block}; "
            f"pad with zeros, which add nothing to a product: {pad}"
        )


def check_linear(
    x: Array, w: MXTensor, bias: Array | None, rounding: str, activations: str
) -> None:
    """Checks the arguments of `linear`, but for the result's dtype."""
    if isinstance(x, MXTensor):
        raise TypeError("x: got an MXTensor, expected floats; for two MXTensors use matmul(x, w)")
    _check_activations(x, rounding)
    check_mode(activations, rounding)
    _check_weights(w, "w")
    check_same_kind("x", kind_of(x, "x"), "w", kind_of(w.codes, "w"))
    _check_agreement("x", x.shape, "w", w.shape)
    check_same_device("x", device_of(x), "w", w.device)
    check_bias(bias, w)


def check_matmul(a: MXTensor, b: MXTensor, bias: Array | None) -> None:
    """Checks the arguments of `matmul`, but for the result's dtype."""
    check_operand(a, "a")
    _check_weights(b, "b")
    check_same_kind("a", kind_of(a.codes, "a"), "b", kind_of(b.codes, "b"))
    if a.layout != facts().plain.name:
        raise ValueError(
            f"a: got layout {a.layout!r}, expected {facts().plain.name!r}: only the weights are "
            "preshuffled; call a.unshuffle()"
        )
    if a.format != b.format:
        raise ValueError(f"a and b: got formats {a.format!r} and {b.format!r}, expected one")
    _check_agreement("a", a.shape, "b", b.shape)
    check_same_device("a", a.device, "b", b.device)
    check_bias(bias, b)


def check_operand(q: MXTensor, name: str) -> None:
    """Checks that `q` is an MXTensor whose arrays are still what they were."""
    if not isinstance(q, MXTensor):
        raise TypeError(
            f"{name}: got {type(q).__name__}, expected an MXTensor; make one with "
            f"quantize({name}), or MXTensor(codes, scales) from bytes"
        )
    check_storage(q, name)


def float_name(dtype, name: str) -> str:
    """Returns the name of a float dtype given as a name, a torch dtype or a NumPy dtype."""
    got = dtype
    if isinstance(dtype, torch.dtype):
        got = str(dtype).removeprefix("torch.")
    elif not isinstance(dtype, str) and dtype is not None:
        try:
            got = np.dtype(dtype).name
        except (TypeError, ValueError):
            raise TypeError(
                f"{name}: got {dtype!r}, expected a dtype or one of {', '.join(facts().dtypes)}"
            ) from None
    if got not in facts().dtypes:
        raise ValueError(f"{name}: got {dtype!r}, expected {' or '.join(facts().dtypes)}")
    return got


def check_rounding(rounding: str) -> None:
    """Checks the name of a rounding rule."""
    if not isinstance(rounding, str) or rounding not in facts().roundings:
        raise ValueError(
            f"rounding: got {rounding!r}, expected {' or '.join(map(repr, facts().roundings))}"
        )


def check_mode(activations: str, rounding: str) -> None:
    """Checks the name of what activations are multiplied as, and that the rounding goes with it."""
    modes = list(dict.fromkeys(mode for mode, _ in facts().rules))
    if not isinstance(activations, str) or activations not in modes:
        expected = " or ".join(map(repr, modes))
        raise ValueError(f"activations: got {activations!r}, expected {expected}")
    if (activations, rounding) not in facts().rules:
        raise ValueError(
            f"rounding: got {rounding!r} with activations={activations!r}, which leaves the scale "
            "rule nothing to do; leave the rounding out"
        )


def layout_named(name: str) -> Layout:
    """Returns a row of the layout table."""
    if name not in facts().layouts:
        raise ValueError(f"layout: got {name!r}, expected {' or '.join(facts().layouts)}")
    return facts().layouts[name]


def _check_activations(x: Array, rounding: str) -> None:
    kind_of(x, "x")
    check_floats(x, "x", facts())
    if len(x.shape) == 0:
        raise ValueError("x: got a single number, expected shape [..., K]")
    check_device("x", device_of(x))
    check_rounding(rounding)


def _check_weights(w: MXTensor, name: str) -> None:
    check_operand(w, name)
    if w.ndim != 2:
        raise ValueError(f"{name}: got shape {show(w.shape)}, expected weights [N, K]")


def _check_agreement(left: str, left_shape, right: str, right_shape) -> None:
    """Checks that both operands have the same K."""
    k, w_k = left_shape[-1], right_shape[-1]
    if k == w_k:
        return
    hint = f"{right} is [N, K], not [K, N]"
    if 0 < w_k - k < facts().default_format.block_size:
        hint = f"if {right} was padded, pad {left} too: torch.nn.functional.pad(x, (0, {w_k - k}))"
    raise ValueError(
        f"{left} and {right}: got K = {k} and K = {w_k} ({left}: {show(left_shape)}, {right}: "
        f"{show(right_shape)}), expected one K; {hint}"
    )


def check_bias(bias: Array | None, w: MXTensor) -> None:
    """Checks that `bias` is None or fits the weights."""
    if bias is None:
        return
    check_same_kind("bias", kind_of(bias, "bias"), "the weights", kind_of(w.codes, "weights"))
    check_floats(bias, "bias", facts())
    if len(bias.shape) != 1 or bias.shape[0] != w.shape[0]:
        raise ValueError(
            f"bias: got shape {show(bias.shape)}, expected [{w.shape[0]}], one number for each "
            "row of the weights"
        )
    check_same_device("bias", device_of(bias), "the weights", w.device)


# Runs: each allocates the result where its operands lie, and launches; arguments are checked.


def run_quantize(x: Array, rounding: str) -> tuple[Array, Array]:
    """Runs `quantize`; returns codes and scales."""
    table = facts()
    source, k, fmt = as_matrix(x, table), x.shape[-1], table.default_format
    lead = tuple(x.shape[:-1])
    codes = empty_like(x, (*lead, fmt.packed_bytes(k)), "uint8", table)
    scales = empty_like(x, (*lead, k // fmt.block_size), "uint8", table)
    if source.rows:
        rule, target = table.roundings[rounding], (address_of(codes), address_of(scales))
        arguments = (*source.floats, source.rows, k, rule, *target)
        launcher_of(codes).launch("quantize", arguments, codes)
    return codes, scales


def run_dequantize(q: MXTensor, dtype: str) -> Array:
    """Runs `dequantize`; returns floats."""
    table, shape = facts(), tuple(q.shape)
    out = empty_like(q.codes, shape, dtype, table)
    rows = math.prod(shape[:-1])
    if rows:
        arguments = (*_source(q), rows, q.k, address_of(out), table.dtypes[dtype])
        launcher_of(out).launch("dequantize", arguments, out)
    return out


def run_relayout(q: MXTensor, layout: Layout) -> tuple[Array, Array]:
    """Moves the 2-D `q` to `layout`; returns codes and scales."""
    table, (rows, k) = facts(), q.shape
    storage = layout.storage(rows, k, table.formats[q.format])
    codes, scales = (empty_like(q.codes, shape, "uint8", table) for shape in storage)
    if rows:
        target = (address_of(codes), address_of(scales), layout.code)
        launcher_of(codes).launch("relayout", (*_source(q), *target, rows, k), codes)
    return codes, scales


def run_matmul(a: MXTensor, b: MXTensor, bias: Array | None, dtype: str) -> Array:
    """Runs `matmul`; returns floats [..., N]."""
    table, (n, k), lead = facts(), b.shape, tuple(a.shape[:-1])
    out = empty_like(a.codes, (*lead, n), dtype, table)
    m = math.prod(lead)
    if m and n:
        addend = _addend(bias)
        target = (address_of(out), table.dtypes[dtype], *addend.floats[:2])
        arguments = (*_source(a), *_source(b), m, n, k, *target)
        launcher_of(out).multiply("matmul", arguments, out, m, k)
    return out


def run_linear(
    x: Array, w: MXTensor, bias: Array | None, rounding: str, dtype: str, *, activations: str
) -> Array:
    """Runs `linear`; returns floats [..., N]."""
    table, (n, k) = facts(), w.shape
    rule = table.rules[activations, rounding]
    if rule == KEEP and device_of(x).type == "cuda":
        x = x.to(torch.bfloat16)
    out = empty_like(x, (*x.shape[:-1], n), dtype, table)
    source = as_matrix(x, table)
    if source.rows and n:
        addend = _addend(bias)
        target = (address_of(out), table.dtypes[dtype], *addend.floats[:2])
        arguments = (*source.floats, *_source(w), source.rows, n, k, rule, *target)
        launcher_of(out).multiply("linear", arguments, out, source.rows, k)
    return out


def _source(q: MXTensor) -> tuple[int, int, int]:
    """Addresses of codes and scales, and the layout's number."""
    return address_of(q.codes), address_of(q.scales), facts().layouts[q.layout].code


def _addend(bias: Array | None) -> Matrix:
    """The bias in contiguous memory, address 0 for none."""
    if bias is None:
        return Matrix(0, 0, 0, 0, None)
    contiguous = isinstance(bias, Tensor) and bias.resolve_neg().contiguous()
    return as_matrix(np.ascontiguousarray(bias) if contiguous is False else contiguous, facts())


def _torch_dtype(dtype, name: str) -> torch.dtype:
    """Returns the torch dtype of a float dtype in any spelling."""
    return facts().torch_dtypes[float_name(dtype, name)]


def _needs_autograd(*arrays: Array | None) -> bool:
    """Says whether a gradient may be asked for."""
    wanted = any(isinstance(array, Tensor) and array.requires_grad for array in arrays)
    return wanted and torch.is_grad_enabled()

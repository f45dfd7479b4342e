"""The operations on MXTensors and floats, which are torch tensors or NumPy arrays.

Each has the same stages: check the arguments (`_core.checks`), hand the call over to torch where
torch wants to see it (compilation, autograd, transforms, fake tensors), else write and launch it
(`_core.calls`). Torch's operators check and launch with the same functions, so a rule, a message
and the protocol exist once.

    public function -- check -+- plain tensors, NumPy arrays --> calls -> extension module
                              +- everything else --> torch.ops.mx_kernels.* -> check -> calls

Floats in NumPy give floats in NumPy; what is encoded is always torch's.
"""

from __future__ import annotations

import math
from typing import NamedTuple, overload

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling

from mx_kernels._core import calls, products, torch_ops
from mx_kernels._core.arrays import (
    array_of,
    check_floats,
    check_same_kind,
    float_code,
    intercepted,
    tensor_of,
    torch_dtype,
    watched,
)
from mx_kernels._core.checks import (
    TENSOR_SCALES,
    asked_or_best,
    check_hadamard,
    check_linear,
    check_matmul,
    check_operand,
    check_quantize,
    check_tensor_scale,
    format_named,
)
from mx_kernels._core.facts import (
    DEFAULT_FORMAT,
    DEFAULT_ROUNDING,
    ceil_to,
    facts,
)
from mx_kernels._core.moved import renamed
from mx_kernels.hints import ActivationsName, AnyArray, Array, FloatType, FormatName, ScaleRule
from mx_kernels.tensor import MXTensor

_OPS = torch.ops.mx_kernels
_FLOATS_AT_ONCE = 1 << 22
"""What `requantize` decodes at a time: 16 MiB."""
_LARGEST_NVFP4 = 6.0 * 448.0
"""The largest code times the largest scale."""


@renamed(rounding="scale_rule")
def quantize(
    x: Array,
    *,
    format: FormatName = DEFAULT_FORMAT,
    scale_rule: ScaleRule = DEFAULT_ROUNDING,
    tensor_scale: float | Array | None = None,
    hadamard: int | None = None,
) -> MXTensor:
    """Quantizes bfloat16, float16 or float32 `x` of shape [..., K] in blocks along K.

    "mxfp4" (E2M1), "mxfp6" (E2M3), "mxfp6_e3m2", "mxfp8" (E4M3), "mxfp8_e5m2" and "mxint8" have
    blocks of 32 with a power of two as the scale. E4M3 under float32 scales is "fp8", a scale for
    each row; "fp8_block", for 1 x 128 of activations; and "fp8_block_2d", for 128 x 128 of weights
    [..., N, K], as DeepSeek has them; "fp8_e5m2" is "fp8" of E5M2. Blocks at the ends of rows and
    of the rows may be smaller. "nvfp4" is E2M1 in blocks of 16 under E4M3 scales, which a float32
    multiplies, the tensor scale: one of each row, or the given one of a whole tensor.

    A block that holds a NaN or an infinity becomes NaN as a whole. Codes have no gradient, so
    none passes through `matmul(quantize(x), w)`; `linear(x, w)` has one.

    >>> quantize(torch.randn(4, 64)).shape
    torch.Size([4, 64])

    Args:
        x: torch tensor or NumPy array; K is a multiple of 32.
        format: a name from the format table, as above.
        scale_rule: how the block's scale is chosen: "floor", "even", "ceil" or "rceil". A float32
            scale is the largest magnitude over the largest element, "even", or the next power of
            two, "rceil"; "nvfp4" has "even" alone.
        tensor_scale: of "nvfp4" alone: a number, or numbers for the rows, [...]. None is the
            largest finite magnitude of each row over 6 * 448, so that rows do not depend on each
            other. With that of all of x, `tensor_scale_of(x)`, codes and scales are ModelOpt's.
        hadamard: 32, 64 or 128 multiplies so many neighbours by Sylvester's Hadamard matrix over
            the root of its size first, in float32, rounded to x's dtype: outliers are spread, and
            a product with weights rotated likewise is the same but for rounding. On a CPU.

    Raises:
        TypeError: if x is not an array of floats.
        ValueError: if K is not a positive multiple of 32, or a name is unknown.
    """
    if not is_compiling():
        fmt, code, is_common = check_quantize(x, format, scale_rule)
        if (is_common and not intercepted()) or not watched(x):
            given = check_tensor_scale(tensor_scale, x, fmt)
            block = None if hadamard is None else check_hadamard(hadamard, x)
            codes, scales = calls.quantize(x, fmt, code, given, block)
            dtype = x.dtype if is_common else torch_dtype(x)
            parts = {"format": format, "dtype": dtype, "measure": is_common}
            return MXTensor._trusted(codes, scales, x.shape, **parts)
    given = torch_ops.as_scales_of_call(tensor_scale, x)
    codes, scales = _OPS.quantize(x, format, scale_rule, given, hadamard)
    if is_compiling():
        return MXTensor(codes, scales, format=format, dtype=x.dtype)
    return MXTensor._trusted(codes, scales, x.shape, format=format, dtype=x.dtype)


def tensor_scale_of(x: Array) -> Tensor:
    """Returns the tensor scale of "nvfp4" for all of x: its largest magnitude over 6 * 448.

    >>> x = torch.randn(4, 64)
    >>> q = quantize(x, format="nvfp4", tensor_scale=tensor_scale_of(x))

    Args:
        x: torch tensor or NumPy array of floats. What is not finite does not count, and the result
            is 2**-115 or more, so that zeros have one.

    Raises:
        TypeError: if x is not an array of floats.
    """
    check_floats(x, "x")
    floats = torch.as_tensor(np.asarray(x, np.float32) if isinstance(x, np.ndarray) else x).float()
    amax = (
        floats.abs().where(floats.isfinite(), floats.new_zeros(())).amax()
        if x.shape
        else floats.abs()
    )
    return (amax / _LARGEST_NVFP4).clamp(min=TENSOR_SCALES[0])


@overload
def dequantize(q: MXTensor, *, dtype: FloatType | None = None, out: None = None) -> Tensor: ...


@overload
def dequantize(q: MXTensor, *, dtype: FloatType | None = None, out: AnyArray) -> AnyArray: ...


def dequantize(
    q: MXTensor, *, dtype: FloatType | None = None, out: AnyArray | None = None
) -> Tensor | AnyArray:
    """Decodes `q`, exactly where `dtype` can hold the numbers, in any layout.

    >>> dequantize(quantize(torch.ones(2, 32)), dtype="float32").sum()
    tensor(64.)

    Args:
        q: the quantized tensor, shape [..., K].
        dtype: bfloat16, float16 or float32, as a name, a torch dtype or a NumPy dtype. None is
            q's: that of the floats which it was quantized from.
        out: contiguous floats of q's shape where q lies, which are written and returned: a torch
            tensor, or of a q on a CPU a NumPy array. Their dtype is the result's. Nothing of a
            gradient is recorded.

    Raises:
        TypeError: if q is not an MXTensor, or out not an array of floats.
        ValueError: if the dtype is none of the three, out does not fit, or the device has no
            kernels.
    """
    return check_operand(q, "q").dequantize(dtype, out=out)


class Requantized(NamedTuple):
    """Numbers in another format, and what that costs."""

    tensor: MXTensor
    error: float
    """The root of the mean square of the differences, over that of the numbers; 0 for none."""


@renamed(rounding="scale_rule")
def requantize(
    q: MXTensor,
    format: FormatName,
    *,
    scale_rule: ScaleRule = DEFAULT_ROUNDING,
    tensor_scale: float | Array | None = None,
) -> Requantized:
    """Quantizes the numbers of `q` to another format, in float32, some rows at a time.

    >>> w = quantize(torch.randn(8, 64), format="nvfp4")
    >>> fast, error = requantize(w, "mxfp4")
    >>> fast.format, 0 < error < 0.2
    ('mxfp4', True)

    Args:
        q: the quantized tensor [..., K], in any layout, which the result has too if its device
            has one for the format.
        format: a name from the format table; that of q gives q itself.
        scale_rule: as in `quantize`.
        tensor_scale: as in `quantize`, for all rows.

    Raises:
        TypeError: if q is not an MXTensor.
        ValueError: as `quantize` does.
    """
    check_operand(q, "q")
    if format == q.format:
        return Requantized(q, 0.0)
    fmt, rows = format_named(format), q.shape[-2] if q.ndim > 1 else 1
    plain = q.unshuffle() if q.ndim > 1 else q
    matrices = plain.view(-1, rows, q.k)
    block_rows = math.lcm(fmt.block_rows, format_named(q.format).block_rows)
    step = ceil_to(max(1, _FLOATS_AT_ONCE // q.k), block_rows)
    lost, whole, made = 0.0, 0.0, []
    for matrix in matrices.unbind():
        parts = []
        for first in range(0, max(rows, 1), step):
            floats = matrix[first : first + step].dequantize("float32")
            rules = {"scale_rule": scale_rule, "tensor_scale": tensor_scale}
            parts.append(quantize(floats, format=format, **rules))
            finite = floats.double().where(floats.isfinite(), 0.0)
            found = parts[-1].dequantize("float32").double().where(floats.isfinite(), 0.0)
            lost += float((found - finite).square().sum())
            whole += float(finite.square().sum())
        made.append(torch.cat(parts) if len(parts) > 1 else parts[0])
    tensor = (
        torch.stack(made).view(q.shape)
        if made
        else quantize(q.dequantize("float32"), format=format)
    )
    tensor = tensor.to(q.dtype)
    if q.byte_layout != plain.byte_layout:
        layout = facts().layouts[q.byte_layout]
        tensor = tensor.preshuffle(layout.device)
    return Requantized(tensor, math.sqrt(lost / whole) if whole else 0.0)


def preshuffle(q: MXTensor, *, device: str | torch.device | None = None) -> MXTensor:
    """Returns the weights `q` in the layout that the kernels of `device` read fastest.

    Args:
        q: [..., N, K] in any layout; each matrix [N, K] is reordered for itself. A tensor that is
            already in the wanted layout comes back.
        device: a device of the layout table ("cpu", "cuda", "gfx950") or a torch device.
            None is where q lies.

    Raises:
        TypeError: if q is not an MXTensor.
        ValueError: if q has one axis, or no layout belongs to the device.
    """
    return check_operand(q, "q").preshuffle(device)


def unshuffle(q: MXTensor) -> MXTensor:
    """Returns `q` in the plain layout.

    Raises:
        TypeError: if q is not an MXTensor.
    """
    return check_operand(q, "q").unshuffle()


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    out_dtype: FloatType | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Multiplies two MX tensors: returns a @ b.T as [..., N], accumulated in float32.

    Where b has more axes than two, each matrix of a is multiplied by its own, in one call.

    On gfx950 both may be floats instead, bfloat16 or float16, whose products have no gradient;
    elsewhere `torch.nn.functional.linear` multiplies floats.

    Both operands are stored along K, the axis that is summed, so `b` is the weight as
    `nn.Linear` keeps it. Each has its own format. Plain 8-bit codes may lie column by column,
    [K, M] and [K, N] in memory: gfx950 multiplies "fp8_block" by "fp8_block_2d" as they lie, if M
    and N are multiples of 16; otherwise codes are copied.

    >>> a, b = quantize(torch.randn(4, 64), format="mxfp8"), quantize(torch.randn(8, 64))
    >>> matmul(a, b).shape
    torch.Size([4, 8])

    Args:
        a: activations [..., K], plain layout; blocks of several rows end with their matrix. Or
            floats.
        b: weights [N, K], in any layout; or [..., N, K] with the leading axes of a [..., M, K]. Or
            floats [N, K] of a's dtype, K a multiple of 32.
        out_dtype: None is a's; else a name, a torch dtype or a NumPy dtype.
        bias: floats [N], or [..., N] for matrices, added before the result is rounded.

    Raises:
        TypeError: if one operand alone is an MXTensor, or bias not a tensor of floats.
        ValueError: if shapes, layouts or devices do not fit together, or the device has no
            kernel for the two formats, or for floats.
    """
    if type(a) is not MXTensor and are_floats(a, b):
        classes = {type(a), type(b), type(bias)} - {Tensor, torch.nn.Parameter, type(None)}
        if len(classes) > 1:
            raise TypeError(f"a, b and bias: got {classes}, expected tensors of one class")
        if bias is not None:
            check_same_kind("bias", bias, "b", b)
        return _OPS.matmul_floats(a, b, bias, _dtype_of(a, out_dtype))
    if is_compiling():
        return _OPS.matmul(*_matmul_parts(a, b), bias, _dtype_of(a, out_dtype))
    is_common = check_matmul(a, b, bias)
    code = float_code(a.dtype if out_dtype is None else out_dtype, "out_dtype")
    if (is_common and not intercepted()) or not watched(a.codes, a.scales, b.codes, b.scales, bias):
        return products.codes_by_codes(a, b, bias, code)
    parts = (*_matmul_parts(a, b), bias)
    return torch_ops.Matmul.apply(*parts, facts().torch_dtypes[code])


@renamed(rounding="scale_rule")
def linear(
    x: AnyArray,
    w: MXTensor,
    *,
    bias: AnyArray | None = None,
    scale_rule: ScaleRule = DEFAULT_ROUNDING,
    out_dtype: FloatType | None = None,
    activations: ActivationsName | None = None,
    hadamard: int | None = None,
) -> AnyArray:
    """Quantizes `x` and multiplies: `matmul(quantize(x, format=activations), w, bias=bias)`.

    In one go, to the same bits. With `activations="bf16"` only the weights are quantized: x is
    multiplied as bfloat16, to which it is rounded, to nearest even, if it is not bfloat16 yet.

    The gradient for x is that of multiplying by the dequantized weights: the quantization
    passes gradients straight through. Autocast leaves the call alone: x is quantized from the
    dtype it has, and `out_dtype` alone decides the result's.

    >>> linear(torch.randn(4, 64), quantize(torch.randn(8, 64)), activations="mxfp8").shape
    torch.Size([4, 8])

    Args:
        x: activations [..., K], bfloat16, float16 or float32, any row stride. A NumPy array
            gives a NumPy array.
        w: weights [N, K], in any format and layout.
        bias: floats [N] of x's kind, added before the result is rounded to `out_dtype`.
        scale_rule: how x is quantized: "floor", "even", "ceil" or "rceil".
        out_dtype: None is x's; else a name, a torch dtype or a NumPy dtype.
        activations: what x is multiplied as: a format of `quantize` whose blocks have a row
            each, so not "fp8_block_2d"; "bf16"; or on a CPU "mxint16", 16-bit integers (0.01 % of
            error) by weights that are integers too: MXFP4, MXFP6, MXINT8 and NVFP4. Both take no
            `scale_rule`. None is what the device is best at without a loss that a language model
            shows, never four bits: by weights of four or six bits "mxint8" on a CPU, "bf16" on an
            NVIDIA GPU and "mxfp6" on gfx950; by eight bits on a GPU the weights' own format; by
            "nvfp4" "bf16".
        hadamard: how many neighbours of x are rotated together first, as in `quantize`, for
            weights that are rotated likewise. While x is quantized; where x stays floats, by torch
            before, to the same bits.

    Raises:
        TypeError: if x is not an array of floats, or w not an MXTensor.
        ValueError: if shapes, layouts or devices do not fit together, a name is unknown, or the
            device has no kernel for the activations and the weights' format.
    """
    if hadamard is not None:
        rules = {"scale_rule": scale_rule, "out_dtype": out_dtype, "activations": activations}
        return _rotated_linear(x, w, bias, hadamard, rules)
    if is_compiling():
        if not isinstance(w, MXTensor):
            raise TypeError(f"w: got {type(w).__name__}, expected an MXTensor; see quantize(w)")
        rules = scale_rule, _dtype_of(x, out_dtype), asked_or_best(activations, w)
        return _OPS.linear(x, *_parts(w), bias, *rules)
    given = scale_rule, out_dtype, activations
    if type(x) is Tensor and type(w) is MXTensor:
        out = products.repeat(given, x, w, None, () if bias is None else (bias,))
        if out is not None:
            return out
    mode, is_common, is_watched = check_linear(x, w, bias, scale_rule, activations)
    code = None if out_dtype is None else float_code(out_dtype, "out_dtype")
    if not is_watched:
        return products.floats_by_codes(x, w, bias, mode, code, given if is_common else None)
    dtype = x.dtype if code is None else facts().torch_dtypes[code]
    return torch_ops.Linear.apply(
        x, *_parts(w), bias, scale_rule, dtype, asked_or_best(activations, w)
    )


def are_floats(*sides: object) -> bool:
    """Says whether all are tensors, and none is encoded."""
    return all(isinstance(side, Tensor) and not isinstance(side, MXTensor) for side in sides)


def _rotated_linear(x, w: MXTensor, bias, hadamard: int, rules: dict) -> AnyArray:
    """Multiplies rotated x: while it is quantized where a kernel does, else by torch before."""
    if isinstance(x, np.ndarray):
        y = _rotated_linear(tensor_of(x), w, tensor_of(bias), hadamard, rules)
        return array_of(y) if isinstance(y, Tensor) else y
    check_floats(x, "x")
    check_hadamard(hadamard, x)
    check_operand(w, "w")
    mode = asked_or_best(rules["activations"], w)
    is_quantized = mode in facts().formats and not is_compiling()
    if not is_quantized or watched(x, w.codes, w.scales, bias):
        return linear(rotated(x, hadamard), w, bias=bias, **rules)
    check_linear(x, w, bias, rules["scale_rule"], mode)
    q = quantize(x, format=mode, scale_rule=rules["scale_rule"], hadamard=hadamard)
    return matmul(q, w, bias=bias, out_dtype=rules["out_dtype"] or x.dtype)


def rotated(x: Tensor, block: int) -> Tensor:
    """Returns x with so many neighbours rotated together, by torch: the numbers of the kernel."""
    y, half = x.float(), block // 2
    while half:
        low, high = y.unflatten(-1, (-1, 2, half)).unbind(-2)
        y, half = torch.stack([low + high, low - high], -2).flatten(-3), half // 2
    return (y * block**-0.5).to(x.dtype)


def _parts(w: MXTensor) -> tuple:
    """What torch's operators take for weights.

    A shape is for the compiler, which knows sizes by name; `torch.jit.trace` would record it.
    """
    return w.codes, w.scales, w.format, w.byte_layout, w.shape[0] if is_compiling() else w.rows


def _matmul_parts(a: MXTensor, b: MXTensor) -> tuple:
    """The same for both operands of `matmul`."""
    *parts, n = _parts(b)
    return a.codes, a.scales, a.format, *parts, b.shape[-2] if b.ndim > 2 else n


def _dtype_of(x: torch.Tensor | MXTensor, out_dtype: FloatType | None) -> torch.dtype:
    """The dtype of `linear`'s result."""
    if out_dtype is None:
        return x.dtype
    return facts().torch_dtypes[float_code(out_dtype, "out_dtype")]

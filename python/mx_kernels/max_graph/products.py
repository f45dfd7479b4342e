"""Quantize, dequantize and products in a graph."""

from __future__ import annotations

import math

from max.dtype import DType
from max.graph import TensorValue, ops

from mx_kernels._core.arrays import Array, show
from mx_kernels._core.checks import K_OF_FLOATS, check_rounding, check_rule, format_named
from mx_kernels._core.facts import DEFAULT_FORMAT, DEFAULT_ROUNDING, KEPT_FLOATS, facts
from mx_kernels._core.moved import renamed
from mx_kernels.hints import ActivationsName, FloatType, FormatName, ScaleRule
from mx_kernels.max_graph.calls import (
    bias_of,
    call,
    folded,
    number,
    parts_of,
    row_count,
    type_of,
    unfolded,
    with_scales_a_row,
)
from mx_kernels.max_graph.checks import (
    CDNA4,
    CPU_REF,
    asked_or_best,
    check_device,
    check_floats,
    check_formats,
    check_k,
    check_one_matrix,
    is_on_cdna4,
    plain_scales,
    scale_dtype,
)
from mx_kernels.max_graph.values import MXValue, as_value, check_operands, check_weights
from mx_kernels.tensor import MXTensor


@renamed(rounding="scale_rule")
def quantize(
    x: TensorValue, *, format: FormatName = DEFAULT_FORMAT, scale_rule: ScaleRule = DEFAULT_ROUNDING
) -> MXValue:
    """Quantizes floats [..., K] in blocks along K, as `mx_kernels.quantize` does.

    Raises:
        TypeError: if x is not a float tensor of a graph.
        ValueError: if K is not a positive multiple of the block size, a name is unknown, or x
            lies on a gfx950 GPU, which has no kernel for the format.
    """
    fmt = format_named(format)
    k = check_floats(x, "x")
    check_k("x", k, fmt, facts().plain)
    check_rounding(scale_rule)
    check_rule(scale_rule, fmt, f"format={format!r}")
    check_formats(x, "format", format)
    check_one_matrix("x", x.shape, fmt)
    rows = folded(x)
    codes = type_of(DType.uint8, rows.shape[0], fmt.packed_bytes(k), x.device)
    scales = type_of(scale_dtype(fmt), *plain_scales("x", rows.shape[:1], k, fmt), x.device)
    names = {"format": format, "rounding": scale_rule}
    values = ops.custom("mx_quantize", x.device, [rows], [codes, scales], names)
    parts = (unfolded(value.tensor, x.shape[:-1]) for value in values)
    return MXValue(*parts, format=format, dtype=x.dtype)


def dequantize(q: MXValue | MXTensor, *, dtype: FloatType | DType | None = None) -> TensorValue:
    """Decodes `q` to floats [..., K], as `mx_kernels.dequantize` does; a dtype of None is q's.

    Raises:
        TypeError: if q is neither an MXValue nor an MXTensor.
        ValueError: if the dtype is not bfloat16, float16 or float32, or q lies on a gfx950 GPU.
    """
    q = as_value(q, "q", CPU_REF)
    if is_on_cdna4(q.codes):
        raise ValueError(
            f"q: got device {q.device}, expected {CPU_REF}, the only one that decodes today; move "
            "codes and scales with ops.transfer_to"
        )
    if q.layout != facts().plain.name and len(q.lead) != 1:
        raise ValueError(
            f"q: got shape {show(q.shape)} in layout {q.layout!r}, expected [N, K], one matrix; "
            "unshuffle the MXTensor first"
        )
    check_one_matrix("q", q.shape, format_named(q.format))
    codes, scales, rows = parts_of(q)
    count = row_count(q, codes)
    names = {"format": q.format, "layout": q.layout}
    floats = call("mx_dequantize", [codes, scales, rows], count, q.k, dtype or q.dtype, **names)
    return unfolded(floats, q.lead)


def matmul(
    a: MXValue | MXTensor | TensorValue,
    b: MXValue | MXTensor | TensorValue,
    *,
    out_dtype: FloatType | DType | None = None,
    bias: TensorValue | Array | None = None,
) -> TensorValue:
    """Multiplies quantized tensors: a @ b.T + bias as [..., N], as `mx_kernels.matmul` does.

    Where b has more axes than two, each matrix of a [..., M, K] is multiplied by its own; leading
    axes of b are known, M may be symbolic. On gfx950 both may be floats, bfloat16 or float16. An
    `out_dtype` of None is a's.

    Raises:
        TypeError: if an operand is neither an MXValue nor an MXTensor, nor both are floats.
        ValueError: if shapes or layouts do not fit together, or floats lie elsewhere.
    """
    if isinstance(a, TensorValue) and isinstance(b, TensorValue):
        return _floats_by_floats(a, b, out_dtype or a.dtype, bias)
    a = as_value(a, "a", b.device if isinstance(b, MXValue) else CPU_REF)
    b = as_value(b, "b", a.device)
    if a.layout != facts().plain.name:
        raise ValueError(
            f"a: got layout {a.layout!r}, expected {facts().plain.name!r}: only the weights are "
            "preshuffled; unshuffle the MXTensor first"
        )
    a, out_dtype = with_scales_a_row(a), out_dtype or a.dtype
    if len(b.lead) > 1:
        return _many(a, b, out_dtype, bias)
    check_weights(b, "b", a.k, "a", a.device)
    check_formats(a.codes, "formats", a.format, b.format)
    codes, scales, _ = parts_of(a)
    operands = [codes, scales, *parts_of(b), bias_of(bias, b)]
    names = {"left_format": a.format, "right_format": b.format, "layout": b.layout}
    out = call("mx_matmul", operands, codes.shape[0], b.lead[0], out_dtype, **names)
    return unfolded(out, a.lead)


def _floats_by_floats(
    a: TensorValue, b: TensorValue, out_dtype: FloatType | DType, bias: TensorValue | Array | None
) -> TensorValue:
    """Multiplies floats by floats: a @ b.T + bias as [..., N]."""
    k = check_floats(a, "a")
    if check_floats(b, "b") != k or b.rank != 2 or k == 0 or k % K_OF_FLOATS:
        raise ValueError(
            f"a and b: got shapes {show(a.shape)} and {show(b.shape)}, expected [..., K] and "
            f"[N, K] with one K, a positive multiple of {K_OF_FLOATS}"
        )
    if a.dtype != b.dtype or a.dtype == DType.float32:
        raise ValueError(
            f"a and b: got {a.dtype.name} and {b.dtype.name}, expected bfloat16 or float16 for both"
        )
    check_device(b, "b", a.device, "a")
    if not is_on_cdna4(a):
        raise ValueError(
            f"a and b: got floats on {a.device}, expected a {CDNA4} GPU, which alone has kernels "
            "for floats by floats; ops.matmul(a, ops.transpose(b, 0, 1)) multiplies them elsewhere"
        )
    rows = folded(a)
    operands = [rows, b, bias_of(bias, b)]
    out = call("mx_matmul_floats", operands, rows.shape[0], b.shape[0], out_dtype)
    return unfolded(out, a.shape[:-1])


def _many(
    a: MXValue, b: MXValue, out_dtype: FloatType | DType, bias: TensorValue | Array | None
) -> TensorValue:
    """Multiplies matrices by matrices: the grouped product, of groups as large as each other."""
    check_operands(b, "b", a.k, "a", a.device)
    if a.lead[:-1] != b.lead[:-1] or is_on_cdna4(a.codes):
        where = f" on {CDNA4}" if is_on_cdna4(a.codes) else ""
        raise ValueError(
            f"a and b: got {show(a.shape)} and {show(b.shape)}{where}, expected the same leading "
            "axes, a matrix [M, K] for each [N, K], on a CPU or an NVIDIA GPU"
        )
    count, (*_, m), n = math.prod(map(int, b.lead[:-1])), a.lead, b.lead[-1]
    addend = bias_of(bias, b)
    addend = ops.reshape(addend, [0, 0] if bias is None else [count, n])
    codes, scales, _ = parts_of(a)
    of_b = (ops.reshape(part, [count, *part.shape[-2:]]) for part in (b.codes, b.scales))
    sizes = ops.broadcast_to(ops.cast(number(m), DType.int32), [count])
    sizes = sizes if a.device == CPU_REF else ops.transfer_to(sizes, a.device)
    operands = [codes, scales, *of_b, number(n), sizes, addend]
    names = {"left_format": a.format, "right_format": b.format, "layout": b.layout}
    out = call("mx_grouped_matmul", operands, codes.shape[0], n, out_dtype, **names)
    return ops.reshape(out, [*a.lead, n])


@renamed(rounding="scale_rule")
def linear(
    x: TensorValue,
    w: MXValue | MXTensor,
    *,
    bias: TensorValue | Array | None = None,
    scale_rule: ScaleRule = DEFAULT_ROUNDING,
    out_dtype: FloatType | DType | None = None,
    activations: ActivationsName | None = None,
) -> TensorValue:
    """Quantizes x and multiplies: x @ w.T + bias as [..., N], as `mx_kernels.linear` does.

    Args:
        x: floats [..., K]; leading dimensions may be symbolic.
        w: weights [N, K] in any format and layout; an MXTensor becomes a constant of the graph.
        bias: floats [N]: a tensor of the graph, or a torch tensor or NumPy array.
        scale_rule: how x is quantized: "floor", "even", "ceil" or "rceil".
        out_dtype: None is x's; else bfloat16, float16 or float32.
        activations: what x is multiplied as: a format or "bf16", which takes no `scale_rule`; None
            is the best of x's device, as in `mx_kernels.linear`. A gfx950 GPU has kernels for some
            pairs, see `mx_kernels.explain`.

    Raises:
        TypeError: if x is not a float tensor of a graph, or w not a quantized one.
        ValueError: if shapes or layouts do not fit together, or a name is unknown.
    """
    k = check_floats(x, "x")
    w = as_value(w, "w", x.device)
    activations = asked_or_best(activations, scale_rule, x, w.format)
    check_weights(w, "w", k, "x", x.device)
    check_formats(x, "activations and weights", activations, w.format)
    dtype = x.dtype if out_dtype is None else out_dtype
    rows = folded(x)
    if activations == KEPT_FLOATS and x.device != CPU_REF:
        rows = ops.cast(rows, DType.bfloat16)
    operands = [rows, *parts_of(w), bias_of(bias, w)]
    names = {
        "activations": activations,
        "format": w.format,
        "rounding": scale_rule,
        "layout": w.layout,
    }
    out = call("mx_linear", operands, rows.shape[0], w.lead[0], dtype, **names)
    return unfolded(out, x.shape[:-1])

"""What stands beside products in a graph: norms and gates to codes, and a dense MLP."""

from __future__ import annotations

import numpy as np
from max.dtype import DType
from max.graph import TensorValue, ops

from mx_kernels._core.arrays import Array, show
from mx_kernels._core.checks import check_rounding, check_rule, format_named
from mx_kernels._core.facts import DEFAULT_FORMAT, DEFAULT_ROUNDING, facts
from mx_kernels._core.fused_ops import ROUNDS, NormOptions, check_norm_numbers, hidden_numbers
from mx_kernels._core.gates import GateOptions, chosen_gate
from mx_kernels.hints import (
    ActivationsName,
    FloatType,
    FormatName,
    GateName,
    RoundsName,
    ScaleRule,
)
from mx_kernels.max_graph.calls import as_float32, bias_of, folded, type_of, unfolded
from mx_kernels.max_graph.checks import (
    CPU_REF,
    check_device,
    check_floats,
    check_k,
    check_one_matrix,
    check_value,
    plain_scales,
    scale_dtype,
)
from mx_kernels.max_graph.experts import moe
from mx_kernels.max_graph.values import MXValue, as_value, check_weights
from mx_kernels.tensor import MXTensor


def rms_norm_quantize(
    x: TensorValue,
    weight: TensorValue | Array | None = None,
    *,
    eps: float = 1e-6,
    residual: TensorValue | None = None,
    weight_offset: float = 0.0,
    rounds: RoundsName = "each",
    format: FormatName = DEFAULT_FORMAT,
    scale_rule: ScaleRule = DEFAULT_ROUNDING,
) -> MXValue | tuple[MXValue, TensorValue]:
    """Quantizes a norm of floats [..., K], as `mx_kernels.rms_norm_quantize` does; see there.

    Args:
        x: floats of a graph; leading dimensions may be symbolic.
        weight: floats [K] of the graph, of x's dtype or float32; or a torch tensor or NumPy array.
        eps: is added to the mean of squares.
        residual: floats of x's shape and dtype, added first.
        weight_offset: is added to the weight in float32.
        rounds: "each", "result" or "none".
        format: as in `quantize`.
        scale_rule: as in `quantize`.

    Returns:
        An MXValue [..., K]; with a residual also x + residual.

    Raises:
        TypeError: if an argument is of another type or dtype.
        ValueError: if shapes or devices do not fit together, or a name is unknown.
    """
    options = NormOptions(False, eps, weight_offset, rounds)
    return _norm(x, weight, None, residual, options, format=format, scale_rule=scale_rule)


def layer_norm_quantize(
    x: TensorValue,
    weight: TensorValue | Array | None = None,
    bias: TensorValue | Array | None = None,
    *,
    eps: float = 1e-5,
    residual: TensorValue | None = None,
    weight_offset: float = 0.0,
    rounds: RoundsName = "result",
    format: FormatName = DEFAULT_FORMAT,
    scale_rule: ScaleRule = DEFAULT_ROUNDING,
) -> MXValue | tuple[MXValue, TensorValue]:
    """Quantizes a layer norm, as `mx_kernels.layer_norm_quantize` does, like `rms_norm_quantize`.

    Args:
        x: as in `rms_norm_quantize`, and so are all others.
        weight: floats [K].
        bias: floats [K]; None for none.
        eps: is added to the variance.
        residual: floats of x's shape and dtype, added first.
        weight_offset: is added to the weight in float32.
        rounds: "each", "result" or "none".
        format: as in `quantize`.
        scale_rule: as in `quantize`.

    Returns:
        An MXValue [..., K]; with a residual also x + residual.

    Raises:
        TypeError, ValueError: as `rms_norm_quantize` does, and for a bias without a weight.
    """
    options = NormOptions(True, eps, weight_offset, rounds)
    return _norm(x, weight, bias, residual, options, format=format, scale_rule=scale_rule)


def _norm(
    x: TensorValue, weight, bias, residual, options: NormOptions, *, format: str, scale_rule: str
) -> MXValue | tuple[MXValue, TensorValue]:
    k = check_floats(x, "x")
    check_norm_numbers(options, has_weight=weight is not None, has_bias=bias is not None)
    rows = folded(x)
    added, of_stream = _nothing(x, 2), [0, 0]
    if residual is not None:
        _check_like(residual, "residual", x)
        added, of_stream = folded(residual), list(rows.shape)
    factors = [_of_k(part, name, x, k) for name, part in (("weight", weight), ("bias", bias))]
    if any(factor is not None and factor.dtype != x.dtype for factor in factors):
        factors = [factor and ops.cast(factor, DType.float32) for factor in factors]
    kind = next((factor.dtype for factor in factors if factor is not None), x.dtype)
    factors = [_nothing(x, 1, kind) if factor is None else factor for factor in factors]
    numbers = [
        ops.constant(np.float64(options.eps), DType.float64, CPU_REF),
        ops.constant(np.float32(options.weight_offset), DType.float32, CPU_REF),
    ]
    names = {"is_centered": options.is_centered, "rounds": ROUNDS.index(options.rounds)}
    types = [
        *_types_of(x, rows.shape[:1], k, format, scale_rule),
        type_of(x.dtype, *of_stream, x.device),
    ]
    operands = [rows, added, *factors, *numbers]
    names |= {"format": format, "rounding": scale_rule}
    codes, scales, stream = ops.custom("mx_norm_quantize", x.device, operands, types, names)
    lead = x.shape[:-1]
    parts = (unfolded(value.tensor, lead) for value in (codes, scales))
    q = MXValue(*parts, format=format, dtype=x.dtype)
    return q if residual is None else (q, unfolded(stream.tensor, lead))


def gate_quantize(
    x: TensorValue,
    up: TensorValue | None = None,
    *,
    hidden_act: GateName = "silu",
    interleaved: bool | None = None,
    limit: float | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    linear_beta: float | None = None,
    format: FormatName = DEFAULT_FORMAT,
    scale_rule: ScaleRule = DEFAULT_ROUNDING,
) -> MXValue:
    """Quantizes hidden numbers of gates and ups, as `mx_kernels.gate_quantize` does; see there.

    Args:
        x: gates [..., K] of a graph, or without `up` gates and ups [..., 2K].
        up: ups of x's shape and dtype.
        hidden_act: a name of the table of `moe`, as are its numbers.
        interleaved: whether gates and ups take turns in x.
        limit: of the activation.
        alpha: likewise.
        beta: likewise.
        linear_beta: likewise.
        format: as in `quantize`.
        scale_rule: as in `quantize`.

    Raises:
        TypeError: if x or up are no floats of a graph.
        ValueError: if shapes or devices do not fit together, a name is unknown, or a number is
            not the activation's.
    """
    width = check_floats(x, "x")
    options = GateOptions(hidden_act, interleaved, limit, alpha, beta, linear_beta)
    chosen = chosen_gate(options)
    k = hidden_numbers([*x.shape[:-1], width], options, chosen, has_up=up is not None)
    if up is not None:
        _check_like(up, "up", x)
    _, are_neighbours, *numbers = chosen
    rows = folded(x)
    operands = [rows, _nothing(x, 2) if up is None else folded(up)]
    operands += [ops.constant(np.float32(n), DType.float32, CPU_REF) for n in numbers]
    names = {"activation": hidden_act, "interleaved": are_neighbours}
    names |= {"format": format, "rounding": scale_rule}
    types = _types_of(x, rows.shape[:1], k, format, scale_rule)
    values = ops.custom("mx_gate_quantize", x.device, operands, types, names)
    parts = (unfolded(value.tensor, x.shape[:-1]) for value in values)
    return MXValue(*parts, format=format, dtype=x.dtype)


def mlp(
    x: TensorValue,
    w_gate_up: MXValue | MXTensor,
    w_down: MXValue | MXTensor,
    *,
    bias_gate_up: TensorValue | Array | None = None,
    bias_down: TensorValue | Array | None = None,
    hidden_act: GateName = "silu",
    interleaved: bool | None = None,
    limit: float | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    linear_beta: float | None = None,
    scale_rule: ScaleRule = DEFAULT_ROUNDING,
    out_dtype: FloatType | DType | None = None,
    activations: ActivationsName | None = None,
) -> TensorValue:
    """Computes a dense MLP, as `mx_kernels.mlp` does: a layer of one expert; see there.

    Args:
        x: floats [..., H] of a graph; leading dimensions may be symbolic.
        w_gate_up: weights [2I, H], in any format and layout; [I, H] without a gate.
        w_down: weights [H, I].
        bias_gate_up: floats, one for each row of w_gate_up.
        bias_down: floats [H].
        hidden_act: what becomes of gates and ups, as in `moe`, and so are all others.
        interleaved: whether rows of gates and ups take turns.
        limit: of the activation.
        alpha: likewise.
        beta: likewise.
        linear_beta: likewise.
        scale_rule: how x and the hidden numbers are quantized.
        out_dtype: None is x's; else bfloat16, float16 or float32.
        activations: what both are multiplied as.

    Raises:
        TypeError: if an argument is of another type or dtype.
        ValueError: as `moe` does.
    """
    k = check_floats(x, "x")
    weights, biases = [], []
    pairs = (("gate_up", w_gate_up, bias_gate_up), ("down", w_down, bias_down))
    for name, given, addend in pairs:
        w = as_value(given, f"w_{name}", x.device)
        check_weights(w, f"w_{name}", k if name == "gate_up" else w.k, "x", x.device)
        bias = None if addend is None else bias_of(addend, w, f"bias_{name}", f"w_{name}")
        biases.append(bias if bias is None else ops.unsqueeze(bias, 0))
        parts = (ops.unsqueeze(part, 0) for part in (w.codes, w.scales))
        shape = (1, *map(int, w.shape)) if w.layout != facts().plain.name else None
        weights.append(MXValue(*parts, shape=shape, format=w.format, layout=w.layout))
    rows = folded(x)
    one_each = [rows.shape[0], 1]
    ids, counts = (
        ops.broadcast_to(ops.constant(value, dtype, x.device), one_each)
        for value, dtype in ((np.int32(0), DType.int32), (np.float32(1), DType.float32))
    )
    y = moe(
        rows, *weights, ids, counts, bias_gate_up=biases[0], bias_down=biases[1],
        hidden_act=hidden_act, interleaved=interleaved, limit=limit, alpha=alpha, beta=beta,
        linear_beta=linear_beta, scale_rule=scale_rule, out_dtype=out_dtype,
        activations=activations,
    )  # fmt: skip
    return unfolded(y, x.shape[:-1])


def _types_of(x: TensorValue, rows, k: int, format: str, scale_rule: str) -> list:
    """Checks how rows of k numbers are quantized; returns the types of codes and scales."""
    fmt = format_named(format)
    check_k("x", k, fmt, facts().plain)
    check_rounding(scale_rule)
    check_rule(scale_rule, fmt, f"format={format!r}")
    check_one_matrix("x", x.shape, fmt)
    codes = type_of(DType.uint8, rows[0], fmt.packed_bytes(k), x.device)
    return [codes, type_of(scale_dtype(fmt), *plain_scales("x", rows, k, fmt), x.device)]


def _check_like(value: TensorValue, name: str, x: TensorValue) -> None:
    """Raises unless `value` is of the shape and dtype of x, beside it."""
    check_value(value, name)
    check_device(value, name, x.device, "x")
    got, expected = (f"{t.dtype.name} {show(t.shape)}" for t in (value, x))
    if got != expected:
        raise ValueError(f"{name}: got {got}, expected {expected}, what x is")


def _of_k(
    part: TensorValue | Array | None, name: str, x: TensorValue, k: int
) -> TensorValue | None:
    """Returns numbers of each element of a row, in the graph."""
    if part is None:
        return None
    if not isinstance(part, TensorValue):
        part = _constant(part, name, x)
    check_value(part, name)
    check_device(part, name, x.device, "x")
    if list(part.shape) != [k]:
        raise ValueError(
            f"{name}: got shape {show(part.shape)}, expected [{k}], a number for each element of a "
            "row"
        )
    check_floats(part, name)
    return part


def _constant(part: Array, name: str, x: TensorValue) -> TensorValue:
    """Puts floats into the graph, in x's dtype if that is theirs, else as float32."""
    wide = as_float32(part, name)
    dtype = x.dtype if str(part.dtype).rpartition(".")[2] == x.dtype.name else DType.float32
    value = ops.constant(wide, DType.float32, x.device)
    return value if dtype == DType.float32 else ops.cast(value, dtype)


def _nothing(x: TensorValue, rank: int, dtype: DType | None = None) -> TensorValue:
    """Returns what stands for a tensor that is not there."""
    empty = ops.constant(np.zeros([0] * rank, np.float32), DType.float32, x.device)
    dtype = dtype or x.dtype
    return empty if dtype == DType.float32 else ops.cast(empty, dtype)

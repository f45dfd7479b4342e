"""Layers of experts in a graph: products with one of several matrices for each row."""

from __future__ import annotations

import numpy as np
from max.dtype import DType
from max.graph import DeviceRef, StaticDim, TensorValue, ops

from mx_kernels._core.arrays import Array, show
from mx_kernels._core.checks import (
    check_layer_shapes,
    check_routing_shapes,
)
from mx_kernels._core.facts import DEFAULT_ROUNDING
from mx_kernels._core.gates import GateOptions, chosen_gate
from mx_kernels._core.moved import renamed
from mx_kernels.hints import ActivationsName, FloatType, GateName, ScaleRule
from mx_kernels.max_graph.calls import bias_of, call, number
from mx_kernels.max_graph.checks import (
    CPU_REF,
    asked_or_best,
    check_device,
    check_float_dtype,
    check_floats,
    check_formats,
    check_value,
    float_dtype,
)
from mx_kernels.max_graph.values import MXValue, as_value, check_operands
from mx_kernels.tensor import MXTensor


@renamed(rounding="scale_rule")
def grouped_linear(
    x: TensorValue,
    w: MXValue | MXTensor,
    group_sizes: TensorValue,
    *,
    bias: TensorValue | Array | None = None,
    scale_rule: ScaleRule = DEFAULT_ROUNDING,
    out_dtype: FloatType | DType | None = None,
    activations: ActivationsName | None = None,
) -> TensorValue:
    """Multiplies each group of rows by its expert, as `mx_kernels.grouped_linear` does.

    Args:
        x: floats [T, K], rows sorted by expert; T may be symbolic.
        w: weights [E, N, K] in any format and layout; an MXTensor becomes a constant of the graph.
        group_sizes: rows of each expert [E], int32. What does not fit raises on the CPU when the
            graph runs, and is cut on a GPU.
        bias: floats [E, N]: a tensor of the graph, or a torch tensor or NumPy array.
        scale_rule: how x is quantized, as in `linear`.
        out_dtype: None is x's; else bfloat16, float16 or float32.
        activations: what x is multiplied as, as in `linear`.

    Raises:
        TypeError: if x holds no floats, w is not quantized or group_sizes holds no int32.
        ValueError: if shapes or devices do not fit together, a name is unknown, or x lies on a
            gfx950 GPU, which has no kernels for those formats or that layout.
    """
    k = _check_rows(x, "[T, K], rows sorted by expert")
    w = _experts(w, "w", "[E, N, K]", x, k)
    activations = asked_or_best(activations, scale_rule, x, w.format)
    check_formats(x, "activations and weights", activations, w.format, of_experts=True)
    _check_integers(group_sizes, "group_sizes", (DType.int32,), x.device)
    if list(group_sizes.shape) != w.lead[:1]:
        raise ValueError(
            f"group_sizes: got shape {show(group_sizes.shape)}, expected {show(w.lead[:1])}, the "
            "rows of each expert"
        )
    addend = bias_of(bias, w)
    operands = [x, w.codes, w.scales, number(w.lead[1]), group_sizes, addend]
    names = {"activations": activations, "rounding": scale_rule}
    names |= {"format": w.format, "layout": w.layout}
    dtype = x.dtype if out_dtype is None else out_dtype
    return call("mx_grouped_linear", operands, x.shape[0], w.lead[1], dtype, **names)


@renamed(rounding="scale_rule", activation="hidden_act")
def moe(
    x: TensorValue,
    w_gate_up: MXValue | MXTensor,
    w_down: MXValue | MXTensor,
    expert_ids: TensorValue,
    expert_weights: TensorValue,
    *,
    bias_gate_up: TensorValue | Array | None = None,
    bias_down: TensorValue | Array | None = None,
    hidden_act: GateName = "swiglu_oai",
    interleaved: bool | None = None,
    limit: float | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    linear_beta: float | None = None,
    apply_router_weight_on_input: bool = False,
    scale_rule: ScaleRule = DEFAULT_ROUNDING,
    out_dtype: FloatType | DType | None = None,
    activations: ActivationsName | None = None,
) -> TensorValue:
    """Computes a layer of experts, as `mx_kernels.moe` does; see there for all arguments.

    Args:
        x: tokens [T, H]; T may be symbolic.
        w_gate_up: weights [E, 2I, H] in any format and layout, [E, I, H] of an activation without
            a gate; an MXTensor becomes a constant.
        w_down: weights [E, H, I], likewise.
        expert_ids: the experts of each token [T, k], int32 or int64. The id of no expert raises on
            the CPU when the graph runs, and makes NaN of its token on a GPU; a negative one adds
            nothing.
        expert_weights: floats [T, k].
        bias_gate_up: floats [E, 2I]: a tensor of the graph, or a torch tensor or NumPy array.
        bias_down: floats [E, H], likewise.
        hidden_act: what becomes of gates and ups.
        interleaved: whether their rows take turns.
        limit: of the activation, as are alpha, beta and linear_beta.
        alpha: likewise.
        beta: likewise.
        linear_beta: likewise.
        apply_router_weight_on_input: Whether a slot's weight multiplies its row of x, rounded to
            x's dtype, instead of its result. The number of slots is known then.
        scale_rule: how x and the hidden numbers are quantized, as in `linear`.
        out_dtype: None is x's; else bfloat16, float16 or float32.
        activations: what both are multiplied as, as in `linear`.

    Raises:
        TypeError: if an argument is of another type or dtype.
        ValueError: if shapes or devices do not fit together, a name is unknown, a number is not
            positive or not the activation's, or x lies on a gfx950 GPU, which has no kernels for
            those formats or that layout.
    """
    width = _check_rows(x, "[T, H], a row for each token")
    gate = GateOptions(hidden_act, interleaved, limit, alpha, beta, linear_beta)
    row, interleaved, *numbers = chosen_gate(gate)
    gate_up = _experts(w_gate_up, "w_gate_up", "[E, 2I, H]", x, width)
    down = _experts(w_down, "w_down", "[E, H, I]", x)
    activations = asked_or_best(activations, scale_rule, x, down.format)
    for w in (gate_up, down):
        check_formats(x, "activations and weights", activations, w.format, of_experts=True)
    check_layer_shapes(gate_up.shape, down.shape, row)
    _check_routing(x, expert_ids, expert_weights)
    dtype = x.dtype if out_dtype is None else out_dtype
    tokens, slots = x.shape[0], 1
    if apply_router_weight_on_input:
        slots = _slots_of(expert_ids)
        x, expert_ids, expert_weights = _weighted(x, expert_ids, expert_weights, slots)
    operands = [x, gate_up.codes, gate_up.scales, down.codes, down.scales]
    operands += [expert_ids, expert_weights]
    operands += [
        bias_of(bias_gate_up, gate_up, "bias_gate_up", "w_gate_up"),
        bias_of(bias_down, down, "bias_down", "w_down"),
    ]
    operands += [ops.constant(np.float32(n), DType.float32, CPU_REF) for n in numbers]
    names = {"activation": hidden_act, "interleaved": interleaved}
    names |= {"activations": activations, "rounding": scale_rule}
    names |= {"gate_up_format": gate_up.format, "gate_up_layout": gate_up.layout}
    names |= {"down_format": down.format, "down_layout": down.layout}
    if slots == 1:
        return call("mx_moe", operands, x.shape[0], x.shape[1], dtype, **names)
    rows = call("mx_moe", operands, x.shape[0], x.shape[1], DType.float32, **names)
    of_slots = ops.reshape(rows, [tokens, slots, rows.shape[1]])
    total = of_slots[:, 0]
    for slot in range(1, slots):
        total += of_slots[:, slot]
    return ops.cast(total, float_dtype(dtype))


def _slots_of(expert_ids: TensorValue) -> int:
    """Returns the slots of a token; raises unless they are known and there is one."""
    slots = expert_ids.shape[1]
    if not isinstance(slots, StaticDim) or int(slots) < 1:
        raise ValueError(
            f"expert_ids: got {show(expert_ids.shape)} with apply_router_weight_on_input, expected "
            "a known number of experts a token, 1 or more"
        )
    return int(slots)


def _weighted(
    x: TensorValue, ids: TensorValue, weights: TensorValue, slots: int
) -> tuple[TensorValue, TensorValue, TensorValue]:
    """Returns each slot as a token of its own, whose row was multiplied by its weight, and 1."""
    (tokens, width), rows = x.shape, ids.shape[0] * slots
    weights = ops.cast(ops.reshape(weights, [tokens, slots, 1]), DType.float32)
    scaled = ops.cast(ops.reshape(x, [tokens, 1, width]), DType.float32) * weights
    ones = ops.broadcast_to(ops.constant(np.float32(1), DType.float32, x.device), [rows, 1])
    x = ops.reshape(ops.cast(scaled, x.dtype), [rows, width])
    return x, ops.reshape(ids, [rows, 1]), ones


def _check_rows(x: TensorValue, expected: str) -> int:
    """Raises unless `x` is floats of two dimensions where there are kernels; returns the last."""
    k = check_floats(x, "x")
    if x.rank != 2:
        raise ValueError(f"x: got shape {show(x.shape)}, expected {expected}")
    return k


def _experts(
    w: MXValue | MXTensor, name: str, expected: str, x: TensorValue, k: int | None = None
) -> MXValue:
    """Returns weights in the graph; raises unless they are matrices, of rows of `k` elements."""
    w = as_value(w, name, x.device)
    if len(w.lead) != 2:
        raise ValueError(
            f"{name}: got shape {show(w.shape)}, expected the weights of all experts {expected}"
        )
    check_operands(w, name, w.k if k is None else k, "x", x.device)
    return w


def _check_routing(x: TensorValue, expert_ids: TensorValue, expert_weights: TensorValue) -> None:
    """Raises unless ids and weights of the experts of each token fit."""
    _check_integers(expert_ids, "expert_ids", (DType.int32, DType.int64), x.device)
    check_value(expert_weights, "expert_weights")
    check_device(expert_weights, "expert_weights", x.device, "x")
    check_float_dtype(expert_weights, "expert_weights")
    check_routing_shapes(x.shape[0], expert_ids.shape, expert_weights.shape)


def _check_integers(
    value: TensorValue, name: str, dtypes: tuple[DType, ...], device: DeviceRef
) -> None:
    """Raises unless `value` holds integers, beside x."""
    check_value(value, name)
    check_device(value, name, device, "x")
    if value.dtype not in dtypes:
        known = " or ".join(dtype.name for dtype in dtypes)
        raise TypeError(
            f"{name}: got dtype {value.dtype.name}, expected {known}; convert with "
            f"ops.cast({name}, DType.{dtypes[0].name})"
        )

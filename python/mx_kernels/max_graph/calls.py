"""The graph side of a call: products take and give tensors of two dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from max.dtype import DType
from max.graph import DeviceRef, Dim, StaticDim, TensorType, TensorValue, ops

from mx_kernels._core.arrays import Array, check_floats, in_memory, kind_of, show
from mx_kernels._core.facts import facts, of_kind
from mx_kernels.hints import FloatType
from mx_kernels.max_graph.checks import CPU_REF, check_device, check_value, float_dtype
from mx_kernels.max_graph.values import MXValue


def parts_of(q: MXValue) -> tuple[TensorValue, TensorValue, TensorValue]:
    """Codes and scales as two-dimensional tensors, and the number of logical rows."""
    codes, scales = folded(q.codes), folded(q.scales)
    return codes, scales, number(row_count(q, codes))


def with_scales_a_row(a: MXValue) -> MXValue:
    """Activations whose rows have scales of their own: the same numbers, as `_core.calls` has them.

    So leading dimensions fold, whatever number of rows a matrix has.
    """
    fmt = facts().formats[a.format]
    if fmt.block_rows == 1:
        return a
    blocks = np.arange(int(a.lead[-1]), dtype=np.int64) // fmt.block_rows
    rows = ops.constant(blocks, DType.int64, a.device)
    scales = ops.gather(a.scales, rows, axis=len(a.lead) - 1)
    return MXValue(a.codes, scales, format=of_kind(fmt, 1), dtype=a.dtype)


def number(dim: Dim) -> TensorValue:
    """A dimension as a number that an op takes."""
    if isinstance(dim, StaticDim):
        return ops.constant(int(dim), DType.int64, CPU_REF)
    return ops.reshape(ops.shape_to_tensor([dim]), [])


def row_count(q: MXValue, codes: TensorValue) -> Dim:
    """The number of logical rows; `codes` are two-dimensional."""
    return codes.shape[0] if q.layout == facts().plain.name else q.lead[0]


def bias_of(
    bias: TensorValue | Array | None,
    w: MXValue | TensorValue,
    name: str = "bias",
    weights: str = "weights",
) -> TensorValue:
    """The bias as float32 [N], or [E, N] of experts; empty for none."""
    lead = list(w.shape[:-1])
    if bias is None:
        nothing = np.zeros([0] * len(lead), np.float32)
        return ops.constant(nothing, DType.float32, w.device)
    if not isinstance(bias, TensorValue):
        bias = ops.constant(as_float32(bias, name), DType.float32, w.device)
    check_value(bias, name)
    check_device(bias, name, w.device, weights)
    if bias.dtype.name not in facts().dtypes:
        raise TypeError(
            f"{name}: got dtype {bias.dtype.name}, expected {' or '.join(facts().dtypes)}"
        )
    if list(bias.shape) != lead:
        raise ValueError(
            f"{name}: got shape {show(bias.shape)}, expected {show(lead)}, one number for each "
            f"row of the {weights}"
        )
    return bias if bias.dtype == DType.float32 else ops.cast(bias, DType.float32)


def as_float32(floats: Array, name: str) -> np.ndarray:
    """Returns floats in memory, widened, as constants of a graph take them."""
    kind = kind_of(floats, name)
    check_floats(floats, name)
    wide = in_memory(floats.detach()).cpu().float().numpy() if kind == "torch" else floats
    return np.ascontiguousarray(wide, dtype=np.float32)


def folded(value: TensorValue) -> TensorValue:
    """Folds the leading dimensions into one."""
    return value if value.rank == 2 else ops.reshape(value, [-1, value.shape[-1]])


def unfolded(value: TensorValue, lead: Sequence[Dim]) -> TensorValue:
    """Unfolds what `folded` folded."""
    return value if len(lead) == 1 else ops.reshape(value, [*lead, value.shape[-1]])


def type_of(dtype: DType, rows: Dim, columns: Dim | int, device: DeviceRef) -> TensorType:
    """The type of a matrix."""
    return TensorType(dtype, [rows, columns], device)


def call(
    name: str,
    operands: Sequence[TensorValue],
    rows: Dim,
    columns: Dim | int,
    dtype: FloatType | DType,
    **parameters: str,
) -> TensorValue:
    """Adds an op with one result, floats [rows, columns] on the device of its first operand."""
    device = operands[0].device
    types = [type_of(float_dtype(dtype), rows, columns, device)]
    return ops.custom(name, device, operands, types, parameters)[0].tensor

"""Norms and gates whose results are quantized at once: checks, calls, and torch's operators.

    norm_quantize    x, or x + residual, through a norm to codes and scales; those sums beside them
    gate_quantize    gates and ups to the codes and scales of hidden numbers

What a norm adds up in which order, `mojo_kernels/numbers/norms.mojo` says. Codes have no gradient,
so these operators have none: where the sums of x and its residual want one, torch adds them.
"""

# ruff: noqa: PLR0917  torch calls implementations with the schema's positional arguments

from __future__ import annotations

import math
from functools import lru_cache
from numbers import Real
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mx_kernels._core import calls, checks
from mx_kernels._core.arrays import (
    Array,
    check_floats,
    check_same_kind,
    check_together,
    dtype_name,
    empty,
    is_common,
    rows_of,
    show,
)
from mx_kernels._core.facts import Format, facts
from mx_kernels._core.gates import GateChoice, GateOptions, chosen_gate, gate_of
from mx_kernels._core.native import gpu_plans
from mx_kernels._core.protocol import NO_CODE, Norm, Quantize, Ups
from mx_kernels._core.torch_ops import _library, define

ROUNDS = ("each", "result", "none")
"""Where a norm rounds; the position is the code of the extension."""
_NOTHING = None, 0, NO_CODE, 0
"""What stands for an array that is not there."""


class NormOptions(NamedTuple):
    """What a call says of a norm, beside arrays."""

    is_centered: bool
    eps: float
    weight_offset: float
    rounds: str


def is_common_norm(x: Array, weight, bias, residual, options: NormOptions) -> bool:
    """Says whether all that a norm takes `is_common`, and fits x."""
    dtypes = facts().dtype_codes
    if not is_common(x, dtypes):
        return False
    device, shape = x.get_device(), x.shape
    for part in (weight, bias, residual):
        if part is not None and not (is_common(part, dtypes) and part.get_device() == device):
            return False
    (_, eps, offset, rounds), of_k = options, shape[-1:]
    return (
        (residual is None or (residual.shape == shape and residual.dtype == x.dtype))
        and (bias is None or bias.shape == of_k)
        and (weight.shape == of_k if weight is not None else bias is None and offset == 0)
        and type(eps) is type(offset) is float
        and 0 <= eps < math.inf
        and abs(offset) < math.inf
        and rounds in ROUNDS
    )


def check_norm(x: Array, weight, bias, residual, options: NormOptions) -> None:
    """Checks what a norm takes beside x, whose rows are checked."""
    k = x.shape[-1]
    for name, array in (("weight", weight), ("bias", bias)):
        if array is None:
            continue
        check_floats(array, name)
        check_together(name, array, "x", x)
        check_same_kind(name, array, "x", x)
        if tuple(array.shape) != (k,):
            raise ValueError(
                f"{name}: got shape {show(array.shape)}, expected [{k}], a number for each element "
                "of a row"
            )
    if residual is not None:
        check_floats(residual, "residual")
        check_together("residual", residual, "x", x)
        check_same_kind("residual", residual, "x", x)
        got, expected = ((dtype_name(a), show(a.shape)) for a in (residual, x))
        if got != expected:
            raise ValueError(
                f"residual: got {' '.join(got)}, expected {' '.join(expected)}, what x is"
            )
    check_norm_numbers(options, has_weight=weight is not None, has_bias=bias is not None)


def check_norm_numbers(options: NormOptions, *, has_weight: bool, has_bias: bool) -> None:
    """Checks what a norm is told beside arrays."""
    if has_bias and not has_weight:
        raise ValueError("bias: got one without a weight, expected both; torch.ones is a weight")
    _, eps, offset, rounds = options
    for name, number in (("eps", eps), ("weight_offset", offset)):
        if isinstance(number, bool) or not isinstance(number, Real):
            raise TypeError(f"{name}: got {type(number).__name__}, expected a number")
    if not 0 <= eps < math.inf:
        raise ValueError(f"eps: got {eps}, expected a number that is not negative")
    if not math.isfinite(offset):
        raise ValueError(f"weight_offset: got {offset}, expected a finite number")
    if offset and not has_weight:
        raise ValueError(f"weight_offset: got {offset} without a weight, expected 0")
    if rounds not in ROUNDS:
        raise ValueError(f"rounds: got {rounds!r}, expected {' or '.join(map(repr, ROUNDS))}")


def norm_quantize(
    x: Array, weight, bias, residual, options: NormOptions, fmt: Format, scale_rule: int, given
) -> tuple[Tensor, Tensor, Array | None]:
    """Quantizes checked floats behind a norm; returns codes, scales and x + residual, if any."""
    k = x.shape[-1]
    of_k = weight, bias
    owners = [rows_of(part, k) if part is not None else _NOTHING for part in of_k]
    dtypes = {owner[2] for owner in owners} - {NO_CODE}
    is_float = dtypes == {facts().dtypes["float32"]}
    if dtypes and not is_float and any(part is not None and part.dtype != x.dtype for part in of_k):
        is_float, parts = True, map(_as_float32, of_k)
        # Of one row, which keeps it contiguous; the owners live until the launch.
        owners = [rows_of(part, k) if part is not None else _NOTHING for part in parts]
    fixed = int(options.is_centered), ROUNDS.index(options.rounds), owners[0][1], owners[1][1]
    fixed += int(is_float), *_bits_of(options.weight_offset, options.eps, k)
    stream, added, added_at, added_stride, stream_at = None, None, 0, 0, 0
    if residual is not None:
        added, added_at, dtype, added_stride = rows_of(residual, k)
        stream, stream_at = empty(x, tuple(x.shape), dtype)
        row_bytes = facts().float_bytes(dtype)

    def rest(first: int) -> Norm:
        if added is None:
            return Norm(*fixed, 0, 0, 0)
        at = added_at + first * added_stride * row_bytes
        return Norm(*fixed, at, added_stride, stream_at + first * k * row_bytes)

    codes, scales = calls.quantize_rows("norm_quantize", x, x.shape, (fmt, scale_rule, given), rest)
    return codes, scales, stream


@lru_cache
def _bits_of(offset: float, eps: float, k: int) -> tuple[int, int, int]:
    """Returns the numbers of a norm as a call has them."""
    numbers = (np.float64(number).view(np.int64) for number in (eps, 1 / k))
    # What changes no bit of what it is added to, where there is nothing to add.
    return int(np.float32(offset or -0.0).view(np.uint32)), *map(int, numbers)


def _as_float32(array: Array | None) -> Array | None:
    if array is None:
        return None
    return array.float() if isinstance(array, Tensor) else array.astype(np.float32)


def are_common_gates(x: Array, up: Array | None, options: GateOptions) -> bool:
    """Says whether gates and ups are two of a kind that `is_common`."""
    dtypes = facts().dtype_codes
    if not (is_common(x, dtypes) and is_common(up, dtypes) and options.interleaved is None):
        return False
    is_alike = x.shape == up.shape and x.dtype == up.dtype
    return is_alike and x.get_device() == up.get_device() and x.ndim > 0


def check_gate_rows(
    x: Array, up: Array | None, options: GateOptions, chosen: GateChoice
) -> tuple[int, ...]:
    """Checks gates and ups of an activation; returns the shape of hidden numbers."""
    check_floats(x, "x")
    if not x.shape:
        raise ValueError("x: got a single number, expected shape [..., K]")
    shape = *x.shape[:-1], hidden_numbers(x.shape, options, chosen, has_up=up is not None)
    if up is None:
        return shape
    check_floats(up, "up")
    check_together("up", up, "x", x)
    check_same_kind("up", up, "x", x)
    got, expected = ((dtype_name(a), show(a.shape)) for a in (up, x))
    if got != expected:
        raise ValueError(f"up: got {' '.join(got)}, expected {' '.join(expected)}, what x is")
    return shape


def hidden_numbers(shape, options: GateOptions, chosen: GateChoice, *, has_up: bool) -> int:
    """Checks a shape of gates, and whether ups may stand beside; returns a row's hidden numbers."""
    holds_both = chosen.row.is_gated and not has_up
    if has_up and not chosen.row.is_gated:
        raise ValueError(f"up: got one with hidden_act={options.hidden_act!r}, which has no gate")
    if has_up and options.interleaved is not None:
        raise ValueError(
            f"interleaved: got {options.interleaved} with gates and ups of their own, expected None"
        )
    k = shape[-1]
    if holds_both and k % 2:
        raise ValueError(
            f"x: got shape {show(shape)}, expected [..., 2K], gates and ups of "
            f"{options.hidden_act!r}; or give the ups: up=..."
        )
    return k // 2 if holds_both else k


def gate_quantize(
    x: Array, up: Array | None, chosen: GateChoice, fmt: Format, scale_rule: int, given
) -> tuple[Tensor, Tensor]:
    """Quantizes hidden numbers of checked gates and ups; returns codes and scales."""
    gate, k = gate_of(chosen), x.shape[-1]
    holds_both = up is None and chosen.row.is_gated
    if up is not None:
        gate = gate._replace(interleaved=0)
    elif holds_both:
        k //= 2
    shape = (*x.shape[:-1], k)
    x, values, dtype, stride = rows_of(x, x.shape[-1])
    others, ups, up_stride = None, 0, 0
    if up is not None:
        others, ups, _, up_stride = rows_of(up, k)
    elif holds_both and not gate.interleaved:
        ups, up_stride = values + k * facts().float_bytes(dtype), stride
    step = up_stride * facts().float_bytes(dtype)

    def rest(first: int) -> tuple[int, ...]:
        return gate + Ups(ups + first * step, up_stride)

    made = calls.quantize_rows("gate_quantize", x, shape, (fmt, scale_rule, given), rest)
    del others
    return made


def kernel_on_gfx950(sizes: tuple[int, int, int], gate: GateOptions | None, fmt: Format) -> str:
    """Returns the file of the kernel for m rows of k bfloat16 and n codes, as the launch finds it.

    Rows are contiguous. No gate is a norm.
    """
    (m, n, k), dtype = sizes, torch.bfloat16
    call = Quantize(0, facts().dtype_codes[dtype], k, m, n, fmt.code, 0, 0, 0, 0)
    if gate is None:
        return gpu_plans().explain_norm_gfx950((*call, *[0] * len(Norm._fields)))
    chosen = chosen_gate(gate)
    ups = n * dtype.itemsize if chosen.row.is_gated and not chosen.interleaved else 0
    return gpu_plans().explain_gate_gfx950((*call, *gate_of(chosen), *Ups(ups, k)))


# Torch's operators.

_RULES = "str format, str rounding, Tensor? tensor_scale"
_GATE = (
    "Tensor x, Tensor? up, str activation, bool? interleaved, float? limit, float? alpha, "
    "float? beta, float? linear_beta"
)
_NORM = (
    "Tensor x, Tensor? weight, Tensor? bias, Tensor? residual, bool is_centered, float eps, "
    "float weight_offset, str rounds"
)


def norm_arguments(
    x,
    weight,
    bias,
    residual,
    options: NormOptions,
    format,
    scale_rule,
    given,
    *,
    is_fake=False,
    is_common=False,
):
    """Checks what `norm_quantize` takes, not what is common; returns what the call takes."""
    fmt, code, _ = checks.check_quantize(x, format, scale_rule)
    if not is_common:
        check_norm(x, weight, bias, residual, options)
    given = checks.check_tensor_scale(given, x, fmt, is_fake=is_fake)
    return x, weight, bias, residual, options, fmt, code, given


def _norm(*args):
    arguments = norm_arguments(*args[:4], NormOptions(*args[4:8]), *args[8:])
    codes, scales, stream = norm_quantize(*arguments)
    # An operator has no optional results.
    return codes, scales, args[0].new_empty(0) if stream is None else stream


def _norm_fake(*args):
    arguments = norm_arguments(*args[:4], NormOptions(*args[4:8]), *args[8:], is_fake=True)
    x, _, _, residual, _, fmt, *_ = arguments
    stream = x.new_empty(0 if residual is None else x.shape)
    return *_empty_parts(x, x.shape, fmt), stream


def _empty_parts(x: Tensor, shape, fmt: Format) -> tuple[Tensor, Tensor]:
    codes = x.new_empty((*shape[:-1], fmt.packed_bytes(shape[-1])), dtype=torch.uint8)
    return codes, x.new_empty(fmt.scales_of(shape), dtype=fmt.scale_dtype)


def gate_arguments(
    x, up, options: GateOptions, format, scale_rule, given, *, is_fake=False, is_common=False
):
    """Checks what `gate_quantize` takes, not what is common; returns that, as the call has it.

    The shape of hidden numbers stands behind it.
    """
    chosen = chosen_gate(options)
    shape, rows = x.shape, x
    if not (is_common and chosen.row.is_gated):
        shape = check_gate_rows(x, up, options, chosen)
        # What is quantized has no memory, but the rules of such a part of x.
        rows = x[..., : shape[-1]]
    fmt, code, _ = checks.check_quantize(rows, format, scale_rule)
    given = checks.check_tensor_scale(given, x, fmt, is_fake=is_fake)
    return (x, up, chosen, fmt, code, given), shape


def _gate(x, up, *rest):
    arguments, _ = gate_arguments(x, up, GateOptions(*rest[:6]), *rest[6:])
    return gate_quantize(*arguments)


def _gate_fake(x, up, *rest):
    arguments, shape = gate_arguments(x, up, GateOptions(*rest[:6]), *rest[6:], is_fake=True)
    return _empty_parts(x, shape, arguments[3])


for _name, _schema, *_functions in (
    ("norm_quantize", f"({_NORM}, {_RULES}) -> (Tensor, Tensor, Tensor)", _norm, _norm_fake),
    ("gate_quantize", f"({_GATE}, {_RULES}) -> (Tensor, Tensor)", _gate, _gate_fake),
):
    define(_name, _schema, *_functions)
    # As of `quantize`: scales that are floats have no gradient either.
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")

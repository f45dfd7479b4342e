"""Calls of `linear` that are like one before: launched with what was found out then.

A model calls a layer again and again with activations of the same shape, dtype and device. Most of
such a call was looking up what had been looked up before: so the weights remember, for each shape
of activations, what a call had, and the next one asks only whether it is the same. What is not
takes the long way (`ops`), where errors get their words. Tuples are added, as in `calls`.

    remembered            asked again
    x                     type, shape, dtype, device, plain memory, no gradient wanted
    codes and scales      address, number of elements
    bias                  as of x
    rules                 rounding, activations, dtype of the result
"""
# ruff: noqa: RUF005

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch._C._dynamo.guards import _empty_strided_cpu, _empty_strided_cuda

from mx_kernels._core.arrays import Array, intercepted
from mx_kernels._core.cuda import current_device
from mx_kernels._core.devices import launcher_of
from mx_kernels._core.protocol import MULTIPLY

if TYPE_CHECKING:
    from mx_kernels.tensor import MXTensor

_STRIDED = torch.strided
X, CODES, SCALES, RESULT, BIAS = map(
    MULTIPLY.at, ("left.values", "right.codes", "right.scales", "result.values", "result.bias")
)
"""Where the addresses stand in a call."""
MAX_SHAPES = 64
"""Shapes of activations that a tensor of weights remembers."""


class Plain(NamedTuple):
    """What is known of a plain, contiguous tensor whose shape is compared elsewhere."""

    dtype: torch.dtype
    device: int
    """The number of a CUDA device, -1 for the CPU."""

    @classmethod
    def of(cls, tensor: Tensor) -> Plain | None:
        """Returns that of a tensor, None if it is none that is asked about again."""
        plain = cls(tensor.dtype, tensor.get_device())
        return plain if type(tensor) is Tensor and plain.fits(tensor) else None

    def fits(self, tensor: Tensor) -> bool:
        """Says whether another one is like that."""
        dtype, device = self
        return (
            tensor.dtype is dtype
            and tensor.layout is _STRIDED
            and (tensor.is_cpu if device < 0 else tensor.is_cuda and tensor.get_device() == device)
            and not tensor.is_nested
            and tensor.is_contiguous()
            and not tensor.requires_grad
            and not tensor.is_neg()
        )


class Repeat(NamedTuple):
    """What a call of `linear` found out."""

    rules: tuple
    x: Plain
    weights: tuple[int, int, int, int]
    """Addresses and numbers of elements of codes and scales."""
    bias: tuple[Plain, torch.Size] | None
    result: tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
    """Shape, strides and dtype."""
    parts: tuple[tuple[int, ...], ...]
    """What stands in the call before the address of x, and behind it, the result's and bias'."""
    launch: Callable[[tuple[int, ...]], None]


def repeat(x, w: MXTensor, bias, rules: tuple) -> Tensor | None:
    """Computes `linear` if the weights remember such a call, else returns None.

    `rules` are rounding, dtype of the result and activations, as they were given.
    """
    # A nested tensor has no shape to ask for.
    known = None if x.is_nested else w._repeats.get(x.shape)
    if known is None:
        return None
    given, plain, weights, of_bias, result, parts, launch = known
    if rules != given or not plain.fits(x) or intercepted():
        return None
    w_codes, w_scales = w._codes, w._scales
    found = w_codes.data_ptr(), w_scales.data_ptr(), w_codes.numel(), w_scales.numel()
    values, addend = x.data_ptr(), 0
    if found != weights or not values:
        return None
    if bias is None:
        if of_bias is not None:
            return None
    else:
        if of_bias is None or type(bias) is not Tensor or bias.is_nested:
            return None
        like, shape = of_bias
        if bias.shape != shape or not like.fits(bias) or not (addend := bias.data_ptr()):
            return None
    if plain.device < 0:
        out = _empty_strided_cpu(*result)
    elif plain.device == current_device():
        out = _empty_strided_cuda(*result)
    else:
        return None
    before_x, behind_x, behind_result, behind_bias = parts
    addresses = behind_x + (out.data_ptr(),) + behind_result + (addend,) + behind_bias
    launch(before_x + (values,) + addresses)
    return out


def remember(
    x: Array, w: MXTensor, bias, rules: tuple, *, out: Array, call: tuple[int, ...] | None
) -> None:
    """Remembers a call of common arguments that gave `out`, if it can be repeated.

    `call` is what was launched, of which only addresses will differ: those of `x` and `bias`
    themselves, not of copies.
    """
    plain = Plain.of(x)
    if plain is None or call is None or call[X] != x.data_ptr() or w._copied_at is not None:
        return
    weights = w._codes.data_ptr(), w._scales.data_ptr()
    of_bias = None
    if bias is not None:
        like = Plain.of(bias)
        if like is None or call[BIAS] != bias.data_ptr():
            return
        of_bias = like, bias.shape
    m, _, k = call[-3:]
    launch = launcher_of(out).prepared(call, plain.device, m, k)
    if launch is None or (call[CODES], call[SCALES]) != weights:
        return
    if len(w._repeats) >= MAX_SHAPES:
        w._repeats.clear()
    w._repeats[x.shape] = Repeat(
        rules=rules,
        x=plain,
        weights=weights + (w._codes.numel(), w._scales.numel()),
        bias=of_bias,
        result=(tuple(out.shape), out.stride(), out.dtype),
        parts=(call[:X], call[X + 1 : RESULT], call[RESULT + 1 : BIAS], call[BIAS + 1 :]),
        launch=launch,
    )

"""Products of torch with an MXTensor as the weights: `torch.nn.functional.linear` and its parts.

    linear(x, w, bias)       mx_kernels.linear, activations as the device is best at
    x @ w.t()                the same; so are mm, addmm and mv of a transposed MXTensor
    grad @ w                 the gradient for x: floats times the dequantized weights

Torch takes `linear` apart into `t` and `mm`, and so does DTensor. `w.t()` is therefore a tensor of
its own, which only waits for its product.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.forward_ad import _set_fwd_grad_enabled

from mx_kernels import ops
from mx_kernels._core.tensor_ops import handles
from mx_kernels.tensor import MXTensor, dispatch, refusal

_aten = torch.ops.aten


class Transposed(Tensor):
    """`w.t()` of weights [N, K]: [K, N], to be multiplied by."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    weights: MXTensor

    @staticmethod
    def __new__(cls, weights):
        k, n = weights.shape[1], weights.shape[0]
        self = Tensor._make_wrapper_subclass(
            cls, (k, n), strides=(1, k), dtype=weights.dtype, device=weights.device
        )
        self.weights = weights
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return dispatch(_OF_TRANSPOSED, func, args, kwargs or {})

    def __tensor_flatten__(self):
        return ["weights"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Transposed(inner["weights"])

    def __repr__(self, *, tensor_contents=None) -> str:
        return f"{self.weights!r}.t()"


@handles(_aten.linear.default)
def _linear(func, x, w, bias=None):
    return _product(x, w, bias)


@handles(_aten.t.default, _aten.transpose.int, _aten.permute.default)
def _transpose(func, q, *axes):
    """Gives [N, K] as [K, N]; other axes stay where they are."""
    order = [1, 0]
    if func is _aten.permute.default:
        order = [axis % q.ndim for axis in axes[0]]
    elif axes and axes[0] % q.ndim == axes[1] % q.ndim:
        order = [0, 1]
    if q.ndim != 2 or order != [1, 0]:
        raise refusal(func)
    return q.weights.detach() if isinstance(q, Transposed) else Transposed(q)


@handles(_aten.mm.default)
def _mm(func, a, b):
    if isinstance(b, Transposed):
        if isinstance(a, MXTensor):
            return ops.matmul(a, b.weights, out_dtype=a.dtype)
        return _product(a, b.weights)
    if isinstance(b, MXTensor) and not isinstance(a, MXTensor | Transposed):
        return _dense_product(a, b)
    if isinstance(a, Transposed) and not isinstance(b, MXTensor):
        return _dense_product(b.t(), a.weights).t()
    raise refusal(func)


@handles(_aten.addmm.default)
def _addmm(func, bias, a, b, *, beta=1, alpha=1):
    if not isinstance(b, Transposed) or isinstance(a, MXTensor) or beta != 1 or alpha != 1:
        raise refusal(func)
    if bias.ndim == 1:
        return _product(a, b.weights, bias)
    return _product(a, b.weights) + bias


@handles(_aten.mv.default)
def _mv(func, a, vector):
    if isinstance(a, Transposed):
        return _dense_product(vector, a.weights)
    return _product(vector, a)


def _product(x: Tensor, w: MXTensor, bias: Tensor | None = None) -> Tensor:
    """Multiplies as `mx_kernels.linear`; torch takes care of gradients, and of tangents."""
    with torch.no_grad(), _set_fwd_grad_enabled(False):
        return ops.linear(x, w, bias=bias, activations=None)


def _dense_product(grad: Tensor, w: MXTensor) -> Tensor:
    """Multiplies `grad` by the dequantized weights, as the gradient of `mx_kernels.linear` does."""
    dtype = torch.bfloat16 if grad.dtype == torch.bfloat16 else torch.float32
    return (grad.to(dtype) @ w.dequantize(dtype)).to(grad.dtype)


def _same(func, transposed, **kwargs):
    return Transposed(func(transposed.weights, **kwargs))


_OF_TRANSPOSED = {
    **dict.fromkeys((_aten.detach.default, _aten.alias.default, _aten.clone.default), _same),
    **dict.fromkeys((_aten.t.default, _aten.transpose.int, _aten.permute.default), _transpose),
    _aten.mm.default: _mm,
    _aten.addmm.default: _addmm,
    _aten.mv.default: _mv,
}

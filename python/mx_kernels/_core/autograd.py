"""Derivatives of linear and matmul, for autograd and for `torch.func`.

    linear    dx = dy @ dequantize(w)    the rounding of x passes gradients straight through
              dbias = dy summed over the rows
    matmul    dbias likewise; encoded operands have no gradient

The formulas serve twice. `torch.library` takes them for graphs; eager calls go through the
`autograd.Function`s, because a formula that torch.library holds can neither be transformed by
`torch.func` nor run forwards.
"""

from __future__ import annotations

import torch
from torch import Tensor

LINEAR_BIAS, MATMUL_BIAS = 6, 8
"""Where the schemas of linear and matmul have the bias."""


def _sum_of_rows(grad: Tensor, dtype: torch.dtype) -> Tensor:
    """Sums over all rows, in float32."""
    return grad.reshape(-1, grad.shape[-1]).sum(0, dtype=torch.float32).to(dtype)


def linear_context(ctx, inputs, output) -> None:
    """Keeps what the derivatives of linear need."""
    x, codes, scales, ctx.format, ctx.layout, n, bias, *_ = inputs
    ctx.save_for_backward(codes, scales)
    ctx.save_for_forward(codes, scales)
    ctx.w_shape = (n, x.shape[-1])
    ctx.x_dtype = x.dtype
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.out_dtype = output.dtype


def _dense_weights(ctx, dtype: torch.dtype) -> Tensor:
    """Dequantizes the weights.

    bfloat16 has room for the digits of every format's numbers, float16 not for their exponents.
    """
    dtype = dtype if dtype == ctx.x_dtype == torch.bfloat16 else torch.float32
    codes, scales = ctx.saved_tensors
    meaning = (ctx.w_shape, ctx.format, ctx.layout)
    return torch.ops.mx_kernels.dequantize(codes, scales, *meaning, dtype)


def linear_backward(ctx, grad):
    """Returns the gradients of linear's arguments."""
    grad_x = grad_bias = None
    if ctx.needs_input_grad[0]:
        w = _dense_weights(ctx, grad.dtype)
        grad_x = (grad.to(w.dtype) @ w).to(ctx.x_dtype)
    if ctx.needs_input_grad[LINEAR_BIAS]:
        grad_bias = _sum_of_rows(grad, ctx.bias_dtype)
    return grad_x, *[None] * (LINEAR_BIAS - 1), grad_bias, None, None, None


def matmul_context(ctx, inputs, output) -> None:
    """Keeps what the derivatives of matmul need."""
    bias = inputs[MATMUL_BIAS]
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.out_shape, ctx.out_dtype = output.shape, output.dtype


def matmul_backward(ctx, grad):
    """Returns the gradients of matmul's arguments."""
    wanted = ctx.needs_input_grad[MATMUL_BIAS]
    return *[None] * MATMUL_BIAS, _sum_of_rows(grad, ctx.bias_dtype) if wanted else None, None


class Linear(torch.autograd.Function):
    """`torch.ops.mx_kernels.linear` with its derivatives in both directions."""

    generate_vmap_rule = True
    setup_context = staticmethod(linear_context)
    backward = staticmethod(linear_backward)

    @staticmethod
    def forward(*args):
        """Calls the operator."""
        return torch.ops.mx_kernels.linear(*args)

    @staticmethod
    def jvp(ctx, *tangents):
        """Maps tangents of x and bias to the tangent of the result."""
        x, bias, out = tangents[0], tangents[LINEAR_BIAS], 0
        if x is not None:
            w = _dense_weights(ctx, x.dtype)
            out = x.to(w.dtype) @ w.T
        if bias is not None:
            out = out + bias
        return out.to(ctx.out_dtype)


class Matmul(torch.autograd.Function):
    """`torch.ops.mx_kernels.matmul` with its derivatives in both directions."""

    generate_vmap_rule = True
    setup_context = staticmethod(matmul_context)
    backward = staticmethod(matmul_backward)

    @staticmethod
    def forward(*args):
        """Calls the operator."""
        return torch.ops.mx_kernels.matmul(*args)

    @staticmethod
    def jvp(ctx, *tangents):
        """Maps the tangent of the bias to that of the result."""
        return tangents[MATMUL_BIAS].to(ctx.out_dtype).expand(ctx.out_shape)

"""The operations for torch's own machinery: compilation, autograd, transforms, fake tensors.

Six `torch.library` operators, `torch.ops.mx_kernels.*`: quantize, dequantize, relayout, matmul
and linear, over loose codes and scales, which is what graphs compute with, and matmul_floats. Each
has one implementation for CPU and CUDA tensors and a fake one (shapes only); quantize, linear and
matmul map over activations. Those of experts are in `expert_ops`. Derivatives, of encoded operands
and of floats by floats none:

    linear    dx = dy @ dequantize(w)    the rounding of x passes gradients straight through
              dbias = dy summed over the rows
    matmul    dbias likewise

Their formulas serve twice. `torch.library` takes them for graphs; eager calls go through the
`autograd.Function`s, because a formula that torch.library holds can neither be transformed by
`torch.func` nor run forwards.

Codes and scales alone do not tell their format and layout: prefer MXTensor and the functions in
`ops`, which call these operators where torch has to see the call.
"""

# ruff: noqa: PLR0917  torch calls implementations with the schema's positional arguments

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from mx_kernels._core import calls, checks, products
from mx_kernels._core.arrays import float_code
from mx_kernels._core.facts import facts
from mx_kernels._core.storage import storage_of
from mx_kernels.tensor import MXTensor

_library = torch.library.Library("mx_kernels", "DEF")
LINEAR_BIAS, MATMUL_BIAS = 6, 8
"""Where the schemas of linear and matmul have the bias."""


_SCHEMAS = {
    "quantize": "(Tensor x, str format, str rounding, Tensor? tensor_scale=None,"
    " int? hadamard=None) -> (Tensor, Tensor)",
    "dequantize": "(Tensor codes, Tensor scales, SymInt[] shape, str format, str layout,"
    " ScalarType dtype) -> Tensor",
    "relayout": "(Tensor codes, Tensor scales, SymInt rows, str format, str source, str target)"
    " -> (Tensor, Tensor)",
    "matmul": "(Tensor a_codes, Tensor a_scales, str a_format, Tensor b_codes, Tensor b_scales,"
    " str b_format, str layout, SymInt n, Tensor? bias, ScalarType out_dtype) -> Tensor",
    "matmul_floats": "(Tensor a, Tensor b, Tensor? bias, ScalarType out_dtype) -> Tensor",
    "linear": "(Tensor x, Tensor codes, Tensor scales, str format, str layout, SymInt n,"
    " Tensor? bias, str rounding, ScalarType out_dtype, str activations) -> Tensor",
}


def define(name: str, schema: str, implementation, fake) -> None:
    """Defines an operator, with its implementation and the one that knows only shapes."""
    _library.define(name + schema, tags=torch.Tag.pt2_compliant_tag)
    for device in ("CPU", "CUDA"):
        _library.impl(name, implementation, device)
    torch.library.register_fake(f"mx_kernels::{name}", fake, lib=_library)


# Each operator validates like the public function, so that a wrong call cannot harm here either.


def weights_of(codes, scales, format, layout, n):
    """Matrices of `n` rows from their parts, whose sizes are compared once."""
    row = facts().formats.get(format)
    if (
        row is not None
        and type(codes) is type(scales) is Tensor
        and type(n) is int
        and (codes.dtype, scales.dtype) == (torch.uint8, row.scale_dtype)
        and codes.device == scales.device
        and codes.is_contiguous()
        and scales.is_contiguous()
    ):
        shape = _shape_of(codes.shape, scales.shape, format, layout, n)
        meaning = {"format": format, "layout": layout, "dtype": torch.bfloat16}
        w = MXTensor._trusted(codes, scales, shape, **meaning)
        w._checked = w._measure()
        return w
    return _weights_of(codes, scales, format, layout, n)


def _weights_of(codes, scales, format, layout, n):
    k = checks.format_named(format).elements(codes.shape[-1]) if codes.ndim else 0
    return MXTensor(codes, scales, shape=(*codes.shape[:-2], n, k), format=format, layout=layout)


@lru_cache(4096)
def _shape_of(codes, scales, format, layout, n):
    """The shape of weights of such bytes, which fit."""
    dtypes = torch.uint8, facts().formats[format].scale_dtype
    shapes = zip((codes, scales), dtypes, strict=True)
    parts = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in shapes]
    return _weights_of(*parts, format, layout, n).shape


def _quantize(x, format, scale_rule, tensor_scale=None, hadamard=None):
    fmt, code, _ = checks.check_quantize(x, format, scale_rule)
    given = checks.check_tensor_scale(tensor_scale, x, fmt)
    return calls.quantize(x, fmt, code, given, checks.check_hadamard(hadamard, x))


def as_scales_of_call(tensor_scale, x) -> Tensor | None:
    """Returns tensor scales as operators take them: a number becomes a tensor where x lies."""
    if tensor_scale is None or isinstance(tensor_scale, Tensor):
        return tensor_scale
    return torch.tensor(tensor_scale, dtype=torch.float32, device=x.device)


def _quantize_fake(x, format, scale_rule, tensor_scale=None, hadamard=None):
    fmt, *_ = checks.check_quantize(x, format, scale_rule)
    checks.check_hadamard(hadamard, x)
    checks.check_tensor_scale(tensor_scale, x, fmt, is_fake=True)
    lead, k = x.shape[:-1], x.shape[-1]
    codes = x.new_empty((*lead, fmt.packed_bytes(k)), dtype=torch.uint8)
    return codes, x.new_empty(fmt.scales_of(x.shape), dtype=fmt.scale_dtype)


def _dequantize(codes, scales, shape, format, layout, dtype):
    q = MXTensor(codes, scales, shape=shape, format=format, layout=layout)
    return calls.dequantize(q, float_code(dtype, "dtype"))


def _dequantize_fake(codes, scales, shape, format, layout, dtype):
    q = MXTensor(codes, scales, shape=shape, format=format, layout=layout)
    float_code(dtype, "dtype")
    return codes.new_empty(q.shape, dtype=dtype)


def _relayout(codes, scales, rows, format, source, target):
    q = weights_of(codes, scales, format, source, rows)
    return calls.relayout(q, checks.layout_named(target))


def _relayout_fake(codes, scales, rows, format, source, target):
    q = weights_of(codes, scales, format, source, rows)
    storage = storage_of(q.shape, facts().formats[format], checks.layout_named(target))
    return tuple(t.new_empty(s) for t, s in zip((codes, scales), storage, strict=True))


def _operands(a_codes, a_scales, a_format, *weights):
    """Both operands of matmul."""
    return MXTensor(a_codes, a_scales, format=a_format), weights_of(*weights)


def _matmul(*args):
    (a, b), (bias, out_dtype) = _operands(*args[:-2]), args[-2:]
    checks.check_matmul(a, b, bias)
    return products.codes_by_codes(a, b, bias, float_code(out_dtype, "out_dtype"))


def _matmul_fake(*args):
    (a, b), (bias, out_dtype) = _operands(*args[:-2]), args[-2:]
    checks.check_matmul(a, b, bias)
    float_code(out_dtype, "out_dtype")
    return a.codes.new_empty((*a.codes.shape[:-1], b.shape[-2]), dtype=out_dtype)


def _matmul_floats(a, b, bias, out_dtype):
    checks.check_float_matmul(a, b, bias)
    return products.floats_by_floats(a, b, bias, float_code(out_dtype, "out_dtype"))


def _matmul_floats_fake(a, b, bias, out_dtype):
    checks.check_float_matmul(a, b, bias)
    float_code(out_dtype, "out_dtype")
    return a.new_empty((*a.shape[:-1], b.shape[0]), dtype=out_dtype)


def _linear(x, codes, scales, format, layout, n, bias, scale_rule, out_dtype, activations):
    w = weights_of(codes, scales, format, layout, n)
    mode, *_ = checks.check_linear(x, w, bias, scale_rule, activations)
    return products.floats_by_codes(x, w, bias, mode, float_code(out_dtype, "out_dtype"))


def _linear_fake(x, codes, scales, format, layout, n, bias, scale_rule, out_dtype, activations):
    w = weights_of(codes, scales, format, layout, n)
    checks.check_linear(x, w, bias, scale_rule, activations)
    float_code(out_dtype, "out_dtype")
    return x.new_empty((*x.shape[:-1], n), dtype=out_dtype)


for _name, _functions in {
    "quantize": (_quantize, _quantize_fake),
    "dequantize": (_dequantize, _dequantize_fake),
    "relayout": (_relayout, _relayout_fake),
    "matmul": (_matmul, _matmul_fake),
    "matmul_floats": (_matmul_floats, _matmul_floats_fake),
    "linear": (_linear, _linear_fake),
}.items():
    define(_name, _SCHEMAS[_name], *_functions)


for _name in ("quantize", "dequantize", "relayout"):
    # Scales may be floats. Without this, torch takes them for something that has a gradient.
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")


def _map_rows(name: str, row_arguments: int):
    """Makes the `vmap` rule of an operator whose first arguments are rows: one more axis."""

    def rule(info, in_dims, *args):
        if any(dim is not None for dim in in_dims[row_arguments:]):
            raise NotImplementedError(
                f"mx_kernels::{name}: got weights or a bias mapped by vmap, expected only "
                "activations; loop over the weights instead"
            )
        rows = [
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(args[:row_arguments], in_dims[:row_arguments], strict=True)
        ]
        rest = args[row_arguments:]
        out = getattr(torch.ops.mx_kernels, name)(*(t.contiguous() for t in rows), *rest)
        return out, (0, 0) if isinstance(out, tuple) else 0

    return rule


def _sum_of_rows(grad: Tensor, dtype: torch.dtype, axes: int = 1) -> Tensor:
    """Sums over all rows, in float32; of biases of several axes over the rows of each matrix."""
    if axes > 1:
        return grad.sum(-2, dtype=torch.float32).to(dtype)
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
    ctx.bias_axes = 1 if bias is None else bias.ndim
    ctx.out_shape, ctx.out_dtype = output.shape, output.dtype


def matmul_backward(ctx, grad):
    """Returns the gradients of matmul's arguments."""
    wanted = ctx.needs_input_grad[MATMUL_BIAS]
    grad_bias = _sum_of_rows(grad, ctx.bias_dtype, ctx.bias_axes) if wanted else None
    return *[None] * MATMUL_BIAS, grad_bias, None


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
        tangent = tangents[MATMUL_BIAS].to(ctx.out_dtype)
        if ctx.bias_axes > 1:
            tangent = tangent.unsqueeze(-2)
        return tangent.expand(ctx.out_shape)


torch.library.register_autograd(
    "mx_kernels::linear",
    linear_backward,
    setup_context=linear_context,
    lib=_library,
)
torch.library.register_autograd(
    "mx_kernels::matmul",
    matmul_backward,
    setup_context=matmul_context,
    lib=_library,
)
for _name, _row_arguments in (("quantize", 1), ("linear", 1), ("matmul", 2)):
    torch.library.register_vmap(
        f"mx_kernels::{_name}", _map_rows(_name, _row_arguments), lib=_library
    )

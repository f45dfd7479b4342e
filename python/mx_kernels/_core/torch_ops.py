"""The operations for torch's own machinery: compilation, autograd, transforms, fake tensors.

Five `torch.library` operators, `torch.ops.mx_kernels.*`: quantize, dequantize, relayout, matmul
and linear, over loose codes and scales, which is what graphs compute with. Each has one
implementation for CPU and CUDA tensors and a fake one (shapes only); linear and matmul have
derivatives (`autograd`); quantize, linear and matmul map over activations. Those of experts are
in `expert_ops`.

Codes and scales alone do not tell their format and layout: prefer MXTensor and the functions in
`ops`, which call these operators where torch has to see the call.
"""

# ruff: noqa: PLR0917  torch calls implementations with the schema's positional arguments

from __future__ import annotations

import torch

from mx_kernels._core import autograd, calls, checks
from mx_kernels._core.arrays import float_code
from mx_kernels._core.facts import facts
from mx_kernels._core.storage import storage_of
from mx_kernels.tensor import MXTensor

_library = torch.library.Library("mx_kernels", "DEF")

_SCHEMAS = {
    "quantize": "(Tensor x, str format, str rounding) -> (Tensor, Tensor)",
    "dequantize": "(Tensor codes, Tensor scales, SymInt[] shape, str format, str layout,"
    " ScalarType dtype) -> Tensor",
    "relayout": "(Tensor codes, Tensor scales, SymInt rows, str format, str source, str target)"
    " -> (Tensor, Tensor)",
    "matmul": "(Tensor a_codes, Tensor a_scales, str a_format, Tensor b_codes, Tensor b_scales,"
    " str b_format, str layout, SymInt n, Tensor? bias, ScalarType out_dtype) -> Tensor",
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
    """Matrices of `n` rows from their parts."""
    k = checks.format_named(format).elements(codes.shape[-1]) if codes.ndim else 0
    return MXTensor(codes, scales, shape=(*codes.shape[:-2], n, k), format=format, layout=layout)


def _quantize(x, format, rounding):
    fmt, code, _ = checks.check_quantize(x, format, rounding)
    return calls.quantize(x, fmt, code)


def _quantize_fake(x, format, rounding):
    fmt, *_ = checks.check_quantize(x, format, rounding)
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
    return calls.matmul(a, b, bias, float_code(out_dtype, "out_dtype"))


def _matmul_fake(*args):
    (a, b), (bias, out_dtype) = _operands(*args[:-2]), args[-2:]
    checks.check_matmul(a, b, bias)
    float_code(out_dtype, "out_dtype")
    return a.codes.new_empty((*a.codes.shape[:-1], b.shape[0]), dtype=out_dtype)


def _linear(x, codes, scales, format, layout, n, bias, rounding, out_dtype, activations):
    w = weights_of(codes, scales, format, layout, n)
    mode, _ = checks.check_linear(x, w, bias, rounding, activations)
    return calls.linear(x, w, bias, mode, float_code(out_dtype, "out_dtype"))[0]


def _linear_fake(x, codes, scales, format, layout, n, bias, rounding, out_dtype, activations):
    w = weights_of(codes, scales, format, layout, n)
    checks.check_linear(x, w, bias, rounding, activations)
    float_code(out_dtype, "out_dtype")
    return x.new_empty((*x.shape[:-1], n), dtype=out_dtype)


for _name, _functions in {
    "quantize": (_quantize, _quantize_fake),
    "dequantize": (_dequantize, _dequantize_fake),
    "relayout": (_relayout, _relayout_fake),
    "matmul": (_matmul, _matmul_fake),
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


torch.library.register_autograd(
    "mx_kernels::linear",
    autograd.linear_backward,
    setup_context=autograd.linear_context,
    lib=_library,
)
torch.library.register_autograd(
    "mx_kernels::matmul",
    autograd.matmul_backward,
    setup_context=autograd.matmul_context,
    lib=_library,
)
for _name, _row_arguments in (("quantize", 1), ("linear", 1), ("matmul", 2)):
    torch.library.register_vmap(
        f"mx_kernels::{_name}", _map_rows(_name, _row_arguments), lib=_library
    )

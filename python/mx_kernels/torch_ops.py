"""The operations for torch's own machinery: compilation, autograd, transforms, fake tensors.

Five `torch.library` operators, `torch.ops.mx_kernels.*`: quantize, dequantize, relayout, matmul
and linear, over loose codes and scales, which is all that a graph can carry. Each has one
implementation for CPU and CUDA tensors and a fake one (shapes only); linear and matmul have
derivatives (`_autograd`); quantize, linear and matmul map over activations.

Codes and scales alone do not tell their layout: prefer MXTensor and the functions in `ops`,
which call these operators where torch has to see the call.
"""

# ruff: noqa: PLR0917  torch calls implementations with the schema's positional arguments

from __future__ import annotations

import torch

from mx_kernels import _autograd, _short_way, ops
from mx_kernels._facts import facts
from mx_kernels.tensor import MXTensor

_library = torch.library.Library("mx_kernels", "DEF")

_SCHEMAS = {
    "quantize": "(Tensor x, str rounding) -> (Tensor, Tensor)",
    "dequantize": "(Tensor codes, Tensor scales, SymInt[] shape, str layout, ScalarType dtype)"
    " -> Tensor",
    "relayout": "(Tensor codes, Tensor scales, SymInt rows, str source, str target)"
    " -> (Tensor, Tensor)",
    "matmul": "(Tensor a_codes, Tensor a_scales, Tensor b_codes, Tensor b_scales, str layout,"
    " SymInt n, Tensor? bias, ScalarType out_dtype) -> Tensor",
    "linear": "(Tensor x, Tensor codes, Tensor scales, str layout, SymInt n, Tensor? bias,"
    ' str rounding, ScalarType out_dtype, str activations="mxfp4") -> Tensor',
}

for _name, _schema in _SCHEMAS.items():
    _library.define(_name + _schema, tags=torch.Tag.pt2_compliant_tag)


def _register(name: str, implementation, fake) -> None:
    """Gives operator `name` its implementation and the one that knows only shapes."""
    for device in ("CPU", "CUDA"):
        _library.impl(name, implementation, device)
    torch.library.register_fake(f"mx_kernels::{name}", fake, lib=_library)


# Each operator validates like the public function, so that a wrong call cannot harm here either.


def _weights(codes, scales, layout, n):
    """A 2-D operand from its parts."""
    k = facts().default_format.elements(codes.shape[-1]) if codes.ndim else 0
    return MXTensor(codes, scales, shape=(n, k), layout=layout)


def _quantize(x, rounding):
    ops.check_quantize(x, rounding)
    return ops.run_quantize(x, rounding)


def _quantize_fake(x, rounding):
    ops.check_quantize(x, rounding)
    lead, k, fmt = x.shape[:-1], x.shape[-1], facts().default_format
    codes = x.new_empty((*lead, fmt.packed_bytes(k)), dtype=torch.uint8)
    return codes, x.new_empty((*lead, k // fmt.block_size), dtype=torch.uint8)


def _dequantize(codes, scales, shape, layout, dtype):
    q = MXTensor(codes, scales, shape=shape, layout=layout)
    return ops.run_dequantize(q, ops.float_name(dtype, "dtype"))


def _dequantize_fake(codes, scales, shape, layout, dtype):
    q = MXTensor(codes, scales, shape=shape, layout=layout)
    ops.float_name(dtype, "dtype")
    return codes.new_empty(q.shape, dtype=dtype)


def _relayout_operands(codes, scales, rows, source, target):
    return _weights(codes, scales, source, rows), ops.layout_named(target)


def _relayout(codes, scales, rows, source, target):
    return ops.run_relayout(*_relayout_operands(codes, scales, rows, source, target))


def _relayout_fake(codes, scales, rows, source, target):
    q, layout = _relayout_operands(codes, scales, rows, source, target)
    storage = layout.storage(rows, q.k, facts().formats[q.format])
    return tuple(codes.new_empty(shape) for shape in storage)


def _matmul(a_codes, a_scales, b_codes, b_scales, layout, n, bias, out_dtype):
    a, b = MXTensor(a_codes, a_scales), _weights(b_codes, b_scales, layout, n)
    ops.check_matmul(a, b, bias)
    return ops.run_matmul(a, b, bias, ops.float_name(out_dtype, "out_dtype"))


def _matmul_fake(a_codes, a_scales, b_codes, b_scales, layout, n, bias, out_dtype):
    a, b = MXTensor(a_codes, a_scales), _weights(b_codes, b_scales, layout, n)
    ops.check_matmul(a, b, bias)
    ops.float_name(out_dtype, "out_dtype")
    return a_codes.new_empty((*a_codes.shape[:-1], n), dtype=out_dtype)


def _linear(x, codes, scales, layout, n, bias, rounding, out_dtype, activations="mxfp4"):
    w = _weights(codes, scales, layout, n)
    out = _short_way.linear(x, w, bias, rounding, out_dtype, activations=activations)
    if out is not None:
        return out
    ops.check_linear(x, w, bias, rounding, activations)
    name = ops.float_name(out_dtype, "out_dtype")
    return ops.run_linear(x, w, bias, rounding, name, activations=activations)


def _linear_fake(x, codes, scales, layout, n, bias, rounding, out_dtype, activations="mxfp4"):
    ops.check_linear(x, _weights(codes, scales, layout, n), bias, rounding, activations)
    ops.float_name(out_dtype, "out_dtype")
    return x.new_empty((*x.shape[:-1], n), dtype=out_dtype)


_register("quantize", _quantize, _quantize_fake)
_register("dequantize", _dequantize, _dequantize_fake)
_register("relayout", _relayout, _relayout_fake)
_register("matmul", _matmul, _matmul_fake)
_register("linear", _linear, _linear_fake)


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
    _autograd.linear_backward,
    setup_context=_autograd.linear_context,
    lib=_library,
)
torch.library.register_autograd(
    "mx_kernels::matmul",
    _autograd.matmul_backward,
    setup_context=_autograd.matmul_context,
    lib=_library,
)
for _name, _row_arguments in (("quantize", 1), ("linear", 1), ("matmul", 2)):
    torch.library.register_vmap(
        f"mx_kernels::{_name}", _map_rows(_name, _row_arguments), lib=_library
    )

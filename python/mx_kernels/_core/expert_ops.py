"""Experts for torch's own machinery: operators with their shapes and derivatives.

    grouped_linear    dx = dy @ dequantize(w[e]), row by row; dbias[e] = dy summed over e's rows
    moe               the derivatives of the same layer on dequantized weights, in float32

Roundings pass gradients straight through. How many rows an expert gets is known from numbers
alone, so derivatives are operators too, which a compiler leaves as they are.
"""

# ruff: noqa: PLR0917  torch calls implementations with the schema's positional arguments

from __future__ import annotations

import torch
from torch import Tensor

from mx_kernels._core import checks, products
from mx_kernels._core.arrays import float_code
from mx_kernels._core.gates import GateOptions, gated
from mx_kernels._core.torch_ops import define, weights_of
from mx_kernels.tensor import MXTensor

_EXPERTS = "Tensor {0}codes, Tensor {0}scales, str {0}format, str {0}layout, SymInt {0}n"
_GROUPED = f"Tensor x, {_EXPERTS.format('')}, Tensor group_sizes, Tensor? bias"
_MOE = (
    f"Tensor x, {_EXPERTS.format('gate_up_')}, {_EXPERTS.format('down_')}, Tensor expert_ids,"
    " Tensor expert_weights, Tensor? bias_gate_up, Tensor? bias_down, str activation,"
    " bool? interleaved, float? limit, float? alpha, float? beta, float? linear_beta"
)
_RULES = "str rounding, ScalarType out_dtype, str activations"


def parts_of(w: MXTensor, name: str) -> tuple:
    """Returns what torch's operators take for the weights of experts."""
    if not isinstance(w, MXTensor):
        raise TypeError(f"{name}: got {type(w).__name__}, expected an MXTensor; see quantize(w)")
    return w.codes, w.scales, w.format, w.byte_layout, w.shape[-2]


def _dense(codes, scales, format, layout, n, expert: int) -> Tensor:
    """Returns the dequantized weights of one expert."""
    k = checks.format_named(format).elements(codes.shape[-1])
    meaning = (n, k), format, layout, torch.float32
    return torch.ops.mx_kernels.dequantize(codes[expert], scales[expert], *meaning)


# grouped_linear


def _grouped_arguments(x, *rest):
    """Checks a call; returns what `products` takes."""
    parts, (sizes, bias, scale_rule, out_dtype, activations) = rest[:5], rest[5:]
    w = weights_of(*parts)
    mode = checks.check_grouped(x, w, sizes, bias, scale_rule, activations)
    return x, w, sizes, bias, mode, float_code(out_dtype, "out_dtype")


def _grouped(*args):
    return products.grouped_linear(*_grouped_arguments(*args))


def _grouped_fake(*args):
    x, w, *_ = _grouped_arguments(*args)
    return x.new_empty((x.shape[0], w.shape[1]), dtype=args[-2])


def _grouped_backward(grad, codes, scales, format, layout, n, sizes, x_dtype, bias_dtype):
    """Returns the gradients of x and of the bias."""
    k = checks.format_named(format).elements(codes.shape[-1])
    dx = grad.new_zeros((grad.shape[0], k), dtype=x_dtype)
    dbias = grad.new_zeros((codes.shape[0], n), dtype=bias_dtype)
    first = 0
    for expert, asked in enumerate(sizes.tolist()):
        # As the kernels of a GPU cut sizes; the CPU has refused those that do not fit.
        size = min(max(asked, 0), grad.shape[0] - first)
        rows = grad[first : first + size].float()
        if size:
            w = _dense(codes, scales, format, layout, n, expert)
            dx[first : first + size] = (rows @ w).to(x_dtype)
            dbias[expert] = rows.sum(0).to(bias_dtype)
        first += size
    return dx, dbias


def _grouped_backward_fake(grad, codes, scales, format, layout, n, sizes, x_dtype, bias_dtype):
    k = checks.format_named(format).elements(codes.shape[-1])
    dx = grad.new_empty((grad.shape[0], k), dtype=x_dtype)
    return dx, grad.new_empty((codes.shape[0], n), dtype=bias_dtype)


define("grouped_linear", f"({_GROUPED}, {_RULES}) -> Tensor", _grouped, _grouped_fake)
define(
    "grouped_linear_backward",
    f"(Tensor grad, {_EXPERTS.format('')}, Tensor group_sizes, ScalarType x_dtype,"
    " ScalarType bias_dtype) -> (Tensor, Tensor)",
    _grouped_backward,
    _grouped_backward_fake,
)


class _Backwards(torch.autograd.Function):
    """A function that says what it cannot do, which is all but to be differentiated backwards."""

    @staticmethod
    def jvp(ctx, *tangents):
        """Raises: there are no derivatives forwards."""
        raise NotImplementedError(
            "moe and grouped_linear: got tangents (jvp, jacfwd), expected to be differentiated "
            "backwards: torch.func.vjp, grad, jacrev"
        )

    @staticmethod
    def vmap(info, in_dims, *args):
        """Raises: nothing is mapped."""
        raise NotImplementedError(
            "moe and grouped_linear: got a tensor mapped by vmap, expected plain ones: give the "
            "tokens of all as one x"
        )


class GroupedLinear(_Backwards):
    """`torch.ops.mx_kernels.grouped_linear` with its derivatives."""

    @staticmethod
    def forward(*args):
        """Calls the operator."""
        return torch.ops.mx_kernels.grouped_linear(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keeps what the derivatives need."""
        x, codes, scales, *ctx.meaning, sizes, bias, _, _, _ = inputs
        ctx.save_for_backward(codes, scales, sizes)
        ctx.dtypes = x.dtype, x.dtype if bias is None else bias.dtype

    @staticmethod
    def backward(ctx, grad):
        """Returns the gradients of the arguments."""
        codes, scales, sizes = ctx.saved_tensors
        parts = codes, scales, *ctx.meaning, sizes
        dx, dbias = torch.ops.mx_kernels.grouped_linear_backward(grad, *parts, *ctx.dtypes)
        wants_x, *_, wants_bias, _, _, _ = ctx.needs_input_grad
        no_others = [None] * 6
        return dx if wants_x else None, *no_others, dbias if wants_bias else None, None, None, None


# moe


def _moe_arguments(x, *rest):
    """Checks a call; returns what `products` takes."""
    gate_up, down, (ids, counts, *rest) = weights_of(*rest[:5]), weights_of(*rest[5:10]), rest[10:]
    biases, gate = rest[:2], GateOptions(*rest[2:-3])
    scale_rule, out_dtype, activations = rest[-3:]
    call = x, gate_up, down, ids, counts, biases, gate, scale_rule, activations
    mode, gate = checks.check_moe(*call)
    dtype = float_code(out_dtype, "out_dtype")
    return x, (gate_up, down), ids, counts, biases, gate, mode, dtype


def _moe(*args):
    return products.moe(*_moe_arguments(*args))


def _moe_fake(*args):
    x, *_ = _moe_arguments(*args)
    return x.new_empty(x.shape, dtype=args[-2])


def _moe_backward(grad, x, *rest):
    """Returns the gradients of x, of the weights of the experts and of both biases.

    Expert by expert: the layer on its tokens again, and torch's derivatives of that.
    """
    gate_up, down, (ids, counts, *biases), gate = rest[:5], rest[5:10], rest[10:14], rest[14:]
    gate = GateOptions(*gate)
    dx = torch.zeros_like(x, dtype=torch.float32)
    dcounts = torch.zeros_like(counts, dtype=torch.float32)
    dbiases = [
        grad.new_zeros((part[0].shape[0], part[4]), dtype=torch.float32) for part in (gate_up, down)
    ]
    for expert in ids.unique().tolist():
        if expert < 0:
            continue
        if expert >= len(gate_up[0]):
            raise ValueError(
                f"expert_ids: got {expert}, expected at most {len(gate_up[0]) - 1} where gradients "
                "are asked for: the result of such a token is NaN"
            )
        tokens, slots = (ids == expert).nonzero(as_tuple=True)
        dense = [_dense(*part, expert) for part in (gate_up, down)]
        added = [
            total[expert] if bias is None else bias[expert].float()
            for bias, total in zip(biases, dbiases, strict=True)
        ]
        leaves = [
            leaf.detach().float().clone().requires_grad_()
            for leaf in (x[tokens], counts[tokens, slots], *added)
        ]
        with torch.enable_grad():
            rows, weights, *addends = leaves
            hidden = gated(rows @ dense[0].T + addends[0], gate)
            out = weights[:, None] * (hidden @ dense[1].T + addends[1])
        parts = torch.autograd.grad(out, leaves, grad[tokens].float())
        dx.index_add_(0, tokens, parts[0])
        dcounts[tokens, slots] = parts[1]
        for total, part in zip(dbiases, parts[2:], strict=True):
            total[expert] = part
    kinds = [bias.dtype if bias is not None else torch.float32 for bias in biases]
    dbiases = [total.to(kind) for total, kind in zip(dbiases, kinds, strict=True)]
    return dx.to(x.dtype), dcounts.to(counts.dtype), *dbiases


def _moe_backward_fake(grad, x, *rest):
    gate_up, down, (_, counts, *biases) = rest[:5], rest[5:10], rest[10:14]
    dbiases = [
        grad.new_empty(
            (part[0].shape[0], part[4]), dtype=torch.float32 if bias is None else bias.dtype
        )
        for part, bias in zip((gate_up, down), biases, strict=True)
    ]
    return torch.empty_like(x), torch.empty_like(counts), *dbiases


define("moe", f"({_MOE}, {_RULES}) -> Tensor", _moe, _moe_fake)
define(
    "moe_backward",
    f"(Tensor grad, {_MOE}) -> (Tensor, Tensor, Tensor, Tensor)",
    _moe_backward,
    _moe_backward_fake,
)


class Moe(_Backwards):
    """`torch.ops.mx_kernels.moe` with its derivatives."""

    COUNTS, BIASES = 12, (13, 14)
    """Where the schema has what has gradients, beside x."""
    RULES = 3
    """Arguments at the end that derivatives do not depend on."""

    @staticmethod
    def forward(*args):
        """Calls the operator."""
        return torch.ops.mx_kernels.moe(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keeps what the derivatives need: tensors apart, to find them again by place."""
        needed = inputs[: -Moe.RULES]
        ctx.save_for_backward(*(arg if isinstance(arg, Tensor) else None for arg in needed))
        ctx.others = [None if isinstance(arg, Tensor) else arg for arg in needed]

    @staticmethod
    def backward(ctx, grad):
        """Returns the gradients of the arguments."""
        pairs = zip(ctx.saved_tensors, ctx.others, strict=True)
        args = [other if tensor is None else tensor for tensor, other in pairs]
        places = 0, Moe.COUNTS, *Moe.BIASES
        grads = [None] * (len(args) + Moe.RULES)
        found = torch.ops.mx_kernels.moe_backward(grad, *args)
        for place, value in zip(places, found, strict=True):
            if ctx.needs_input_grad[place]:
                grads[place] = value
        return tuple(grads)


for _function, _name in ((GroupedLinear, "grouped_linear"), (Moe, "moe")):
    torch.library.register_autograd(
        f"mx_kernels::{_name}", _function.backward, setup_context=_function.setup_context
    )

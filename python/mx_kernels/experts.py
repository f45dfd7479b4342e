"""Products with one of several matrices for each row: layers of experts.

    grouped_linear    rows sorted by expert, one product each
    moe               a whole layer: route, multiply, gate, multiply, add up
    MXExperts         that layer as a torch module

The functions take the weights of all experts as one MXTensor [E, N, K], plain or preshuffled, and
quantize activations on the fly like `linear`. Their stages are those of `ops`. On the CPU, a row's
bits depend neither on the other rows nor on their order nor on the number of threads. On a GPU the
kernel, and with it the order of additions, follows from the numbers of rows and experts.

Sizes and ids that do not fit are refused on the CPU. A GPU reads them when it computes, and nothing
waits for it, so that calls can be captured in a CUDA graph: sizes are cut to the rows that there
are, and the id of no expert makes its token NaN.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling

from mx_kernels._core import expert_ops, products
from mx_kernels._core.arrays import array_of, float_code, show, tensor_of, watched
from mx_kernels._core.checks import (
    asked_or_best,
    check_biases,
    check_grouped,
    check_mode,
    check_moe,
    check_operand,
)
from mx_kernels._core.facts import DEFAULT_ROUNDING
from mx_kernels._core.gates import GateOptions, chosen_gate
from mx_kernels._core.moved import renamed
from mx_kernels.hints import ActivationsName, AnyArray, Array, FloatType, GateName, ScaleRule
from mx_kernels.modules import MXModule, parameter
from mx_kernels.ops import _dtype_of
from mx_kernels.tensor import MXTensor

_OPS = torch.ops.mx_kernels


@renamed(rounding="scale_rule")
def grouped_linear(
    x: AnyArray,
    w: MXTensor,
    group_sizes: Array,
    *,
    bias: Array | None = None,
    scale_rule: ScaleRule = DEFAULT_ROUNDING,
    out_dtype: FloatType | None = None,
    activations: ActivationsName | None = None,
) -> AnyArray:
    """Multiplies each group of rows by its expert: `linear(x[group e], w[e], bias=bias[e])`.

    On the CPU, the same bits as that loop, in one call. On a GPU it has kernels of its own, and
    some results differ in their last bits: float32 sums are taken in another order, and where
    either takes FP8 tensor cores (activations of MXFP4, MXFP8 or E4M3, results of two bytes), these
    cut off 2**-13 of the largest of 32 products. Of MXFP8 on an H200 3 % of bfloat16 results do.
    The gradients for x and bias are those of `linear`.

    >>> w, sizes = quantize(torch.randn(4, 8, 64)), torch.tensor([2, 0, 1, 2]).int()
    >>> grouped_linear(torch.randn(5, 64), w, sizes).shape
    torch.Size([5, 8])

    Args:
        x: activations [T, K], rows sorted by expert.
        w: weights [E, N, K], in any format and layout.
        group_sizes: rows of each expert [E], int32. Rows behind the last group become zero. A GPU
            takes a negative size for 0 and cuts the groups that go beyond x.
        bias: floats [E, N], added before the result is rounded.
        scale_rule: how x is quantized, as in `linear`.
        out_dtype: None is x's; else a name, a torch dtype or a NumPy dtype.
        activations: what x is multiplied as, as in `linear`.

    Raises:
        TypeError: if x holds no floats, w is no MXTensor or group_sizes holds no int32.
        ValueError: if shapes or devices do not fit together, or if, on the CPU, a size is negative
            or the sizes are more than the rows of x.
    """
    given = "grouped_linear", scale_rule, out_dtype, activations
    if not is_compiling() and type(x) is Tensor and type(w) is MXTensor:
        out = products.repeat(given, x, w, None, (group_sizes, bias))
        if out is not None:
            return out
    is_numpy = isinstance(x, np.ndarray)
    x, group_sizes, bias = map(tensor_of, (x, group_sizes, bias))
    if not is_compiling():
        mode = check_grouped(x, w, group_sizes, bias, scale_rule, activations)
        code = None if out_dtype is None else float_code(out_dtype, "out_dtype")
        if is_numpy or not watched(x, w.codes, w.scales, group_sizes, bias):
            rules = None if is_numpy else given
            out = products.grouped_linear(x, w, group_sizes, bias, mode, code, rules)
            return array_of(out) if is_numpy else out
    call = _OPS.grouped_linear if is_compiling() else expert_ops.GroupedLinear.apply
    rules = scale_rule, _dtype_of(x, out_dtype), asked_or_best(activations, w)
    return call(x, *expert_ops.parts_of(w, "w"), group_sizes, bias, *rules)


@renamed(rounding="scale_rule", activation="hidden_act")
def moe(
    x: AnyArray,
    w_gate_up: MXTensor,
    w_down: MXTensor,
    expert_ids: Array,
    expert_weights: Array,
    *,
    bias_gate_up: Array | None = None,
    bias_down: Array | None = None,
    hidden_act: GateName = "swiglu_oai",
    interleaved: bool | None = None,
    limit: float | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    linear_beta: float | None = None,
    apply_router_weight_on_input: bool = False,
    scale_rule: ScaleRule = DEFAULT_ROUNDING,
    out_dtype: FloatType | None = None,
    activations: ActivationsName | None = None,
) -> AnyArray:
    """Computes a layer of experts: each token goes to k of them, and their results are added up.

    For slot j of token t with expert e:

        gate, up = x[t] @ w_gate_up[e].T + bias_gate_up[e]
        hidden = activation(gate, up), rounded to x's dtype, then as `activations` says
        y[t] += expert_weights[t, j] * (hidden @ w_down[e].T + bias_down[e])

    Activations, with their numbers unless given; rows of gates and ups are in halves, but those of
    swiglu_oai take turns:

        silu           up * gate * sigmoid(alpha * gate)            limit inf, alpha 1
        swiglu_oai     (up + 1) * gate * sigmoid(alpha * gate)      limit 7, alpha 1.702
        swiglu_step    up * min(gate * sigmoid(gate), limit)        limit 7
        gelu_tanh      up * gelu(gate), gelu by tanh                limit inf
        situ           soft(up, linear_beta) * soft(gate, beta)     beta 4, linear_beta 25
                           * sigmoid(gate)
        relu2          max(up, 0)**2, without a gate                rows [E, I, H] of ups alone

    A gate is at most `limit` before (of swiglu_step its product is instead), and an up within
    +-`limit`; soft(x, cap) is cap * tanh(x / cap).

    Slots are added in order, in float32, and the sum is rounded once. Both products quantize their
    left side as `linear` does: hidden numbers that bfloat16 has rounded first get another code now
    and then than float32 ones would, see the guide to models. Gradients reach x, the expert weights
    and the biases; they are those of multiplying by the dequantized weights.

    >>> w_gate_up, w_down = quantize(torch.randn(4, 64, 32)), quantize(torch.randn(4, 32, 32))
    >>> ids, weights = torch.tensor([[0, 3], [2, -1]]), torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    >>> moe(torch.randn(2, 32), w_gate_up, w_down, ids, weights).shape
    torch.Size([2, 32])

    Args:
        x: tokens [T, H], any row stride.
        w_gate_up: weights [E, 2I, H], in any format and layout; [E, I, H] without a gate.
        w_down: weights [E, H, I], in any format and layout.
        expert_ids: the experts of each token [T, k], int32 or int64; a negative id is a slot
            without an expert, which adds nothing. On a GPU one that is too large makes NaN of
            its token.
        expert_weights: floats [T, k].
        bias_gate_up: floats [E, 2I]; [E, I] without a gate.
        bias_down: floats [E, H].
        hidden_act: what becomes of gates and ups, one of these.
        interleaved: whether rows of gates and their ups take turns, gate first, or come in halves,
            gates first. None is the activation's own order.
        limit: of gates and ups, math.inf for none; None is the activation's own.
        alpha: of "swiglu_oai" and "silu", likewise.
        beta: of "situ": the smooth limit of gates.
        linear_beta: of "situ": that of ups, math.inf for none.
        apply_router_weight_on_input: Whether a slot's weight multiplies its row of x, rounded to
            x's dtype, instead of its result (Llama 4).
        scale_rule: how x and the hidden numbers are quantized, as in `linear`.
        out_dtype: None is x's; else a name, a torch dtype or a NumPy dtype.
        activations: what both are multiplied as, as in `linear`.

    Raises:
        TypeError: if an argument is of another type or dtype.
        ValueError: if shapes or devices do not fit together, a name is unknown, a number is not
            positive or not the activation's, or, on the CPU, an id is that of no expert.
    """
    weights, choices = (w_gate_up, w_down), (interleaved, limit, alpha, beta, linear_beta)
    if apply_router_weight_on_input:
        arrays, rules = (x, expert_ids, expert_weights), (scale_rule, out_dtype, activations)
        arrays += bias_gate_up, bias_down
        return _moe_of_weighted(arrays, weights, GateOptions(hidden_act, *choices), rules)
    given = "moe", hidden_act, choices, *map(type, choices), scale_rule, out_dtype, activations
    are_tensors = type(x) is Tensor and type(w_gate_up) is type(w_down) is MXTensor
    if are_tensors and not is_compiling():
        others = expert_ids, expert_weights, bias_gate_up, bias_down
        out = products.repeat(given, x, w_gate_up, w_down, others)
        if out is not None:
            return out
    is_numpy, gate = isinstance(x, np.ndarray), GateOptions(hidden_act, *choices)
    arrays = x, expert_ids, expert_weights, bias_gate_up, bias_down
    x, expert_ids, expert_weights, *biases = map(tensor_of, arrays)
    if not is_compiling():
        routing = expert_ids, expert_weights
        mode, chosen = check_moe(x, *weights, *routing, biases, gate, scale_rule, activations)
        dtype = None if out_dtype is None else float_code(out_dtype, "out_dtype")
        bytes_of = (part for w in weights for part in (w.codes, w.scales))
        if is_numpy or not watched(x, *bytes_of, *routing, *biases):
            rules = None if is_numpy else given
            out = products.moe(x, weights, *routing, biases, chosen, mode, dtype, rules)
            return array_of(out) if is_numpy else out
    call = _OPS.moe if is_compiling() else expert_ops.Moe.apply
    parts = *expert_ops.parts_of(w_gate_up, "w_gate_up"), *expert_ops.parts_of(w_down, "w_down")
    rules = scale_rule, _dtype_of(x, out_dtype), asked_or_best(activations, w_down)
    return call(x, *parts, expert_ids, expert_weights, *biases, *gate.plain(), *rules)


def _moe_of_weighted(
    arrays: tuple, weights: tuple[MXTensor, MXTensor], gate: GateOptions, rules: tuple
) -> Array:
    """Computes `moe` of rows that were multiplied by the weights of their slots: a token each.

    Args:
        arrays: x, ids and weights of experts, and both biases.
        weights: those of `moe`.
        gate: its activation.
        rules: its rounding, out_dtype and activations.
    """
    is_numpy, (scale_rule, out_dtype, activations) = isinstance(arrays[0], np.ndarray), rules
    x, expert_ids, expert_weights, *biases = map(tensor_of, arrays)
    if not is_compiling():
        routing = expert_ids, expert_weights
        check_moe(x, *weights, *routing, biases, gate, scale_rule, activations)
    tokens, slots = expert_ids.shape
    rows = (x[:, None].float() * expert_weights[..., None].float()).to(x.dtype)
    named = dict(zip(("bias_gate_up", "bias_down"), biases, strict=True)) | gate._asdict()
    out_dtype = _dtype_of(x, out_dtype)
    y = moe(
        rows.flatten(0, 1),
        *weights,
        expert_ids.reshape(-1, 1),
        torch.ones_like(expert_weights).reshape(-1, 1),
        out_dtype=out_dtype if slots == 1 else torch.float32,
        scale_rule=scale_rule,
        activations=activations,
        **named,
    )
    if slots != 1:
        y = sum(y.view(tokens, slots, x.shape[1]).unbind(1), torch.zeros_like(x).float())
    y = y.to(out_dtype)
    return array_of(y) if is_numpy else y


class MXExperts(MXModule):
    """The experts of a mixture-of-experts layer: computes `moe` of its weights.

    Parameters and call are those of the experts in transformers 5: a router gives each token the
    ids and weights of its experts, `experts(hidden_states, top_k_index, top_k_weights)` does the
    rest. Without a gate, the first weights are its `up_proj`.

    Args:
        gate_up_proj: the quantized weights [E, 2I, H], in any format and layout; [E, I, H] of
            an activation without a gate.
        down_proj: the quantized weights [E, H, I].
        gate_up_proj_bias: floats, a number for each row of gate_up_proj, or None.
        down_proj_bias: floats [E, H], or None.
        hidden_act: what becomes of gates and ups, see `mx_kernels.moe`.
        interleaved: whether rows of gates and ups take turns, likewise.
        limit: likewise.
        alpha: likewise.
        beta: likewise.
        linear_beta: likewise.
        apply_router_weight_on_input: likewise.
        takes_rows: whether it is called with rows of each expert in turn, and nothing else.
        scale_rule: how activations are quantized.
        activations: what they are multiplied as, as in `linear`; what None stands for is settled
            here, by the device that the weights lie on.

    Raises:
        TypeError: if weights are not MXTensors, or biases hold no floats.
        ValueError: if shapes do not fit together, or a name is unknown.
    """

    WEIGHTS: tuple[str, ...] = ("gate_up_proj", "down_proj")

    num_experts: int
    hidden_size: int
    intermediate_size: int
    interleaved: bool | None

    @renamed(rounding="scale_rule", activation="hidden_act")
    def __init__(
        self,
        gate_up_proj: MXTensor,
        down_proj: MXTensor,
        *,
        gate_up_proj_bias: Tensor | None = None,
        down_proj_bias: Tensor | None = None,
        hidden_act: GateName = "silu",
        interleaved: bool | None = None,
        limit: float | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        linear_beta: float | None = None,
        apply_router_weight_on_input: bool = False,
        takes_rows: bool = False,
        scale_rule: ScaleRule = DEFAULT_ROUNDING,
        activations: ActivationsName | None = None,
    ):
        super().__init__()
        gate = GateOptions(hidden_act, interleaved, limit, alpha, beta, linear_beta)
        chosen = chosen_gate(gate)
        first = "gate_up_proj" if chosen.row.is_gated else "up_proj"
        self.WEIGHTS = first, "down_proj"
        weights = dict(zip(self.WEIGHTS, (gate_up_proj, down_proj), strict=True))
        biases = {f"{first}_bias": gate_up_proj_bias, "down_proj_bias": down_proj_bias}
        for name, w in weights.items():
            check_operand(w, name)
        up, down, row = gate_up_proj.shape, down_proj.shape, chosen.row
        if len(up) != 3 or len(down) != 3 or up != (down[0], row.sums(down[2]), down[1]):
            raise ValueError(
                f"{first} and down_proj: got {show(up)} and {show(down)}, expected "
                f"[E, {'2I' if row.is_gated else 'I'}, H] and [E, H, I]"
            )
        activations = asked_or_best(activations, down_proj)
        check_mode(activations, scale_rule)
        for (name, w), (bias_name, bias) in zip(weights.items(), biases.items(), strict=True):
            check_biases(bias, bias_name, w, name)
            self.register_parameter(name, parameter(w))
        for name, bias in biases.items():
            self.register_parameter(name, None if bias is None else parameter(bias))
        self.num_experts, self.hidden_size, self.intermediate_size = down
        for name, value in gate._asdict().items():
            setattr(self, name, value)
        self.interleaved = chosen.interleaved if row.is_gated else None
        self.apply_router_weight_on_input = apply_router_weight_on_input
        self.takes_rows = takes_rows
        self.scale_rule: ScaleRule = scale_rule
        self.activations: ActivationsName = activations
        self._warn_if_slow()

    @property
    def activation(self) -> GateName:
        """The old name of `hidden_act`."""
        warnings.warn("activation is hidden_act now", DeprecationWarning, stacklevel=2)
        return self.hidden_act

    def forward(
        self,
        hidden_states: Tensor,
        top_k_index: Tensor | None = None,
        top_k_weights: Tensor | None = None,
    ) -> Tensor:
        """Returns the weighted sum of each token's experts; with `takes_rows` each row's result.

        Args:
            hidden_states: tokens [..., H]; with `takes_rows` as many rows for each expert in turn.
                There a row of zeros, as Llama 4 has for tokens that go to others, gives zeros.
            top_k_index: the experts of each token [T, k]. The id E, which transformers gives to
                experts of other ranks, stands for no expert, and so does a negative one.
            top_k_weights: what their results count [T, k].

        Raises:
            TypeError: if ids and weights are missing, or given with `takes_rows`.
        """
        if (top_k_index is None, top_k_weights is None) != (self.takes_rows,) * 2:
            expected = "hidden_states alone" if self.takes_rows else "top_k_index, top_k_weights"
            raise TypeError(f"MXExperts: got takes_rows {self.takes_rows}, expected {expected}")
        if self.takes_rows:
            top_k_index, top_k_weights = self._own_rows(hidden_states)
        first, second = self.WEIGHTS
        is_flat = hidden_states.ndim == 2
        y = moe(
            hidden_states if is_flat else hidden_states.reshape(-1, self.hidden_size),
            getattr(self, first),
            getattr(self, second),
            top_k_index.masked_fill(top_k_index == self.num_experts, -1),
            top_k_weights,
            bias_gate_up=getattr(self, f"{first}_bias"),
            bias_down=getattr(self, f"{second}_bias"),
            hidden_act=self.hidden_act,
            interleaved=self.interleaved,
            limit=self.limit,
            alpha=self.alpha,
            beta=self.beta,
            linear_beta=self.linear_beta,
            apply_router_weight_on_input=self.apply_router_weight_on_input,
            scale_rule=self.scale_rule,
            activations=self.activations,
        )
        return y if is_flat else y.view(hidden_states.shape)

    def _own_rows(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """Returns ids and weights of rows of each expert in turn; -1 for rows of zeros."""
        rows = hidden_states.reshape(self.num_experts, -1, self.hidden_size)
        ids = torch.arange(self.num_experts, device=rows.device)[:, None]
        ids = torch.where(rows.ne(0).any(-1), ids, -1).reshape(-1, 1)
        return ids, torch.ones_like(ids, dtype=rows.dtype)

    def extra_repr(self) -> str:
        """Names sizes, gate, format, layout and rounding in the module's repr."""
        return (
            f"num_experts={self.num_experts}, hidden_size={self.hidden_size}, "
            f"intermediate_size={self.intermediate_size}, hidden_act={self.hidden_act}, "
            f"{self._show_choices()}"
        )

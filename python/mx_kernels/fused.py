"""What stands beside the products of a layer, with its result quantized at once.

    rms_norm_quantize, layer_norm_quantize    (x + residual ->) norm -> codes
    gate_quantize                             gates and ups -> hidden numbers -> codes
    mlp                                       a dense MLP: product, gate, product
    MXNorm                                    an RMS norm as a torch module, for MXLinear behind it
    MXMLP                                     a dense MLP as one, gates and ups by one product

Codes are those that `quantize` makes of the floats that would have been written in between.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from mx_kernels._core import fused_ops
from mx_kernels._core.arrays import Array, intercepted, torch_dtype, watched
from mx_kernels._core.checks import check_weights
from mx_kernels._core.facts import DEFAULT_FORMAT, DEFAULT_ROUNDING, facts
from mx_kernels._core.fused_ops import NormOptions
from mx_kernels._core.gates import GateOptions
from mx_kernels._core.moved import renamed
from mx_kernels._core.torch_ops import as_scales_of_call
from mx_kernels.experts import moe
from mx_kernels.hints import (
    ActivationsName,
    AnyArray,
    FloatType,
    FormatName,
    GateName,
    RoundsName,
    ScaleRule,
)
from mx_kernels.modules import MXLinear, arranged, join_parts
from mx_kernels.ops import matmul
from mx_kernels.tensor import MXTensor

_OPS = torch.ops.mx_kernels


@renamed(rounding="scale_rule")
def rms_norm_quantize(
    x: Array,
    weight: Array | None = None,
    *,
    eps: float = 1e-6,
    residual: Array | None = None,
    weight_offset: float = 0.0,
    rounds: RoundsName = "each",
    format: FormatName = DEFAULT_FORMAT,
    scale_rule: ScaleRule = DEFAULT_ROUNDING,
    tensor_scale: float | Array | None = None,
) -> MXTensor | tuple[MXTensor, Array]:
    """Quantizes `weight * x / sqrt(mean(x**2) + eps)`, computed in float32, in one pass.

    With a residual x + residual takes the place of x, rounded to its dtype, and is returned too.
    Models differ in where they round:

        rounds     rounded to x's dtype                              as in transformers
        each       what is normalized, and its product with the      LlamaRMSNorm, Qwen3RMSNorm
                   weight
        result     that product alone                                GptOssRMSNorm; with an offset
                                                                     of 1 Gemma3RMSNorm
        none       nothing: float32 is quantized

    The order of additions is fixed (`mojo_kernels/numbers/norms.mojo`): the same bits on every
    device, at any number of threads, for a row alone or among others. Another library that adds in
    another order gets another code now and then. Codes have no gradient; x + residual has.

    >>> q, stream = rms_norm_quantize(torch.ones(2, 64), torch.ones(64), residual=torch.ones(2, 64))
    >>> q.shape, stream[0, 0].item()
    (torch.Size([2, 64]), 2.0)

    Args:
        x: floats [..., K], any row stride; K is a multiple of 32.
        weight: floats [K]; None for none.
        eps: is added to the mean of squares.
        residual: floats of x's shape and dtype, added first.
        weight_offset: is added to the weight in float32: 1 for Gemma's.
        rounds: "each", "result" or "none", as above.
        format: as in `quantize`.
        scale_rule: as in `quantize`.
        tensor_scale: as in `quantize`.

    Returns:
        An MXTensor [..., K]; with a residual also x + residual.

    Raises:
        TypeError: if x, weight or residual are not arrays of floats, or a number is none.
        ValueError: as `quantize` does, and if shapes, dtypes or devices do not fit together.
    """
    options = NormOptions(False, eps, weight_offset, rounds)
    return _norm((x, weight, None, residual), options, (format, scale_rule, tensor_scale))


@renamed(rounding="scale_rule")
def layer_norm_quantize(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float = 1e-5,
    residual: Array | None = None,
    weight_offset: float = 0.0,
    rounds: RoundsName = "result",
    format: FormatName = DEFAULT_FORMAT,
    scale_rule: ScaleRule = DEFAULT_ROUNDING,
    tensor_scale: float | Array | None = None,
) -> MXTensor | tuple[MXTensor, Array]:
    """Quantizes `(x - mean) / sqrt(variance + eps) * weight + bias`, as `rms_norm_quantize` does.

    The variance is the mean square of x - mean. The product with the weight and the sum with the
    bias are rounded once.

    >>> layer_norm_quantize(torch.randn(2, 64), torch.ones(64), torch.zeros(64)).shape
    torch.Size([2, 64])

    Args:
        x: as in `rms_norm_quantize`, and so are all others.
        weight: floats [K]; None for none.
        bias: floats [K]; None for none.
        eps: is added to the variance.
        residual: floats of x's shape and dtype, added first.
        weight_offset: is added to the weight in float32.
        rounds: "each", "result" or "none".
        format: as in `quantize`.
        scale_rule: as in `quantize`.
        tensor_scale: as in `quantize`.

    Returns:
        An MXTensor [..., K]; with a residual also x + residual.

    Raises:
        TypeError, ValueError: as `rms_norm_quantize` does, and for a bias without a weight.
    """
    options = NormOptions(True, eps, weight_offset, rounds)
    return _norm((x, weight, bias, residual), options, (format, scale_rule, tensor_scale))


def _norm(arrays: tuple, options: NormOptions, rules: tuple):
    """Checks and launches a norm, or hands it over to torch."""
    (x, weight, bias, residual), (format, scale_rule, given) = arrays, rules
    if residual is not None and _wants_gradient(x, residual):
        # The same bits: float32 sums, rounded. The codes have no gradient, the sums do.
        fused_ops.norm_arguments(x, weight, bias, residual, options, *rules, is_fake=True)
        stream = x + residual
        return _norm((stream.detach(), weight, bias, None), options, rules), stream
    is_common = not is_compiling() and fused_ops.is_common_norm(*arrays, options)
    is_plain = is_common and not intercepted()
    if is_plain or not (is_compiling() or watched(*arrays)):
        arguments = fused_ops.norm_arguments(*arrays, options, *rules, is_common=is_common)
        codes, scales, stream = fused_ops.norm_quantize(*arguments)
    else:
        given = as_scales_of_call(given, x)
        arguments = (*options._replace(eps=float(options.eps)), format, scale_rule, given)
        codes, scales, stream = _OPS.norm_quantize(x, weight, bias, residual, *arguments)
    dtype = torch.float32 if options.rounds == "none" else torch_dtype(x)
    q = _tensor(codes, scales, format, dtype, x.shape if is_plain else None)
    return q if residual is None else (q, stream)


@renamed(rounding="scale_rule", activation="hidden_act")
def gate_quantize(
    x: Array,
    up: Array | None = None,
    *,
    hidden_act: GateName = "silu",
    interleaved: bool | None = None,
    limit: float | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    linear_beta: float | None = None,
    format: FormatName = DEFAULT_FORMAT,
    scale_rule: ScaleRule = DEFAULT_ROUNDING,
    tensor_scale: float | Array | None = None,
) -> MXTensor:
    """Quantizes hidden numbers, `activation(gate, up)` rounded to x's dtype, in one pass.

    Activations and their numbers are those of `moe`: `gate_quantize(gate, up)` is SwiGLU.

    >>> gate_quantize(torch.randn(2, 128)).shape
    torch.Size([2, 64])

    Args:
        x: gates [..., K], any row stride; without `up` gates and ups [..., 2K], as a product with
            the weights of both gives them; of "relu2", which has no gate, ups [..., K].
        up: ups of the shape and dtype of x.
        hidden_act: a name of the table of `moe`.
        interleaved: whether gates and ups take turns in x, gate first, or come in halves, gates
            first. None is the activation's own order.
        limit: as in `moe`.
        alpha: as in `moe`.
        beta: as in `moe`.
        linear_beta: as in `moe`.
        format: as in `quantize`.
        scale_rule: as in `quantize`.
        tensor_scale: as in `quantize`.

    Raises:
        TypeError: if x or up are not arrays of floats.
        ValueError: as `quantize` and `moe` do, and if shapes, dtypes or devices do not fit.
    """
    options = GateOptions(hidden_act, interleaved, limit, alpha, beta, linear_beta)
    rules = format, scale_rule, tensor_scale
    is_common = not is_compiling() and fused_ops.are_common_gates(x, up, options)
    is_plain = is_common and not intercepted()
    if is_plain or not (is_compiling() or watched(x, up)):
        arguments, _ = fused_ops.gate_arguments(x, up, options, *rules, is_common=is_common)
        codes, scales = fused_ops.gate_quantize(*arguments)
    else:
        given = as_scales_of_call(tensor_scale, x)
        codes, scales = _OPS.gate_quantize(x, up, *options.plain(), format, scale_rule, given)
    return _tensor(codes, scales, format, torch_dtype(x), x.shape if is_plain else None)


def _wants_gradient(*arrays: Array) -> bool:
    """Says whether torch is to remember what is done with tensors."""
    tensors = [array for array in arrays if isinstance(array, Tensor)]
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _tensor(
    codes: Tensor, scales: Tensor, format: str, dtype: torch.dtype, shape: torch.Size | None
) -> MXTensor:
    """Makes the result; with a shape its parts are plain tensors in memory, made just now."""
    if shape is not None:
        parts = {"format": format, "dtype": dtype, "measure": True}
        return MXTensor._trusted(codes, scales, shape, **parts)
    if is_compiling():
        return MXTensor(codes, scales, format=format, dtype=dtype)
    shape = (*codes.shape[:-1], facts().formats[format].elements(codes.shape[-1]))
    is_plain = type(codes) is Tensor and not intercepted()
    return MXTensor._trusted(codes, scales, shape, format=format, dtype=dtype, measure=is_plain)


@renamed(rounding="scale_rule", activation="hidden_act")
def mlp(
    x: AnyArray,
    w_gate_up: MXTensor,
    w_down: MXTensor,
    *,
    bias_gate_up: AnyArray | None = None,
    bias_down: AnyArray | None = None,
    hidden_act: GateName = "silu",
    interleaved: bool | None = None,
    limit: float | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    linear_beta: float | None = None,
    scale_rule: ScaleRule = DEFAULT_ROUNDING,
    out_dtype: FloatType | None = None,
    activations: ActivationsName | None = None,
) -> AnyArray:
    """Computes a dense MLP: `activation(x @ w_gate_up.T + bias) @ w_down.T + bias`.

    It is a layer of one expert that every row goes to, see `moe`: the gate is in the epilogue of
    the first product, whose sums never reach memory. Of codes, as a norm gives them, it is
    `matmul`, `gate_quantize` to their format and `matmul`, with float32 in between; no gradient
    passes the hidden numbers then.

    >>> w_gate_up, w_down = quantize(torch.randn(128, 32)), quantize(torch.randn(32, 64))
    >>> mlp(torch.randn(2, 3, 32), w_gate_up, w_down).shape
    torch.Size([2, 3, 32])

    Args:
        x: floats [..., H], or codes.
        w_gate_up: weights [2I, H], in any format and layout; [I, H] without a gate.
        w_down: weights [H, I].
        bias_gate_up: floats [2I]; [I] without a gate.
        bias_down: floats [H].
        hidden_act: what becomes of gates and ups, as in `moe`, and so are all others.
        interleaved: whether rows of gates and ups take turns, gate first, or come in halves.
        limit: of gates and ups.
        alpha: of "swiglu_oai" and "silu".
        beta: of "situ".
        linear_beta: of "situ".
        scale_rule: how x and the hidden numbers are quantized, as in `linear`.
        out_dtype: None is x's; else a name, a torch dtype or a NumPy dtype.
        activations: what both are multiplied as, as in `linear`; of codes their format.

    Raises:
        TypeError: if an argument is of another type or dtype.
        ValueError: as `moe` does.
    """
    for name, w in (("w_gate_up", w_gate_up), ("w_down", w_down)):
        check_weights(w, name)
    if isinstance(x, MXTensor):
        if activations not in {None, x.format}:
            raise ValueError(f"activations: got {activations!r} for codes, expected {x.format!r}")
        sums = matmul(x, w_gate_up, bias=bias_gate_up, out_dtype="float32")
        numbers = {"limit": limit, "alpha": alpha, "beta": beta, "linear_beta": linear_beta}
        rules = {"hidden_act": hidden_act, "interleaved": interleaved, "scale_rule": scale_rule}
        hidden = gate_quantize(sums, **rules, **numbers, format=x.format)
        return matmul(hidden, w_down, bias=bias_down, out_dtype=out_dtype or x.dtype)
    biases = {"bias_gate_up": bias_gate_up, "bias_down": bias_down}
    device = x.device if isinstance(x, Tensor) else "cpu"
    rows = x.reshape(-1, x.shape[-1])
    ids = torch.zeros(rows.shape[0], 1, dtype=torch.int32, device=device)
    ones = torch.ones(rows.shape[0], 1, dtype=torch.float32, device=device)
    if not isinstance(x, Tensor):
        ids, ones = ids.numpy(), ones.numpy()
    y = moe(
        rows,
        w_gate_up.unsqueeze(0),
        w_down.unsqueeze(0),
        ids,
        ones,
        **{name: bias if bias is None else bias[None] for name, bias in biases.items()},
        hidden_act=hidden_act,
        interleaved=interleaved,
        limit=limit,
        alpha=alpha,
        beta=beta,
        linear_beta=linear_beta,
        scale_rule=scale_rule,
        out_dtype=out_dtype,
        activations=activations,
    )
    return y.reshape(*x.shape[:-1], y.shape[-1])


class MXNorm(nn.Module):
    """Computes `rms_norm_quantize(x, weight)` where no gradient is wanted, else the norm in floats.

    Args:
        weight: floats [K].
        eps: is added to the mean of squares.
        rounds: where the norm rounds, as in `rms_norm_quantize`: "each" or "result".
        weight_offset: is added to the weight in float32, of "result".
        format: of the codes.
        scale_rule: how they are quantized.
    """

    def __init__(
        self,
        weight: Tensor,
        *,
        eps: float,
        rounds: RoundsName,
        weight_offset: float = 0.0,
        format: FormatName,
        scale_rule: ScaleRule,
    ):
        super().__init__()
        is_parameter = isinstance(weight, nn.Parameter)
        self.weight: nn.Parameter = weight if is_parameter else nn.Parameter(weight)
        self.eps: float = eps
        self.rounds: RoundsName = rounds
        self.weight_offset: float = weight_offset
        self.format: FormatName = format
        self.scale_rule: ScaleRule = scale_rule

    def forward(self, x: Tensor) -> MXTensor | Tensor:
        """Returns the codes of normalized rows [..., K]; floats where a gradient is wanted."""
        weight = self.weight
        # Of another dtype, transformers' result would have it.
        is_usual = self.rounds == "result" or weight.dtype == x.dtype
        if is_usual and not _wants_gradient(x, weight):
            rules = {"rounds": self.rounds, "format": self.format, "scale_rule": self.scale_rule}
            rules["weight_offset"] = self.weight_offset
            return rms_norm_quantize(x, weight, eps=self.eps, **rules)
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        if self.rounds == "result":
            factor = weight.float() + self.weight_offset if self.weight_offset else weight
            return (factor * y).to(x.dtype)
        return weight * y.to(x.dtype)

    def extra_repr(self) -> str:
        """Names its numbers in the module's repr."""
        size, gives = self.weight.shape[0], f"{self.format}, {self.scale_rule}"
        return f"{size}, eps={self.eps}, rounds={self.rounds}, gives {gives}"


class MXMLP(nn.Module):
    """Computes `down_proj(act_fn(gate_proj(x)) * up_proj(x))`, gates and ups by one product.

    On a CPU with the bits of two: a column depends on no other. Its state dict has the names and
    the tensors of three layers, and so loads and is loaded wherever theirs is.

    Args:
        gate_proj: of weights like those of up_proj: see `MXMLP.obstacle`.
        up_proj: of as many outputs.
        down_proj: what their product is given to.
        act_fn: what becomes of gates.
    """

    def __init__(
        self, gate_proj: MXLinear, up_proj: MXLinear, down_proj: nn.Module, act_fn: Callable
    ):
        super().__init__()
        reason = self.obstacle(gate_proj, up_proj)
        if reason is not None:
            raise ValueError(f"MXMLP: got layers of two kinds: {reason}")
        weight = _joined(gate_proj.weight.detach(), up_proj.weight.detach())
        bias, rules = gate_proj.bias, gate_proj._rules()
        if bias is not None:
            wants_gradient = bias.requires_grad or up_proj.bias.requires_grad
            bias = nn.Parameter(torch.cat([bias.detach(), up_proj.bias.detach()]), wants_gradient)
        self.gate_up_proj: MXLinear = MXLinear(weight, bias, **rules).train(gate_proj.training)
        self.down_proj: nn.Module = down_proj
        self.act_fn: Callable = act_fn
        self.register_state_dict_post_hook(_split_state)

    @staticmethod
    def obstacle(gate_proj: nn.Module, up_proj: nn.Module) -> str | None:
        """Says why two layers cannot be one product; None if they can."""
        layers = {"gate_proj": gate_proj, "up_proj": up_proj}
        for name, layer in layers.items():
            if type(layer) is not MXLinear or not isinstance(layer.weight, MXTensor):
                return f"{name} is a {type(layer).__name__}"
        kinds = set()
        for layer in layers.values():
            w, bias = layer.weight, layer.bias
            of_weight = w.format, w.dtype, w.shape, w.device
            kinds.add((*of_weight, *layer._rules().values(), bias is None or bias.dtype))
        if len(kinds) > 1:
            return "gate_proj and up_proj differ in format, activations, shape or bias"
        block_rows = facts().formats[gate_proj.format].block_rows
        if gate_proj.out_features % block_rows:
            return f"rows of gate_proj fill no blocks of {block_rows} rows"
        return None

    def forward(self, x: Tensor) -> Tensor:
        """Returns the result for x [..., in_features], floats or codes."""
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(self.act_fn(gate) * up)

    def split(self) -> tuple[MXLinear, MXLinear]:
        """Returns gate_proj and up_proj again."""
        both = self.gate_up_proj
        biases = (None, None) if both.bias is None else _halves(both.bias)
        weights, device = _halves(both.weight.detach()), both.weight.device
        pairs = zip(map(arranged, weights, (device, device)), biases, strict=True)
        gate_proj, up_proj = (MXLinear(*pair, **both._rules()) for pair in pairs)
        return gate_proj.train(both.training), up_proj.train(both.training)

    def _load_from_state_dict(self, state_dict, prefix, *args):
        """Joins the entries of a state dict, which is a copy; one alone stays, unexpected."""
        try:
            for name in ("gate_proj", "up_proj"):
                join_parts(state_dict, f"{prefix}{name}.")
            for part in ("weight", "bias"):
                keys = [f"{prefix}{name}.{part}" for name in ("gate_proj", "up_proj")]
                if all(key in state_dict for key in keys):
                    halves = [state_dict.pop(key) for key in keys]
                    if {isinstance(half, MXTensor) for half in halves} == {True, False}:
                        got = " and ".join(type(half).__name__ for half in halves)
                        raise TypeError(f"{keys[0]} and {keys[1]}: got {got}, expected MXTensors")
                    state_dict[f"{prefix}gate_up_proj.{part}"] = _joined(*halves)
        except (TypeError, ValueError) as error:
            args[-1].append(f"{prefix.removesuffix('.') or type(self).__name__}: {error}")
            return
        super()._load_from_state_dict(state_dict, prefix, *args)


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Returns rows behind rows: in the layout they have if they fill its tiles, else plain."""
    if (
        isinstance(first, MXTensor)
        and isinstance(second, MXTensor)
        and (first.byte_layout != second.byte_layout or not _fill_tiles(first, first.shape[0]))
    ):
        return arranged(torch.cat([first.unshuffle(), second.unshuffle()]))
    return torch.cat([first, second])


def _halves(both: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both halves of rows: views, or of a layout whose tiles they share, plain copies."""
    if isinstance(both, MXTensor) and not _fill_tiles(both, both.shape[0] // 2):
        both = both.unshuffle()
    return both.chunk(2)


def _fill_tiles(w: MXTensor, rows: int) -> bool:
    """Says whether so many rows end with a tile of a layout."""
    return rows % facts().layouts[w.byte_layout].row_unit(facts().formats[w.format]) == 0


def _split_state(mlp: MXMLP, state_dict: dict, prefix: str, _metadata: dict) -> None:
    """Gives the entries of a state dict the names of three layers, in their order."""
    entries = {key: state_dict.pop(key) for key in [*state_dict] if key.startswith(prefix)}
    both = f"{prefix}gate_up_proj."
    joined = [key for key in entries if key.startswith(both)]
    halves = {key.removeprefix(both): _halves(entries.pop(key)) for key in joined}
    for place, name in enumerate(("gate_proj", "up_proj")):
        state_dict |= {f"{prefix}{name}.{part}": two[place] for part, two in halves.items()}
    state_dict |= entries

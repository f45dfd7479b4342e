"""MXLinear: `nn.Linear` with quantized weights, and activations quantized on the fly or kept.

    weight    parameter, an MXTensor without a gradient: bytes, format and layout in one
    bias      parameter, or absent

Loading a state dict that was saved in another layout moves the bytes to this module's; one of
another format is refused, because its numbers are others. State dicts of the former form, with
`weight_codes`, `weight_scales` and `_extra_state`, still load.
`MXModule` is what it shares with `MXExperts`: where weights lie, and how they are loaded.
"""

from __future__ import annotations

import json
import warnings

import torch
from torch import Tensor, nn

from mx_kernels import ops
from mx_kernels._core.arrays import show
from mx_kernels._core.checks import (
    asked_or_best,
    check_bias,
    check_hadamard,
    check_mode,
    check_operand,
    check_rounding,
    layout_named,
    mode_rounding,
)
from mx_kernels._core.facts import (
    DEFAULT_FORMAT,
    DEFAULT_ROUNDING,
    activations_for,
    facts,
    weights_format,
)
from mx_kernels._core.moved import renamed
from mx_kernels.hints import ActivationsName, FormatName, LayoutName, ScaleRule
from mx_kernels.integrations import torch_distributed
from mx_kernels.tensor import MXTensor


class MXModule(nn.Module):
    """A module whose weights are MXTensors: of one format and layout, without gradients."""

    WEIGHTS: tuple[str, ...]
    """The names of those parameters."""

    scale_rule: ScaleRule
    activations: ActivationsName

    @property
    def format(self) -> FormatName:
        """The weights' format."""
        return self._own_part().format

    @property
    def layout(self) -> LayoutName:
        """The weights' layout."""
        return self._own_part().byte_layout

    def _own_part(self) -> MXTensor:
        """Returns the first weight, or what this rank has of it."""
        weight = getattr(self, self.WEIGHTS[0])
        return weight if isinstance(weight, MXTensor) else weight.to_local()

    def _apply(self, fn, recurse=True):
        """Moves the module, which nn.Module does through this function."""
        before = self._parameters[self.WEIGHTS[0]].device
        super()._apply(fn, recurse)
        if self._parameters[self.WEIGHTS[0]].device != before:
            self._warn_if_slow()
        return self

    def _warn_if_slow(self) -> None:
        """Warns, once a process, where the weights lie on a device that has a faster layout."""
        weight = self._own_part()
        best = facts().layout_for(weight.device, self.format, weight.k)
        if best is not None and best.name != self.layout:
            warnings.warn(
                f"{type(self).__name__}: weights in layout {self.layout!r} on {weight.device}, "
                f"whose kernels read {best.name!r} faster: up to 4 times for a single row; make "
                "the module from weight.preshuffle()",
                stacklevel=3,
            )

    def _rules(self) -> dict:
        """What activations become, as the operations take it."""
        return {"scale_rule": self.scale_rule, "activations": self.activations}

    @property
    def rounding(self) -> ScaleRule:
        """The old name of `scale_rule`."""
        warnings.warn("rounding is scale_rule now", DeprecationWarning, stacklevel=2)
        return self.scale_rule

    def _show_choices(self) -> str:
        return (
            f"format={self.format}, layout={self.layout}, scale_rule={self.scale_rule}, "
            f"activations={self.activations}"
        )

    def _load_from_state_dict(self, state_dict, prefix, *args):
        """Loads, as nn.Module does through this function, what fits; `state_dict` is a copy."""
        try:
            for name in self.WEIGHTS:
                self._adapt(state_dict, prefix, name)
        except (TypeError, ValueError) as error:
            error_msgs = args[-1]
            error_msgs.append(f"{prefix.removesuffix('.') or type(self).__name__}: {error}")
            return
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _adapt(self, state_dict: dict, prefix: str, name: str) -> None:
        """Puts saved weights into this module's layout."""
        saved, own = state_dict.get(prefix + name), getattr(self, name)
        if saved is None:
            return
        if not isinstance(saved, MXTensor):
            raise TypeError(
                f"{name}: got {type(saved).__name__}, expected an MXTensor; quantize floats first: "
                f"mx_kernels.quantize({name})"
            )
        for fact in ("format", "shape"):
            got, expected = getattr(saved, fact), getattr(own, fact)
            if got != expected:
                got, expected = (show(v) if fact == "shape" else v for v in (got, expected))
                raise ValueError(f"got {fact} {got}, expected {expected}")
        if saved.byte_layout != own.byte_layout:
            state_dict[prefix + name] = saved._relayout(layout_named(own.byte_layout))


class MXLinear(MXModule, nn.Linear):
    """Computes `linear(x, weight, bias=bias)`; see `mx_kernels.linear` for its gradient.

    To other libraries it is an `nn.Linear`: PEFT puts adapters beside it, and torch's tensor
    parallel styles cut it. What computes with weights itself, as merging an adapter does, raises.

    Args:
        weight: the quantized weights [out_features, in_features], in any format and layout.
        bias: [out_features] floats, or None.
        scale_rule: how activations are quantized.
        activations: what they are multiplied as, as in `linear`; what None stands for is settled
            here, by the device that the weight lies on.
        hadamard: how many of their neighbours are rotated together, as in `linear`. It is no part
            of a state dict.

    Raises:
        TypeError: if weight is not an MXTensor, or bias holds no floats.
        ValueError: if weight is not 2-D, bias does not fit, or a name is unknown.
    """

    WEIGHTS: tuple[str, ...] = ("weight",)

    in_features: int
    out_features: int

    @renamed(rounding="scale_rule")
    def __init__(
        self,
        weight: MXTensor,
        bias: Tensor | None = None,
        *,
        scale_rule: ScaleRule = DEFAULT_ROUNDING,
        activations: ActivationsName | None = None,
        hadamard: int | None = None,
    ):
        nn.Module.__init__(self)  # That of nn.Linear makes weights.
        check_operand(weight, "weight")
        if weight.ndim != 2:
            raise ValueError(f"weight: got shape {list(weight.shape)}, expected [out, in]")
        check_rounding(scale_rule)
        activations = asked_or_best(activations, weight)
        check_mode(activations, scale_rule)
        check_hadamard(hadamard, weight)
        if bias is not None:
            check_bias(bias, weight)
        self.out_features, self.in_features = weight.shape
        self.scale_rule: ScaleRule = scale_rule
        self.activations: ActivationsName = activations
        self.hadamard: int | None = hadamard
        self.register_parameter("weight", parameter(weight))
        self.register_parameter("bias", None if bias is None else parameter(bias))
        self._warn_if_slow()

    @classmethod
    @renamed(rounding="scale_rule")
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        format: FormatName = DEFAULT_FORMAT,
        scale_rule: ScaleRule = DEFAULT_ROUNDING,
        device: str | torch.device | None = None,
        activations: ActivationsName | None = None,
    ) -> MXLinear:
        """Quantizes the weights of `linear`; the bias is shared, not copied.

        Args:
            linear: float weights, in_features a multiple of the block size.
            format: what the weights are quantized to; "fp8_block" is "fp8_block_2d" for them.
            scale_rule: how the weights and, in each call, the activations are quantized.
            device: whose layout the weights get, as in `preshuffle`. None is the layout of
                the device they lie on, plain if it has none.
            activations: what activations are multiplied as: a format, or "bf16", where the
                rounding is that of the weights alone. None is as in `linear`.
        """
        if not isinstance(linear, nn.Linear) or isinstance(linear, MXLinear):
            raise TypeError(f"linear: got {type(linear).__name__}, expected an nn.Linear")
        if activations is None:
            activations = activations_for(device or linear.weight.device, format)
        weight = quantized(linear.weight, format=format, scale_rule=scale_rule, device=device)
        calls = mode_rounding(activations, scale_rule)
        self = cls(weight, linear.bias, scale_rule=calls, activations=activations)
        return self.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        """Returns x @ weight.T + bias for x [..., in_features], floats or codes of any format."""
        weight, bias = self._own_parameters()
        if isinstance(x, MXTensor):
            return ops.matmul(x, weight, bias=bias, out_dtype=x.dtype)
        product = ops.linear if isinstance(weight, MXTensor) else torch_distributed.linear
        return product(x, weight, bias=bias, **self._rules())

    def _own_parameters(self) -> tuple[Tensor, Tensor | None]:
        """Returns weight and bias, without nn.Module's search where they are still parameters."""
        own = self._parameters
        if "weight" in own and "bias" in own:
            return own["weight"], own["bias"]
        return self.weight, self.bias

    def _rules(self) -> dict:
        return {
            "scale_rule": self.scale_rule,
            "activations": self.activations,
            "hadamard": self.hadamard,
        }

    def extra_repr(self) -> str:
        """Names sizes, format, layout and rounding in the module's repr."""
        rotation = f", hadamard={self.hadamard}" if self.hadamard else ""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, {self._show_choices()}{rotation}"
        )

    def _adapt(self, state_dict: dict, prefix: str, name: str) -> None:
        join_parts(state_dict, prefix)
        super()._adapt(state_dict, prefix, name)


def quantized(
    weight: Tensor,
    *,
    format: FormatName,
    scale_rule: ScaleRule,
    device: str | torch.device | None = None,
) -> MXTensor:
    """Quantizes float weights and gives them the layout of `device`.

    None is the device they lie on, see `arranged`.
    """
    weight = ops.quantize(weight.detach(), format=weights_format(format), scale_rule=scale_rule)
    return arranged(weight, device)


def arranged(weight: MXTensor, device: str | torch.device | None = None) -> MXTensor:
    """Returns weights in the layout of `device`, which may be themselves.

    None is the device they lie on, where they stay as they are if it has no layout of its own.
    """
    if device is not None or facts().layout_for(weight.device):
        return ops.preshuffle(weight, device=device)
    return weight


def parameter(value: Tensor) -> nn.Parameter:
    """Returns `value` itself if it is a parameter, else one without a gradient."""
    if isinstance(value, nn.Parameter):
        return value
    return nn.Parameter(value, requires_grad=False)


FORMER_NAMES = ("weight_codes", "weight_scales", "_extra_state")
"""What a state dict had before weights were one tensor: bytes, and what they mean as JSON."""


def join_parts(state_dict: dict[str, Tensor], prefix: str) -> None:
    """Makes one weight of the entries of a former state dict."""
    names = [prefix + name for name in FORMER_NAMES]
    present = [name for name in names if name in state_dict]
    if not present:
        return
    if len(present) < len(names):
        raise ValueError(
            f"got {', '.join(present)}, expected {', '.join(names)}: codes and scales mean "
            "nothing without the layout that is saved beside them"
        )
    codes, scales, state = (state_dict.pop(name) for name in names)
    try:
        meaning = json.loads(bytes(state.tolist()))
        meaning = {name: meaning[name] for name in ("format", "layout", "shape")}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"_extra_state: got {state!r}, expected what MXLinear saved") from error
    state_dict[prefix + "weight"] = MXTensor(codes, scales, **meaning)

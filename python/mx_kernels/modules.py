"""MXLinear: `nn.Linear` with quantized weights, and activations quantized on the fly or kept.

    weight    parameter, an MXTensor without a gradient: bytes, format and layout in one
    bias      parameter, or absent

Loading a state dict that was saved in another layout moves the bytes to this module's; one of
another format is refused, because its numbers are others. State dicts of the former form, with
`weight_codes`, `weight_scales` and `_extra_state`, still load.
`convert` replaces the linear layers of a model.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable

from torch import Tensor, nn

from mx_kernels import ops
from mx_kernels._arrays import check_floats, show
from mx_kernels._checks import (
    check_bias,
    check_mode,
    check_operand,
    check_rounding,
    format_named,
    layout_named,
    mode_rounding,
)
from mx_kernels._facts import DEFAULT_FORMAT, DEFAULT_ROUNDING, activations_for, facts
from mx_kernels.tensor import MXTensor


class MXLinear(nn.Module):
    """Computes `linear(x, weight, bias=bias)`; see `mx_kernels.linear` for its gradient.

    Args:
        weight: the quantized weights [out_features, in_features], in any format and layout.
        bias: [out_features] floats, or None.
        rounding: how activations are quantized.
        activations: what they are multiplied as: a format, or "bf16", which takes no `rounding`.

    Raises:
        TypeError: if weight is not an MXTensor, or bias holds no floats.
        ValueError: if weight is not 2-D, bias does not fit, or a name is unknown.
    """

    def __init__(
        self,
        weight: MXTensor,
        bias: Tensor | None = None,
        *,
        rounding: str = DEFAULT_ROUNDING,
        activations: str = DEFAULT_FORMAT,
    ):
        super().__init__()
        check_operand(weight, "weight")
        if weight.ndim != 2:
            raise ValueError(f"weight: got shape {list(weight.shape)}, expected [out, in]")
        check_rounding(rounding)
        check_mode(activations, rounding)
        if bias is not None:
            check_bias(bias, weight)
        self.out_features, self.in_features = weight.shape
        self.rounding = rounding
        self.activations = activations
        self.register_parameter("weight", _parameter(weight))
        self.register_parameter("bias", None if bias is None else _parameter(bias))
        self._warn_if_slow()

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        format: str = DEFAULT_FORMAT,
        rounding: str = DEFAULT_ROUNDING,
        device: str | None = None,
        activations: str | None = None,
    ) -> MXLinear:
        """Quantizes the weights of `linear`; the bias is shared, not copied.

        Args:
            linear: float weights, in_features a multiple of the block size.
            format: what the weights are quantized to.
            rounding: how the weights and, in each call, the activations are quantized.
            device: whose layout the weights get, as in `preshuffle`. None is the layout of
                the device they lie on, plain if it has none.
            activations: what activations are multiplied as: a format, or "bf16", where the
                rounding is that of the weights alone. None is what the device is best at:
                "mxint8" for weights of a CPU, "mxfp4" for others.
        """
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"linear: got {type(linear).__name__}, expected an nn.Linear")
        if activations is None:
            activations = activations_for(device or linear.weight.device)
        weight = ops.quantize(linear.weight.detach(), format=format, rounding=rounding)
        if device is not None or facts().layout_for(weight.device):
            weight = ops.preshuffle(weight, device=device)
        calls = mode_rounding(activations, rounding)
        self = cls(weight, linear.bias, rounding=calls, activations=activations)
        return self.train(linear.training)

    @property
    def format(self) -> str:
        """The weights' format."""
        return self.weight.format

    @property
    def layout(self) -> str:
        """The weights' layout."""
        return self.weight.layout

    def _apply(self, fn, recurse=True):
        """Moves the module, which nn.Module does through this function."""
        before = self.weight.device
        super()._apply(fn, recurse)
        if self.weight.device != before:
            self._warn_if_slow()
        return self

    def _warn_if_slow(self) -> None:
        """Warns, once a process, where the weights lie on a device that has a faster layout."""
        best = facts().layout_for(self.weight.device)
        if best is not None and best.name != self.layout:
            warnings.warn(
                f"MXLinear: weights in layout {self.layout!r} on {best.device}, whose kernels read "
                f"{best.name!r} faster: up to 4 times for a single row; make the module from "
                "weight.preshuffle()",
                stacklevel=3,
            )

    def forward(self, x: Tensor) -> Tensor:
        """Returns x @ weight.T + bias for x [..., in_features]."""
        rules = {"rounding": self.rounding, "activations": self.activations}
        return ops.linear(x, self.weight, bias=self.bias, **rules)

    def extra_repr(self) -> str:
        """Names sizes, format, layout and rounding in the module's repr."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, format={self.format}, layout={self.layout}, "
            f"rounding={self.rounding}, activations={self.activations}"
        )

    def _load_from_state_dict(self, state_dict, prefix, *args):
        """Loads, as nn.Module does through this function, what fits; `state_dict` is a copy."""
        try:
            self._adapt(state_dict, prefix)
        except (TypeError, ValueError) as error:
            error_msgs = args[-1]
            error_msgs.append(f"{prefix.removesuffix('.') or 'MXLinear'}: {error}")
            return
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _adapt(self, state_dict: dict, prefix: str) -> None:
        """Puts the saved weights into this module's layout."""
        _join_parts(state_dict, prefix)
        name = prefix + "weight"
        if name not in state_dict:
            return
        saved = state_dict[name]
        if not isinstance(saved, MXTensor):
            raise TypeError(
                f"weight: got {type(saved).__name__}, expected an MXTensor; quantize floats first: "
                "mx_kernels.quantize(weight)"
            )
        for fact in ("format", "shape"):
            got, expected = getattr(saved, fact), getattr(self.weight, fact)
            if got != expected:
                got, expected = (show(v) if fact == "shape" else v for v in (got, expected))
                raise ValueError(f"got {fact} {got}, expected {expected}")
        if saved.layout != self.layout:
            state_dict[name] = saved._relayout(layout_named(self.layout))


def _parameter(value: Tensor) -> nn.Parameter:
    """Returns `value` itself if it is a parameter, else one without a gradient."""
    if isinstance(value, nn.Parameter):
        return value
    return nn.Parameter(value, requires_grad=False)


FORMER_NAMES = ("weight_codes", "weight_scales", "_extra_state")
"""What a state dict had before weights were one tensor: bytes, and what they mean as JSON."""


def _join_parts(state_dict: dict, prefix: str) -> None:
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


def convert(
    model: nn.Module,
    filter: Callable[[str, nn.Linear], bool] | None = None,
    *,
    format: str = DEFAULT_FORMAT,
    rounding: str = DEFAULT_ROUNDING,
    device: str | None = None,
    activations: str | None = None,
) -> nn.Module:
    """Replaces the linear layers of `model` in place by MXLinear; returns the model.

    A module that is used in several places stays one module. Subclasses of `nn.Linear` are
    left alone, because they compute something else.

    Args:
        model: any module; an `nn.Linear` itself comes back as an MXLinear.
        filter: called as `filter(name, module)`; True converts. None converts all.
        format: what weights are quantized to: "mxfp4", "mxfp8", "mxfp8_e5m2" or "mxint8".
        rounding: how weights and activations are quantized; see `MXLinear.from_linear`.
        device: whose layout the weights get; see `MXLinear.from_linear`.
        activations: what activations are multiplied as; see `MXLinear.from_linear`.

    Raises:
        TypeError: if an argument is of another kind, or the weights of a selected layer are of
            another type than bfloat16, float16 or float32.
        ValueError: if nothing was selected, or a selected layer's in_features is not a multiple
            of the block size. Nothing is replaced then.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: got {type(model).__name__}, expected an nn.Module")
    if filter is not None and not callable(filter):
        raise TypeError(
            f"filter: got {type(filter).__name__}, expected a function of a name and a module: "
            "filter=lambda name, module: name in names"
        )
    linears = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
    chosen = {n: m for n, m in linears.items() if filter is None or filter(n, m)}
    block = format_named(format).block_k
    ragged = [
        f"{name or 'model'} ({module.in_features})"
        for name, module in chosen.items()
        if module.in_features % block or not module.in_features
    ]
    if ragged:
        raise ValueError(
            f"in_features: got {', '.join(ragged)}, expected multiples of {block}; leave these "
            "layers out with filter=lambda name, module: ..."
        )
    for name, module in chosen.items():
        check_floats(module.weight, f"{name or 'model'}.weight")
    if not chosen:
        raise ValueError(
            f"got {len(linears)} nn.Linear in the model and none selected by the filter, "
            "expected at least one"
        )
    choices = {
        "format": format,
        "rounding": rounding,
        "device": device,
        "activations": activations,
    }
    converted = {id(module): MXLinear.from_linear(module, **choices) for module in chosen.values()}
    if id(model) in converted:
        return converted[id(model)]
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if id(module) in converted:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, converted[id(module)])
    return model

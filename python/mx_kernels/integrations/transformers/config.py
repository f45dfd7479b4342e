"""MXConfig: what becomes of weights and activations, as config.json says it.

    "quantization_config": {"quant_method": "mx_kernels", "format": "mxfp4", "scale_rule": "even",
                            "activations": "mxint8", "modules_to_not_convert": [], "include": []}

Of a saved model the files themselves say which weights are quantized, to what format. What is left
to the config is how activations are multiplied: by one name for all layers, or by layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from transformers.quantizers import register_quantization_config
from transformers.utils.quantization_config import QuantizationConfigMixin

from mx_kernels._core.checks import check_mode, check_rounding, format_named, mode_rounding
from mx_kernels._core.facts import DEFAULT_FORMAT, DEFAULT_ROUNDING
from mx_kernels._core.moved import renamed
from mx_kernels.checkpoints.configs import OURS
from mx_kernels.conversion.rules import Pattern, patterns_of
from mx_kernels.hints import ActivationsName, FormatName, ScaleRule


@register_quantization_config(OURS)
class MXConfig(QuantizationConfigMixin):
    """Asks transformers for MXLinear and MXExperts.

    Which layers stay floats, and why, is what `mx_kernels.convert` says.

    >>> config = MXConfig(format="mxfp4", modules_to_not_convert=["layers.0"])
    >>> model = AutoModelForCausalLM.from_pretrained(path, quantization_config=config)

    Args:
        format: what weights are quantized to, see `mx_kernels.quantize`.
        activations: what activations are multiplied as: a format, or "bf16". None is what the
            device is best at. A mapping chooses by layer, see `mx_kernels.convert`.
        scale_rule: how weights and activations are quantized; in a saved config by layer, too.
        modules_to_not_convert: names of modules that are left alone; `keep` of `convert`.
        include: names of modules that are quantized although a rule would keep them.
        hadamard: of a saved config: the layers that rotate what they are given, and in which
            blocks; see `mx_kernels.MXLinear`.
        quant_method: "mx_kernels", which a config.json has.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if a name is unknown.
    """

    is_saved = False
    """Whether `save_pretrained` wrote it, which names a format where other writers do not."""

    @renamed(rounding="scale_rule")
    def __init__(
        self,
        *,
        format: FormatName = DEFAULT_FORMAT,
        activations: ActivationsName | Mapping[Pattern, ActivationsName] | None = None,
        scale_rule: ScaleRule | Mapping[Pattern, ScaleRule] = DEFAULT_ROUNDING,
        modules_to_not_convert: Pattern | Iterable[Pattern] | None = None,
        include: Pattern | Iterable[Pattern] | None = None,
        hadamard: Mapping[str, int] | None = None,
        quant_method: str = OURS,
    ):
        if quant_method != OURS:
            raise ValueError(f"quant_method: got {quant_method!r}, expected {OURS!r}")
        format_named(format)
        for name in _choices("scale_rule", scale_rule):
            check_rounding(name)
        for mode in _choices("activations", activations):
            for name in _choices("scale_rule", scale_rule):
                check_mode(mode, mode_rounding(mode, name))
        self.quant_method = quant_method
        self.format = format
        self.activations = dict(activations) if isinstance(activations, Mapping) else activations
        self.scale_rule = dict(scale_rule) if isinstance(scale_rule, Mapping) else scale_rule
        self.modules_to_not_convert = list(
            patterns_of("modules_to_not_convert", modules_to_not_convert or ())
        )
        self.include = list(patterns_of("include", include or ()))
        if not isinstance(hadamard or {}, Mapping):
            got = type(hadamard).__name__
            raise TypeError(f"hadamard: got {got}, expected a mapping from names of layers")
        self.hadamard = dict(hadamard or {})

    @classmethod
    def from_dict(cls, config_dict: dict, *args, **kwargs) -> MXConfig:
        """Returns what a config.json says, as transformers asks for it."""
        if "rounding" in config_dict:  # Written before it was `scale_rule`.
            others = {name: value for name, value in config_dict.items() if name != "rounding"}
            config_dict = {**others, "scale_rule": config_dict["rounding"]}
        made = super().from_dict(config_dict, *args, **kwargs)
        config = made[0] if isinstance(made, tuple) else made
        config.is_saved = "format" in config_dict
        return made

    def to_dict(self) -> dict:
        """Returns what a config.json says."""
        return {name: value for name, value in super().to_dict().items() if name != "is_saved"}


def _choices(what: str, choice: str | Mapping[Pattern, str] | None) -> list[str]:
    """Returns the names that are chosen.

    Raises:
        TypeError: if they are no names.
    """
    if choice is None:
        return []
    if isinstance(choice, Mapping):
        patterns_of(what, choice)
        return list(choice.values())
    if not isinstance(choice, str):
        raise TypeError(
            f"{what}: got {type(choice).__name__}, expected a name, or a mapping from names of "
            "layers: a config is saved as JSON"
        )
    return [choice]

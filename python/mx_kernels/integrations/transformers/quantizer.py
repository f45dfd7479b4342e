"""MXQuantizer: what transformers asks while it loads and saves a model with MX weights.

    from_pretrained     before   layers of the model, on meta, become MXLinear and MXExperts
                        then     each weight: floats are quantized (Quantize), or codes and
                                 scales joined (Join), and get the layout of their device
                        after    every weight must be there
    save_pretrained              MXTensors become codes and scales, as `checkpoints.save` has them

What a checkpoint holds is read from the headers of its files, by `checkpoints`; `sources` says
which of it makes a weight. What no layer of ours computes becomes floats, and a warning names it.
Memory holds the result, one weight more, and the pages of files that the system keeps.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.configuration_utils import PreTrainedConfig
from transformers.core_model_loading import ConversionOps, WeightConverter, dot_natural_key
from transformers.integrations.accelerate import get_device
from transformers.modeling_utils import PreTrainedModel
from transformers.quantizers import HfQuantizer, register_quantizer

from mx_kernels._core.arrays import show
from mx_kernels._core.facts import DEFAULT_ROUNDING, facts
from mx_kernels.checkpoints.configs import OURS
from mx_kernels.checkpoints.files import let_go
from mx_kernels.checkpoints.forms import Parameter, described, warn_of_floats
from mx_kernels.checkpoints.targets import FUSIONS, guarded
from mx_kernels.checkpoints.writing import stored
from mx_kernels.conversion import convert_skeleton, restore_skeleton, revert, row_orders
from mx_kernels.conversion.fusing import former_layers
from mx_kernels.conversion.report import refresh
from mx_kernels.conversion.rules import check_patterns
from mx_kernels.integrations.offload import in_floats
from mx_kernels.integrations.transformers import parallel
from mx_kernels.integrations.transformers.config import MXConfig
from mx_kernels.integrations.transformers.names import Renamed, split
from mx_kernels.integrations.transformers.sources import Sources, is_saved_class
from mx_kernels.modules import MXModule, arranged, parameter, quantized
from mx_kernels.tensor import MXTensor

MOST_PARTS = 3
"""Of a piece of a weight: codes, scales, a tensor scale; all are read before they are copied."""
PART = ".mx_part"
"""How names end that the parts of a weight have while it is loaded."""


class Quantize(ConversionOps):
    """Makes weights of floats, as they are loaded."""

    def __init__(self, quantizer: MXQuantizer):
        self.quantizer = quantizer

    def convert(
        self,
        input_dict: dict[str, Any],
        *,
        model: nn.Module,
        missing_keys: set[str],
        **kwargs: object,
    ) -> dict[str, Tensor]:
        """Returns parameters by name; those that stay floats too."""
        self.quantizer.missing = missing_keys
        single = {name: v[0] if isinstance(v, list) else v for name, v in input_dict.items()}
        made = {name: self.quantizer.made(name, value, model) for name, value in single.items()}
        return {name: self.quantizer.placed(name, value) for name, value in made.items()}


class Pass(ConversionOps):
    """Leaves a tensor what it is."""

    def convert(
        self, input_dict: dict[str, Any], *, full_layer_name: str, **kwargs: object
    ) -> dict[str, Tensor]:
        """Returns the tensor by the model's name."""
        ((tensor,),) = input_dict.values()
        return {full_layer_name: tensor}


def _in_turn(tensors: dict[str, Tensor], source: Parameter) -> Iterator[Tensor]:
    """Yields the parts of a weight; the pages of those that were copied are let go meanwhile."""
    given = [tensors.pop(it.name) for it in source.parts]
    for i, tensor in enumerate(given):
        if i >= MOST_PARTS:
            let_go(given[i - MOST_PARTS])
        yield tensor


class Join(ConversionOps):
    """Makes a weight of its parts."""

    def __init__(self, quantizer: MXQuantizer):
        self.quantizer = quantizer

    def __deepcopy__(self, memo: dict[int, object]) -> Join:
        """Each weight gets an operation that tells the same quantizer."""
        return self

    def convert(
        self,
        input_dict: dict[str, Any],
        *,
        full_layer_name: str,
        model: nn.Module,
        missing_keys: set[str],
        **kwargs: object,
    ) -> dict[str, Tensor]:
        """Returns the parameter of that name, in the layout of the device where its parts are."""
        self.quantizer.missing = missing_keys
        own, source = model.get_parameter(full_layer_name), self.quantizer.sources[full_layer_name]
        (found,) = input_dict.values()
        # Transformers sorts them by the names that files have.
        names = sorted((part.name for part in source.parts), key=dot_natural_key)
        tensors = dict(zip(names, found, strict=True))
        if self.quantizer.twice.intersection(names):
            # Of two files transformers takes the last, whatever the index says.
            device = found[0].device
            tensors = {part.name: part.read().to(device) for part in source.parts}
        made = replace(source, dtype=own.dtype).made(_in_turn(tensors, source))
        if order := self.quantizer.orders.get(full_layer_name):
            made = tuple(map(order, made))
        if source.format:
            facts_of = {"shape": own.shape, "format": source.format, "dtype": own.dtype}
            made = MXTensor(*made, **facts_of)
            ready = arranged(made)
            # In either case in memory of its own: parts may be pages of a file.
            is_shared = ready is made and not (source.has_own_memory or order)
            ready = parameter(ready.clone() if is_shared else ready)
        else:
            # Of another dtype, or of a file: a copy.
            is_copy = source.has_own_memory or bool(order) or made[0].dtype != own.dtype
            value = made[0].to(own.dtype, copy=not is_copy)
            ready = nn.Parameter(value, requires_grad=own.requires_grad)
        for tensor in found:
            let_go(tensor)
        return {full_layer_name: self.quantizer.placed(full_layer_name, ready)}


@register_quantizer(OURS)
class MXQuantizer(HfQuantizer):
    """Loads and saves models with MXLinear and MXExperts; see `MXConfig`."""

    quantization_config: MXConfig

    def __init__(self, quantization_config: MXConfig, **kwargs):
        super().__init__(quantization_config, **kwargs)
        self._ways: dict = {}
        self.sources: dict[str, Parameter] = {}
        """What each quantized weight of a checkpoint is made of, by the model's names."""
        self.orders: dict[str, Callable[[Tensor], Tensor]] = {}
        """How rows of experts get the order of ours, where they have another."""
        self.twice: frozenset[str] = frozenset()
        """Tensors of a checkpoint that two of its files have."""
        self._has_own_names = False
        self._device_map: Any = None
        self.missing: set[str] | None = None
        """What no tensor of the checkpoint was put into, kept by transformers; None before."""
        self._styles: dict[str, str] = {}

    # Before the weights are there.

    def validate_environment(self, *args, device_map: Any = None, **kwargs) -> None:
        """Takes where weights go, as asked and then as planned."""
        self._device_map = device_map

    def update_attn_implementation(self, config: PreTrainedConfig) -> PreTrainedConfig:
        """Returns the config for this load: without what stops programs that do not know ours."""
        _guard(config, "")
        return config

    def _process_model_before_weight_loading(
        self,
        model: PreTrainedModel,
        device_map: Any = None,
        checkpoint_files: list[str] | None = None,
        **kwargs,
    ) -> None:
        """Puts our modules into a model on meta."""
        device = _device_of(device_map)
        # Transformers makes meta the default device here.
        with torch.device("cpu"):
            if self.pre_quantized:
                self._restore(model, checkpoint_files or [], device)
            else:
                self._replace(model, device)
        for _, module in _ours(model):
            # What it would do to an nn.Linear that no tensor is loaded into, it cannot do to ours.
            module._is_hf_initialized = True

    def _restore(self, model: PreTrainedModel, files: list[str], device) -> None:
        """Puts our modules where quantized weights will be loaded."""
        config = self.quantization_config
        found = Sources(model, files, are_saved=config.is_saved)
        self.orders = row_orders(model, found.weights.keys() - found.own, halves=found.halves)
        found.reorder(self.orders)
        self.sources, self.twice = found.weights, found.checkpoint.twice
        self._has_own_names = found.names.are_own
        if found.matrices:
            known = model._keys_to_ignore_on_load_unexpected or ()
            model._keys_to_ignore_on_load_unexpected = {*known, *map(re.escape, found.matrices)}
        weights = {key: (it.format, it.shape) for key, it in self.sources.items() if it.format}
        ties = model.all_tied_weights_keys
        for name, other in list(ties.items()):
            if {name, other} <= weights.keys():
                # Transformers would compare them to find out whether to tie them.
                del ties[name]
            elif other in weights:
                weights[name] = weights[other]
        left = restore_skeleton(
            model,
            weights,
            scale_rule=config.scale_rule,
            activations=config.activations,
            device=device,
            hadamard=config.hadamard | found.rotations(),
        )
        if lost := next((key for key in left if key in found.own), None):
            raise ValueError(
                f"{lost}: got quantized weights, expected those of nn.Linear, Conv1D or experts of "
                "the model"
            )
        for key in left & self.sources.keys():
            if block := self.sources[key].hadamard:
                raise ValueError(
                    f"{key}: got a rotation of {block} of what it is multiplied by, expected a "
                    "layer that becomes an MXLinear"
                )
            self.sources[key] = self.sources[key].as_floats()
        warn_of_floats(self.sources.values(), found.checkpoint.where)
        _untie(model)

    def _replace(self, model: PreTrainedModel, device) -> None:
        """Puts our modules where floats will be quantized."""
        config = self.quantization_config
        if not isinstance(config.scale_rule, str):
            raise TypeError("scale_rule: got a mapping, expected one name to quantize weights by")
        if config.hadamard:
            raise ValueError(
                "hadamard: got a mapping for floats, which are not rotated, expected none"
            )
        kept, modules = config.modules_to_not_convert, dict(model.named_modules())
        check_patterns("modules_to_not_convert", kept, modules)
        self._ways = convert_skeleton(
            model,
            keep=kept,
            include=config.include,
            format=config.format,
            scale_rule=config.scale_rule,
            activations=config.activations,
            device=device,
        )
        if ties := _untie(model):
            raise ValueError(
                f"include: got {ties[0]}, whose weight is that of an embedding, expected one of "
                "its own: load floats, and then mx_kernels.convert(model, include=...)"
            )

    def get_weight_conversions(self) -> list[WeightConverter]:
        """Returns how parts become weights."""
        return [WeightConverter([rf"(.+){re.escape(PART)}$"], r"\1", [Join(self)])]

    def update_weight_conversions(self, weight_conversions: list, model: PreTrainedModel) -> list:
        """Puts ours first: what the model does to floats is not done to codes."""
        if not self.pre_quantized:
            # On disk transformers reads floats where they are, but those that were converted.
            anew = [WeightConverter([r"(.+)$"], [r"\1"], [Pass()])] if self._may_use_disk() else []
            return weight_conversions + anew
        renamings, converters = split([] if self._has_own_names else weight_conversions)
        parts = {it.name: key + PART for key, of in self.sources.items() for it in of.parts}
        return [Renamed(parts, renamings), *self.get_weight_conversions(), *converters]

    def update_parallel_plan(self, model: PreTrainedModel, plan: dict[str, str]) -> None:
        """Keeps the styles of our layers for when their weights are there."""
        self._styles |= parallel.take(model, plan)

    # While they are loaded.

    def get_new_dtype(self, converter, param, dtype: torch.dtype | None) -> torch.dtype | None:
        """Returns what floats are loaded as; scales that are floats stay what they are."""
        is_part = any(isinstance(op, Join) for op in getattr(converter, "operations", ()))
        return None if is_part else super().get_new_dtype(converter, param, dtype)

    def param_needs_quantization(self, model: PreTrainedModel, param_name: str, **kwargs) -> bool:
        """Says whether a parameter cannot be taken as it is."""
        return param_name in self._ways

    def get_quantize_ops(self) -> Quantize:
        """Returns what makes weights of floats."""
        return Quantize(self)

    def made(self, name: str, value: Tensor, model: nn.Module) -> Tensor:
        """Returns a parameter, made of floats on their device."""
        if name not in self._ways:
            return value
        arranged, own = self._ways[name](value), model.get_parameter(name).shape
        if arranged.shape != own:
            raise ValueError(f"{name}: got {show(arranged.shape)}, expected {show(own)}")
        if name.rpartition(".")[2] not in WEIGHTS:
            return arranged
        config = self.quantization_config
        weight = quantized(arranged, format=config.format, scale_rule=config.scale_rule)
        let_go(value)
        return parameter(weight)

    def _may_use_disk(self) -> bool:
        """Says whether weights could go to disk; a name such as "auto" leaves that open."""
        is_map = isinstance(self._device_map, dict)
        return "disk" in self._device_map.values() if is_map else self._device_map is not None

    def placed(self, name: str, value: Tensor) -> Tensor:
        """Returns what is put where a parameter goes: on disk floats, which accelerate makes of it.

        When a layer is called they become the parameter again: see `integrations.offload`.
        """
        is_map = isinstance(self._device_map, dict)
        on_disk = is_map and get_device(self._device_map, name) == "disk"
        return in_floats(value) if on_disk and isinstance(value, MXTensor) else value

    def param_element_size(self, model: PreTrainedModel, param_name: str, param: Tensor) -> float:
        """Returns the bytes of an element, for who plans memory."""
        if isinstance(param, MXTensor):
            return param.nbytes / param.numel()
        return super().param_element_size(model, param_name, param)

    # Afterwards.

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **kwargs) -> None:
        """Checks that every weight was there."""
        self._check_all_there(model)
        if not self.pre_quantized:
            refresh(model)
        self._ways = {}
        if getattr(model, "_mesh_manager", None) is not None:
            parallel.shard(model, self._styles)
        attach(model)

    def _check_all_there(self, model: PreTrainedModel) -> None:
        """Raises if a parameter has no value from the checkpoint.

        Of our layers no parameter may be without; of others none if this very class was saved.
        Another class may have a head of its own.
        """
        needed = {f"{name}.{of}" for name, m in _ours(model) for of, _ in m.named_parameters()}
        if self.pre_quantized and is_saved_class(model):
            optional = _patterns(model._keys_to_ignore_on_load_missing)
            names = dict(model.named_parameters())
            needed |= {name for name in names if not _matches(name, optional)}
        left = needed if self.missing is None else needed & self.missing
        if left := sorted(left - set(model.all_tied_weights_keys)):
            raise ValueError(
                f"{left[0]}: got no such tensor in the checkpoint, expected all that "
                f"{type(model).__name__} has"
            )

    def is_serializable(self) -> bool:
        """Says that models can be saved."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Says that adapters on top can learn: gradients reach the activations."""
        return True

    @property
    def is_compileable(self) -> bool:
        """Says that `generate` may compile the model."""
        return True

    def _dequantize(self, model: PreTrainedModel, dtype: torch.dtype | None = None) -> nn.Module:
        """Puts float layers in the place of ours."""
        parallel.check_whole(model)
        with torch.device("meta"):
            former = type(model)(copy.deepcopy(model.config))
        revert(model, former, dtype or model.dtype)
        return model

    def remove_quantization_config(self, model: PreTrainedModel) -> None:
        """Makes a model of floats one that is saved as such."""
        super().remove_quantization_config(model)
        _guard(model.config, "")

    def get_state_dict_and_metadata(self, model: PreTrainedModel) -> tuple[dict, dict]:
        """Returns what a file in our own form holds: plain bytes, and what they mean."""
        parallel.check_whole(model)
        state, meanings = {}, {}
        ties, whole = model.all_tied_weights_keys, model.state_dict()
        for name, tensor in whole.items():
            if isinstance(tensor, MXTensor):
                other = whole.get(ties.get(name))
                if isinstance(other, MXTensor) and _is_same_memory(other, tensor):
                    continue
                kept = stored(name, tensor)
                state |= dict(zip(kept.parts, kept.read(), strict=True))
                meanings |= kept.meanings
            else:
                state[name] = tensor
        return state, {OURS: described(meanings)}


def _patterns(patterns: Iterable[str] | None) -> list[re.Pattern]:
    return [re.compile(pattern) for pattern in patterns or ()]


def _matches(name: str, patterns: Iterable[re.Pattern]) -> bool:
    return any(pattern.search(name) for pattern in patterns)


WEIGHTS = frozenset(name for kind in MXModule.__subclasses__() for name in kind.WEIGHTS)


def attach(model: nn.Module) -> None:
    """Makes models of transformers that hold our layers ones that it saves: the outermost ones.

    Gives them a quantizer, and their configs what each layer does with activations.
    """
    inner: set[int] = set()
    for module in model.modules():
        if not isinstance(module, PreTrainedModel) or id(module) in inner:
            continue
        inner |= {id(part) for part in module.modules()}
        layers = dict(former_layers(module))
        if not layers:
            continue
        config = _described_by(layers)
        module.hf_quantizer = MXQuantizer(config, pre_quantized=True)
        if _untie(module) and not module.all_tied_weights_keys:
            module.config.tie_word_embeddings = False
        module.config.quantization_config = config
        _guard(module.config, OURS)
        # What was renamed or joined while loading stays so: codes cannot be cut like floats.
        module._weight_conversions = []


def _untie(model: PreTrainedModel) -> list[str]:
    """Forgets ties of weights of ours to floats; returns the names of ours."""
    ties = model.all_tied_weights_keys
    held = model.named_parameters(remove_duplicate=False)
    ours = {name for name, parameter in held if isinstance(parameter, MXTensor)}
    left = [name for name, other in ties.items() if (name in ours) != (other in ours)]
    for name in left:
        del ties[name]
    return left


def _is_same_memory(a: MXTensor, b: MXTensor) -> bool:
    return a.codes.data_ptr() == b.codes.data_ptr() and a.shape == b.shape


def _guard(config: PreTrainedConfig, method: str) -> None:
    """Changes a config as `guarded` does a config.json."""
    kept = guarded({FUSIONS: getattr(config, FUSIONS, None)}, method)
    if kept:
        setattr(config, FUSIONS, kept[FUSIONS])
    elif hasattr(config, FUSIONS):
        delattr(config, FUSIONS)


def _ours(model: nn.Module) -> Iterable[tuple[str, MXModule]]:
    return ((name, m) for name, m in model.named_modules() if isinstance(m, MXModule))


def _described_by(layers: dict[str, MXModule]) -> MXConfig:
    """Returns the config that makes these layers again from their weights."""
    formats = Counter(layer.format for layer in layers.values())
    choices = {}
    for what in ("activations", "scale_rule"):
        names = {name: getattr(layer, what) for name, layer in layers.items()}
        if what == "scale_rule":
            # Kept floats are not rounded.
            names = {n: r for n, r in names.items() if layers[n].activations in facts().formats}
        values = set(names.values())
        choices[what] = names if len(values) > 1 else next(iter(values), DEFAULT_ROUNDING)
    rotations = {name: getattr(layer, "hadamard", None) for name, layer in layers.items()}
    choices["hadamard"] = {name: block for name, block in rotations.items() if block}
    return MXConfig(format=formats.most_common(1)[0][0], **choices)


def _device_of(device_map: Any) -> str | torch.device:
    """Returns the device of a map that names one, else the CPU."""
    named = set(device_map.values()) if isinstance(device_map, dict) else {device_map}
    (device,) = named if len(named) == 1 else (None,)
    if isinstance(device, int):
        return f"cuda:{device}"
    is_plan = device in (None, "auto", "balanced", "balanced_low_0", "sequential", "disk")
    return "cpu" if is_plan else device

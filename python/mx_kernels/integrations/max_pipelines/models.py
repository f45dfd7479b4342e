"""The graph of a decoder, its pipeline, and the architectures that MAX gets by name.

    LlamaForCausalLM      MistralForCausalLM      Qwen3ForCausalLM
    Qwen3MoeForCausalLM   GptOssForCausalLM

One graph has them all: MAX's `Transformer`, its attention, rotary embeddings and norms, one device.
What differs is told by the model's config and by which weights there are.

    embed -> [ norm -> qkv -> (norms of q, k) -> rope, attention -> o     ] x layers -> norm -> head
             [ norm -> gate_up -> silu -> down, or a router and experts   ]
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorValue, default_custom_extensions_scope, ops
from max.graph.weights import WeightsFormat
from max.nn.attention import AttentionWithRope, MHAMaskVariant
from max.nn.embedding import Embedding
from max.nn.kv_cache import PagedCacheValues
from max.nn.layer import Module
from max.nn.linear import Linear
from max.nn.norm import RMSNorm
from max.nn.rotary_embedding import (
    Llama3RopeScalingParams,
    Llama3RotaryEmbedding,
    RotaryEmbedding,
    YarnScalingParams,
)
from max.nn.transformer import Transformer, TransformerBlock
from max.nn.transformer.transformer import forward_sequential_layers
from max.pipelines.architectures.llama3.arch import llama_arch
from max.pipelines.architectures.llama3.llama3 import Llama3
from max.pipelines.architectures.llama3.model import LlamaModelBase
from max.pipelines.architectures.llama3.model_config import Llama3Config
from max.pipelines.kv_cache.memory_planner import PagedMemoryPlanner
from max.pipelines.lib import SupportedArchitecture
from max.pipelines.lib.graph_specs import GraphRole, GraphSpec

from mx_kernels import max_graph
from mx_kernels.checkpoints.configs import OURS, quantization
from mx_kernels.integrations.max_pipelines.attention import LANES, WindowAttention, Yarn
from mx_kernels.integrations.max_pipelines.modules import Experts, GatedMLP, MXWeight, State
from mx_kernels.integrations.max_pipelines.weights import DEFAULT_ENCODING, adapt, planned_bytes

ENCODINGS = {"float32", "bfloat16"}
"""What MAX calls models whose floats are these; weights are in whatever format they are in."""
SLIDING = "sliding_attention"
EXPERT_COUNTS = ("num_experts", "num_local_experts")
GPT_OSS = "gpt_oss"


class MXConfig(Llama3Config):
    """What a decoder is, from the config of its checkpoint."""

    DEFAULT_ENCODING = DEFAULT_ENCODING
    SUPPORTED_ENCODINGS = ENCODINGS


class MXDecoder(Llama3):
    """A decoder of MAX's blocks, with our linear layers and experts."""

    def __init__(self, config: MXConfig, theirs: Any, state: State):
        self.config = config
        norm = functools.partial(
            RMSNorm,
            dtype=config.dtype,
            eps=theirs.rms_norm_eps,
            multiply_before_cast=theirs.model_type == GPT_OSS,
        )
        rope = _rope(config, theirs)
        embedding = Embedding(
            config.vocab_size, config.hidden_size, config.dtype, config.devices[0]
        )
        head = Linear(config.hidden_size, config.vocab_size, config.dtype, config.devices[0])
        if not state.has("lm_head.weight"):
            head.set_shared_weight("weight", embedding.weight)
        elif "lm_head.weight.codes" in state.weights:
            head = state.linear("lm_head")
        layers = [
            TransformerBlock(
                attention=_attention(config, theirs, state, index, rope=rope, norm=norm),
                mlp=_mlp(theirs, state, f"layers.{index}.mlp"),
                attention_norm=norm(config.hidden_size),
                mlp_norm=norm(config.hidden_size),
            )
            for index in range(config.num_hidden_layers)
        ]
        Transformer.__init__(
            self,
            dim=config.hidden_size,
            n_heads=config.num_attention_heads,
            layers=layers,
            norm=norm(config.hidden_size),
            output=head,
            embedding=embedding,
            kv_params=config.kv_params,
            rope=rope,
            return_logits=config.return_logits,
            return_hidden_states=config.return_hidden_states,
        )

    def trace(self, *input_types, **options) -> Graph:
        """Returns the graph; those of its layers know our ops too."""
        with default_custom_extensions_scope(max_graph.library()):
            return super().trace(*input_types, **options)

    def _process_hidden_states(
        self,
        h: TensorValue,
        kv_collection: PagedCacheValues,
        return_n_logits: TensorValue,
        input_row_offsets: TensorValue,
    ) -> tuple[TensorValue, ...]:
        """Returns logits; each kind of layer is compiled once, however many there are."""
        freqs_cis = self.rope.freqs_cis

        def inputs_of(index: int, hidden: list[TensorValue]) -> list[Any]:
            number = ops.constant(index, DType.uint32, DeviceRef.CPU())
            return [number, hidden[0], kv_collection, freqs_cis, input_row_offsets]

        (h,) = forward_sequential_layers(
            list(self.layers),
            inputs_for_layer=inputs_of,
            initial_hidden_states=[h],
            subgraph_layer_groups=_alike(self.layers),
            name_for_subgraph=lambda kind: f"mx_block_{kind}",
            weight_prefix_for_layer=lambda index: f"layers.{index}.",
        )
        return self._postprocess_logits(h, input_row_offsets, return_n_logits)


def _alike(layers: Iterable[Module]) -> list[list[int]]:
    """Returns the places of layers that differ in nothing but the values of their weights."""
    groups: dict[Any, list[int]] = {}
    for place, layer in enumerate(layers):
        weights = layer.raw_state_dict()
        kinds = [
            (m.said.format, m.said.layout, m.said.logical)
            for _, m in layer.named_modules()
            if isinstance(m, MXWeight)
        ]
        sizes = [(name, str(w.dtype), str(w.shape)) for name, w in weights.items()]
        modes = [m.activations for _, m in layer.named_modules() if hasattr(m, "activations")]
        window = layer.self_attn.sliding_window
        groups.setdefault(repr((window, kinds, sizes, modes)), []).append(place)
    return list(groups.values())


def _rope(config: MXConfig, theirs: Any) -> RotaryEmbedding:
    """Returns the rotary embedding that a config asks for."""
    sizes = {
        "dim": config.hidden_size,
        "n_heads": config.num_attention_heads,
        "theta": config.rope_theta,
        "max_seq_len": config.max_seq_len,
        "head_dim": config.kv_params.head_dim,
        "interleaved": False,
    }
    said = getattr(theirs, "rope_parameters", None) or getattr(theirs, "rope_scaling", None) or {}
    kind = said.get("rope_type", said.get("type", "default"))
    if kind == "yarn":
        scaling = YarnScalingParams(
            factor=said["factor"],
            beta_fast=said.get("beta_fast") or 32.0,
            beta_slow=said.get("beta_slow") or 1.0,
            original_max_position_embeddings=said["original_max_position_embeddings"],
            truncate=said.get("truncate", True),
        )
        return Yarn(**sizes, scaling_params=scaling)
    if kind not in ("default", "llama3"):
        raise ValueError(f"rope_scaling: got {kind!r}, expected default, llama3 or yarn")
    scaling = None
    if kind == "llama3":
        scaling = Llama3RopeScalingParams(
            factor=said["factor"],
            low_freq_factor=said["low_freq_factor"],
            high_freq_factor=said["high_freq_factor"],
            orig_max_position=said["original_max_position_embeddings"],
        )
    return Llama3RotaryEmbedding(**sizes, scaling_params=scaling)


def _attention(
    config: MXConfig, theirs: Any, state: State, index: int, *, rope: RotaryEmbedding, norm
) -> Module:
    """Returns the attention of a layer."""
    window, name = _window(theirs, index), f"layers.{index}.self_attn"
    options = {
        "rope": rope,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "hidden_size": config.hidden_size,
        "kv_params": config.kv_params,
        "dtype": config.dtype,
        "devices": config.devices,
        "scale": config.attention_multiplier,
    }
    has_sinks, has_norms = state.has(f"{name}.sinks"), state.has(f"{name}.q_norm.weight")
    takes_ours = config.devices[0] == DeviceRef.CPU() and config.kv_params.head_dim % LANES == 0
    if window is None and not has_sinks and (has_norms or not takes_ours):
        attention = AttentionWithRope(**options)
    else:
        mask = MHAMaskVariant.SLIDING_WINDOW_CAUSAL_MASK if window else MHAMaskVariant.CAUSAL_MASK
        options |= {"mask_variant": mask, "sliding_window": window}
        attention = WindowAttention(has_sinks=has_sinks, **options)
    parts = [f"{name}.{part}_proj" for part in "qkv"]
    attention.qkv_proj = state.rows(f"{name}.qkv_proj", parts)
    attention.o_proj = state.linear(f"{name}.o_proj")
    if has_norms:
        attention.use_qk_norm = True
        attention.q_norm, attention.k_norm = (norm(config.kv_params.head_dim) for _ in "qk")
    return attention


def _window(theirs: Any, index: int) -> int | None:
    """Returns how many tokens a layer looks back, None for all."""
    window = getattr(theirs, "sliding_window", None)
    if not window or not getattr(theirs, "use_sliding_window", True):
        return None
    kinds = getattr(theirs, "layer_types", None)
    return window if kinds is None or kinds[index] == SLIDING else None


def _mlp(theirs: Any, state: State, name: str) -> Module:
    """Returns what a layer has behind attention."""
    if not state.has(f"{name}.experts.gate_up_proj"):
        return GatedMLP(state, name)
    is_gpt_oss = theirs.model_type == GPT_OSS
    gate = {"hidden_act": "silu"}
    if is_gpt_oss:
        gate = {"hidden_act": "swiglu_oai", "limit": float(getattr(theirs, "swiglu_limit", 7.0))}
    return Experts(
        state,
        name,
        router="router" if is_gpt_oss else "gate",
        active=theirs.num_experts_per_tok,
        gate=gate,
        softmax_first=not is_gpt_oss,
        normalized=bool(getattr(theirs, "norm_topk_prob", True)),
    )


class MXModel(LlamaModelBase):
    """The pipeline of a decoder."""

    model_config_cls = MXConfig
    norm_method = "rms_norm"

    def _create_model_config(self, state_dict: dict[str, Any]) -> MXConfig:
        """Returns what the decoder is; MAX is asked nothing about quantization."""
        config = MXConfig.initialize(self.pipeline_config, max_seq_len=self.max_seq_len)
        config.return_logits = self.return_logits
        config.return_hidden_states = self.return_hidden_states
        return config

    def graph_specs(self, model_config: MXConfig) -> dict[str, GraphSpec]:
        """Returns the decoder's graph, with the library of our ops.

        Raises:
            NotImplementedError: for several devices.
            ValueError: as `bind` does.
        """
        if len(self.devices) > 1:
            raise NotImplementedError(
                f"mx_kernels.max_pipelines: got {len(self.devices)} devices, expected one"
            )
        theirs = self.huggingface_config
        dtype, device = model_config.dtype, model_config.devices[0]
        state = State(self.state_dict, device, dtype, activations_said_by(theirs))
        decoder = MXDecoder(model_config, theirs, state)
        weights = bind(decoder, self.state_dict, self.pipeline_config)
        # MAX keeps what the graph binds.
        self.state_dict: dict[str, Any] = {}
        inputs = self._bind_graph_inputs(decoder.input_tree(self.kv_params))
        spec = GraphSpec(decoder, f"mx_{theirs.model_type}", inputs, weights=weights)
        return {GraphRole.DECODER: spec}


def activations_said_by(theirs: Any) -> Any:
    """Returns what a model's config says that activations are multiplied as, None for nothing."""
    said = quantization(theirs.to_dict()) or {}
    return said.get("activations") if said.get("quant_method") == OURS else None


def bind(module: Module, weights: dict[str, Any], pipeline_config: Any) -> dict[str, Any]:
    """Gives a module its weights, and returns those that its graph asks for.

    Raises:
        ValueError: if the module has no layers for some.
    """
    if unused := weights.keys() - module.raw_state_dict().keys():
        raise ValueError(
            f"{pipeline_config.model.model_path}: got weights {sorted(unused)[:5]} that "
            f"{type(module).__name__} of mx_kernels.max_pipelines has no layers for"
        )
    module.load_state_dict(weights, weight_alignment=1)
    return module.state_dict(auto_initialize=False)


class MXMemoryPlanner(PagedMemoryPlanner):
    """Counts weights in the bits that they are kept in."""

    def estimate_weights_size(self, pipeline_config: Any) -> int:
        """Returns the bytes of all weights."""
        return planned_bytes(pipeline_config)


def _architecture(name: str, example: str) -> SupportedArchitecture:
    """Returns what MAX knows of an architecture."""
    return dataclasses.replace(
        llama_arch,
        name=name,
        example_repo_ids=[example],
        pipeline_model=MXModel,
        config=MXConfig,
        supported_encodings=ENCODINGS,
        default_encoding=DEFAULT_ENCODING,
        multi_gpu_supported=False,
        weight_adapters={WeightsFormat.safetensors: adapt},
        memory_planner=MXMemoryPlanner,
    )


DECODERS = [
    _architecture("LlamaForCausalLM", "meta-llama/Llama-3.2-1B-Instruct"),
    _architecture("MistralForCausalLM", "mistralai/Mistral-Nemo-Instruct-2407"),
    _architecture("Qwen3ForCausalLM", "Qwen/Qwen3-8B"),
    _architecture("Qwen3MoeForCausalLM", "Qwen/Qwen3-30B-A3B-Instruct-2507"),
    _architecture("GptOssForCausalLM", "openai/gpt-oss-20b"),
]

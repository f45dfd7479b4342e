"""Sentence encoders for `max encode`: MAX's BERT with our linear layers.

    embeddings -> [ query, key, value -> attention -> dense -> norm
                    dense -> gelu -> dense -> norm                  ] x layers -> mean of tokens

The graph is built as MAX builds it; then each `Linear` whose weight is quantized gives its place.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from max.graph import TensorValue, ops
from max.nn.layer import Module
from max.nn.linear import Linear
from max.pipelines.architectures.bert.arch import bert_arch
from max.pipelines.architectures.bert.graph import BertModel
from max.pipelines.architectures.bert.model import BertPipelineModel
from max.pipelines.architectures.bert.model_config import BertModelConfig
from max.pipelines.lib.graph_specs import GraphRole, GraphSpec

from mx_kernels import max_graph
from mx_kernels.integrations.max_pipelines.models import activations_said_by, bind
from mx_kernels.integrations.max_pipelines.modules import State
from mx_kernels.integrations.max_pipelines.weights import DEFAULT_ENCODING, adapt

POOLER = "pooler."
"""What sentence embeddings do without."""


class _BertConfig(BertModelConfig):
    """What an encoder is, from the config of its checkpoint."""

    DEFAULT_ENCODING = DEFAULT_ENCODING


class _BertEncoder(BertModel):
    """MAX's encoder, with a mean of its own.

    On a CPU MAX's compiler takes the sum of a broadcast mask for 1, and the mean becomes a sum.
    """

    def __init__(self, config: Any):
        super().__init__(config)
        self.has_mean: bool = self.pool_outputs
        self.pool_outputs = False

    def __call__(
        self,
        input_ids: TensorValue,
        attention_mask: TensorValue,
        token_type_ids: TensorValue | None = None,
    ) -> TensorValue:
        """Returns [B, H], the mean of the tokens that a mask [B, T] counts, or all [B, T, H]."""
        tokens = super().__call__(input_ids, attention_mask, token_type_ids)
        if not self.has_mean:
            return tokens
        total = ops.squeeze(ops.unsqueeze(attention_mask, 1) @ tokens, 1)
        return total / ops.sum(attention_mask)


class MXBert(BertPipelineModel):
    """The pipeline of an encoder."""

    model_config_cls = _BertConfig

    def _load_state_dict(self) -> dict[str, Any]:
        """Returns the weights under the names that MAX has for them."""
        weights = adapt({}, self.huggingface_config, self.pipeline_config)
        self.state_dict: dict[str, Any] = {
            name.replace(".LayerNorm.", ".layer_norm."): value
            for name, value in weights.items()
            if not name.startswith(POOLER) and not name.endswith(".position_ids")
        }
        return self.state_dict

    def _create_model_config(self, state_dict: dict[str, Any]) -> _BertConfig:
        """Returns what the encoder is."""
        return self.arch_config_as(_BertConfig)

    def graph_specs(self, model_config: Any) -> dict[str, GraphSpec]:
        """Returns the encoder's graph, with the library of our ops."""
        encoder = _BertEncoder(model_config)
        activations = activations_said_by(self.huggingface_config)
        state = State(self.state_dict, model_config.device, model_config.dtype, activations)
        _put_into(encoder, "", state)
        weights = bind(encoder, self.state_dict, self.pipeline_config)
        types, ours = encoder.input_types(), [max_graph.library()]
        spec = GraphSpec(encoder, "mx_bert", types, weights=weights, custom_extensions=ours)
        return {GraphRole.ENCODER: spec}


def _put_into(module: Module, prefix: str, state: State) -> None:
    """Replaces the linear layers within a module whose weights are quantized."""
    for name, child in list(module.sublayers.items()):
        path = f"{prefix}{name}"
        if isinstance(child, Linear) and f"{path}.weight.codes" in state.weights:
            setattr(module, name, state.linear(path))
        else:
            _put_into(child, f"{path}.", state)


ENCODERS: list[Any] = [
    dataclasses.replace(
        bert_arch,
        pipeline_model=MXBert,
        config=_BertConfig,
        default_encoding=DEFAULT_ENCODING,
    )
]

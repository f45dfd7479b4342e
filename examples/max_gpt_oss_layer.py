"""A decoder layer of gpt-oss as a MAX graph, its experts in MXFP4, beside transformers' own.

    python examples/max_gpt_oss_layer.py [FILE.mef]

    x -> RMSNorm -> attention with sinks, in a window or not, YaRN -> + -> RMSNorm -> experts -> +

Attention is made of MAX's ops in float32; the experts are `max_graph.moe`. `decoder_layer` takes a
layer's parameters by the names of the checkpoint, experts as MXTensors [E, N, K], as `mx.load`
returns them; here they are those of a tiny random layer. No cache: a sequence is computed at once.
"""

import math
import sys
from pathlib import Path

import numpy as np
import torch
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, TensorValue, ops
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssDecoderLayer, GptOssRotaryEmbedding

import mx_kernels as mx
from mx_kernels import max_graph

CPU = DeviceRef.CPU()
CONFIG = GptOssConfig(
    hidden_size=96,
    intermediate_size=64,
    num_hidden_layers=2,
    num_local_experts=8,
    num_experts_per_tok=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=16,
    sliding_window=6,
    attn_implementation="eager",
)
"""A tiny model: layer 0 slides, layer 1 does not."""


def constant(array, like: TensorValue) -> TensorValue:
    """Puts floats into the graph, where a tensor is."""
    floats = np.ascontiguousarray(array, dtype=np.float32)
    return ops.constant(floats, DType.float32, like.device)


def dense(x: TensorValue, parameters: dict, name: str) -> TensorValue:
    """Multiplies by a matrix that is not quantized, and adds its bias."""
    weight = constant(parameters[f"{name}.weight"].T, x)
    return ops.matmul(x, weight) + constant(parameters[f"{name}.bias"], x)


def rms_norm(x: TensorValue, weight, eps: float) -> TensorValue:
    """Divides rows by their root mean square."""
    return x * ops.rsqrt(ops.mean(x * x, axis=-1) + eps) * constant(weight, x)


def yarn(rope: dict, dim: int) -> tuple[np.ndarray, float]:
    """Returns the frequencies of YaRN, and the factor of sines and cosines.

    Dimensions that turn often keep their frequency, those that turn less than once in the original
    length are slowed by `factor`, and between both a ramp goes from one to the other.
    """
    base, factor = rope["rope_theta"], rope["factor"]
    length = rope["original_max_position_embeddings"]

    def dimension(turns: float) -> float:
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(rope["beta_fast"]), dimension(rope["beta_slow"])
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
    frequencies = base ** -(np.arange(0, dim, 2) / dim)
    return frequencies * (1 - ramp) + frequencies / factor * ramp, 0.1 * math.log(factor) + 1


def rotated(x: TensorValue, cos: TensorValue, sin: TensorValue) -> TensorValue:
    """Turns the halves of each head [heads, tokens, dim] against each other."""
    half = int(x.shape[-1]) // 2
    first, second = x[..., :half], x[..., half:]
    return ops.concat([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attention(x: TensorValue, parameters: dict, config, is_sliding: bool) -> TensorValue:
    """Every token looks at itself and those before it, in its window, and at its head's sink."""
    tokens, dim = x.shape[0], config.head_dim
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    group = heads // kv_heads

    def heads_of(name: str, count: int) -> TensorValue:
        rows = dense(x, parameters, f"self_attn.{name}")
        return ops.permute(ops.reshape(rows, [tokens, count, dim]), [1, 0, 2])

    position = ops.range(0, tokens, 1, out_dim=tokens, dtype=DType.int64, device=x.device)
    frequencies, factor = yarn(config.rope_parameters, dim)
    turns = ops.unsqueeze(ops.cast(position, DType.float32), 1) * constant(frequencies, x)
    turn = ops.cos(turns) * factor, ops.sin(turns) * factor

    queries = rotated(heads_of("q_proj", heads), *turn)
    queries = ops.reshape(queries, [kv_heads, group, tokens, dim])
    keys, values = rotated(heads_of("k_proj", kv_heads), *turn), heads_of("v_proj", kv_heads)
    keys, values = (
        ops.broadcast_to(ops.unsqueeze(part, 1), [kv_heads, group, tokens, dim])
        for part in (keys, values)
    )
    scores = ops.matmul(queries, ops.transpose(keys, -1, -2)) * dim**-0.5

    distance = ops.unsqueeze(position, 1) - ops.unsqueeze(position, 0)
    is_seen = distance >= 0
    if is_sliding:
        is_seen = ops.logical_and(is_seen, ops.logical_not(distance >= config.sliding_window))
    scores = ops.where(is_seen, scores, constant(-1e30, x))

    # A sink takes its share of attention and gives nothing.
    sinks = constant(parameters["self_attn.sinks"].reshape(kv_heads, group, 1, 1), x)
    largest = ops.max(ops.max(scores, axis=-1), sinks)
    shares = ops.exp(scores - largest)
    shares = shares / (ops.sum(shares, axis=-1) + ops.exp(sinks - largest))
    seen = ops.reshape(ops.matmul(shares, values), [heads, tokens, dim])
    rows = ops.reshape(ops.permute(seen, [1, 0, 2]), [tokens, heads * dim])
    return dense(rows, parameters, "self_attn.o_proj")


def experts(x: TensorValue, parameters: dict, config) -> TensorValue:
    """Routes each token to the experts with the largest scores."""
    scores = dense(x, parameters, "mlp.router")
    largest, ids = ops.top_k(scores, config.num_experts_per_tok, axis=-1)
    of = {name: parameters[f"mlp.experts.{name}"] for name in EXPERTS}
    return max_graph.moe(
        x,
        of["gate_up_proj"],
        of["down_proj"],
        ids,
        ops.softmax(largest),
        bias_gate_up=of["gate_up_proj_bias"],
        bias_down=of["down_proj_bias"],
        limit=config.swiglu_limit,
        alpha=config.swiglu_alpha,
        activations="bf16",
    )


EXPERTS = ("gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias")


def decoder_layer(x: TensorValue, parameters: dict, config, index: int) -> TensorValue:
    """Computes a layer on the tokens of a sequence [T, H], float32."""
    is_sliding = config.layer_types[index] == "sliding_attention"
    eps = config.rms_norm_eps
    normed = rms_norm(x, parameters["input_layernorm.weight"], eps)
    x = x + attention(normed, parameters, config, is_sliding)
    normed = rms_norm(x, parameters["post_attention_layernorm.weight"], eps)
    return x + experts(normed, parameters, config)


def random_layer(index: int, device: str = "cpu") -> tuple[GptOssDecoderLayer, dict]:
    """Returns transformers' layer in float64, and its parameters with experts in MXFP4.

    Its experts are what the quantized ones stand for, which have a device's layout.
    """
    torch.manual_seed(index)
    layer = GptOssDecoderLayer(CONFIG, index).double().eval()
    parameters = {}
    with torch.no_grad():
        for name, value in layer.named_parameters():
            value.copy_(torch.randn(value.shape) * (0.15 if value.ndim > 1 else 0.5))
            parameters[name] = value.float().numpy()
            value.copy_(value.float())
        for name in EXPERTS[:2]:
            weight = getattr(layer.mlp.experts, name)
            q = mx.quantize(weight.float().transpose(1, 2).contiguous())
            weight.copy_(q.dequantize("float32").transpose(1, 2))
            parameters[f"mlp.experts.{name}"] = mx.preshuffle(q, device=device)
    return layer, parameters


def expected(layer: GptOssDecoderLayer, x: torch.Tensor, index: int) -> torch.Tensor:
    """Returns what transformers' layer makes of the tokens of a sequence."""
    tokens = torch.arange(len(x))
    distance = tokens[:, None] - tokens
    is_seen = distance >= 0
    if CONFIG.layer_types[index] == "sliding_attention":
        is_seen &= distance < CONFIG.sliding_window
    mask = torch.where(is_seen, 0.0, -math.inf).double()
    position = GptOssRotaryEmbedding(CONFIG)(x.double()[None], tokens[None])
    with torch.no_grad():
        out = layer(x.double()[None], attention_mask=mask[None, None], position_embeddings=position)
    return out[0]


def build(gpu: str = "") -> Graph:
    """Returns a graph of both layers, each on its own input's tokens, for the CPU or for a GPU.

    Args:
        gpu: a GPU's device in the table of layouts, as "gfx950"; it is MAX's accelerator.
    """
    rows = TensorType(
        DType.float32, ["tokens", CONFIG.hidden_size], DeviceRef.GPU() if gpu else CPU
    )
    library = [max_graph.library()]
    with Graph("gpt_oss_layers", input_types=[rows], custom_extensions=library) as graph:
        x = graph.inputs[0].tensor
        layers = range(CONFIG.num_hidden_layers)
        graph.output(
            *(decoder_layer(x, random_layer(i, gpu or "cpu")[1], CONFIG, i) for i in layers)
        )
    return graph


def main() -> None:
    """Runs the graph and transformers' layers on three lengths."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "gpt_oss_layer.mef")
    if not path.exists():
        print(f"compiling {path}, once: about a minute ...", flush=True)
        max_graph.export(build(), path)
    model = max_graph.load(path)
    for tokens in (1, 7, 40):
        x = torch.randn(tokens, CONFIG.hidden_size)
        for index, out in enumerate(model.execute(x)):
            wanted = expected(random_layer(index)[0], x, index)
            error = (torch.from_dlpack(out) - wanted).abs().max() / (wanted - x).abs().max()
            print(f"{tokens:3} tokens, {CONFIG.layer_types[index]:18} error {error:.1e}")


if __name__ == "__main__":
    main()

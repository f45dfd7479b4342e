"""Tiny random models of the families that users convert, and what each is called with.

Every one is made from a configuration, without a checkpoint. Sizes are multiples of 32 but not of
64 where the model allows it, so that blocks end in the middle of vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers as tf
from torch import nn

import mx_kernels as mx

VOCABULARY = 96
TOKENS = torch.arange(14).view(2, 7) * 5 + 3
START = 2
DECODED = torch.tensor([[START, 8, 13, 18], [START, 43, 48, 53]])
NO_SPECIAL_TOKENS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}


@dataclass(frozen=True)
class Family:
    """A model, what it is called with, and how many of its layers are converted and kept."""

    make: Callable[[], nn.Module]
    inputs: dict
    converted: int
    kept: int
    generates: bool = False

    def build(self) -> nn.Module:
        """Returns the same random model in each call."""
        torch.manual_seed(3)
        model = self.make().eval()
        with torch.no_grad():
            for name, p in model.named_parameters():
                # Models start with small numbers, or zeros in biases and sinks: not a test.
                if p.ndim > 1:
                    p.normal_(std=p.shape[-1] ** -0.5)
                elif "norm" not in name.lower() and "A_log" not in name:
                    p.normal_(std=0.1)
        return model


def output_of(model: nn.Module, inputs: dict) -> torch.Tensor:
    """Calls a model; returns its logits, or its last hidden state."""
    out = model(**inputs)
    if isinstance(out, torch.Tensor):
        return out
    return out.logits if "logits" in out else out.last_hidden_state


def decoder(config, model, converted, kept, **sizes) -> Family:
    """Returns a family of language models."""
    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        **NO_SPECIAL_TOKENS,
    }

    def make():
        return model(config(**(common | sizes)))

    return Family(make, {"input_ids": TOKENS}, converted, kept, generates=True)


class LoraLinear(nn.Module):
    """A linear layer with an adapter, under the names that PEFT gives them."""

    def __init__(self, base_layer: nn.Linear, rank: int = 32):
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base_layer.in_features, rank, False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base_layer.out_features, False)})

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


def adapted_llama() -> nn.Module:
    model = FAMILIES["llama"].make()
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.q_proj, attention.v_proj = map(LoraLinear, (attention.q_proj, attention.v_proj))
    return model


def torch_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(96, 4, 160, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


def bert() -> nn.Module:
    sizes = {"hidden_size": 96, "num_attention_heads": 4, "intermediate_size": 160}
    return tf.BertForMaskedLM(
        tf.BertConfig(vocab_size=VOCABULARY, num_hidden_layers=2, **sizes, **NO_SPECIAL_TOKENS)
    )


def vit() -> nn.Module:
    sizes = {"hidden_size": 96, "num_attention_heads": 4, "intermediate_size": 160}
    images = {"image_size": 16, "patch_size": 4}
    return tf.ViTForImageClassification(tf.ViTConfig(num_hidden_layers=2, **sizes, **images))


def gpt2() -> nn.Module:
    sizes = {"n_embd": 96, "n_layer": 2, "n_head": 4, "n_positions": 32}
    return tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=VOCABULARY, **sizes, **NO_SPECIAL_TOKENS))


def t5() -> nn.Module:
    sizes = {"d_model": 96, "d_kv": 24, "d_ff": 160, "num_layers": 1, "num_heads": 4}
    tokens = {"decoder_start_token_id": START, "pad_token_id": 0, "eos_token_id": None}
    return tf.T5ForConditionalGeneration(tf.T5Config(vocab_size=VOCABULARY, **sizes, **tokens))


def whisper() -> nn.Module:
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes = {"d_model": 96, "encoder_ffn_dim": 160, "decoder_ffn_dim": 160, "num_mel_bins": 8}
    places = {"max_source_positions": 20, "max_target_positions": 32}
    tokens = {**NO_SPECIAL_TOKENS, "decoder_start_token_id": START, "suppress_tokens": None}
    config = tf.WhisperConfig(
        vocab_size=VOCABULARY,
        **layers,
        **heads,
        **sizes,
        **places,
        **tokens,
        begin_suppress_tokens=None,
    )
    return tf.WhisperForConditionalGeneration(config)


def mamba2() -> nn.Module:
    sizes = {"hidden_size": 96, "state_size": 16, "num_heads": 8, "head_dim": 24, "n_groups": 2}
    return tf.Mamba2ForCausalLM(
        tf.Mamba2Config(
            vocab_size=VOCABULARY, num_hidden_layers=2, chunk_size=8, **sizes, **NO_SPECIAL_TOKENS
        )
    )


PICTURES = torch.linspace(-1, 1, 2 * 3 * 16 * 16).view(2, 3, 16, 16).sin()
SOUND = torch.linspace(-9, 9, 2 * 8 * 40).view(2, 8, 40).sin()
STATES = torch.linspace(-9, 9, 2 * 7 * 96).view(2, 7, 96).cos()

FAMILIES: dict[str, Family] = {
    "llama": decoder(tf.LlamaConfig, tf.LlamaForCausalLM, 7, 1),
    "gpt2": Family(gpt2, {"input_ids": TOKENS}, 8, 1, generates=True),
    "bert": Family(bert, {"input_ids": TOKENS}, 13, 1),
    "vit": Family(vit, {"pixel_values": PICTURES}, 12, 1),
    "t5": Family(t5, {"input_ids": TOKENS, "decoder_input_ids": DECODED}, 16, 1, generates=True),
    "whisper": Family(
        whisper,
        {"input_features": SOUND, "decoder_input_ids": DECODED},
        16,
        1,
        generates=True,
    ),
    "gpt_oss": decoder(
        tf.GptOssConfig,
        tf.GptOssForCausalLM,
        10,
        1,
        num_hidden_layers=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=4,
    ),
    "mixtral": decoder(
        tf.MixtralConfig, tf.MixtralForCausalLM, 5, 1, num_local_experts=4, num_experts_per_tok=2
    ),
    "qwen3_moe": decoder(
        tf.Qwen3MoeConfig,
        tf.Qwen3MoeForCausalLM,
        5,
        1,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=96,
    ),
    "mamba2": Family(mamba2, {"input_ids": TOKENS}, 4, 1, generates=True),
    "torch_encoder": Family(torch_encoder, {"src": STATES}, 4, 2),
    "lora": Family(adapted_llama, {"input_ids": TOKENS}, 7, 5, generates=True),
}


def parts_of(model):
    """Returns the state as plain tensors."""
    parts = {}
    for name, t in model.state_dict().items():
        is_ours = isinstance(t, mx.MXTensor)
        parts |= {f"{name}.codes": t.codes, f"{name}.scales": t.scales} if is_ours else {name: t}
    return parts


def assert_same_state(got, expected):
    """Compares two models bit by bit."""
    got, expected = parts_of(got), parts_of(expected)
    assert list(got) == list(expected)
    for name, t in got.items():
        assert t.dtype == expected[name].dtype and torch.equal(t, expected[name]), name


SPREAD = 4


def assert_same_greedy_tokens(got, expected, prompt, *, tokens, at_least, error):
    """Compares greedy tokens up to where the two largest logits are too close to tell.

    Logits differ by `error`, relative, and none by more than SPREAD standard deviations of that.
    """
    choices = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    out = {"output_logits": True, "return_dict_in_generate": True}
    runs = [model.generate(prompt, **choices, **out) for model in (got, expected)]
    decided = 0
    for row in range(len(prompt)):
        for step in range(tokens):
            ours, theirs = (run.logits[step][row].float() for run in runs)
            bound = error * SPREAD * theirs.std()
            assert (ours - theirs).abs().max() < bound, (row, step)
            first, second = theirs.topk(2).values
            if first - second < 2 * bound:
                break
            place = prompt.shape[1] + step
            assert runs[0].sequences[row, place] == runs[1].sequences[row, place]
            decided += 1
    assert decided >= at_least, decided

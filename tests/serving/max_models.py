"""Tiny random models that MAX is given: each architecture, and a Llama in each form."""

import random

import torch
import transformers as tf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn

from bench.gpt_oss import write_checkpoint
from mx_kernels import checkpoints
from mx_kernels.integrations.transformers import MXConfig

VOCABULARY = 512
NEW = 16
_NUMBERS = random.Random(5)
PROMPTS = [
    [_NUMBERS.randrange(VOCABULARY - 2) for _ in range(n)] for n in (1, 2, 7, 31, 32, 33, 130, 300)
]
"""One batch. 32 is the window of those that have one."""
WINDOW = 32
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "bos_token_id": VOCABULARY - 2,
    "eos_token_id": VOCABULARY - 1,
    "pad_token_id": VOCABULARY - 1,
    "tie_word_embeddings": False,
}
CLASSES = {
    "llama": (tf.LlamaForCausalLM, {}),
    "mistral": (tf.MistralForCausalLM, {"head_dim": 96, "sliding_window": WINDOW}),
    "qwen3": (tf.Qwen3ForCausalLM, {"head_dim": 128, "tie_word_embeddings": True}),
    "qwen3-moe": (
        tf.Qwen3MoeForCausalLM,
        {"head_dim": 64, "moe_intermediate_size": 96, "num_experts": 8, "num_experts_per_tok": 2},
    ),
}
"""Of transformers, and what their configs say beside."""
FORMS = {"quark": "mxfp4", "compressed-tensors": "mxfp4", "fp8": "fp8_block_2d"}
"""What the Llama is converted to, and in which format."""
EXPERTS = {
    "experts": 8,
    "active": 2,
    "hidden": 128,
    "inner": 96,
    "heads": 2,
    "kv_heads": 1,
    "head": 64,
    "vocabulary": VOCABULARY,
    "window": WINDOW,
}
MODELS = [*CLASSES, "llama-own", *(f"llama-{form}" for form in FORMS), "gpt-oss"]
"""Names of folders."""
ALIKE = ("llama-own", "llama-quark", "llama-compressed-tensors")
"""Those whose graphs are the Llama's: where weights come from is no part of a graph."""


def write_models(folder):
    """Writes all of `MODELS`, each with a tokenizer of words w0, w1, ..."""
    torch.manual_seed(7)
    for name, (cls, more) in CLASSES.items():
        _write(cls, more, folder / name)
    config = MXConfig(activations="mxint8")
    own = tf.AutoModelForCausalLM.from_pretrained(
        folder / "llama", quantization_config=config, dtype=torch.float32
    )
    own.save_pretrained(folder / "llama-own")
    for form, format in FORMS.items():
        checkpoints.convert(folder / "llama", folder / f"llama-{form}", to=form, format=format)
    write_checkpoint(folder / "gpt-oss", 2, **EXPERTS)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = tf.PreTrainedTokenizerFast(tokenizer_object=words, eos_token=f"w{VOCABULARY - 1}")
    for name in MODELS:
        tokenizer.save_pretrained(folder / name)


def _write(cls, more, folder):
    """Writes a model of floats, whose norms and biases are no ones and zeros."""
    model = cls(cls.config_class(**SIZES | more)).float()
    for name, p in model.named_parameters():
        if p.ndim == 1:
            nn.init.normal_(p, mean=float("norm" in name), std=0.3)
    model.save_pretrained(folder)

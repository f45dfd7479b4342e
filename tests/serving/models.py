"""Tiny random models as checkpoints that vLLM serves, and what transformers makes of them."""

import torch
import transformers as tf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from bench.gpt_oss import write_checkpoint
from bench.serving.models import COMMON, write_random
from mx_kernels import checkpoints
from mx_kernels.integrations.transformers import MXConfig, from_pretrained

VOCABULARY = 512
# 576 is no multiple of 128, but on two ranks of 32; 288 is a multiple of 32 alone.
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 576,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    **COMMON,
}
EXPERTS = {
    "experts": 8,
    "active": 2,
    "hidden": 256,
    "inner": 288,
    "heads": 4,
    "kv_heads": 2,
    "head": 64,
    "vocabulary": VOCABULARY,
    "window": 128,
}
FORMS = ("quark", "compressed-tensors", "mx_kernels")
OWN = {
    "llama-fp8": "fp8",
    "own-gpt-oss": "mxint8",
    "qwen-mxfp4": "mxint8",
    "qwen-fp8_block": "fp8_block",
    "qwen-apart": "mxint8",
}
"""More in our own form, and what their activations are multiplied as."""
PROMPTS = [[1, 2, 3, 4], [9, 8, 7], [100, 200, 300, 400, 500, 11, 12]]
NEW = 12


def write_models(folder):
    """Writes a Llama in each form, and a gpt-oss, each with a tokenizer of words w0, w1, ..."""
    torch.manual_seed(7)
    llama = tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES))
    write_random(llama, folder / "floats")
    words = {f"w{i}": i for i in range(VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder / "floats")
    for form in FORMS:
        checkpoints.convert(folder / "floats", folder / form, to=form)
    write_quantized(folder / "floats", folder / "llama-fp8", format="fp8")
    write_checkpoint(folder / "gpt-oss", 2, **EXPERTS)
    from_pretrained(folder / "gpt-oss").save_pretrained(folder / "own-gpt-oss")
    write_qwen(folder)


def write_qwen(folder):
    """Writes a Qwen3-MoE, whose experts have gates first and are no multiple of 128 wide.

    One of its checkpoints has a tensor for each expert, as the floats have.
    """
    config = tf.Qwen3MoeConfig(**SIZES, moe_intermediate_size=288, num_experts=8)
    qwen = tf.Qwen3MoeForCausalLM(config)
    write_random(qwen, folder / "qwen")
    for format in ("mxfp4", "fp8_block"):
        write_quantized(folder / "qwen", folder / f"qwen-{format}", format=format)
    checkpoints.convert(folder / "qwen", folder / "qwen-apart")


def write_quantized(source, target, **choices):
    """Writes a model of floats in our own form."""
    config = MXConfig(**choices)
    model = tf.AutoModelForCausalLM.from_pretrained(source, quantization_config=config)
    model.save_pretrained(target)


def logits_along(folder, activations, prompt, tokens, dtype=torch.bfloat16):
    """Returns the logits before each token, when all before it are given."""
    model = from_pretrained(folder, activations=activations, dtype=dtype)
    ids = torch.tensor([prompt + tokens])
    with torch.no_grad():
        return model(ids).logits[0, len(prompt) - 1 : -1].float()

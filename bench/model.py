"""The sentence encoder before and after conversion to MXFP4.

Variants of it embed the same sentences, the weights of all but the first in MXFP4:

    float32        weights and activations as published
    W4A4           activations rounded to MXFP4
    W4A8 mxint8    to MXINT8: what `mx_kernels.convert` does on a CPU unless told otherwise
    W4A8 mxfp8     to MXFP8
    W4A16          to bfloat16
    W4 only        the weights dequantized once, float32 activations: torch's linear

Against the float model: the cosine of each sentence's two vectors, and whether a
sentence keeps its nearest neighbours among the others. Time is the median of
interleaved passes over all sentences, tokenizing included.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import mx_kernels as mx
from bench import timing
from bench.device import REPOSITORY
from bench.minilm import embed, load_minilm, load_tokenizer
from bench.rows import ModelRow, Origin
from bench.sentences import repository_sentences
from bench.targets import Plan, Reporter
from bench.timing import Competitor

FLOAT = "float32"
MIN_ROUNDS, QUICK_ROUNDS = 5, 1
QUICK_SENTENCES = 40


def measure_model(plan: Plan, origin: Origin, report: Reporter) -> None:
    """Reports one row for each variant of the encoder."""
    report.progress("sentence encoder: loading and converting")
    sentences = repository_sentences(REPOSITORY)
    if plan.quick:
        sentences = sentences[:QUICK_SENTENCES]
    tokenizer = load_tokenizer()
    variants = {name: make(load_minilm()) for name, make in VARIANTS.items()}
    vectors = {name: embed(model, tokenizer, sentences) for name, model in variants.items()}

    report.progress(f"sentence encoder: {len(sentences)} sentences, {len(variants)} variants")
    times = timing.interleave(
        [
            Competitor(name, lambda model=model: embed(model, tokenizer, sentences))
            for name, model in variants.items()
        ],
        budget_s=0.0,
        min_rounds=QUICK_ROUNDS if plan.quick else MIN_ROUNDS,
    )
    for name, model in variants.items():
        report.row(
            ModelRow(
                variant=name,
                threads=plan.threads,
                sentences=len(sentences),
                **agreement(vectors[name], vectors[FLOAT]),
                linear_weight_bytes=linear_weight_bytes(model),
                model_bytes=model_bytes(model),
                sentences_per_s=len(sentences) / times[name].median_us * 1e6,
                **vars(origin),
            )
        )


def converted(activations: str) -> Callable[[nn.Module], nn.Module]:
    """Returns what makes every linear layer one with MXFP4 weights and such activations."""
    return lambda model: mx.convert(model, activations=activations)


def to_w4_only(model: nn.Module) -> nn.Module:
    """Rounds the weights of every linear layer to MXFP4 and keeps the activations."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = mx.quantize(module.weight.data).dequantize(torch.float32)
    return model


VARIANTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    FLOAT: lambda model: model,
    "W4A4": converted("mxfp4"),
    "W4A8 mxint8": converted("mxint8"),
    "W4A8 mxfp8": converted("mxfp8"),
    "W4A16": converted("bf16"),
    "W4 only": to_w4_only,
}


def agreement(vectors: Tensor, float_vectors: Tensor) -> dict[str, float]:
    """Compares unit vectors [S, width] with those of the float model."""
    cosines = (vectors * float_vectors).sum(-1)
    found, expected = nearest(vectors, 5), nearest(float_vectors, 5)
    shared = (found[:, :, None] == expected[:, None, :]).any(-1).float().mean()
    return {
        "cosine_mean": float(cosines.mean()),
        "cosine_worst": float(cosines.min()),
        "top1_agreement": float((found[:, 0] == expected[:, 0]).float().mean()),
        "top5_overlap": float(shared),
    }


def nearest(vectors: Tensor, count: int) -> Tensor:
    """Returns the `count` nearest other sentences of each sentence, nearest first."""
    similarity = vectors @ vectors.T
    similarity.fill_diagonal_(-torch.inf)
    return similarity.topk(count, dim=-1).indices


def linear_weight_bytes(model: nn.Module) -> int:
    """Returns the bytes in memory of all linear weights with their scales, without biases."""
    return sum(m.weight.nbytes for m in model.modules() if isinstance(m, nn.Linear))


def model_bytes(model: nn.Module) -> int:
    """Returns the bytes of everything that the model keeps."""
    kept = [*model.parameters(), *model.buffers()]
    return sum(tensor.nbytes for tensor in kept)

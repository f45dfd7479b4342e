"""Entry of `python -m bench.gpt_oss`."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from bench import device
from bench.gpt_oss.checkpoint import write_checkpoint
from bench.gpt_oss.worker import LLAMA_CPP, TRANSFORMERS, Job, Measured
from bench.peers import INSTALL_EXTRA
from bench.rows import write_csv
from bench.run import TRIAL_RESULTS, make_console

VARIANTS = (
    ("mxint8", "mxint8"),
    ("mxint8", None),
    ("bf16", None),
    (LLAMA_CPP, None),
    (TRANSFORMERS, None),
)
"""What activations are multiplied as, and what the rest of the weights is quantized to."""
NAMES = {
    LLAMA_CPP: "llama.cpp, rest Q8_0",
    TRANSFORMERS: "transformers, dequantized",
}
PEER_LAYERS = 4
"""As many as fit 24 GB while transformers dequantizes, with the embeddings of 20b."""


@dataclass(frozen=True)
class GptOssRow:
    """A row of the table."""

    variant: str
    rest: str | None
    layers: int
    """Of the model that the row is about."""
    measured_layers: int
    """If fewer, speeds are scaled: the head once, the rest by the number of layers."""
    threads: int
    load_s: float | None
    """Of the measured layers, as is memory."""
    resident_gb: float | None
    peak_gb: float | None
    prompt_tokens_per_s: float | None
    tokens_per_s: float | None
    products_per_s: float
    """Tokens, if they were their products alone."""
    device: str
    commit: str
    date: str


app = typer.Typer(add_completion=False)


@app.command()
def main(
    *,
    layers: Annotated[int, typer.Option(min=1, help="Of the model; gpt-oss-20b has 24.")] = 24,
    threads: Annotated[int, typer.Option(min=1, help="Threads, pinned to as many cores.")] = 2,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens to read.")] = 256,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to write.")] = 32,
    repeats: Annotated[int, typer.Option(min=1, help="Runs; the median counts.")] = 3,
    peer_layers: Annotated[
        int, typer.Option(min=0, help="Layers that peers are measured with; 0: they are not.")
    ] = PEER_LAYERS,
    folder: Annotated[
        Path | None, typer.Option(help="The checkpoint; written if it is not there.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder for the CSV file.")] = TRIAL_RESULTS,
) -> None:
    """Measures gpt-oss with random weights: ours in 4 bits, llama.cpp, and transformers."""
    console = make_console()
    folder = folder or Path(tempfile.gettempdir()) / f"mx_kernels-gpt-oss-{layers}"
    if not (folder / "config.json").exists():
        console.print(f"writing {layers} layers of random weights to {folder} ...")
        write_checkpoint(folder, layers)
    held = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    if held != layers:
        raise typer.BadParameter(f"--layers: got {layers}, but {folder} has {held}")
    rows = []
    for variant, rest in VARIANTS:
        count = min(layers, peer_layers) if variant in NAMES else layers
        if variant == LLAMA_CPP and not importlib.util.find_spec("ggml"):
            console.print(f"no llama.cpp: {INSTALL_EXTRA}", markup=False)
        elif count:
            job = Job(variant, rest, str(folder), count, threads, prompt, tokens, repeats)
            console.print(f"measuring {name_of(job)}, {count} layers ...")
            rows.append(row_of(job, layers, run(job)))
    console.print(table_of(rows, prompt, tokens))
    write_csv(results / "gpt_oss.csv", rows)
    console.print(f"wrote {results / 'gpt_oss.csv'}; the checkpoint stays in {folder}")


def run(job: Job) -> Measured:
    """Measures a job in a process of its own.

    Raises:
        RuntimeError: if that fails; its own message is on stderr.
    """
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpt_oss.worker"],
        input=json.dumps(dataclasses.asdict(job)),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=device.REPOSITORY,
    )
    if done.returncode:
        raise RuntimeError(f"the worker for {job.variant} failed (exit status {done.returncode})")
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def row_of(job: Job, layers: int, found: Measured) -> GptOssRow:
    """Returns what was measured as a row about a model of so many layers."""
    scale = layers / job.layers

    def rate(tokens: int, seconds: float | None, heads: int) -> float | None:
        if seconds is None:
            return None
        heads_s = found.head_s * heads
        return tokens / (heads_s + (seconds - heads_s) * scale)

    return GptOssRow(
        variant=job.variant,
        rest=job.rest,
        layers=layers,
        measured_layers=job.layers,
        threads=job.threads,
        load_s=found.load_s,
        resident_gb=found.resident_gb,
        peak_gb=found.peak_gb,
        prompt_tokens_per_s=rate(job.prompt, found.prompt_s, 1),
        tokens_per_s=rate(job.tokens, found.tokens_s, job.tokens),
        products_per_s=rate(1, found.products_s, 1),
        device=device.describe_cpu(),
        commit=device.describe_commit(),
        date=device.today(),
    )


def name_of(of: Job | GptOssRow) -> str:
    """Returns what a table calls it."""
    rest = f", rest {of.rest}" if of.rest else ""
    return NAMES.get(of.variant, f"ours, {of.variant}{rest}")


def table_of(rows: list[GptOssRow], prompt: int, tokens: int) -> Table:
    """Returns the rows as a table."""
    first = rows[0]
    table = Table(
        title=f"gpt-oss, {first.layers} layers, random weights, {first.threads} threads",
        caption=f"{first.device}; commit {first.commit}, {first.date}. Prompt of {prompt} tokens, "
        f"then {tokens} one by one. Memory beyond that of an empty process.",
    )
    table.add_column("variant")
    heads = (
        "load, s", "resident, GB", "peak, GB", "prompt, tokens/s", "generated, tokens/s",
        "products alone, tokens/s",
    )  # fmt: skip
    for head in heads:
        table.add_column(head, justify="right")
    for row in rows:
        is_part = row.measured_layers < row.layers
        few = f" (of {row.measured_layers} layers)" if is_part else ""
        load = (row.load_s, row.resident_gb, row.peak_gb)
        cells = ["" if cell is None else f"{cell:.2f}{few}" for cell in load]
        speeds = (row.prompt_tokens_per_s, row.tokens_per_s, row.products_per_s)
        scaled = " (scaled)" if is_part else ""
        cells += ["" if cell is None else f"{cell:.2f}{scaled}" for cell in speeds]
        table.add_row(name_of(row), *cells)
    return table


if __name__ == "__main__":
    app(prog_name="python -m bench.gpt_oss")

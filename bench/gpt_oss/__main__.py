"""Entry of `python -m bench.gpt_oss`."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from bench import device
from bench.gpt_oss.checkpoint import sizes_of, write_checkpoint
from bench.gpt_oss.gguf_file import write_gguf
from bench.gpt_oss.worker import TRANSFORMERS, Job, Measured, prompt_of
from bench.rows import write_csv
from bench.run import TRIAL_RESULTS, make_console
from bench.serving.environment import python_with_llama_cpp

LLAMA_CPP = "llama.cpp"
REFERENCE = ("bf16", None)
"""Whose logits others are compared with: the checkpoint's weights, activations as they are."""
VARIANTS = (
    REFERENCE,
    ("mxint8", "mxint8"),
    ("mxint8", None),
    (LLAMA_CPP, "q8_0"),
    (TRANSFORMERS, None),
)
"""What activations are multiplied as, and what the rest of the weights is quantized to."""
NAMES = {LLAMA_CPP: "llama.cpp", TRANSFORMERS: "transformers, dequantized"}
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
    load_s: float
    """Of the measured layers, as is memory."""
    resident_gb: float
    peak_gb: float
    prompt_tokens_per_s: float
    tokens_per_s: float
    products_per_s: float | None
    """Tokens, if they were their products alone; not known of llama.cpp."""
    logits_error: float | None
    """Of the logits behind the prompt: the norm of the difference from `REFERENCE` over its own;
    None of another number of layers."""
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
        int, typer.Option(min=0, help="Layers that transformers is measured with; 0: it is not.")
    ] = PEER_LAYERS,
    llama_cpp: Annotated[
        bool, typer.Option(help="Measure llama.cpp, which is compiled once, in the cache.")
    ] = True,
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
    if llama_cpp and not shutil.which("c++"):
        console.print("no llama.cpp: there is no compiler, c++, that it could be built with")
        llama_cpp = False
    counts = {TRANSFORMERS: min(layers, peer_layers), LLAMA_CPP: layers if llama_cpp else 0}
    rows, logits = [], {}
    with tempfile.TemporaryDirectory() as place:
        for variant, rest in VARIANTS:
            if count := counts.get(variant, layers):
                file = f"{place}/{len(rows)}.npy"
                job = Job(variant, rest, str(folder), count, threads, prompt, tokens, repeats, file)
                console.print(f"measuring {name_of(job)}, {count} layers ...")
                found = run_llama_cpp(job) if variant == LLAMA_CPP else run(job)
                logits[variant, rest] = np.load(file)
                whole = logits[REFERENCE] if count == layers else None
                rows.append(row_of(job, layers, found, error_of(logits[variant, rest], whole)))
    console.print(table_of(rows, prompt, tokens))
    write_csv(results / "gpt_oss.csv", rows)
    console.print(f"wrote {results / 'gpt_oss.csv'}; the checkpoint stays in {folder}")


def run(job: Job) -> Measured:
    """Measures a job in a process of its own."""
    return _run([sys.executable, "-m", "bench.gpt_oss.worker"], dataclasses.asdict(job))


def run_llama_cpp(job: Job) -> Measured:
    """Measures llama.cpp on the same numbers, in a file beside the checkpoint."""
    file = Path(job.folder) / f"{job.layers}.gguf"
    if not file.exists():
        write_gguf(job.folder, file, job.layers)
    ids = prompt_of(job, sizes_of(job.folder, job.layers).vocabulary)[0].tolist()
    given = {"path": str(file), "ids": ids, **dataclasses.asdict(job)}
    script = device.REPOSITORY / "bench" / "peers" / "llama_cpp_gpt_oss.py"
    # Isolated: beside the script lies a module of the same name.
    return _run([str(python_with_llama_cpp()), "-I", str(script)], given)


def error_of(logits: np.ndarray, reference: np.ndarray | None) -> float | None:
    """Returns the relative error of logits, None without a reference."""
    if reference is None:
        return None
    return float(np.linalg.norm(logits - reference) / np.linalg.norm(reference))


def _run(command: list[str], job: dict) -> Measured:
    """Measures a job, given as JSON.

    Raises:
        RuntimeError: if that fails; its own message is on stderr.
    """
    done = subprocess.run(
        command,
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=device.REPOSITORY,
    )
    if done.returncode:
        raise RuntimeError(f"the worker for {job['variant']} failed, status {done.returncode}")
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def row_of(job: Job, layers: int, found: Measured, error: float | None = None) -> GptOssRow:
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
        logits_error=error,
        device=device.describe_cpu(),
        commit=device.describe_commit(),
        date=device.today(),
    )


def name_of(of: Job | GptOssRow) -> str:
    """Returns what a table calls it."""
    rest = f", rest {of.rest}" if of.rest else ""
    return NAMES.get(of.variant, f"ours, {of.variant}") + rest


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
        "products alone, tokens/s", "error of logits",
    )  # fmt: skip
    for head in heads:
        table.add_column(head, justify="right")
    for row in rows:
        is_part = row.measured_layers < row.layers
        few = f" (of {row.measured_layers} layers)" if is_part else ""
        load = (row.load_s, row.resident_gb, row.peak_gb)
        cells = [f"{cell:.2f}{few}" for cell in load]
        speeds = (row.prompt_tokens_per_s, row.tokens_per_s, row.products_per_s)
        scaled = " (scaled)" if is_part else ""
        cells += ["" if cell is None else f"{cell:.2f}{scaled}" for cell in speeds]
        error = "" if row.logits_error is None else f"{row.logits_error:.2g}"
        table.add_row(name_of(row), *cells, error)
    return table


if __name__ == "__main__":
    app(prog_name="python -m bench.gpt_oss")

"""Entry of `python -m bench.serving`."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

from bench import device
from bench.rows import write_csv
from bench.run import TRIAL_RESULTS, make_console
from bench.serving.environment import VLLM, environment, python_with_vllm
from bench.serving.models import COMMON, write_random
from mx_kernels import checkpoints

SIZES = {
    "vocab_size": 8192,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    **COMMON,
}
"""Of the Llama: 69 million weights in its layers, 138 MB in bfloat16."""
VARIANTS = {
    "mx_kernels, mxint8": ("quark", "mxint8"),
    "mx_kernels, mxfp4": ("quark", "mxfp4"),
    "vLLM, dequantized to bfloat16": ("dequantized", None),
}
"""The checkpoint of each, and what activations are multiplied as; without it there is no plugin."""
CLIENTS = (1, 8, 32)
PROMPT, NEW = 32, 32
"""Tokens of a request, and behind it."""


@dataclass(frozen=True)
class ServingRow:
    """A row of the table."""

    variant: str
    requests: int
    """At once."""
    prompt: int
    new: int
    requests_per_s: float
    """Medians of the rounds."""
    tokens_per_s: float
    slowest_tokens_per_s: float
    fastest_tokens_per_s: float
    rounds: int
    device: str
    vllm: str
    commit: str
    date: str


class Engine:
    """A process with one model."""

    def __init__(self, python: Path, folder: Path, activations: str | None):
        plugin = {"MX_KERNELS_ACTIVATIONS": activations} if activations else {"VLLM_PLUGINS": ""}
        job = {
            "folder": str(folder),
            "options": {"max_model_len": 256, "max_num_seqs": max(CLIENTS), "enforce_eager": True},
            "environment": plugin,
        }
        self.process = subprocess.Popen(
            [str(python), str(Path(__file__).parent / "worker.py"), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment() | {"VLLM_CPU_OMP_THREADS_BIND": cores()},
        )
        self._answer()

    def asked(self, prompts: list[list[int]], new: int) -> tuple[float, int]:
        """Returns seconds and tokens of requests that come at once."""
        self.process.stdin.write(json.dumps([prompts, new]) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        return answer["seconds"], answer["tokens"]

    def close(self) -> None:
        """Ends the process."""
        self.process.stdin.close()
        self.process.wait(60)

    def _answer(self) -> dict:
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"vLLM ended with exit status {self.process.wait()}; see its messages")


def cores() -> str:
    """Returns the cores that vLLM's threads are bound to: all that this process may use."""
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))


def write_llama(folder: Path) -> None:
    """Writes one Llama with random weights: in MXFP4 of AMD Quark, and as what that means."""
    import transformers as tf  # noqa: PLC0415  an optional dependency

    torch.manual_seed(7)
    llama = tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES))
    write_random(llama, folder / "floats")
    checkpoints.convert(folder / "floats", folder / "quark", to="quark")
    for name, weight in checkpoints.load(folder / "quark", preshuffle=False).items():
        if hasattr(weight, "dequantize"):
            llama.get_parameter(name).data.copy_(weight.dequantize())
    llama.save_pretrained(folder / "dequantized")


def measure(engines: dict[str, Engine], rounds: int) -> dict[tuple[str, int], list[float]]:
    """Returns seconds by variant and requests at once: variants take turns in every round."""
    found: dict[tuple[str, int], list[float]] = {}
    rng = random.Random(3)
    for number in range(rounds + 1):
        for requests in CLIENTS:
            prompts = [
                [rng.randrange(2, SIZES["vocab_size"]) for _ in range(PROMPT)]
                for _ in range(requests)
            ]
            for name, engine in engines.items():
                seconds, tokens = engine.asked(prompts, NEW)
                if tokens != requests * NEW:
                    raise RuntimeError(f"{name}: got {tokens} tokens, expected {requests * NEW}")
                # The first round is for caches and compilers.
                if number:
                    found.setdefault((name, requests), []).append(seconds)
    return found


app = typer.Typer(add_completion=False)


@app.command()
def main(
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Of all variants; medians count.")] = 5,
    results: Annotated[Path, typer.Option(help="Folder for the CSV file.")] = TRIAL_RESULTS,
) -> None:
    """Measures requests and tokens a second of vLLM with and without the plugin."""
    console = make_console()
    python = python_with_vllm()
    with tempfile.TemporaryDirectory() as folder:
        write_llama(Path(folder))
        engines = {}
        try:
            for name, (source, activations) in VARIANTS.items():
                console.print(f"starting {name} ...")
                engines[name] = Engine(python, Path(folder) / source, activations)
            console.print(f"measuring {rounds} rounds ...")
            found = measure(engines, rounds)
        finally:
            for engine in engines.values():
                engine.close()
    rows = [row_of(name, requests, seconds) for (name, requests), seconds in found.items()]
    rows.sort(key=lambda row: row.requests)
    console.print(table_of(rows))
    write_csv(results / "serving.csv", rows)
    console.print(f"wrote {results / 'serving.csv'}")


def row_of(name: str, requests: int, seconds: list[float]) -> ServingRow:
    """Returns what was measured of one variant."""
    middle, tokens = statistics.median(seconds), requests * NEW
    return ServingRow(
        variant=name,
        requests=requests,
        prompt=PROMPT,
        new=NEW,
        requests_per_s=requests / middle,
        tokens_per_s=tokens / middle,
        slowest_tokens_per_s=tokens / max(seconds),
        fastest_tokens_per_s=tokens / min(seconds),
        rounds=len(seconds),
        device=device.describe_cpu(),
        vllm=VLLM,
        commit=device.describe_commit(),
        date=device.today(),
    )


def table_of(rows: list[ServingRow]) -> Table:
    """Returns the rows as a table."""
    first = rows[0]
    table = Table(
        title=f"vLLM {first.vllm}, a Llama of 69 million weights in {SIZES['num_hidden_layers']} "
        "layers",
        caption=f"{first.device}; commit {first.commit}, {first.date}. Requests of {first.prompt} "
        f"tokens, {first.new} behind each; medians of {first.rounds} rounds by turns.",
    )
    heads = ("requests at once", "variant", "requests/s", "tokens/s", "slowest", "fastest")
    for head in heads:
        table.add_column(head, justify="left" if head == "variant" else "right")
    for row in rows:
        rates = (row.tokens_per_s, row.slowest_tokens_per_s, row.fastest_tokens_per_s)
        table.add_row(
            str(row.requests),
            row.variant,
            f"{row.requests_per_s:.2f}",
            *(f"{rate:.0f}" for rate in rates),
        )
    return table


if __name__ == "__main__":
    app()

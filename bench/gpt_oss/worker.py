"""One process, one model: loads it, reads a prompt, writes tokens.

    python -m bench.gpt_oss.worker      what to measure as JSON on standard input

The last line of standard output is what was measured, as JSON. Prompts are random tokens; a step
takes the token with the largest logit, as `generate` does.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from bench.worker import pin

WARM_TOKENS = 8


@dataclass(frozen=True)
class Job:
    """What is measured."""

    variant: str
    """What activations are multiplied as, or `TRANSFORMERS`."""
    rest: str | None
    """What the layers that the checkpoint has as floats are quantized to."""
    folder: str
    layers: int
    """At most those of the checkpoint."""
    threads: int
    prompt: int
    """Tokens."""
    tokens: int
    """To write."""
    repeats: int
    logits: str = ""
    """A file for the logits behind the prompt, float32; empty for none."""


TRANSFORMERS = "transformers"
"""Its own way on a CPU: weights dequantized to bfloat16."""


@dataclass(frozen=True)
class Measured:
    """What came of it."""

    load_s: float
    resident_gb: float
    """Behind the load; without what the process had before."""
    peak_gb: float
    prompt_s: float
    tokens_s: float
    products_s: float | None = None
    """Of one token's products alone: attention's four, the experts with their router, the head."""
    head_s: float = 0.0
    """Of one token's logits, which are in the others once, or once a token; 0 where all layers are
    measured."""


def measure(job: Job) -> Measured:
    """Measures a job in this process."""
    pin(job.threads)
    import torch  # noqa: PLC0415  the threads are set now

    torch.set_num_threads(job.threads)
    _warm_up()
    before = memory_gb("VmRSS")
    begin = time.perf_counter()
    model = _load(job)
    load_s = time.perf_counter() - begin
    resident, peak = (memory_gb(name) - before for name in ("VmRSS", "VmHWM"))
    ids = prompt_of(job, model.config.vocab_size)
    hidden = torch.ones(1, 1, model.config.hidden_size, dtype=model.dtype)
    with torch.inference_mode():
        _step(model, ids[:, :WARM_TOKENS])
        heads = [_timed(lambda: model.lm_head(hidden))[0] for _ in range(max(job.repeats, 3))]
        runs = [_run(model, ids, job.tokens) for _ in range(job.repeats)]
        if job.logits:
            np.save(job.logits, _step(model, ids).logits[0, -1].float().numpy())
        products = [_timed(lambda: _products(model))[0] for _ in range(job.repeats * job.tokens)]
    prompt_s, tokens_s = (median(seconds) for seconds in zip(*runs, strict=True))
    return Measured(load_s, resident, peak, prompt_s, tokens_s, median(products), median(heads))


def prompt_of(job: Job, vocabulary: int):
    """Returns the tokens of the prompt, the same for each system."""
    import torch  # noqa: PLC0415  the threads are set now

    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocabulary, (1, job.prompt), generator=generator)


def _warm_up() -> None:
    """Loads, and on the first call of all compiles, what is not part of a load."""
    import torch  # noqa: PLC0415  the threads are set now
    import transformers  # noqa: PLC0415

    import mx_kernels  # noqa: PLC0415
    from mx_kernels.integrations import transformers as _  # noqa: F401, PLC0415

    transformers.utils.logging.disable_progress_bar()
    mx_kernels.quantize(torch.ones(1, 32))


def _load(job: Job):
    """Returns the model, cut to the job's layers."""
    from transformers import AutoConfig, AutoModelForCausalLM, Mxfp4Config  # noqa: PLC0415

    from mx_kernels.integrations.transformers import from_pretrained  # noqa: PLC0415

    config = AutoConfig.from_pretrained(job.folder)
    config.num_hidden_layers = job.layers
    config.layer_types = config.layer_types[: job.layers]
    if job.variant != TRANSFORMERS:
        return from_pretrained(job.folder, config=config, activations=job.variant, rest=job.rest)
    dequantized = Mxfp4Config(dequantize=True)
    return AutoModelForCausalLM.from_pretrained(
        job.folder, config=config, quantization_config=dequantized
    )


def _products(model) -> None:
    """Multiplies what a token multiplies, each layer with experts of its own choice."""
    import torch  # noqa: PLC0415

    x = torch.randn(1, 1, model.config.hidden_size).to(model.dtype)
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.k_proj(x)
        attention.v_proj(x)
        attention.o_proj(attention.q_proj(x))
        layer.mlp(x)
    model.lm_head(x)


def _step(model, ids, cache=None):
    return model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)


def _run(model, ids, tokens: int) -> tuple[float, float]:
    """Returns the seconds for a prompt, and for the tokens behind it."""
    prompt_s, out = _timed(lambda: _step(model, ids))

    def write() -> None:
        step = out
        for _ in range(tokens):
            step = _step(model, step.logits[:, -1:].argmax(-1), step.past_key_values)

    return prompt_s, _timed(write)[0]


def _timed(work) -> tuple:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def memory_gb(name: str) -> float:
    """Returns what the system says of this process's memory: VmRSS, VmHWM."""
    said = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", said)[1]) * 1024 / 1e9


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(measure(Job(**json.loads(sys.stdin.read()))))))

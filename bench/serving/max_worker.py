"""Generates with MAX's own pipeline: run by the environment that has it.

    python max_worker.py JOB    writes found.json, and logits.npy [prompts, new, words]

A job is JSON: folder (the model), out (where to write), prompts (of token ids), new (tokens each),
rounds (of the same, 1 if it is not said), environment (variables), and flags, which are
`max generate`'s, with underscores.
Prompts run as one batch, greedily, past the end of text.
"""

import json
import mmap
import os
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
from max.driver import DeviceSpec
from max.pipelines import PIPELINE_REGISTRY
from max.pipelines.lib import PipelineArgs, PipelineConfig
from max.pipelines.lib.generate import GenerateIterator

OPTIONS = {"temperature": 0.0, "ignore_eos": True}


def pipeline_of(job: dict):
    """Returns the pipeline of a model, and the seconds that it took to start."""
    begin = time.perf_counter()
    flags = {
        "model_path": job["folder"],
        "device_specs": [DeviceSpec.cpu()],
        "quantization_encoding": "float32",
        "custom_architectures": ["mx_kernels.max_pipelines"],
        "max_length": 512,
        "max_batch_size": len(job["prompts"]),
        "device_graph_capture": False,
        **job.get("flags", {}),
    }
    config = PipelineConfig.from_args(PipelineArgs.from_flat_kwargs(**flags))
    pipeline = PIPELINE_REGISTRY.retrieve_factory(config).factory()
    return pipeline, time.perf_counter() - begin


def resident_bytes() -> int:
    """Returns the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def timed(pipeline, job: dict, **options):
    """Returns what was generated, seconds of the prompts, and of all tokens behind the first."""
    begin = time.perf_counter()
    with GenerateIterator(
        pipeline, job["prompts"], max_new_tokens=job["new"], **OPTIONS, **options
    ) as batch:
        batch.step()
        first = time.perf_counter()
        while not batch.done:
            batch.step()
        end = time.perf_counter()
        return batch.sequences, batch.logits if options else None, first - begin, end - first


def run(job: dict) -> None:
    """Writes what a job asks for."""
    os.environ.update(job.get("environment", {}))
    before = resident_bytes()
    pipeline, seconds = pipeline_of(job)
    sequences, logits, *_ = timed(pipeline, job, output_logits=True)
    times = [timed(pipeline, job)[2:] for _ in range(job.get("rounds", 1))]
    out = Path(job["out"])
    out.mkdir(parents=True, exist_ok=True)
    np.save(out / "logits.npy", np.stack(logits))
    found = {
        "tokens": [
            [int(token) for token in row[len(prompt) :]]
            for row, prompt in zip(sequences, job["prompts"], strict=True)
        ],
        "start_seconds": seconds,
        "prompt_seconds": median(prompt for prompt, _ in times),
        "new_seconds": median(new for _, new in times),
        "resident_bytes": resident_bytes() - before,
    }
    (out / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))

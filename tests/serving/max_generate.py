"""Generates with MAX's own pipeline: run by the environment that has it.

    python max_generate.py JOB    writes tokens.json, and logits.npy [prompts, new, words]

A job is JSON: folder (the model), out (where to write), prompts (of token ids), new (tokens
each), and flags, which
are `max generate`'s, with underscores. Prompts run as one batch, greedily, past the end of text.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from max.driver import DeviceSpec
from max.pipelines import PIPELINE_REGISTRY
from max.pipelines.lib import PipelineArgs, PipelineConfig
from max.pipelines.lib.generate import generate


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


def run(job: dict) -> None:
    """Writes what a job asks for."""
    pipeline, seconds = pipeline_of(job)
    options = {"temperature": 0.0, "ignore_eos": True, "output_logits": True}
    found = generate(pipeline, job["prompts"], max_new_tokens=job["new"], **options)
    out = Path(job["out"])
    out.mkdir(parents=True, exist_ok=True)
    tokens = [
        [int(t) for t in row[len(prompt) :]]
        for row, prompt in zip(found.sequences, job["prompts"], strict=True)
    ]
    np.save(out / "logits.npy", np.stack(found.logits))
    (out / "tokens.json").write_text(json.dumps({"tokens": tokens, "start_seconds": seconds}))


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))

"""llama.cpp on a GGUF file of gpt-oss: a script for its own environment, which has nothing of ours.

    python llama_cpp_gpt_oss.py      what to measure as JSON on standard input

The last line of standard output is what was measured, as JSON. It reads a prompt in one batch and
writes tokens of the largest logit, as `bench.gpt_oss.worker` does; the logits behind the prompt go
to a file. Weights are repacked as llama.cpp does by itself.
"""

import ctypes
import json
import os
import re
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np


def pin(threads: int) -> None:
    """Confines this process to the last of its cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    os.environ["OMP_NUM_THREADS"] = str(threads)


def memory_gb(name: str) -> float:
    """Returns what the system says of this process's memory."""
    said = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", said)[1]) * 1024 / 1e9


class Model:
    """A model and a context for its tokens."""

    def __init__(self, path: str, threads: int, tokens: int):
        import llama_cpp  # noqa: PLC0415  the threads are set now

        self.library = llama_cpp
        # It would say a line for each tensor.
        self.silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.silence, None)
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params()
        )
        if not self.model:
            raise RuntimeError(f"llama.cpp did not load {path}")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = tokens
        options.n_threads = options.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        if not self.context:
            raise RuntimeError(f"llama.cpp made no context for {path}")
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(vocabulary)

    def forget(self) -> None:
        """Begins anew."""
        memory = self.library.llama_get_memory(self.context)
        self.library.llama_memory_clear(memory, True)

    def read(self, ids: list[int]) -> np.ndarray:
        """Reads tokens; returns the logits of the last one, which the next call overwrites."""
        tokens = (ctypes.c_int32 * len(ids))(*ids)
        batch = self.library.llama_batch_get_one(tokens, len(ids))
        status = self.library.llama_decode(self.context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        logits = self.library.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(logits, (self.size,))


def measure(job: dict) -> dict:
    """Measures a job: path, threads, ids, tokens, repeats and a file for logits."""
    pin(job["threads"])
    before, begin = memory_gb("VmRSS"), time.perf_counter()
    model = Model(job["path"], job["threads"], len(job["ids"]) + job["tokens"] + 1)
    load_s = time.perf_counter() - begin
    model.read(job["ids"][:8])
    runs = []
    for _ in range(job["repeats"]):
        model.forget()
        begin = time.perf_counter()
        logits = model.read(job["ids"])
        middle = time.perf_counter()
        np.save(job["logits"], logits)
        written = time.perf_counter()
        for _ in range(job["tokens"]):
            logits = model.read([int(logits.argmax())])
        runs.append((middle - begin, time.perf_counter() - written))
    resident, peak = (memory_gb(name) - before for name in ("VmRSS", "VmHWM"))
    prompt_s, tokens_s = (median(seconds) for seconds in zip(*runs, strict=True))
    return {
        "load_s": load_s,
        "resident_gb": resident,
        "peak_gb": peak,
        "prompt_s": prompt_s,
        "tokens_s": tokens_s,
    }


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.stdin.read()))))

"""Generates greedily with vLLM: run by the environment that has it.

    python generate.py JOBS    JSON: a list of {folder, prompts, new, options, environment}

Prints a line of JSON for each: the tokens after each prompt. An engine of one rank runs in this
process: each of its own would import vLLM twice more, which takes longer than all else here. Over
HTTP, and on two ranks, engines have processes.
"""

import gc
import json
import mmap
import os
import sys
from pathlib import Path

PAGE = mmap.PAGESIZE


def resident_bytes(root: int) -> int:
    """Returns the memory of a process and of those that it started."""
    parents, sizes = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # Behind the name, which may hold spaces: state, parent.
            _, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            sizes[int(folder.name)] = int((folder / "statm").read_text().split()[1]) * PAGE
        except OSError:
            continue
        parents[int(folder.name)] = int(parent)

    def is_ours(pid: int) -> bool:
        return pid == root or (pid in parents and is_ours(parents[pid]))

    return sum(size for pid, size in sizes.items() if is_ours(pid))


def main(jobs: str) -> None:
    """Generates with one model after the other."""
    from vllm import LLM, SamplingParams  # noqa: PLC0415  others need only the memory
    from vllm.distributed import cleanup_dist_env_and_memory  # noqa: PLC0415

    for job in json.loads(jobs):
        os.environ.update(job.get("environment", {}))
        options = {"enforce_eager": True, **job.get("options", {})}
        is_alone = options.get("tensor_parallel_size", 1) == 1
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "01"[not is_alone]
        model = LLM(
            job["folder"],
            skip_tokenizer_init=True,
            max_model_len=256,
            dtype="bfloat16",
            **options,
        )
        prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
        rules = SamplingParams(
            max_tokens=job["new"], temperature=0, detokenize=False, ignore_eos=True
        )
        done = model.generate(prompts, rules, use_tqdm=False)
        tokens = [list(one.outputs[0].token_ids) for one in done]
        print(json.dumps({"tokens": tokens}), flush=True)
        model.llm_engine.engine_core.shutdown()
        del model
        gc.collect()
        cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main(*sys.argv[1:])

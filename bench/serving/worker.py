"""One engine of vLLM, run by the environment that has it: `python worker.py JOB`.

JOB is JSON: folder, options of the engine, and names of variables with their values. A line on
stdin is a list of prompts and how many tokens to put behind each; a line of JSON on stdout answers
with the seconds that took. The end of stdin ends the process.
"""

import json
import os
import sys
import time


def main(job: dict) -> None:
    """Starts the engine and answers."""
    os.environ.update(job["environment"])
    from vllm import LLM, SamplingParams  # noqa: PLC0415  it reads the variables

    model = LLM(job["folder"], skip_tokenizer_init=True, dtype="bfloat16", **job["options"])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        prompts, new = json.loads(line)
        rules = SamplingParams(max_tokens=new, temperature=0, detokenize=False, ignore_eos=True)
        begin = time.perf_counter()
        done = model.generate([{"prompt_token_ids": p} for p in prompts], rules, use_tqdm=False)
        seconds = time.perf_counter() - begin
        count = sum(len(one.outputs[0].token_ids) for one in done)
        print(json.dumps({"seconds": seconds, "tokens": count}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

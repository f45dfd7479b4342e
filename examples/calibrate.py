"""Weights that fit a text: GPTQ to MXFP4 or NVFP4, by llm-compressor, for mx_kernels to load.

    python examples/calibrate.py MODEL TEXT SCHEME OUT

MODEL is a folder in floats, as transformers keeps it; TEXT a file, best of what the model will
read; SCHEME is MXFP4A16 or NVFP4A16, which leave activations to who loads OUT. Needs llm-compressor
and not mx_kernels: the guide's page "Calibrated weights" has the environment.
"""

import sys
from pathlib import Path

from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from transformers import AutoModelForCausalLM, AutoTokenizer

SAMPLES, TOKENS = 16, 512
"""Pieces of the text, and tokens in each."""


def main(model_folder: str, text: str, scheme: str, out: str) -> None:
    """Reads, calibrates, writes."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype="auto")
    ids = tokenizer(Path(text).read_text()).input_ids
    starts = range(0, len(ids) - TOKENS + 1, TOKENS)[:SAMPLES]
    pieces = [ids[start : start + TOKENS] for start in starts]
    if not pieces:
        raise SystemExit(f"{text}: got {len(ids)} tokens, expected {TOKENS} or more")
    ones = [[1] * TOKENS] * len(pieces)
    oneshot(
        model=model,
        dataset=Dataset.from_dict({"input_ids": pieces, "attention_mask": ones}),
        recipe=GPTQModifier(targets="Linear", scheme=scheme, ignore=["lm_head"]),
        max_seq_length=TOKENS,
        num_calibration_samples=len(pieces),
    )
    model.save_pretrained(out, save_compressed=True)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Generates text with gpt-oss in the 4 bits of its checkpoint.

    python examples/gpt_oss.py FOLDER --prompt "Why is the sky blue?"

FOLDER is a downloaded checkpoint, such as that of gpt-oss-20b, which then takes 14 GB.
`--ids "5 70 31"` gives token ids instead of text, where there is no tokenizer.
"""

import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from transformers import AutoTokenizer, TextStreamer

from mx_kernels.integrations.transformers import from_pretrained

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(soft_wrap=True, highlight=False)


@app.command()
def main(
    folder: Annotated[Path, typer.Argument(help="A checkpoint of gpt-oss.")],
    *,
    prompt: Annotated[str, typer.Option(help="What to ask.")] = "Why is the sky blue?",
    ids: Annotated[str, typer.Option(help="Token ids instead, with spaces between.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="How many to generate, at most.")] = 64,
    activations: Annotated[str, typer.Option(help="mxint8, bf16, ... (default: fastest).")] = "",
    rest: Annotated[str, typer.Option(help="mxint8: attention and head too, twice as fast.")] = "",
) -> None:
    """Loads a checkpoint of gpt-oss in 4 bits and generates."""
    if not (folder / "config.json").is_file():
        console.print(f"error: {folder}: got no config.json, expected a checkpoint", markup=False)
        raise typer.Exit(2)
    begin = time.perf_counter()
    model = from_pretrained(folder, activations=activations or None, rest=rest or None)
    size = sum(p.nbytes for p in model.parameters()) / 1e9
    console.print(f"loaded {size:.3g} GB in {time.perf_counter() - begin:.1f} s")

    streamer = None
    if ids:
        inputs = {"input_ids": torch.tensor([[int(number) for number in ids.split()]])}
    else:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        streamer = TextStreamer(tokenizer, skip_prompt=True)
        asked = [{"role": "user", "content": prompt}]
        inputs = tokenizer.apply_chat_template(
            asked, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
    begin = time.perf_counter()
    out = model.generate(**inputs, max_new_tokens=tokens, do_sample=False, streamer=streamer)
    new = out[0, inputs["input_ids"].shape[1] :].tolist()
    if ids:
        console.print(" ".join(map(str, new)))
    seconds = time.perf_counter() - begin
    console.print(f"{len(new)} tokens, {len(new) / seconds:.2f} a second")


if __name__ == "__main__":
    app()

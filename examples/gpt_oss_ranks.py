"""Generates with gpt-oss over the GPUs of a machine, each of which has a part of every expert.

    torchrun --nproc-per-node 2 examples/gpt_oss_ranks.py FOLDER --prompt "Why is the sky blue?"

Experts are 19 of 20 bytes of gpt-oss-120b; attention is whole on each rank. Without GPUs the ranks
are processes over gloo. `--ids "5 70 31"` gives token ids instead of text.
"""

from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist
import typer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module
from transformers import AutoTokenizer

import mx_kernels.integrations.distributed as mxd
from mx_kernels.integrations.transformers import from_pretrained


def main(
    folder: Annotated[Path, typer.Argument(help="A checkpoint of gpt-oss.")],
    *,
    prompt: Annotated[str, typer.Option(help="What to ask.")] = "Why is the sky blue?",
    ids: Annotated[str, typer.Option(help="Token ids instead, with spaces between.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="How many to generate, at most.")] = 64,
) -> None:
    """Is one rank."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    rank = dist.get_rank()
    device = f"cuda:{rank}" if kind == "cuda" else "cpu"
    mesh = init_device_mesh(kind, (dist.get_world_size(),))

    model = from_pretrained(folder, device_map=device)
    parallelize_module(model, mesh, {"model.layers.*.mlp.experts": mxd.Experts()})
    if ids:
        inputs = {"input_ids": torch.tensor([[int(number) for number in ids.split()]])}
    else:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        asked = [{"role": "user", "content": prompt}]
        inputs = tokenizer.apply_chat_template(
            asked, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
    inputs = {name: t.to(device) for name, t in inputs.items()}
    # Every rank gets the same sums, and so the same tokens.
    out = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
    new = out[0, inputs["input_ids"].shape[1] :].tolist()
    if rank == 0:
        print(" ".join(map(str, new)) if ids else tokenizer.decode(new, skip_special_tokens=True))
    dist.destroy_process_group()


if __name__ == "__main__":
    typer.run(main)

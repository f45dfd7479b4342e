"""A checkpoint in floats becomes one in four bits, and is read again.

    python examples/convert_checkpoint.py [FOLDER]

Writes FOLDER/floats, a small random checkpoint as transformers would keep it, then does what
`python -m mx_kernels convert FOLDER/floats FOLDER/mxfp4 --to quark` does.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

import mx_kernels as mx

HIDDEN, INTERMEDIATE, LAYERS = 256, 512, 2


def write_floats(folder: Path) -> dict[str, torch.Tensor]:
    """Writes a checkpoint: linear layers, norms, an embedding."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"model.embed_tokens.weight": torch.randn(1000, HIDDEN, dtype=torch.bfloat16)}
    for layer in range(LAYERS):
        mlp = f"model.layers.{layer}.mlp"
        tensors[f"{mlp}.up_proj.weight"] = torch.randn(INTERMEDIATE, HIDDEN).bfloat16()
        tensors[f"{mlp}.down_proj.weight"] = torch.randn(HIDDEN, INTERMEDIATE).bfloat16()
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = torch.ones(HIDDEN).bfloat16()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return tensors


def size_mb(folder: Path) -> float:
    """Returns the size of a folder's files."""
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def main() -> None:
    """Writes, converts, loads, and compares."""
    torch.manual_seed(0)
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoint")
    floats, mxfp4 = folder / "floats", folder / "mxfp4"
    tensors = write_floats(floats)
    shutil.rmtree(mxfp4, ignore_errors=True)  # Of an earlier run; `convert` overwrites nothing.

    command = [sys.executable, "-m", "mx_kernels", "convert", floats, mxfp4, "--to", "quark"]
    print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    print(f"{size_mb(floats):.2f} MB became {size_mb(mxfp4):.2f} MB")

    loaded = mx.load(mxfp4)
    for name, weight in tensors.items():
        found = loaded[name]
        if isinstance(found, mx.MXTensor):
            # Preshuffled for this machine while loading; the same codes as if quantized here.
            assert torch.equal(found.dequantize(), mx.quantize(weight).dequantize())
            print(f"{name}: {found.format}, {found.layout}")
        else:
            assert torch.equal(found, weight)
            print(f"{name}: as it was")


if __name__ == "__main__":
    main()

"""Checkpoints as others publish them: a model's floats, quantized and written under their names.

`publish` writes two folders: the quantized checkpoint, and beside it floats of the same numbers,
which transformers loads by itself. A style says of each weight what its parts are called.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import mx_kernels as mx
import oracle

E8M0 = torch.float8_e8m0fnu
E4M3 = torch.float8_e4m3fn


def quantized(weight: torch.Tensor, format: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns codes and scales, and what the oracle says that they mean."""
    q = mx.quantize(weight.contiguous(), format=format)
    values = oracle.dequantize(q.codes.numpy(), q.scales.numpy(), format)
    return q.codes, q.scales, torch.from_numpy(values).to(weight.dtype)


def powers_of_two(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns E4M3 codes with E8M0 scales for 128 x 128."""
    n, k = weight.shape
    rows, columns = -(-n // 128), -(-k // 128)
    whole = torch.zeros(rows * 128, columns * 128)
    whole[:n, :k] = weight
    largest = whole.view(rows, 128, columns, 128).abs().amax((1, 3)).clamp(min=2**-60)
    exponents = torch.ceil(torch.log2(largest / 448))
    scale = torch.exp2(exponents).repeat_interleave(128, 0).repeat_interleave(128, 1)[:n, :k]
    codes = (weight / scale).to(E4M3)
    values = codes.float() * scale
    return codes, (exponents + 127).to(torch.uint8).view(E8M0), values.to(weight.dtype)


def deepseek(name, weight):
    codes, scales, values = quantized(weight, "fp8_block_2d")
    return {name: codes.view(E4M3), f"{name}_scale_inv": scales}, values


def deepseek_v4(name, weight):
    base = name.removesuffix(".weight")
    if ".experts." in name:
        codes, scales, values = quantized(weight, "mxfp4")
        codes, scales = codes.view(torch.int8), scales.view(E8M0)
    else:
        codes, scales, values = powers_of_two(weight)
    return {f"{base}.weight": codes, f"{base}.scale": scales}, values


def packed(name, weight):
    codes, scales, values = quantized(weight, "mxfp4")
    return {f"{name}_packed": codes, f"{name}_scale": scales}, values


def quark(name, weight):
    codes, scales, values = quantized(weight, "mxfp4")
    return {name: codes, f"{name}_scale": scales}, values


def modelopt(name, weight):
    """FP8 with a scale for a tensor in attention, MXFP8 elsewhere."""
    if "attn" in name:
        scale = weight.abs().max() / 448
        codes = (weight / scale).to(E4M3)
        parts = {name: codes, f"{name}_scale": scale, f"{name[:-6]}input_scale": torch.ones(())}
        return parts, codes.float() * scale
    codes, scales, values = quantized(weight, "mxfp8")
    return {name: codes.view(E4M3), f"{name}_scale": scales}, values


def mxfp8(name, weight):
    codes, scales, values = quantized(weight, "mxfp8")
    return {name: codes.view(E4M3), f"{name}_scale_inv": scales}, values


def channels(name, weight):
    """FP8 with a scale for each row; of 3-D weights [E, K, N] for each column, as they are."""
    is_turned = weight.ndim > 2
    made = quantized(weight.transpose(1, 2) if is_turned else weight, "fp8")
    made = [t.transpose(1, 2).contiguous() if is_turned else t for t in made]
    codes, scales, values = made
    return {name: codes.view(E4M3), f"{name}_scale": scales}, values


def nvfp4(name, weight):
    q = mx.quantize(weight, format="nvfp4", tensor_scale=mx.ops.tensor_scale_of(weight))
    whole = q.tensor_scale.flatten()[0]
    values = oracle.dequantize(q.codes.numpy(), q.scales.numpy(), "nvfp4")
    scales = q.block_scales.view(E4M3)
    parts = {name: q.codes, f"{name}_scale": scales, f"{name}_scale_2": whole.clone()}
    return parts, torch.from_numpy(oracle.round_to(values, "float32")).to(weight.dtype)


def apart(style: Callable, *, are_turns: bool = False) -> Callable:
    """Returns a style that gives each expert of a weight [E, K, N] its tensors, in halves.

    Args:
        style: of one matrix.
        are_turns: whether rows of gate and up take turns in the model.
    """

    def styled(name, weight):
        if weight.ndim < 3:
            return style(name, weight)
        base, _, last = name.rpartition(".")
        parts, values = {}, torch.empty_like(weight)
        for e, matrix in enumerate(weight.transpose(1, 2)):
            names = ["gate_proj", "up_proj"] if last == "gate_up_proj" else [last]
            is_turns = are_turns and len(names) > 1
            halves = [matrix[i::2] for i in (0, 1)] if is_turns else matrix.chunk(len(names))
            for i, (own, half) in enumerate(zip(names, halves, strict=True)):
                made, value = style(f"{base}.{e}.{own}.weight", half.contiguous())
                parts |= made
                rows = slice(i, None, 2) if is_turns else slice(i * len(half), (i + 1) * len(half))
                values[e].t()[rows] = value
        return parts, values

    return styled


def publish(
    folder: Path,
    model: torch.nn.Module,
    style: Callable,
    is_quantized: Callable[[str], bool],
    said: dict,
) -> tuple[Path, Path]:
    """Returns the folders of a quantized checkpoint and of floats with the same numbers."""
    model.save_pretrained(folder / "floats")
    (file,) = (folder / "floats").glob("*.safetensors")
    parts, floats = {}, {}
    for name, tensor in load_file(file).items():
        is_matrix = tensor.ndim == 2 and name.endswith(".weight")
        is_fused = tensor.ndim == 3 and "experts" in name
        if (is_matrix or is_fused) and is_quantized(name):
            made, floats[name] = style(name, tensor)
            parts |= made
        else:
            parts[name] = floats[name] = tensor
    save_file(floats, file, metadata={"format": "pt"})
    there = folder / "published"
    there.mkdir()
    save_file({n: t.contiguous() for n, t in parts.items()}, there / "model.safetensors")
    config = json.loads((folder / "floats" / "config.json").read_text())
    (there / "config.json").write_text(json.dumps(config | {"quantization_config": said}))
    return there, folder / "floats"

"""Tensors of GGUF files, by the `gguf` library: blocks of llama.cpp become codes and scales.

    MXFP4     17 bytes for 32: E8M0, then codes k and k + 16 in one byte
    NVFP4     36 bytes for 64: four scales of E4M3 without a sign, then for each of them codes k and
              k + 8 of its 16 in one byte; P.scale, if it is there, is the tensor scale of P.weight
    F32, F16, BF16, F64, and integers    as they are
    others    float32, as the library dequantizes them, and a warning names them

Names are those of the file, `blk.0.ffn_up_exps.weight`; shapes are torch's, [E, N, K]. The library
maps the file, so a tensor costs memory when it is read.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mx_kernels.checkpoints.files import Checkpoint, Part, some

SUFFIX = ".gguf"
SCALES, TENSOR_SCALE = "_scale", "_scale_2"
"""What the scales of a tensor are called beside it, as Quark and ModelOpt do."""
WEIGHT, GIVEN = ".weight", ".scale"
"""How the names of codes of NVFP4 end, and of their tensor scale in the file."""
NO_SIGN, NOTHING = 0x7F, 0x7F
"""The bits of a scale of NVFP4, and the one that is zero here and NaN elsewhere."""
PLAIN = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}
"""Dtypes of tensors that are not quantized."""


@dataclass(frozen=True)
class Blocks:
    """How codes of four bits and their scales take turns."""

    scales: int
    """Of a block, one byte each, all before its codes."""
    elements: int
    """That share a scale: codes k are low in its bytes, the second half's high."""
    dtype: torch.dtype
    """Of scales."""

    @property
    def bytes(self) -> int:
        """Returns the bytes of a block."""
        return self.scales * (1 + self.elements // 2)


BLOCKS = {
    "MXFP4": Blocks(1, 32, torch.float8_e8m0fnu),
    "NVFP4": Blocks(4, 16, torch.float8_e4m3fn),
}
"""Types that become codes and scales."""


def open_gguf(path: Path) -> Checkpoint:
    """Returns what a file holds.

    Raises:
        ValueError: if it is no GGUF file.
        ImportError: if the library is missing.
    """
    try:
        import gguf  # noqa: PLC0415  only who has such files needs it
    except ImportError as error:
        raise ImportError("reading GGUF needs gguf: pip install 'mx_kernels[gguf]'") from error
    try:
        tensors = gguf.GGUFReader(path).tensors
    except (ValueError, IndexError, KeyError, OverflowError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{path}: got {path.stat().st_size} bytes that are no GGUF file ({reason}), expected "
            "a whole one; was the download complete?"
        ) from None
    parts, floats = {}, {}
    for tensor in tensors:
        kind, shape = tensor.tensor_type.name, tuple(map(int, tensor.shape[::-1]))
        if kind in BLOCKS:
            parts |= _codes_and_scales(tensor, shape, BLOCKS[kind])
        elif kind in PLAIN:
            parts |= _part(tensor.name, PLAIN[kind], shape, partial(_plain, tensor, shape, kind))
        else:
            floats.setdefault(kind, []).append(tensor.name)
            read = partial(_dequantized, gguf.dequantize, tensor, shape)
            parts |= _part(tensor.name, torch.float32, shape, read)
    for tensor in tensors:
        if tensor.tensor_type.name == "NVFP4":
            _name_tensor_scale(parts, tensor.name)
    for kind, names in floats.items():
        warnings.warn(
            f"{path}: got {some(names)} of {kind}, which become float32",
            stacklevel=4,
        )
    return Checkpoint(str(path), parts, files=(path,))


def _part(
    name: str, dtype: torch.dtype, shape: tuple[int, ...], read: Callable[[], Tensor]
) -> dict[str, Part]:
    return {name: Part(dtype, shape, read, name)}


def _codes_and_scales(tensor: Any, shape: tuple[int, ...], blocks: Blocks) -> dict[str, Part]:
    """Returns codes and scales of blocks."""
    *lead, k = shape
    codes = _part(tensor.name, torch.uint8, (*lead, k // 2), partial(_codes, tensor, shape, blocks))
    name, read = tensor.name + SCALES, partial(_scales, tensor, shape, blocks)
    return codes | _part(name, blocks.dtype, (*lead, k // blocks.elements), read)


def _name_tensor_scale(parts: dict[str, Part], codes: str) -> None:
    """Gives the tensor scale of codes the name that others have for it; 1 if there is none."""
    given = codes.removesuffix(WEIGHT) + GIVEN
    name = codes + TENSOR_SCALE
    if given in parts:
        parts[name] = replace(parts.pop(given), name=given)
    else:
        parts |= _part(name, torch.float32, (), lambda: torch.ones(()))


def _bytes_of(tensor: Any, shape: tuple[int, ...], blocks: Blocks) -> np.ndarray:
    """Returns the bytes of blocks, [..., blocks, bytes]."""
    return np.asarray(tensor.data).view(np.uint8).reshape(*shape[:-1], -1, blocks.bytes)


def _codes(tensor: Any, shape: tuple[int, ...], blocks: Blocks) -> Tensor:
    """Returns codes with neighbours in one byte, the even one low."""
    stored = np.ascontiguousarray(_bytes_of(tensor, shape, blocks)[..., blocks.scales :])
    pairs = torch.from_numpy(stored).unflatten(-1, (blocks.scales, blocks.elements // 2))
    low, high = pairs & 0xF, pairs >> 4
    # The first codes of a scale are low, the others high.
    halves = [half[..., ::2] | half[..., 1::2] << 4 for half in (low, high)]
    return torch.cat(halves, -1).flatten(-3)


def _scales(tensor: Any, shape: tuple[int, ...], blocks: Blocks) -> Tensor:
    """Returns the scales."""
    scales = np.ascontiguousarray(_bytes_of(tensor, shape, blocks)[..., : blocks.scales])
    if blocks.dtype == torch.float8_e4m3fn:
        scales = scales & NO_SIGN
        scales[scales == NOTHING] = 0
    return torch.from_numpy(scales).flatten(-2).view(blocks.dtype)


def _plain(tensor: Any, shape: tuple[int, ...], kind: str) -> Tensor:
    """Returns a tensor that is not quantized."""
    raw = torch.from_numpy(np.array(tensor.data).reshape(-1).view(np.uint8))
    return raw.view(PLAIN[kind]).reshape(shape)


def _dequantized(dequantize: Callable, tensor: Any, shape: tuple[int, ...]) -> Tensor:
    """Returns a tensor of a quantization that is not read, as floats."""
    return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type)).reshape(shape)

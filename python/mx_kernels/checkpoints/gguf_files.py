"""Tensors of GGUF files, by the `gguf` library: blocks of llama.cpp become codes and scales.

    MXFP4     17 bytes a block: E8M0, then codes k and k + 16 of the block in one byte
    F32, F16, BF16, F64, and integers    as they are
    others    float32, as the library dequantizes them, and a warning names them

Names are those of the file, `blk.0.ffn_up_exps.weight`; shapes are torch's, [E, N, K]. The library
maps the file, so a tensor costs memory when it is read.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mx_kernels.checkpoints.files import Checkpoint, Part, some

SUFFIX = ".gguf"
SCALES = "_scale"
"""What the scales of a tensor are called beside it, as Quark does."""
HALF_BYTES = 16
"""Bytes of codes of a block of MXFP4; each has code k low and code k + 16 high."""
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
            parts |= BLOCKS[kind](tensor, shape)
        elif kind in PLAIN:
            parts |= _part(tensor.name, PLAIN[kind], shape, partial(_plain, tensor, shape, kind))
        else:
            floats.setdefault(kind, []).append(tensor.name)
            read = partial(_dequantized, gguf.dequantize, tensor, shape)
            parts |= _part(tensor.name, torch.float32, shape, read)
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


def _mxfp4(tensor: Any, shape: tuple[int, ...]) -> dict[str, Part]:
    """Returns codes and scales of blocks of MXFP4."""
    *lead, k = shape
    blocks = k // (2 * HALF_BYTES)
    codes = _part(tensor.name, torch.uint8, (*lead, k // 2), partial(_codes, tensor, shape))
    name, read = tensor.name + SCALES, partial(_scales, tensor, shape)
    return codes | _part(name, torch.float8_e8m0fnu, (*lead, blocks), read)


def _blocks(tensor: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the bytes of blocks of MXFP4, [..., blocks, 17]."""
    return np.asarray(tensor.data).view(np.uint8).reshape(*shape[:-1], -1, 1 + HALF_BYTES)


def _codes(tensor: Any, shape: tuple[int, ...]) -> Tensor:
    """Returns codes with neighbours in one byte, the even one low."""
    pairs = torch.from_numpy(np.ascontiguousarray(_blocks(tensor, shape)[..., 1:]))
    low, high = pairs & 0xF, pairs >> 4
    # Codes 0 .. 15 of a block are low, 16 .. 31 high.
    halves = [half[..., ::2] | half[..., 1::2] << 4 for half in (low, high)]
    return torch.cat(halves, -1).flatten(-2)


def _scales(tensor: Any, shape: tuple[int, ...]) -> Tensor:
    """Returns E8M0 scales."""
    scales = np.ascontiguousarray(_blocks(tensor, shape)[..., 0])
    return torch.from_numpy(scales).view(torch.float8_e8m0fnu)


def _plain(tensor: Any, shape: tuple[int, ...], kind: str) -> Tensor:
    """Returns a tensor that is not quantized."""
    raw = torch.from_numpy(np.array(tensor.data).reshape(-1).view(np.uint8))
    return raw.view(PLAIN[kind]).reshape(shape)


def _dequantized(dequantize: Callable, tensor: Any, shape: tuple[int, ...]) -> Tensor:
    """Returns a tensor of a quantization that is not read, as floats."""
    return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type)).reshape(shape)


BLOCKS = {"MXFP4": _mxfp4}
"""Types whose blocks become codes and scales."""

"""FP8 whose scales are floats: which format a pair is, from the shapes of codes and scales.

    codes [.., N, K] with scales                        format          in checkpoints of
    one, or one for each leading axis                   fp8             compressed-tensors, Quark
    [.., N] or [.., N, 1]                               fp8             the same
    [.., N, K/128]                                      fp8_block       compressed-tensors
    [.., N/128, K/128], both rounded up                 fp8_block_2d    DeepSeek, and all of these

Scales of 16 bits are widened, which is exact. One that several rows share is repeated, so `fp8`
always has one a row. Where a shape fits two, the numbers are the same; a config decides then.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mx_kernels._arrays import show
from mx_kernels._checks import format_named
from mx_kernels._facts import Format

FORMATS = ("fp8_block_2d", "fp8", "fp8_block")
"""In the order in which they are tried."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def fits(codes: torch.dtype, scales: torch.dtype) -> bool:
    """Says whether there is a format with such codes and float scales."""
    return codes == torch.float8_e4m3fn and scales in DTYPES


def format_of(codes: tuple[int, ...], scales: tuple[int, ...], said: str | None, got: str) -> str:
    """Returns the format of a pair of these shapes.

    Args:
        codes: the shape of the weights.
        scales: that of their scales.
        said: the format that a config names, None if it leaves that open.
        got: the pair, in words.

    Raises:
        ValueError: if the shapes do not fit each other, or what the config says.
    """
    unit = format_named(FORMATS[0]).k_multiple
    if len(codes) < 2 or codes[-1] == 0 or codes[-1] % unit:
        raise ValueError(f"got {got}, expected weights [..., N, K], K a multiple of {unit}")
    for name in FORMATS if said is None else (said,):
        if format_named(name).has_float_scales and _fits(codes, scales, format_named(name)):
            return name
    names = FORMATS if said is None else (said,)
    raise ValueError(f"got {got}, expected {' or '.join(_expected(codes, name) for name in names)}")


def read(scales: Tensor, shape: tuple[int, ...], fmt: Format) -> Tensor:
    """Returns the scales of a format, as float32 of its shape, repeated where rows share one."""
    scales, wanted = scales.to(torch.float32), fmt.scales_of(shape)
    if scales.numel() == 1 or len(scales.shape) < len(shape) - 1:
        lead = scales.shape if scales.numel() > 1 else ()
        scales = scales.reshape(*lead, *(1 for _ in range(len(shape) - len(lead))))
    elif len(scales.shape) == len(shape) - 1:
        scales = scales.unsqueeze(-1)
    return scales.expand(wanted).contiguous()


def _fits(codes: tuple[int, ...], scales: tuple[int, ...], fmt: Format) -> bool:
    """Says whether scales of a shape are those of a format."""
    wanted = fmt.scales_of(codes)
    if scales == wanted:
        return True
    lead = codes[:-2]
    of_matrices = ((), (1,), lead, (*lead, 1, 1))
    return fmt.has_whole_rows and (scales == wanted[:-1] or scales in of_matrices)


def _expected(codes: tuple[int, ...], name: str) -> str:
    """Prints what scales fit."""
    fmt = format_named(name)
    if not fmt.has_float_scales:
        return f"the codes of {name}, as the config says"
    one = ", or one" if fmt.has_whole_rows else ""
    return f"scales {show(fmt.scales_of(codes))}{one} of {name}"

"""FP8 whose scales become float32: which format a pair is, from its codes' dtype and both shapes.

    codes [.., N, K] of E4M3 with scales                format          in checkpoints of
    one, or one for each leading axis                   fp8             compressed-tensors, Quark
    [.., N] or [.., N, 1]                               fp8             the same
    [.., N, K/128]                                      fp8_block       compressed-tensors
    [.., N/128, K/128], both rounded up                 fp8_block_2d    DeepSeek, and all of these

Of E5M2 there is `fp8_e5m2`, as `fp8`. Scales of 16 bits are widened, which is exact; so are E8M0
scales, for more than the 32 elements of MXFP8: float32 has all of their powers of two. One that
several rows share is repeated, so there is always one a row. Where a shape fits two, the numbers
are the same; a config decides then.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mx_kernels._core.arrays import show
from mx_kernels._core.checks import format_named
from mx_kernels._core.facts import Format, facts
from mx_kernels._core.storage import DTYPES
from mx_kernels.checkpoints.files import Part

SCALES = (torch.float32, torch.bfloat16, torch.float16)
E8M0 = (torch.uint8, torch.float8_e8m0fnu)
MX_BLOCK = 32
"""Elements of a scale of MXFP8, which is no format of this table."""


def formats_of(codes: torch.dtype) -> list[str]:
    """Returns the formats with such codes and float scales, in the order in which they are tried.

    Those with larger blocks come first.
    """
    rows = [fmt for fmt in facts().formats.values() if fmt.has_float_scales]
    rows = [fmt for fmt in rows if getattr(torch, DTYPES[fmt.element]) == codes]
    return [fmt.name for fmt in sorted(rows, key=lambda fmt: (-fmt.block_rows, -fmt.block_k))]


def fits(codes: Part, scales: Part, said: str | None) -> bool:
    """Says whether a pair is of a format with float scales.

    Args:
        codes: of any dtype.
        scales: of any dtype.
        said: the format that a config names, None if it leaves that open.
    """
    known = formats_of(codes.dtype)
    if scales.dtype not in E8M0:
        return scales.dtype in SCALES and bool(known)
    if said is not None:
        return said in known
    # Bytes that nothing names may be anything.
    is_mx = not codes.shape or scales.shape[-1:] == (codes.shape[-1] / MX_BLOCK,)
    if scales.dtype == torch.uint8 or is_mx:
        return False
    return any(_fits(codes.shape, scales.shape, format_named(name)) for name in known)


def format_of(
    dtype: torch.dtype,
    codes: tuple[int, ...],
    scales: tuple[int, ...],
    said: str | None,
    got: str,
) -> str:
    """Returns the format of a pair.

    Args:
        dtype: that of the weights.
        codes: their shape.
        scales: that of their scales.
        said: the format that a config names, None if it leaves that open.
        got: the pair, in words.

    Raises:
        ValueError: if the shapes do not fit each other, or what the config says.
    """
    known = formats_of(dtype)
    unit = format_named(known[0]).k_multiple
    if len(codes) < 2 or codes[-1] == 0 or codes[-1] % unit:
        raise ValueError(f"got {got}, expected weights [..., N, K], K a multiple of {unit}")
    if said is not None and said not in known:
        raise ValueError(f"got {got}, expected the codes of {said}, as the config says")
    names = known if said is None else [said]
    for name in names:
        if _fits(codes, scales, format_named(name)):
            return name
    raise ValueError(f"got {got}, expected {' or '.join(_expected(codes, name) for name in names)}")


def read(scales: Tensor, shape: tuple[int, ...], fmt: Format) -> Tensor:
    """Returns the scales of a format, as float32 of its shape, repeated where rows share one."""
    if scales.dtype in E8M0:
        scales = scales.view(torch.float8_e8m0fnu)
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
    one = ", or one" if fmt.has_whole_rows else ""
    return f"scales {show(fmt.scales_of(codes))}{one} of {name}"

"""Which format a pair of codes and scales is, and its scales as that format has them.

    codes [.., N, K]      scales                              format            written by
    E2M1, two in a byte   E8M0 [.., N, K/32]                  mxfp4             all that write MX
    E2M3 or E3M2, packed  E8M0 [.., N, K/32]                  mxfp6, .._e3m2    Quark, and others
    E2M1, two in a byte   E4M3 [.., N, K/16], and a tensor's  nvfp4             most
    E4M3 or E5M2          E8M0 [.., N, K/32]                  mxfp8, .._e5m2    the same
                          one, or one for each leading axis   fp8, fp8_e5m2     most
                          [.., N] or [.., N, 1]               fp8, fp8_e5m2     most
    E4M3                  [.., N, K/128]                      fp8_block         compressed-tensors
                          [.., N/128, K/128], rounded up      fp8_block_2d      DeepSeek, and most

Other blocks, of R rows and C elements along K, are what a config says. They are read as the format
whose blocks divide them, each scale repeated, which is exact: 128 x 256 as fp8_block_2d, 64 x 128
as fp8_block, and with E8M0 scales 1 x 64 as mxfp8. Without a config, E8M0 scales of fewer rows than
codes have each a power of two of them.

Scales of 16 bits are widened, which is exact; so are E8M0 scales of more than 32 elements: float32
has all of their powers of two. Where a shape fits two formats, the numbers are the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mx_kernels._core.arrays import show
from mx_kernels._core.checks import format_named
from mx_kernels._core.facts import DEFAULT_FORMAT, Format, facts
from mx_kernels._core.storage import DTYPES, with_tensor_scale
from mx_kernels.checkpoints.configs import Spec
from mx_kernels.checkpoints.files import Part
from mx_kernels.checkpoints.leftovers import described

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of scales that become float32."""
BYTE_BITS = 8
E8M0 = (torch.uint8, torch.float8_e8m0fnu)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
MX_BLOCK = 32
"""Elements of a scale of MX."""
PACKED = ("mxfp4", "mxfp6")
"""Formats of bytes with E8M0 scales, told apart by how many a scale has if no config does."""
NVFP4 = "nvfp4"


@dataclass(frozen=True)
class Meaning:
    """What a pair is."""

    format: str
    shape: tuple[int, ...]
    """Logical."""
    block: tuple[int, int]
    """Rows, and elements along K, that share one of the stored scales."""
    is_reciprocal: bool = False
    """Whether the tensor scale is stored as what it divides by."""


def meaning_of(
    codes: Part,
    scales: Part,
    spec: Spec,
    *,
    formats: Mapping[torch.dtype, str],
    has_block_axis: bool,
    got: str,
    scales_name: str,
) -> Meaning:
    """Returns what a pair is.

    Args:
        codes: that have not been read.
        scales: likewise.
        spec: what a config says of them.
        formats: what codes of a dtype are under such names, if scales are E8M0.
        has_block_axis: whether blocks of codes have an axis of their own.
        got: the pair, in words.
        scales_name: what the scales are called.

    Raises:
        ValueError: if the two do not fit each other, or what the config says.
    """
    said = _chosen(scales, scales_name, spec) if spec.block else spec.formats
    if codes.dtype in formats and _are_floats(codes, scales, said):
        return _with_float_scales(codes, scales, said, spec.block, got)
    _check_dtype(scales_name, codes.dtype, scales.dtype)
    if said and all(format_named(name).has_tensor_scales for name in said):
        raise ValueError(
            f"got {got}, expected E4M3 scales of {' or '.join(said)}, as the config says, and a "
            "tensor scale"
        )
    format = _packed(codes, scales, said) or formats.get(codes.dtype)
    if codes.dtype not in formats:
        known = " or ".join(str(dtype).removeprefix("torch.") for dtype in formats)
        raise ValueError(f"got {got}, expected codes as {known} under such names")
    if said and format not in said:
        raise ValueError(
            f"got {got}, expected the codes of {' or '.join(said)}, as the config says"
        )
    block = spec.block or ((1, MX_BLOCK) if said else None)
    shapes = codes.shape, scales.shape
    return _with_e8m0(shapes, format, block, has_block_axis=has_block_axis, got=got)


def of_tensor_scale(
    codes: Part, scales: Part, whole: Part, spec: Spec, *, is_reciprocal: bool, got: str
) -> Meaning:
    """Returns what codes of four bits are with E4M3 scales and tensor scales.

    Args:
        codes: that have not been read.
        scales: likewise.
        whole: the tensor scale, or one for each leading index.
        spec: what a config says of them.
        is_reciprocal: whether tensor scales are what is divided by.
        got: the three, in words.

    Raises:
        ValueError: if they do not fit each other, or what the config says.
    """
    fmt = format_named(NVFP4)
    if spec.formats and NVFP4 not in spec.formats:
        expected = " or ".join(spec.formats)
        raise ValueError(f"got {got}, expected the codes of {expected}, as the config says")
    k = fmt.elements(codes.shape[-1]) if len(codes.shape) > 1 else 0
    shape, block = (*codes.shape[:-1], k), (1, fmt.block_k)
    lead = codes.shape[:-2]
    is_whole = whole.dtype == torch.float32 and whole.shape in ((), (1,), lead, (*lead, 1, 1))
    if k == 0 or k % fmt.block_k or scales.shape != blocks_of(shape, block) or not is_whole:
        raise ValueError(
            f"got {got}, expected codes [..., N, K/2], scales [..., N, K/{fmt.block_k}], and a "
            "float32 for the tensor or for each leading index"
        )
    return Meaning(NVFP4, shape, block, is_reciprocal)


def as_stored(scales: Tensor, meaning: Meaning, whole: Tensor | None = None) -> Tensor:
    """Returns scales as the plain scales of their format: those that more share are repeated.

    Args:
        scales: as they are stored.
        meaning: what they are.
        whole: the tensor scales, of a format that has some and keeps them apart.
    """
    fmt, shape = format_named(meaning.format), meaning.shape
    if whole is not None:
        whole = whole.reciprocal() if meaning.is_reciprocal else whole
        whole = whole.reshape(*shape[:-2], 1) if whole.numel() > 1 else whole.reshape(())
        return with_tensor_scale(scales.contiguous(), whole, fmt)
    if fmt.has_float_scales:
        scales = scales.view(torch.float8_e8m0fnu) if scales.dtype in E8M0 else scales
        scales = scales.to(torch.float32)
    else:
        scales = scales.view(torch.uint8)
    wanted = fmt.scales_of(shape)
    if tuple(scales.shape) == wanted:
        return scales.contiguous()
    there = blocks_of(shape, meaning.block)
    if scales.numel() != math.prod(there):
        lead = shape[:-2] if scales.numel() > 1 else [1] * len(shape[:-2])
        return scales.reshape(*lead, 1, 1).expand(wanted).contiguous()
    scales = scales.reshape(there)
    rows, of_k = meaning.block
    # A block may be larger than all there is: no scale is needed more often than that.
    if rows != fmt.block_rows:
        times = min(rows // fmt.block_rows, wanted[-2])
        scales = scales.repeat_interleave(times, -2)[..., : wanted[-2], :]
    if of_k != fmt.block_k:
        times = min(of_k // fmt.block_k, wanted[-1])
        scales = scales.repeat_interleave(times, -1)[..., : wanted[-1]]
    return scales.contiguous()


def blocks_of(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """Returns how many blocks of (rows, elements along K) a tensor [..., N, K] has."""
    *lead, rows, k = shape
    return (*lead, -(-rows // block[0]), -(-k // block[1]))


# Float scales.


def _formats_of(codes: torch.dtype) -> list[str]:
    """Returns the formats with such codes and float scales, those with larger blocks first."""
    rows = [fmt for fmt in facts().formats.values() if fmt.has_float_scales]
    rows = [fmt for fmt in rows if getattr(torch, DTYPES[fmt.element]) == codes]
    return [fmt.name for fmt in sorted(rows, key=lambda fmt: (-fmt.block_rows, -fmt.block_k))]


def _chosen(scales: Part, name: str, spec: Spec) -> tuple[str, ...]:
    """Returns the first format of a config's whose blocks divide the config's.

    Raises:
        ValueError: if there is none.
    """
    rows, of_k = spec.block
    kinds = [format_named(name) for name in spec.formats]
    kinds = [fmt for fmt in kinds if fmt.has_float_scales or scales.dtype in E8M0]
    for fmt in kinds:
        if rows % fmt.block_rows == 0 and of_k % fmt.block_k == 0:
            return (fmt.name,)
    units = sorted({fmt.block_k for fmt in kinds})
    expected = f"a multiple of {' or '.join(map(str, units))} along K" if units else "E8M0 scales"
    hint = "" if scales.dtype in E8M0 or not units else ", or E8M0 scales"
    raise ValueError(
        f"got weight_block_size {show(spec.block)} in the config, with scales {name} "
        f"{described(scales)}, expected {expected}{hint}"
    )


def _are_floats(codes: Part, scales: Part, said: tuple[str, ...]) -> bool:
    """Says whether a pair is of a format with float scales."""
    known = _formats_of(codes.dtype)
    if scales.dtype not in E8M0:
        return scales.dtype in FLOATS and bool(known)
    if said:
        return any(name in known for name in said)
    # Bytes that nothing names may be anything.
    is_mx = not codes.shape or scales.shape[-1:] == (-(-codes.shape[-1] // MX_BLOCK),)
    if scales.dtype == torch.uint8 or is_mx:
        return False
    return any(_fits(codes.shape, scales.shape, format_named(name)) for name in known)


def _with_float_scales(
    codes: Part, scales: Part, said: tuple[str, ...], block: tuple[int, int] | None, got: str
) -> Meaning:
    """Returns what a pair of a format with float scales is.

    Raises:
        ValueError: if the shapes do not fit each other, or what the config says.
    """
    known = _formats_of(codes.dtype)
    if len(codes.shape) < 2 or codes.shape[-1] == 0:
        raise ValueError(f"got {got}, expected weights [..., N, K]")
    if said and not set(said) & set(known):
        raise ValueError(
            f"got {got}, expected the codes of {' or '.join(said)}, as the config says"
        )
    names = [name for name in known if not said or name in said]
    for name in names:
        fmt = format_named(name)
        if _fits(codes.shape, scales.shape, fmt, block):
            return Meaning(name, codes.shape, block or (fmt.block_rows, fmt.block_k))
    expected = " or ".join(_expected(codes.shape, name, block) for name in names)
    raise ValueError(f"got {got}, expected {expected}")


def _fits(
    codes: tuple[int, ...],
    scales: tuple[int, ...],
    fmt: Format,
    block: tuple[int, int] | None = None,
) -> bool:
    """Says whether scales of a shape are those of a format."""
    if len(codes) < 2:
        return False
    wanted = blocks_of(codes, block or (fmt.block_rows, fmt.block_k))
    # ModelOpt keeps the axes within blocks.
    if scales in (wanted, (*wanted[:-1], 1, wanted[-1], 1)):
        return True
    lead = codes[:-2]
    of_matrices = ((), (1,), lead, (*lead, 1, 1))
    return fmt.has_whole_rows and (scales == wanted[:-1] or scales in of_matrices)


def _expected(codes: tuple[int, ...], name: str, block: tuple[int, int] | None) -> str:
    """Prints what scales fit."""
    fmt = format_named(name)
    one = ", or one" if fmt.has_whole_rows else ""
    shape = blocks_of(codes, block or (fmt.block_rows, fmt.block_k))
    return f"scales {show(shape)}{one} of {name}"


# E8M0 scales.


def _check_dtype(name: str, codes: torch.dtype, scales: torch.dtype) -> None:
    """Raises unless scales are E8M0."""
    if scales in E8M0:
        return
    what = f"{str(scales).removeprefix('torch.')} scales"
    if codes in FP8:
        what = f"{str(codes).removeprefix('torch.')} with {what}"
    elif scales in FP8:
        what = "NVFP4, with E4M3 scales but no tensor scale beside them"
    raise ValueError(f"got {name}, which is {what}, expected E8M0 scales of MX, as uint8")


def _packed(codes: Part, scales: Part, said: tuple[str, ...]) -> str | None:
    """Returns the format of bytes, None for codes of other dtypes, and where no format fits."""
    if codes.dtype not in (torch.uint8, torch.int8) or not (codes.shape and scales.shape):
        return None
    small = [format_named(name) for name in said or PACKED]
    small = [fmt for fmt in small if fmt.element_bits < BYTE_BITS and not fmt.has_tensor_scales]
    size, blocks = codes.shape[-1], scales.shape[-1]
    fits = [fmt for fmt in small if blocks * fmt.packed_bytes(MX_BLOCK) == size]
    fits += small if said else []
    return fits[0].name if fits else None


def _with_e8m0(
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    format: str,
    block: tuple[int, int] | None,
    *,
    has_block_axis: bool,
    got: str,
) -> Meaning:
    """Returns what a pair with E8M0 scales is.

    Raises:
        ValueError: if the shapes do not fit.
    """
    (codes, scales), fmt = shapes, format_named(format)
    size = fmt.packed_bytes(fmt.block_k)
    if has_block_axis:
        if len(codes) < 3 or codes[-1] != size:
            raise ValueError(f"got {got}, expected codes [..., N, K/{fmt.block_k}, {size}]")
        codes = (*codes[:-2], codes[-2] * size)
    of_k = block[1] if block else fmt.block_k
    k = fmt.elements(codes[-1]) if codes else 0
    is_whole = bool(codes) and k > 0 and fmt.packed_bytes(k) == codes[-1]
    is_pair = is_whole and 2 <= len(codes) == len(scales)
    if not is_pair or scales[-1] != -(-k // of_k):
        hint = ""
        if format == DEFAULT_FORMAT and k and scales and codes[-1] == scales[-1] * fmt.block_k:
            hint = "; bytes with a scale for 32 may be any format of eight bits: view them as such"
        raise ValueError(
            f"got {got}, expected {fmt.packed_bytes(of_k)} bytes of {format} for each scale along "
            f"the last axis{hint}"
        )
    block = block or (_rows_of_a_scale(codes[-2], scales[-2]), of_k)
    shape = (*codes[:-1], k)
    if blocks_of(shape, block) != scales:
        raise ValueError(
            f"got {got}, expected scales for {show(shape)}: {show(blocks_of(shape, block))}, or a "
            "config.json that says how many rows share a row of scales"
        )
    return Meaning(format, shape, block)


def _rows_of_a_scale(rows: int, given: int) -> int:
    """Returns how many rows share a row of scales where no config says it; 1 if that is open.

    Blocks have a power of two of rows. If they fill the rows, no other power gives as many.
    """
    share, rest = divmod(rows, given) if given else (0, 0)
    is_power = share and share & (share - 1) == 0
    return share if not rest and (is_power or given == 1) and share else 1

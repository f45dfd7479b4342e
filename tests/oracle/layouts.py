"""Byte orders of an operand: where each byte of codes and each scale lies.

A layout orders bytes, whatever the format: a row of codes is `packed_bytes(K)`
long, a row of scales one entry a block. Granules of 16 bytes and words of 4
stay together, so an eight-bit format's block of 32 spans two granules, and a
six-bit one's one and a half: GPU layouts want an even number of those.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .formats import ONE_SCALE


@dataclass(frozen=True)
class Layout:
    """A byte order: axes to split each operand into, and the order to store them in."""

    row_multiple: int
    byte_multiple: int
    scale_row_multiple: int
    scale_k_multiple: int
    code_split: tuple
    code_order: tuple
    scale_split: tuple
    scale_order: tuple
    e4m3_run: int = 0
    """E4M3 scales that lie as one of others; 0 if they stay row by row."""

    def store(self, codes, scales):
        """Pads and permutes plain `(codes [N, bytes], scales [N, blocks])`."""
        codes = _pad(codes, self.row_multiple, 1, 0)
        scales = _pad(scales, self.scale_row_multiple, self.scale_k_multiple, ONE_SCALE)
        return (
            _permute(codes, self.code_split, self.code_order),
            _permute(scales, self.scale_split, self.scale_order),
        )

    def store_e4m3(self, scales, fill=0):
        """Pads and permutes E4M3 scales and tensor scales `[N, blocks + 4]`, padded with `fill`.

        One by one, tensor scales lie as scales; several at once, behind those of a tile's rows.
        """
        run, rows = self.e4m3_run, self.scale_row_multiple
        if run == 0:
            return scales
        scales = _pad(scales, rows, 1, fill)
        blocks, behind = (scales, scales[:, :0]) if run == 1 else np.split(scales, [-4], 1)
        blocks = _pad(blocks, 1, run * self.scale_k_multiple, fill)
        words = np.ascontiguousarray(blocks).view(f"V{run}")
        tiles = _permute(words, self.scale_split, self.scale_order).view(np.uint8)
        count = len(scales) // rows
        parts = (part.reshape(count, -1) for part in (tiles, behind) if part.size)
        return np.concatenate([*parts], 1).reshape(len(scales), -1)


def _pad(array, row_multiple, column_multiple, fill):
    rows, columns = array.shape
    widths = ((0, -rows % row_multiple), (0, -columns % column_multiple))
    return np.pad(array, widths, constant_values=fill)


def _permute(array, split, order):
    """Splits `[rows, columns]` into `split` (-1 = the rest of that axis), reorders, flattens."""
    rows, columns = array.shape
    row_split, column_split = split
    axes = array.reshape(
        rows // int(np.prod(row_split)),
        *row_split,
        columns // int(np.prod(column_split)),
        *column_split,
    )
    return np.ascontiguousarray(axes.transpose(order)).reshape(rows, columns)


# The comments name the axes of the split; the order lists them from slowest to fastest.
LAYOUTS = {
    "plain": Layout(1, 1, 1, 1, ((), ()), (0, 1), ((), ()), (0, 1)),
    "preshuffled_cdna4": Layout(
        16,
        16,
        32,
        8,
        # row tile, row of 16 | byte group, byte of 16
        ((16,), (16,)),
        (0, 2, 1, 3),
        # row tile, row half, row of 16 | scale tile, scale half, scale of 4
        ((2, 16), (2, 4)),
        (0, 3, 5, 2, 4, 1),
        e4m3_run=2,
    ),
    "preshuffled_cpu": Layout(
        16,
        4,
        16,
        1,
        # row tile, row of 16 | word, byte of 4
        ((16,), (4,)),
        (0, 2, 1, 3),
        # row tile, row of 16 | scale
        ((16,), ()),
        (0, 2, 1),
    ),
    "preshuffled_cuda": Layout(
        32,
        16,
        32,
        1,
        # row tile, row group of 4, row of 8 | block, word of 4, byte of 4
        ((4, 8), (4, 4)),
        (0, 3, 2, 4, 1, 5),
        # row tile, row group of 4, row of 8 | scale
        ((4, 8), ()),
        (0, 3, 2, 1),
        e4m3_run=1,
    ),
}


def code_offset(layout: str, n, kb, row_bytes: int):
    """Returns where the code byte of (row `n`, byte `kb`) lies: the closed formula."""
    if layout == "plain":
        return n * row_bytes + kb
    if layout == "preshuffled_cuda":
        tile = n // 32 * 32 * row_bytes + kb // 16 * 512
        return tile + n % 8 * 64 + kb % 16 // 4 * 16 + n % 32 // 8 * 4 + kb % 4
    tile = n // 16 * 16 * row_bytes + kb // 16 * 256
    if layout == "preshuffled_cdna4":
        return tile + n % 16 * 16 + kb % 16
    return tile + kb % 16 // 4 * 64 + n % 16 * 4 + kb % 4


def scale_offset(layout: str, n, s, row_scales: int):
    """Returns where the scale of (row `n`, block `s`) lies, `row_scales` with padding."""
    if layout == "plain":
        return n * row_scales + s
    if layout == "preshuffled_cdna4":
        tile = n // 32 * 32 * row_scales + s // 8 * 256
        return tile + s % 4 * 64 + n % 16 * 4 + s % 8 // 4 * 2 + n % 32 // 16
    if layout == "preshuffled_cuda":
        return n // 32 * 32 * row_scales + s * 32 + n % 8 * 4 + n % 32 // 8
    return n // 16 * 16 * row_scales + s * 16 + n % 16

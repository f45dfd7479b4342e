"""Which part of an axis each rank has, at multiples of a unit.

    bounds(2880, 4, 32)     0, 736, 1472, 2208, 2880      ranks have 736, 736, 736 and 672

As `torch.chunk` cuts 90 blocks: every rank has as many as the first, the last one what is left.
Blocks of weights lie along K, and rows of one product are K of the next: rows are cut alike. Where
a row has one scale, the parts of the row all have it.

A gate and its up stay together. Their rows take turns, and the unit is two blocks; or gates come
first, and both halves are cut:

    Cut(axis=1, unit=64)            rank 1 of 2 has rows [I, 2I) of [2I, H]
    Cut(axis=1, unit=32, folds=2)   rank 1 of 2 has rows [I/2, I) and [3I/2, 2I)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from mx_kernels._core.arrays import show
from mx_kernels._core.checks import layout_named
from mx_kernels._core.facts import facts
from mx_kernels.tensor import MXTensor


def bounds(size: int, ranks: int, unit: int) -> tuple[int, ...]:
    """Returns where the part of each rank begins, and where the last one ends.

    Raises:
        ValueError: if a rank would have nothing.
    """
    if size <= 0 or ranks <= 0 or unit <= 0:
        raise ValueError(f"got {size} in units of {unit} for {ranks} ranks, expected positive ones")
    units = -(-size // unit)
    each = -(-units // ranks)
    if each * (ranks - 1) >= units:
        raise ValueError(
            f"got {size} in units of {unit} for {ranks} ranks, expected something for each rank: "
            f"{-(-units // each)} ranks of {each * unit}"
        )
    return (*(rank * each * unit for rank in range(ranks)), size)


@dataclass(frozen=True)
class Cut:
    """How a tensor is cut: along which axis, at multiples of what, in how many folds."""

    axis: int
    unit: int
    folds: int = 1

    def spans(self, size: int, ranks: int, rank: int) -> list[tuple[int, int]]:
        """Returns the parts of an axis that a rank has, a part of each fold.

        Raises:
            ValueError: if folds are not equal, or a rank would have nothing.
        """
        fold, left = divmod(size, self.folds)
        if left:
            raise ValueError(f"got an axis of {size} in {self.folds} folds, expected equal ones")
        begin, end = bounds(fold, ranks, self.unit)[rank : rank + 2]
        return [(fold * i + begin, fold * i + end) for i in range(self.folds)]

    def part(self, whole: Tensor, ranks: int, rank: int) -> Tensor:
        """Returns what a rank has of a tensor, in memory of its own.

        In the same layout; plain if the rows of the part do not fill its tiles.
        """
        axis = self.axis % whole.ndim
        spans = self.spans(whole.shape[axis], ranks, rank)
        if not isinstance(whole, MXTensor):
            return torch.cat([whole.narrow(axis, at, end - at) for at, end in spans], axis)
        self._check_blocks(whole, axis, spans)
        # Layouts have units of their own: bytes are cut where every row lies for itself.
        plain = whole.unshuffle()
        parts = [plain.narrow(axis, at, end - at) for at, end in spans]
        part = _joined(parts, axis) if len(parts) > 1 else parts[0].clone()
        layout, fmt = layout_named(whole.byte_layout), facts().formats[whole.format]
        return part if part.k % layout.k_multiple(fmt) else part._relayout(layout)

    def whole(self, parts: Sequence[Tensor]) -> Tensor:
        """Returns the tensor, in the plain layout, whose parts the ranks have, in their order."""
        axis = self.axis % parts[0].ndim
        plain = [p.unshuffle() if isinstance(p, MXTensor) else p for p in parts]
        folded = [p.split(p.shape[axis] // self.folds, axis) for p in plain]
        return _joined([p[i] for i in range(self.folds) for p in folded], axis)

    def _check_blocks(self, whole: MXTensor, axis: int, spans: list[tuple[int, int]]) -> None:
        """Raises if a block would be cut."""
        fmt = facts().formats[whole.format]
        blocks = {whole.ndim - 1: ("K", fmt.k_cut), whole.ndim - 2: ("rows", fmt.block_rows)}
        what, block = blocks.get(axis, ("", 1))
        if self.unit % block:
            raise ValueError(
                f"unit: got {self.unit} for {what} of {show(whole.shape)}, expected a multiple of "
                f"{block}, the block of {whole.format}"
            )
        if any(begin % block for begin, _ in spans):
            fold = whole.shape[axis] // self.folds
            raise ValueError(
                f"got {show(whole.shape)} in {self.folds} folds of {fold} {what}, expected a "
                f"multiple of {block}, the block of {whole.format}"
            )


def _joined(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Returns parts behind each other: of rows with one scale, the scale that all have."""
    first = parts[0]
    if not isinstance(first, MXTensor) or axis != first.ndim - 1:
        return torch.cat(list(parts), axis)
    if not facts().formats[first.format].has_whole_rows:
        return torch.cat(list(parts), axis)
    codes = torch.cat([part.codes for part in parts], axis)
    shape = (*first.shape[:-1], sum(part.shape[-1] for part in parts))
    return first._with(codes, first.scales, shape)


def sizes(whole: int, ranks: int, unit: int) -> list[int]:
    """Returns how much each rank has."""
    return [end - at for at, end in pairwise(bounds(whole, ranks, unit))]

"""One tensor an expert becomes one of all experts, as `mx_kernels.moe` takes them.

    experts.0.gate_proj.weight  [I, H]
    experts.0.up_proj.weight    [I, H]      experts.gate_up_proj  [E, 2I, H], rows of gate first
    experts.1.gate_proj.weight  ...
    experts.0.down_proj.weight  [H, I]      experts.down_proj     [E, H, I]

Parts are read one at a time into the result, which is all that memory holds. Experts are joined if
they are all there, of one shape and in one format; else they stay what they are. Rows of FP8 in
blocks of 128 x 128 that are no multiple of 128 are joined in blocks of 1 x 128, which is exact.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from mx_kernels._core.checks import format_named
from mx_kernels.checkpoints.configs import models
from mx_kernels.checkpoints.files import Checkpoint
from mx_kernels.checkpoints.forms import Parameter
from mx_kernels.conversion.rules import EXPERT_COUNTS

GATE, UP = range(2)
PROJECTIONS = {
    "gate_proj": ("halves", GATE),
    "up_proj": ("halves", UP),
    "w1": ("halves", GATE),
    "w3": ("halves", UP),
    "gate_up_proj": ("gate_up_proj", GATE),
    "down_proj": ("down_proj", GATE),
    "w2": ("down_proj", GATE),
}
"""What models call the matrices of an expert, what they are part of, and whose rows come first."""
ONE = ("gate_up_proj", "down_proj")
ALONE = {(GATE, UP): "gate_up_proj", (UP,): "up_proj", (GATE,): "gate_proj"}
"""What those halves make that there are: experts without a gate have up_proj alone."""
EXPERT = re.compile(
    rf"(?P<experts>.*\bexperts)\.(?P<number>\d+)\.(?P<matrix>{'|'.join(PROJECTIONS)})"
    r"(\.weight|\.(?P<bias>bias)|)"
)
BY_ROWS, OF_ROWS = "fp8_block", "fp8_block_2d"
"""The format that joins what is in blocks of rows that are not whole, and that of such blocks."""


@dataclass(frozen=True)
class Joined(Parameter):
    """A parameter of several: [E, rows of all pieces of an expert, K], or without E."""

    pieces: tuple[tuple[Parameter, ...], ...] = ()
    """Of each expert, from the first row to the last."""

    @property
    def has_own_memory(self) -> bool:
        """Whether what is read is no memory of a file: parts are copied."""
        return True

    def made(self, tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """Returns codes and scales, or the tensor; takes the parts as they are used."""
        tensors, whole = iter(tensors), ()
        for expert, pieces in enumerate(self.pieces):
            begins = itertools.repeat(0)
            for piece in pieces:
                own = piece.made(itertools.islice(tensors, len(piece.parts)))
                whole = whole or self._empty(own)
                begins = [
                    _put(t, into, expert, begin)
                    for t, into, begin in zip(own, whole, begins, strict=False)
                ]
        return whole if len(self.shape) > len(piece.shape) else tuple(t[0] for t in whole)

    def _empty(self, own: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Returns room for all, of the dtypes and on the device of a piece's tensors."""
        shape = (len(self.pieces), *self.shape[-len(self.pieces[0][0].shape) :])
        shapes = [shape]
        if self.format:
            fmt = format_named(self.format)
            shapes = [(*shape[:-1], fmt.packed_bytes(shape[-1])), fmt.scales_of(shape)]
        return tuple(t.new_empty(shape) for t, shape in zip(own, shapes, strict=True))


def _put(tensor: Tensor, into: Tensor, expert: int, begin: int) -> int:
    """Copies rows of an expert to where they belong; returns where they end."""
    end = begin + len(tensor)
    into[expert, begin:end] = tensor
    return end


def join(name: str, pieces: Sequence[Sequence[Parameter]], *, are_experts: bool) -> Joined | None:
    """Returns the parameter that pieces make, None if they do not fit together.

    Args:
        name: what it is called.
        pieces: of each expert, from the first row to the last.
        are_experts: whether there is an axis of experts; if not, pieces are of one.

    Raises:
        ValueError: if what experts are given is rotated.
    """
    flat = [piece for of_expert in pieces for piece in of_expert]
    first, dims = flat[0], {len(piece.shape) for piece in flat}
    kinds = {(piece.format, piece.dtype, piece.shape[1:], piece.hadamard) for piece in flat}
    if are_experts and first.hadamard:
        raise ValueError(
            f"{first.name}: got a rotation of {first.hadamard} of what experts are given, expected "
            "none: moe has none; load(join_experts=False) leaves them apart"
        )
    rows = {tuple(piece.shape[0] for piece in of_expert) for of_expert in pieces}
    if len(kinds) > 1 or len(rows) > 1 or len(dims) > 1 or any(it.becomes_floats for it in flat):
        return None
    (rows,) = rows
    if first.format and any(n % format_named(first.format).block_rows for n in rows[:-1]):
        pieces = [[by_rows(piece) for piece in of_expert] for of_expert in pieces]
        first = pieces[0][0]
    lead = (len(pieces),) if are_experts else ()
    return Joined(
        name,
        tuple(part for of_expert in pieces for piece in of_expert for part in piece.parts),
        (*lead, sum(rows), *first.shape[1:]),
        first.dtype,
        first.format,
        hadamard=first.hadamard,
        pieces=tuple(map(tuple, pieces)),
    )


def by_rows(it: Parameter) -> Parameter:
    """Returns FP8 in blocks of rows with a scale for each row."""
    if isinstance(it, Joined):
        pieces = tuple(tuple(map(by_rows, of_expert)) for of_expert in it.pieces)
        return replace(it, format=BY_ROWS, pieces=pieces)
    return replace(it, format=BY_ROWS, meaning=replace(it.meaning, format=BY_ROWS))


def joined(checkpoint: Checkpoint, parameters: Sequence[Parameter]) -> list[Parameter]:
    """Returns parameters with the codes of experts joined, each where its first piece was.

    Of a shard of a checkpoint nothing is joined: there may be more experts in others.
    """
    groups: dict[tuple[str, str, bool], dict[tuple[int, int], Parameter]] = {}
    for it in () if checkpoint.is_part else parameters:
        if found := EXPERT.fullmatch(it.name):
            matrix, place = PROJECTIONS[found["matrix"]]
            key = found["experts"], matrix, bool(found["bias"])
            groups.setdefault(key, {})[int(found["number"]), place] = it
    taken, counts, made = {it.name for it in parameters}, _counts(checkpoint.config), {}
    # Biases follow their codes.
    for key in sorted(groups, key=lambda key: key[-1]):
        experts, matrix, is_bias = key
        whole = _whole(key, groups[key], counts)
        has_codes = bool(whole) and (is_bias or bool(whole.format))
        of_codes = {it.name for it in groups.get((experts, matrix, False), {}).values()}
        if has_codes and whole.name not in taken and (not is_bias or of_codes <= made.keys()):
            made |= {piece.name: whole for piece in groups[key].values()}
    return list({id(it): it for it in (made.get(it.name, it) for it in parameters)}.values())


def _whole(
    key: tuple[str, str, bool], found: dict[tuple[int, int], Parameter], counts: set[int]
) -> Joined | None:
    """Returns what the pieces of a matrix make, None unless they are all there and fit."""
    experts, matrix, is_bias = key
    numbers, places = ({place[axis] for place in found} for axis in (0, 1))
    count = max(numbers) + 1
    if math.prod((count, len(places))) != len(found) or (counts and count not in counts):
        return None
    name = matrix if matrix in ONE else ALONE[tuple(sorted(places))]
    pieces = [[found[number, place] for place in sorted(places)] for number in range(count)]
    return join(f"{experts}.{name}{'_bias' * is_bias}", pieces, are_experts=True)


def _counts(config: Mapping) -> set[int]:
    """Returns how many experts a config says that a layer of the model has, or of models in it."""
    said = {place.get(name) for place in models(config) for name in EXPERT_COUNTS}
    return {count for count in said if type(count) is int}

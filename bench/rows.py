"""What a benchmark measures: rows, and the CSV files that keep them.

A `Row` is one system doing one operation on one shape with one thread count, with the errors of
a product; a `ModelRow` is one variant of the real model. Both say where and when they were
measured, so a file can be read without its history.
"""

from __future__ import annotations

import csv
import dataclasses
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

OURS = "mx_kernels"


@dataclass(frozen=True)
class Origin:
    """Where and when a number was measured."""

    device: str
    commit: str
    date: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """One system, one operation, one shape, one thread count.

    `op` is one of `targets.OPS`, for a peer that of ours which is as accurate; `overhead` for the
    cost of a call with nothing to compute; `machine` for a limit of the device, which has a rate
    only.
    """

    op: str
    m: int
    n: int
    k: int
    system: str
    computes: str
    """What the system does, since no two of them do the same."""
    threads: int
    time_us_median: float | None
    time_us_best: float | None
    rate: float
    rate_unit: str
    times_ours: float | None
    """This time over that of mx_kernels in the same `op`: above 1, mx_kernels is faster."""
    times_roofline: float | None
    """This time over the least the machine allows."""
    error_own_weights: float | None = None
    """Relative error of a product against that with the dequantized weights it uses."""
    error_float_weights: float | None = None
    """The same against the product with the weights before they were rounded."""
    times_one_thread: float | None = None
    """The time on one thread, measured in turns with this, over this time."""
    device: str
    commit: str
    date: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """(M, N, K)."""
        return (self.m, self.n, self.k)


@dataclass(frozen=True)
class ModelRow:
    """One variant of the sentence encoder, compared with the float model."""

    variant: str
    threads: int
    sentences: int
    cosine_mean: float
    cosine_worst: float
    top1_agreement: float
    """Share of sentences whose nearest neighbour is the float model's."""
    top5_overlap: float
    """Mean share of the five nearest neighbours that the float model has too."""
    linear_weight_bytes: int
    model_bytes: int
    sentences_per_s: float
    device: str
    commit: str
    date: str


AnyRow = TypeVar("AnyRow", Row, ModelRow)


def write_csv(path: Path, rows: Sequence[AnyRow]) -> None:
    """Writes the rows with a header; floats keep six significant digits.

    Raises:
        ValueError: if there is no row, since the header comes from the first.
    """
    if not rows:
        raise ValueError(f"no rows to write to {path.name}, got an empty list")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in dataclasses.fields(rows[0])])
        writer.writeheader()
        for row in rows:
            cells = dataclasses.asdict(row)
            writer.writerow({key: _to_cell(value) for key, value in cells.items()})


def read_csv(path: Path, row_type: type[AnyRow]) -> list[AnyRow]:
    """Reads what `write_csv` wrote."""
    types = typing.get_type_hints(row_type)
    with path.open(newline="") as file:
        return [
            row_type(**{key: _from_cell(cell, types[key]) for key, cell in cells.items()})
            for cells in csv.DictReader(file)
        ]


def _to_cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _from_cell(cell: str, cell_type: type) -> object:
    choices = typing.get_args(cell_type)
    if choices and not cell:
        return None
    return (choices[0] if choices else cell_type)(cell)

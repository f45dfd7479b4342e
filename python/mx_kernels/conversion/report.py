"""What `convert` did to a model: a row for each layer, printed as a table.

    >>> print(conversion_report(model))
    layer                          count  kind    shape         now                    MB before  MB
    model.layers.*.mlp.down_proj      32  Linear  [4096, 14336]  mxfp4, mxint8           3758.10 ...
    lm_head                            1  Linear  [32000, 4096]  kept: output head        262.14 ...

Rows that differ in numbers within their names alone are printed as one.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from mx_kernels._core.checks import format_named
from mx_kernels.conversion.rules import HEAD

REST = "mxint8"
"""What heads are best quantized to: of 8 bits the format with the smallest error."""


@dataclass(frozen=True)
class LayerReport:
    """What became of one layer."""

    name: str
    kind: str
    """"Linear", "Conv1D", or the class of the experts."""
    shape: tuple[int, ...]
    """[out, in]; of experts [E, 2I, H]."""
    reason: str | None
    """Why it was kept; None if it was converted."""
    format: str | None
    activations: str | None
    bytes_before: int
    """Of its parameters; 0 where they were counted at another layer that shares them."""
    bytes_after: int

    @property
    def is_converted(self) -> bool:
        """Says whether it is an MXLinear or MXExperts now."""
        return self.reason is None

    @property
    def outcome(self) -> str:
        """What it is now, in words."""
        return f"{self.format}, {self.activations}" if self.is_converted else f"kept: {self.reason}"


@dataclass(frozen=True)
class FusedReport:
    """What became of a place that `convert(fuse="norms")` looked at."""

    name: str
    readers: tuple[str, ...]
    """The layers that read a norm, by their names beside it, or those of an MLP that are joined."""
    format: str | None
    """What a norm gives codes of, or an MLP multiplies; None if it was kept."""
    reason: str | None
    """Why it was kept; None if it was fused."""
    kind: Literal["norm", "mlp", "residual"] = "norm"
    """A residual is the sums of a decoder layer."""

    @property
    def is_fused(self) -> bool:
        """Says whether a norm gives codes now, and an MLP is one."""
        return self.reason is None

    @property
    def outcome(self) -> str:
        """What it does now, in words."""
        if self.reason is not None:
            return f"kept: {self.reason}"
        if self.kind == "mlp":
            return f"one product of {self.format} for {' and '.join(self.readers)}"
        return f"gives {self.format} to {', '.join(self.readers)}"


@dataclass(frozen=True)
class Report:
    """What became of a model."""

    layers: tuple[LayerReport, ...]
    """In the order of `model.named_modules()`, behind what an earlier call has converted."""
    bytes_before: int
    """Of all parameters and buffers of the model."""
    bytes_after: int
    fusions: tuple[FusedReport, ...] = ()
    """Norms, MLPs and residuals that `fuse="norms"` found."""

    @property
    def norms(self) -> tuple[FusedReport, ...]:
        """The norms among them."""
        return self._of("norm")

    @property
    def mlps(self) -> tuple[FusedReport, ...]:
        """The MLPs among them."""
        return self._of("mlp")

    @property
    def fused(self) -> tuple[FusedReport, ...]:
        """The norms that give codes, and the MLPs that are one."""
        return tuple(place for place in self.fusions if place.is_fused)

    def _of(self, kind: str) -> tuple[FusedReport, ...]:
        return tuple(place for place in self.fusions if place.kind == kind)

    @property
    def converted(self) -> tuple[LayerReport, ...]:
        """The layers that were converted."""
        return tuple(layer for layer in self.layers if layer.is_converted)

    @property
    def kept(self) -> tuple[LayerReport, ...]:
        """The layers that were kept."""
        return tuple(layer for layer in self.layers if not layer.is_converted)

    def __getitem__(self, name: str) -> LayerReport:
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(f"got {name!r}, expected {' or '.join(layer.name for layer in self.layers)}")

    def __str__(self) -> str:
        """The table."""
        groups: dict[tuple, list[LayerReport]] = {}
        for layer in self.layers:
            alike = re.sub(r"\d+", "*", layer.name), layer.kind, layer.shape, layer.outcome
            groups.setdefault(alike, []).append(layer)
        rows = [("layer", "count", "kind", "shape", "now", "MB before", "MB after")]
        for (pattern, kind, shape, outcome), layers in groups.items():
            name = pattern if len(layers) > 1 else layers[0].name
            sizes = (_megabytes(sum(sizes)) for sizes in zip(*map(_bytes_of, layers), strict=True))
            rows.append((name, str(len(layers)), kind, str([*shape]), outcome, *sizes))
        lines = [*_aligned(rows, right=(1, 5, 6)), self._totals(), *self._heads()]
        return "\n".join([*lines, *self._fusions()])

    def _heads(self) -> list[str]:
        """Returns what `rest` would make of output heads that have a weight of their own."""
        heads = [layer for layer in self.kept if layer.reason == HEAD]
        if not heads:
            return []
        fmt = format_named(REST)
        after = sum(math.prod(head.shape) * (1 + 1 / fmt.block_k) for head in heads)
        before = sum(head.bytes_after for head in heads)
        return [
            f"a token reads {_megabytes(before)} MB of output heads as floats; "
            f'rest="{REST}" makes that {_megabytes(after)} MB'
        ]

    def _fusions(self) -> list[str]:
        """Returns the lines of another table."""
        counts = Counter(
            (re.sub(r"\d+", "*", place.name), place.kind, place.outcome) for place in self.fusions
        )
        rows = [(name, kind, str(count), now) for (name, kind, now), count in counts.items()]
        return _aligned([("place", "kind", "count", "now"), *rows], right=(2,)) if rows else []

    def _totals(self) -> str:
        before, after = (sum(_bytes_of(row)[at] for row in self.converted) for at in (0, 1))
        return (
            f"{len(self.converted)} layers converted, {_megabytes(before)} MB to "
            f"{_megabytes(after)} MB, {len(self.kept)} kept; the model from "
            f"{_megabytes(self.bytes_before)} MB to {_megabytes(self.bytes_after)} MB"
        )


def conversion_report(model: nn.Module) -> Report:
    """Returns what `convert` did to a model that it returned, or to a copy of that.

    Raises:
        TypeError: if model is no module.
        ValueError: if it was not converted.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: got {type(model).__name__}, expected an nn.Module")
    report = vars(model).get(ATTRIBUTE)
    if report is None:
        raise ValueError(
            f"model: got a {type(model).__name__} without a report, expected what "
            "mx_kernels.convert returned, not a part of it or a model around it"
        )
    return report


def refresh(model: nn.Module) -> None:
    """Counts the bytes of a report anew, for weights that were on meta when it was made."""
    report, counted = vars(model)[ATTRIBUTE], set()
    layers = tuple(
        replace(row, bytes_after=bytes_of_all(model.get_submodule(row.name), counted))
        for row in report.layers
    )
    after = bytes_of_all(model)
    saved = sum(row.bytes_before - row.bytes_after for row in layers)
    setattr(model, ATTRIBUTE, Report(layers, after + saved, after, report.fusions))


ATTRIBUTE = "_mx_conversion_report"
"""Where the report lies in the model."""


def bytes_of_all(model: nn.Module, counted: set[int] | None = None) -> int:
    """Returns the bytes of parameters and buffers that are not among those `counted` already."""
    counted = set() if counted is None else counted
    held = {id(t): t for t in (*model.parameters(), *model.buffers())}
    new = [t for key, t in held.items() if key not in counted and not nn.parameter.is_lazy(t)]
    counted.update(held)
    return sum(t.nbytes for t in new)


def _bytes_of(layer: LayerReport) -> tuple[int, int]:
    return layer.bytes_before, layer.bytes_after


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.3g}" if count < 1e8 else f"{count / 1e6:.0f}"


def _aligned(rows: list[tuple[str, ...]], right: Iterable[int]) -> list[str]:
    """Returns the lines of a table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return lines

"""Layers of experts on AMD CDNA4 (gfx950), on the simulator's timing model."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.rows import Origin
from bench.simulated import experts
from bench.simulated.experts import LayerRow, tables, text

__all__ = ["measure_rows", "tables", "text"]


def measure_rows(
    origin: Origin, progress: Callable[[str], None], *, quick: bool = False
) -> Iterator[LayerRow]:
    """Yields a row for each model and number of tokens."""
    yield from experts.rows(origin, progress, experts.QUICK_TOKENS if quick else experts.TOKENS)

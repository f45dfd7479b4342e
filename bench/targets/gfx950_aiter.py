"""Products of MXFP4 codes beside AITER's tuned tiles, on the simulator's timing model."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.rows import Origin
from bench.simulated import tuned_tiles
from bench.simulated.tuned_tiles import TileRow, tables, text

__all__ = ["measure_rows", "tables", "text"]

QUICK_EVERY = 20
"""One shape in so many is timed in a trial run."""


def measure_rows(
    origin: Origin, progress: Callable[[str], None], *, quick: bool = False
) -> Iterator[TileRow]:
    """Yields a row for each shape."""
    yield from tuned_tiles.rows(origin, progress, QUICK_EVERY if quick else 1)

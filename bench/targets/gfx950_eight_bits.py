"""Products of eight-bit codes on AMD CDNA4 (gfx950), on the simulator's timing model."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.rows import Origin
from bench.simulated import eight_bits
from bench.simulated.eight_bits import ProductRow, tables, text

__all__ = ["measure_rows", "tables", "text"]

QUICK_ROWS = (1, 256)


def measure_rows(
    origin: Origin, progress: Callable[[str], None], *, quick: bool = False
) -> Iterator[ProductRow]:
    """Yields a row for each format and shape."""
    yield from eight_bits.rows(origin, progress, QUICK_ROWS if quick else eight_bits.ROWS)

"""What formats cost a language model, on the CPU: `bench.accuracy`, all pairs of them."""

from __future__ import annotations

from bench.accuracy import measure_rows, tables, text

__all__ = ["measure_rows", "tables", "text"]

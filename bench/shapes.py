"""The named shapes: every table of this repository is over these.

A shape is (M, N, K) of `linear`: M rows of activations, a weight of N rows, both
of K elements. The first six come from serving a mixture-of-experts model, the
two with M = 1 from generating one token, the last from reading a long prompt.
"""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """One problem size: x [M, K] times w [N, K] transposed."""

    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        """Multiplications and additions of one call."""
        return 2 * self.m * self.n * self.k

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {self.k}"


NAMED_SHAPES = (
    Shape(4, 2880, 512),
    Shape(16, 2112, 7168),
    Shape(32, 4096, 512),
    Shape(32, 2880, 512),
    Shape(64, 7168, 2048),
    Shape(256, 3072, 1536),
    Shape(1, 4096, 4096),
    Shape(1, 14336, 4096),
    Shape(512, 4096, 4096),
)
QUICK_SHAPES = (Shape(4, 2880, 512), Shape(32, 2880, 512))

SMALLEST_SHAPE = Shape(1, 32, 32)
"""One block: what a call costs when there is nothing to compute."""

QUANTIZE_SHAPE = (4096, 4096)
"""Rows and K of the quantizer's own benchmark, larger than most caches."""

"""What there is of everything, and what a launch can count."""

from std.math import align_down

comptime CUS = 256
"""Compute units."""
comptime LDS_BYTES = 160 * 1024
"""Of a compute unit."""
comptime MAX_COUNT = 63
"""Loads that a wait can leave in flight."""
comptime MAX_TENSOR_BYTES = 1 << 31
"""Kernels count bytes in 32 bits."""
comptime MAX_ROWS = 1 << 20
"""Rows of operands that a launch takes: HIP's grids end at 65536 tiles, of 16 rows at least."""
comptime ROWS_MULTIPLE = 256
"""Stretches of rows begin where any access is aligned."""


def rows_at_once(row_bytes: Int) -> Int:
    """Returns how many rows of at most `row_bytes` a launch takes."""
    var rows = align_down((MAX_TENSOR_BYTES - 1) // row_bytes, ROWS_MULTIPLE)
    return max(min(MAX_ROWS, rows), 1)

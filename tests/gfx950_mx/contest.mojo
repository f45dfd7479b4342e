"""Emits the decode kernels of the contest shapes (M, N, K)."""

from named import emit_linear, emit_matmul, shape_of


def main() raises:
    """Emits them in the order of the contest."""
    emit_linear[shape_of(1, 1, 1, 4)]()

"""Emits the decode kernels of the contest shapes (M, N, K).

    m1n1k1w4      (4, 2880, 512)
    m1n2k1w4      (32, 4096, 512) and (32, 2880, 512)
    m1n4k1w8s7    (16, 2112, 7168)
    m2n4k1w8      (64, 7168, 2048)
    m2n6k1w12     (256, 3072, 1536)
"""

from named import emit_linear, emit_matmul, shape_of


def main() raises:
    """Emits them, fused and for activations that are already encoded."""
    comptime for shape in [
        shape_of(1, 1, 1, 4),
        shape_of(1, 2, 1, 4),
        shape_of(1, 4, 1, 8, splits=7),
        shape_of(2, 4, 1, 8),
        shape_of(2, 6, 1, 12),
    ]:
        emit_linear[shape]()
        emit_matmul[shape]()

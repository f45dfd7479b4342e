"""Emits the decode kernels that the dispatch chooses for the contest shapes (M, N, K):

    <M>x<N>x<K>/<kernel>, fused and for activations that are already encoded
"""

from named import emit_linear, emit_matmul

from mojo_kernels.cdna4.dispatch import CHOICES, choose

comptime CONTEST = [
    (4, 2880, 512),
    (16, 2112, 7168),
    (32, 4096, 512),
    (32, 2880, 512),
    (64, 7168, 2048),
    (256, 3072, 1536),
]


def main() raises:
    """Emits them."""
    comptime for i in range(len(CONTEST)):
        comptime m, n, k = CONTEST[i]
        comptime shape = CHOICES[choose(m, n, k)].shape_for(k)
        var prefix = String(m, "x", n, "x", k, "/")
        emit_linear[shape](prefix)
        emit_matmul[shape](prefix)

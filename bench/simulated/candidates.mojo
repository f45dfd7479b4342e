"""Emits decode kernels that the dispatch could choose for a shape, with their launches:
`mojo run -D M=.. -D N=.. -D K=.. candidates.mojo`.

    m<tiles>n<tiles>w<waves>s<splits>:<grid x>:<y>:<z>:<threads>:<chunks a wave>:<workspace>

A list of sensible cuts, not all of them: a tile as narrow as one scale word and as
wide as registers allow, waves for short and long K, splits for few tiles.
"""

from emit import emit

from mojo_kernels.backend import CDNA4_COMPILE_OPTIONS
from mojo_kernels.cdna4.dispatch import Launch
from mojo_kernels.cdna4.epilogue import NO_BIAS
from mojo_kernels.cdna4.matmul_decode import DecodeShape, linear_decode
from mojo_kernels.codec import Rounding
from std.sys import get_defined_int

comptime M = get_defined_int["M"]()
comptime N = get_defined_int["N"]()
comptime K = get_defined_int["K"]()
comptime BF16 = DType.bfloat16
comptime M_N_TILES = [(1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (2, 6), (4, 4)]
comptime WAVES_SPLITS = [(4, 1), (8, 1), (12, 1), (8, 2), (8, 4), (8, 7)]


def main() raises:
    """Emits every cut."""
    comptime for tiles in M_N_TILES:
        comptime for share in WAVES_SPLITS:
            comptime shape = DecodeShape(
                m_tiles=tiles[0],
                n_tiles=tiles[1],
                k_tiles=1,
                waves=share[0],
                depth=1,
                k_tail=K % 128 != 0,
                splits=share[1],
            )
            var launch = Launch.of(shape, M, N, K)
            var label = String("m", tiles[0], "n", tiles[1], "w", share[0], "s", share[1])
            var numbers = [
                launch.x,
                launch.y,
                launch.z,
                launch.threads,
                launch.chunks_per_wave,
                launch.workspace_bytes,
            ]
            for i in range(len(numbers)):
                label += String(":", numbers[i])
            comptime kernel = linear_decode[BF16, BF16, NO_BIAS, Rounding.EVEN, shape]
            emit[kernel, options=CDNA4_COMPILE_OPTIONS](label)

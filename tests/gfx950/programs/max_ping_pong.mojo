"""Prints gfx950 assembly of MAX's ping-pong matmul: 8 waves in two groups, loads to LDS.

The first kernel is bfloat16 with 256x256 tiles, the second float8 with 128x256.
"""

from layout import Idx, TileTensor
from layout.tile_layout import row_major
from linalg.matmul.gpu.amd.amd_ping_pong_matmul import (
    AMDPingPongMatmul,
    KernelConfig,
)
from max.gpu.host.compile import _compile_code, get_gpu_target
from std.utils import Index


def print_matmul[dtype: DType, out: DType, n: Int, k: Int, config: KernelConfig]() raises:
    """Compiles one configuration for a row count known at launch."""
    # Types only: nothing here is read.
    var m = 64
    var source = ImmPointer[Scalar[dtype], ImmutAnyOrigin](unsafe_from_address=16)
    var target = MutPointer[Scalar[out], MutAnyOrigin](unsafe_from_address=16)
    var a = TileTensor(source, row_major((m, Idx[k])))
    var b = TileTensor(source, row_major[n, k]())
    var c = TileTensor(target, row_major((m, Idx[n])))
    comptime kernel = AMDPingPongMatmul[dtype, dtype, out, config, True].run[
        type_of(a).LayoutType,
        type_of(b).LayoutType,
        type_of(c).LayoutType,
        type_of(a).Engine,
        type_of(b).Engine,
        type_of(c).Engine,
    ]
    print(_compile_code[kernel, target=get_gpu_target["gfx950"]()]().asm)
    print(";;;; end of kernel")


def main() raises:
    """Prints both kernels."""
    comptime square = KernelConfig(
        block_shape=Index(256, 256, 64),
        warp_shape=Index(128, 64, 64),
        mma_shape=Index(16, 16, 32),
    )
    comptime skinny = KernelConfig(
        block_shape=Index(128, 256, 128),
        warp_shape=Index(64, 64, 128),
        mma_shape=Index(16, 16, 128),
    )
    print_matmul[DType.bfloat16, DType.bfloat16, 256, 512, square]()
    print_matmul[DType.float8_e4m3fn, DType.float32, 256, 512, skinny]()

"""Prints gfx950 assembly of MAX's own MXFP4 matmul in several tilings.

The kernel is the installed platform's, not ours: the simulator's tests run it as machine code
that its authors did not write. The order of the tilings is `TILINGS` of support.py.
"""

from layout import Idx, TileTensor
from layout.tile_layout import row_major
from linalg.matmul.gpu.amd.block_scaled_matmul_amd import BlockScaledMatmulAMD
from max.gpu.host.compile import _compile_code, get_gpu_target


def print_matmul[
    out: DType,
    n: Int,
    k: Int,
    block_m: Int,
    block_n: Int,
    block_k: Int,
    wave_m: Int,
    wave_n: Int,
    mma: Tuple[Int, Int, Int] = (16, 16, 128),
]() raises:
    """Compiles one tiling for a row count known at launch and prints its assembly."""
    # Types only: nothing here is read.
    var m = 64
    var bytes = ImmPointer[UInt8, ImmutAnyOrigin](unsafe_from_address=16)
    var exponents = ImmPointer[Float8_e8m0fnu, ImmutAnyOrigin](unsafe_from_address=16)
    var floats = MutPointer[Scalar[out], MutAnyOrigin](unsafe_from_address=16)
    var c = TileTensor(floats, row_major((m, Idx[n])))
    var a = TileTensor(bytes, row_major((m, Idx[k // 2])))
    var b = TileTensor(bytes, row_major[n, k // 2]())
    var a_scales = TileTensor(exponents, row_major((m, Idx[k // 32])))
    var b_scales = TileTensor(exponents, row_major[n, k // 32]())

    comptime Kernel = BlockScaledMatmulAMD[
        BM=block_m,
        BN=block_n,
        BK_ELEMS=block_k,
        WM=wave_m,
        WN=wave_n,
        MMA_M=mma[0],
        MMA_N=mma[1],
        MMA_K=mma[2],
    ]
    comptime kernel = Kernel.run[
        out,
        type_of(c).LayoutType,
        type_of(a).LayoutType,
        type_of(b).LayoutType,
        type_of(a_scales).LayoutType,
        type_of(b_scales).LayoutType,
        type_of(c).Engine,
        type_of(a).Engine,
        type_of(b).Engine,
        type_of(a_scales).Engine,
        type_of(b_scales).Engine,
    ]
    print(_compile_code[kernel, target=get_gpu_target["gfx950"]()]().asm)
    print(";;;; end of kernel")


def main() raises:
    """Prints every tiling."""
    print_matmul[DType.float32, 128, 1024, 128, 128, 128, 64, 64]()
    print_matmul[DType.bfloat16, 64, 512, 64, 32, 512, 64, 32]()
    print_matmul[DType.float32, 256, 512, 64, 64, 256, 32, 32]()
    print_matmul[DType.bfloat16, 128, 512, 64, 64, 128, 32, 32, (32, 32, 64)]()
    print_matmul[DType.float32, 128, 512, 16, 128, 256, 16, 64]()
    print_matmul[DType.float32, 256, 1024, 128, 128, 128, 64, 64]()
    print_matmul[DType.float32, 256, 1024, 64, 64, 256, 32, 32]()

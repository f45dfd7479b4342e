"""Emits MAX's own MXFP4 kernels for weights [N, K]: `mojo run -D N=.. -D K=.. max_kernels.mojo`.

    quantize                               bfloat16 to codes and scales
    matmul_<BM>x<BN>x<BK>_w<waves>_s1      its matmul in the tiles that its dispatch names
    matmul_..._s<splits>, reduce_s<splits> the same with K split, and the sum of the parts
"""

from emit import emit

from layout import Idx, TileTensor
from layout.tile_layout import row_major
from linalg.block_scaled_quantization import (
    quantize_dynamic_block_scaled_mxfp4_kernel,
)
from linalg.matmul.gpu.amd.amd_4wave_split_k_matmul import _split_k_reduce_kernel
from linalg.matmul.gpu.amd.block_scaled_matmul_amd import (
    BlockScaledMatmulAMD,
    _pick_num_splits,
)
from std.sys import get_defined_int

comptime N = get_defined_int["N"]()
comptime K = get_defined_int["K"]()
comptime BF16 = DType.bfloat16


def emit_matmul[
    block_m: Int,
    block_n: Int,
    block_k: Int,
    wave_m: Int,
    wave_n: Int,
    splits: Int = 1,
]() raises:
    """Emits one tiling for a row count known at launch."""
    # Types only: nothing here is read.
    comptime out = BF16 if splits == 1 else DType.float32
    var m = 64
    var bytes = ImmPointer[UInt8, ImmutAnyOrigin](unsafe_from_address=16)
    var exponents = ImmPointer[Float8_e8m0fnu, ImmutAnyOrigin](unsafe_from_address=16)
    var floats = MutPointer[Scalar[out], MutAnyOrigin](unsafe_from_address=16)
    var c = TileTensor(floats, row_major((m, Idx[N])))
    var a = TileTensor(bytes, row_major((m, Idx[K // 2])))
    var b = TileTensor(bytes, row_major[N, K // 2]())
    var a_scales = TileTensor(exponents, row_major((m, Idx[K // 32])))
    var b_scales = TileTensor(exponents, row_major[N, K // 32]())

    comptime Kernel = BlockScaledMatmulAMD[
        BM=block_m, BN=block_n, BK_ELEMS=block_k, WM=wave_m, WN=wave_n
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
        num_splits=splits,
    ]
    comptime waves = (block_m // wave_m) * (block_n // wave_n)
    emit[kernel](String("matmul_", block_m, "x", block_n, "x", block_k, "_w", waves, "_s", splits))


def main() raises:
    """Emits the quantizer, and all tilings that can multiply these weights."""
    emit[quantize_dynamic_block_scaled_mxfp4_kernel[BF16, elements_per_thread=8]]("quantize")
    emit_matmul[128, 128, 128, 64, 64]()
    comptime if K % 512 == 0:
        emit_matmul[64, 32, 512, 64, 32]()
        emit_matmul[16, 32, 512, 16, 16]()
    comptime CUS = 256
    comptime splits = _pick_num_splits[K // 2, N, 128, 128, cta_cap=2 * CUS]()
    comptime if splits > 1 and N % 128 == 0:
        emit_matmul[64, 128, 256, 64, 32, splits]()
        emit_matmul[16, 128, 256, 16, 64, splits]()
        emit[_split_k_reduce_kernel[splits, BF16, None]](String("reduce_s", splits))

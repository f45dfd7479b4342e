"""Prints gfx950 assembly of MAX's own FP8 ping-pong matmul, 256x256x128 tiles, 8 waves.

`calibration.py` compares the timing model's view of it with published rates of such kernels.
"""

from layout import TileTensor
from layout.tile_layout import row_major
from linalg.matmul.gpu.amd.amd_ping_pong_matmul import (
    AMDPingPongMatmul,
    KernelConfig,
)
from max.gpu.host.compile import _compile_code, get_gpu_target
from std.utils import Index

comptime SIZE = 4096


def main() raises:
    """Compiles the kernel for a square problem and prints it."""
    comptime config = KernelConfig(
        block_shape=Index(256, 256, 128),
        warp_shape=Index(128, 64, 128),
        mma_shape=Index(16, 16, 128),
    )
    comptime layout = row_major[SIZE, SIZE]()
    comptime Layout = type_of(layout)
    comptime fp8 = DType.float8_e4m3fn
    comptime Input = TileTensor[fp8, Layout, ImmutAnyOrigin]
    comptime Output = TileTensor[DType.bfloat16, Layout, MutAnyOrigin]
    comptime kernel = AMDPingPongMatmul[fp8, fp8, DType.bfloat16, config, True].run[
        Layout, Layout, Layout, Input.Engine, Input.Engine, Output.Engine
    ]
    print(_compile_code[kernel, target=get_gpu_target["mi355x"]()]().asm)

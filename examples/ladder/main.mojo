"""Prints the gfx950 assembly of every rung of the ladder, each after a line with its name."""

from max.gpu.host.compile import _compile_code, get_gpu_target

from eight_bits import by_quarters, scalar, scalar_lds
from few_rows import product, quantize
from many_rows import Way, double_buffered, naive, ping_pong, shared
from shared_tile import FP8, MXFP4
from mojo_kernels.backend import CDNA4, CDNA4_COMPILE_OPTIONS


def emit[KernelType: TrivialRegisterPassable, //, kernel: KernelType](name: String) raises:
    """Compiles a kernel and prints it."""
    print(";;;; kernel", name)
    print(
        _compile_code[
            kernel, target=get_gpu_target[CDNA4](), compile_options=CDNA4_COMPILE_OPTIONS
        ]().asm
    )


def main() raises:
    """Prints all of them."""
    emit[naive]("naive")
    emit[shared[MXFP4, Way.PIECES, False]]("shared")
    emit[shared[MXFP4, Way.PIECES, True]]("swizzled")
    emit[double_buffered[MXFP4]]("double_buffered")
    emit[ping_pong]("ping_pong")
    emit[scalar]("fp8_scalar")
    emit[scalar_lds]("fp8_scalar_lds")
    emit[shared[FP8, Way.BYTES, False, False, 2, 2, 1, 1]]("fp8_bytes")
    emit[shared[FP8, Way.PIECES, False, False, 2, 2, 1, 1]]("fp8_pieces")
    emit[shared[FP8, Way.STRAIGHT, False, False, 2, 2, 1, 1]]("fp8_straight")
    emit[shared[FP8, Way.STRAIGHT, True, False, 2, 2, 1, 1]]("fp8_swizzled")
    emit[shared[FP8, Way.STRAIGHT, True, True, 2, 2, 2, 2]]("fp8_shared")
    emit[double_buffered[FP8, 2, 2, 2, 2, 2, False]]("fp8_double_plain")
    emit[double_buffered[FP8, 2, 2, 2, 2]]("fp8_double_buffered")
    emit[double_buffered[FP8, 2, 4, 4, 2]]("fp8_128x128")
    emit[double_buffered[FP8, 2, 4, 8, 4, 4]]("fp8_256x256")
    emit[double_buffered[FP8, 2, 8, 8, 2, 2]]("fp8_256x256_16")
    emit[by_quarters]("fp8_ping_pong")
    emit[product[is_fused=False, is_split=False]]("few_rows")
    emit[product[is_fused=False, is_split=True]]("split_k")
    emit[quantize]("quantize")
    emit[product[is_fused=True, is_split=True]]("fused")

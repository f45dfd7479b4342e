"""Prints the gfx950 assembly of every rung of the ladder, each after a line with its name."""

from max.gpu.host.compile import _compile_code, get_gpu_target
from std.sys import is_defined

from few_rows import fused, product, quantize
from many_rows import Way, double_buffered, naive, ping_pong, shared
from shared_tile import FP8, MXFP4
from unscaled import by_quarters, regions, scalar, scalar_lds
from mojo_kernels.backend import CDNA4, CDNA4_OPTIONS
from mojo_kernels.cdna4.types import F16
from mojo_kernels.numbers.formats import Format


comptime OPTIONS = CDNA4_OPTIONS[is_defined["F16"]()]
"""Of float16 sums fill the accumulation registers: AMD compiles its kernels so."""
comptime SPLITS = 7
"""Workgroups that share K of few rows."""
comptime LOADED = ""
"""A kernel loads its arguments from memory."""


def emit[
    KernelType: TrivialRegisterPassable, //, kernel: KernelType, options: StaticString = OPTIONS
](name: String) raises:
    """Compiles a kernel and prints it."""
    print(";;;; kernel", name)
    print(_compile_code[kernel, target=get_gpu_target[CDNA4](), compile_options=options]().asm)


def main() raises:
    """Prints all of them but those of float16, or with `-D F16` these."""
    comptime if is_defined["F16"]():
        emit_float16()
    else:
        emit_others()


def emit_float16() raises:
    """Prints the kernels of float16."""
    emit[shared[F16, Way.PIECES, False, True, 2, 2, 8, 8]]("f16_pieces")
    emit[shared[F16, Way.STRAIGHT, False, True, 2, 2, 8, 8]]("f16_straight")
    emit[shared[F16, Way.STRAIGHT, True, True, 2, 2, 8, 8]]("f16_swizzled")
    emit[double_buffered[F16, 2, 2, 8, 8]]("f16_double_buffered")
    emit[double_buffered[F16, 2, 2, 8, 8, reads_ahead=True]]("f16_read_ahead")
    emit[regions[F16]]("f16_regions")
    emit[regions[F16, 1]]("f16_xcd")
    emit[regions[F16, 4]]("f16_banded")
    emit[by_quarters[F16]]("f16_ping_pong")
    emit[double_buffered[F16, 2, 2, 1, 8, reads_ahead=True]]("f16_memory_bound")
    emit[regions[Format.FP8_E5M2, 4]]("bf8_regions")
    emit[by_quarters[Format.FP8_E5M2]]("bf8_ping_pong")


def emit_others() raises:
    """Prints all others."""
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
    emit[by_quarters[FP8]]("fp8_ping_pong")
    emit[product[1]]("few_rows")
    emit[product[SPLITS]]("split_k")
    emit[quantize]("quantize")
    emit[fused[0, parts=SPLITS, is_transposed=True]]("fused")
    emit[fused[0], LOADED]("contest_wave")
    emit[fused[1, False], LOADED]("contest_lds")
    emit[fused[1], LOADED]("contest_swizzled")
    emit[fused[2], LOADED]("contest_double_buffered")
    emit[fused[2, n_tiles=4], LOADED]("contest_blocked")
    emit[fused[2, parts=SPLITS], LOADED]("contest_split_k")
    emit[fused[2, parts=SPLITS]]("contest_preloaded")
    emit[fused[2, parts=SPLITS, has_priority=True]]("contest_priority")
    emit[fused[2, parts=SPLITS, has_priority=True, is_transposed=True]]("contest_transposed")
    emit[fused[4, parts=SPLITS, is_transposed=True, is_up_front=True]]("contest_up_front")
    emit[fused[2, is_transposed=True, is_up_front=True]]("contest_short")
    emit[fused[0, is_transposed=True, is_up_front=True]]("contest_registers")

"""Prints the gfx950 assembly of every rung of the ladder, each after a line with its name."""

from max.gpu.host.compile import _compile_code, get_gpu_target

from few_rows import product, quantize
from many_rows import double_buffered, naive, ping_pong, shared
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
    emit[shared[False]]("shared")
    emit[shared[True]]("swizzled")
    emit[double_buffered]("double_buffered")
    emit[ping_pong]("ping_pong")
    emit[product[is_fused=False, is_split=False]]("few_rows")
    emit[product[is_fused=False, is_split=True]]("split_k")
    emit[quantize]("quantize")
    emit[product[is_fused=True, is_split=True]]("fused")

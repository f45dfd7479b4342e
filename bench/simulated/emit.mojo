"""Prints the gfx950 assembly of a kernel under a name, for `bench.simulated.kernels`.

    linear_m<tiles>n<tiles>w<waves>s<splits>, linear_prefill<rows>, matmul_...
"""

from max.gpu.host.compile import _compile_code, get_gpu_target

from mojo_kernels.backend import CDNA4_COMPILE_OPTIONS
from mojo_kernels.cdna4.dispatch import Choice, Kernel
from mojo_kernels.cdna4.epilogue import NO_BIAS
from mojo_kernels.cdna4.linear_prefill import linear_prefill
from mojo_kernels.cdna4.matmul_decode import linear_decode, matmul_decode
from mojo_kernels.cdna4.matmul_prefill import matmul_prefill
from mojo_kernels.codec import Rounding

comptime BF16 = DType.bfloat16
comptime EVEN = Rounding.EVEN


def emit[
    KernelType: TrivialRegisterPassable, //, kernel: KernelType, options: StaticString = ""
](name: String) raises:
    """Prints a line with the name, then the assembly."""
    print(";;;; kernel", name)
    print(_compile_code[kernel, target=get_gpu_target["mi355x"](), compile_options=options]().asm)


def name_of(choice: Choice) -> String:
    """Returns the name of what a row of the dispatch table launches."""
    if choice.kernel == Kernel.PREFILL:
        return String("prefill", choice.tile()[0])
    var shape = choice.shape
    return String("m", shape.m_tiles, "n", shape.n_tiles, "w", shape.waves, "s", shape.splits)


def emit_products[choice: Choice]() raises:
    """Prints the kernels of a row for bfloat16 and for codes, K being whole steps."""
    comptime name = name_of(choice)
    comptime if choice.kernel == Kernel.DECODE:
        comptime fused = linear_decode[BF16, BF16, NO_BIAS, EVEN, choice.shape]
        comptime encoded = matmul_decode[BF16, NO_BIAS, choice.shape]
        emit[fused, options=CDNA4_COMPILE_OPTIONS]("linear_" + name)
        emit[encoded, options=CDNA4_COMPILE_OPTIONS]("matmul_" + name)
    else:
        comptime fused = linear_prefill[choice.m_tiles, BF16, BF16, NO_BIAS, EVEN, False]
        comptime encoded = matmul_prefill[choice.m_tiles, BF16, NO_BIAS, False]
        emit[fused, options=CDNA4_COMPILE_OPTIONS]("linear_" + name)
        emit[encoded, options=CDNA4_COMPILE_OPTIONS]("matmul_" + name)

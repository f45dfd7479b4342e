"""Prints the gfx950 assembly of a kernel under a name: the only user of `_compile_code`.

The compile options are those that our kernels are launched with.
"""

from max.gpu.host.compile import _compile_code, get_gpu_target

from mojo_kernels.backend import CDNA4_COMPILE_OPTIONS


def emit[KernelType: TrivialRegisterPassable, //, kernel: KernelType](name: String) raises:
    """Prints a line with the name, then the assembly."""
    print(";;;; kernel", name)
    print(
        _compile_code[
            kernel,
            target=get_gpu_target["mi355x"](),
            compile_options=CDNA4_COMPILE_OPTIONS,
        ]().asm
    )

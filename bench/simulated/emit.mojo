"""Prints the gfx950 assembly of a kernel under a name, for `bench.simulated.kernels`."""

from max.gpu.host.compile import _compile_code, get_gpu_target


def emit[
    KernelType: TrivialRegisterPassable, //, kernel: KernelType, options: StaticString = ""
](name: String) raises:
    """Prints a line with the name, then the assembly."""
    print(";;;; kernel", name)
    print(_compile_code[kernel, target=get_gpu_target["mi355x"](), compile_options=options]().asm)

"""Each workgroup turns 256 numbers around: y[i] = x[255 - i], through LDS. Prints its assembly.

Without the barrier a wave would read what another has yet to write.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, thread_idx
from max.gpu.host.compile import _compile_code, get_gpu_target
from std.memory import AddressSpace, stack_allocation
from std.utils import StaticTuple

comptime THREADS = 256


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def turn_around(x: ImmPointer[Float32, ImmutAnyOrigin], y: MutPointer[Float32, MutAnyOrigin]):
    """Turns the numbers of each workgroup around."""
    var shared = stack_allocation[THREADS, DType.float32, address_space=AddressSpace.SHARED]()
    var own = Int(thread_idx.x)
    var first = Int(block_idx.x) * THREADS
    shared[unsafe_offset=own] = x[unsafe_offset=first + own]
    barrier()
    y[unsafe_offset=first + own] = shared[unsafe_offset=THREADS - 1 - own]


def main() raises:
    """Prints the assembly for CDNA4."""
    print(_compile_code[turn_around, target=get_gpu_target["gfx950"]()]().asm)

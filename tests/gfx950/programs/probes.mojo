"""Prints gfx950 assembly of MAX's MXFP4 quantizer and of small programs with library calls.

Order: quantize bfloat16, quantize float32, float functions, integer division, wave reduction,
the float functions again with preloaded kernel arguments, a histogram in private memory.
"""

from linalg.block_scaled_quantization import (
    quantize_dynamic_block_scaled_mxfp4_kernel,
)
from max.gpu import block_dim, block_idx, thread_idx
from max.gpu.host.compile import _compile_code, get_gpu_target
from max.gpu.primitives import warp
from std.math import erf, exp, log, sin, sqrt, tanh

comptime Floats = MutPointer[Float32, MutAnyOrigin]
comptime Ints = MutPointer[Int32, MutAnyOrigin]


def functions(x: Floats, y: Floats, n: Int32):
    """Stores eight functions of each element side by side."""
    var i = Int(block_idx.x * block_dim.x + thread_idx.x)
    if i < Int(n):
        var v = x[unsafe_offset=i]
        y[unsafe_offset=8 * i] = exp(v)
        y[unsafe_offset=8 * i + 1] = log(abs(v))
        y[unsafe_offset=8 * i + 2] = sqrt(abs(v))
        y[unsafe_offset=8 * i + 3] = tanh(v)
        y[unsafe_offset=8 * i + 4] = 1.0 / v
        y[unsafe_offset=8 * i + 5] = v / 3.0
        y[unsafe_offset=8 * i + 6] = sin(v)
        y[unsafe_offset=8 * i + 7] = erf(v)


def divisions(x: Ints, y: Ints, n: Int32):
    """Stores quotient, remainder, wide product and wide quotient."""
    var i = Int(block_idx.x * block_dim.x + thread_idx.x)
    if i < Int(n):
        var v = x[unsafe_offset=i]
        var d = Int32(i % 13) + 1
        y[unsafe_offset=4 * i] = v // d
        y[unsafe_offset=4 * i + 1] = v % d
        y[unsafe_offset=4 * i + 2] = Int32(Int64(v) * Int64(d) >> 7)
        y[unsafe_offset=4 * i + 3] = Int32(Int64(v) // Int64(d))


def reductions(x: Floats, y: Floats):
    """Stores the sum and the maximum of the wave in every lane."""
    var i = Int(block_idx.x * block_dim.x + thread_idx.x)
    y[unsafe_offset=2 * i] = warp.sum(x[unsafe_offset=i])
    y[unsafe_offset=2 * i + 1] = warp.max(x[unsafe_offset=i])


def histogram(x: Ints, y: Ints, n: Int32):
    """Counts in an array that is too large for registers and indexed by data."""
    var i = Int(thread_idx.x)
    var counts = Array[Int32, 200](fill=3)
    for j in range(Int(n)):
        counts[Int(x[unsafe_offset=i + 64 * j]) & 127] += Int32(j)
    for j in range(16):
        y[unsafe_offset=16 * i + j] = counts[(Int(x[unsafe_offset=i]) + j) & 127]


def print_assembly(text: String):
    """Prints one kernel's assembly and the mark that ends it."""
    print(text)
    print(";;;; end of kernel")


def main() raises:
    """Prints every kernel."""
    comptime TARGET = get_gpu_target["gfx950"]()
    comptime PRELOAD = "amdgpu-kernarg-preload-count=16"
    comptime quantize_bf16 = quantize_dynamic_block_scaled_mxfp4_kernel[
        DType.bfloat16, elements_per_thread=8
    ]
    comptime quantize_f32 = quantize_dynamic_block_scaled_mxfp4_kernel[
        DType.float32, elements_per_thread=8
    ]
    print_assembly(String(_compile_code[quantize_bf16, target=TARGET]().asm))
    print_assembly(String(_compile_code[quantize_f32, target=TARGET]().asm))
    print_assembly(String(_compile_code[functions, target=TARGET]().asm))
    print_assembly(String(_compile_code[divisions, target=TARGET]().asm))
    print_assembly(String(_compile_code[reductions, target=TARGET]().asm))
    print_assembly(String(_compile_code[functions, target=TARGET, compile_options=PRELOAD]().asm))
    print_assembly(String(_compile_code[histogram, target=TARGET]().asm))

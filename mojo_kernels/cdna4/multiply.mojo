"""Launches what the dispatch chooses, on the stream of a `DeviceContext`, as MAX ops do.

The weights' sizes are known when an op is compiled, M is not: an op holds the
kernels of all rows of the table that some M can get.
"""

from max.gpu.host import DeviceContext
from std.math import ceildiv
from std.sys import size_of

from ..backend import CDNA4_COMPILE_OPTIONS
from ..codec import Rounding
from ..formats import BLOCK
from ..layouts import Plain
from .dispatch import (
    CHOICES,
    Choice,
    Kernel,
    MAX_TENSOR_BYTES,
    Product,
    choose,
    is_chosen,
)
from .linear_prefill import linear_prefill
from .matmul_decode import linear_decode, matmul_decode
from .matmul_prefill import matmul_prefill
from .mma import LANES
from .quantize import QUANTIZE_BLOCKS, QUANTIZE_ROWS, QUANTIZE_WAVES, quantize_rows
from .workspace import workspace


@always_inline
def _source[dtype: DType](address: Int) -> ImmPointer[Scalar[dtype], ImmutAnyOrigin]:
    """Returns the pointer to an operand."""
    return ImmPointer[Scalar[dtype], ImmutAnyOrigin](unsafe_from_address=address)


@always_inline
def _target[dtype: DType](address: Int) -> MutPointer[Scalar[dtype], MutAnyOrigin]:
    """Returns the pointer to a result."""
    return MutPointer[Scalar[dtype], MutAnyOrigin](unsafe_from_address=address)


def multiply[
    x_dtype: Optional[DType],
    out_dtype: DType,
    bias_dtype: Optional[DType],
    rounding: Rounding,
    n: Int,
    k: Int,
](context: DeviceContext, product: Product) raises:
    """Launches C = A @ W.T + bias for weights of known size and any M.

    Parameters:
        x_dtype: Type of A if it is floats, which are quantized on the way; else none.
        out_dtype: Type of C.
        bias_dtype: Type of the bias, or none.
        rounding: How floats are quantized.
        n: Rows of the weights, rounded up to whole tiles or not.
        k: Elements of a row.
    """
    comptime x_bytes = size_of[x_dtype.or_else(DType.uint8)]()
    product.check[size_of[out_dtype]()](product.m * k * x_bytes)
    if product.m == 0:
        return
    var row = choose(product.m, n, k, x_bytes)
    comptime for i in range(len(CHOICES)):
        comptime if is_chosen[i](n, k, x_bytes):
            if row == i:
                comptime if CHOICES[i].kernel == Kernel.DECODE:
                    _decode[x_dtype, out_dtype, bias_dtype, rounding, CHOICES[i], k](
                        context, product
                    )
                else:
                    comptime k_tail = CHOICES[i].has_tail(k)
                    _prefill[x_dtype, out_dtype, bias_dtype, rounding, CHOICES[i], k_tail](
                        context, product
                    )


def _decode[
    x_dtype: Optional[DType],
    out_dtype: DType,
    bias_dtype: Optional[DType],
    rounding: Rounding,
    choice: Choice,
    k: Int,
](context: DeviceContext, product: Product) raises:
    """Launches a kernel for few rows."""
    comptime shape = choice.shape_for(k)
    comptime x_bytes = size_of[x_dtype.or_else(DType.uint8)]()
    var launch = choice.launch(product.m, product.n, product.k, x_bytes)
    var memory = workspace(context, launch.workspace_bytes, launch.counter_bytes)
    comptime if x_dtype:
        comptime kernel = linear_decode[x_dtype.value(), out_dtype, bias_dtype, rounding, shape]
        context.enqueue_function(
            context.compile_function[kernel, compile_options=CDNA4_COMPILE_OPTIONS](),
            _source[x_dtype.value()](product.a),
            _source[DType.uint8](product.w_codes),
            _source[DType.uint8](product.w_scales),
            _target[out_dtype](product.result),
            Int32(product.m),
            Int32(product.n),
            Int32(product.k),
            Int32(launch.chunks_per_wave),
            _source[DType.uint8](product.bias),
            _target[DType.uint8](memory),
            grid_dim=(launch.x, launch.y, launch.z),
            block_dim=launch.threads,
        )
    else:
        comptime kernel = matmul_decode[out_dtype, bias_dtype, shape]
        context.enqueue_function(
            context.compile_function[kernel, compile_options=CDNA4_COMPILE_OPTIONS](),
            _source[DType.uint8](product.a),
            _source[DType.uint8](product.a_scales),
            _source[DType.uint8](product.w_codes),
            _source[DType.uint8](product.w_scales),
            _target[out_dtype](product.result),
            Int32(product.m),
            Int32(product.n),
            Int32(product.k),
            Int32(launch.chunks_per_wave),
            _source[DType.uint8](product.bias),
            _target[DType.uint8](memory),
            grid_dim=(launch.x, launch.y, launch.z),
            block_dim=launch.threads,
        )


def _prefill[
    x_dtype: Optional[DType],
    out_dtype: DType,
    bias_dtype: Optional[DType],
    rounding: Rounding,
    choice: Choice,
    k_tail: Bool,
](context: DeviceContext, product: Product) raises:
    """Launches a kernel for many rows."""
    comptime x_bytes = size_of[x_dtype.or_else(DType.uint8)]()
    comptime m_tiles = choice.m_tiles
    var launch = choice.launch(product.m, product.n, product.k, x_bytes)
    var memory = workspace(context, launch.workspace_bytes, launch.counter_bytes)
    comptime if x_dtype:
        comptime dtype = x_dtype.value()
        comptime kernel = linear_prefill[m_tiles, dtype, out_dtype, bias_dtype, rounding, k_tail]
        context.enqueue_function(
            context.compile_function[kernel, compile_options=CDNA4_COMPILE_OPTIONS](),
            _source[x_dtype.value()](product.a),
            _source[DType.uint8](product.w_codes),
            _source[DType.uint8](product.w_scales),
            _target[out_dtype](product.result),
            _target[DType.uint8](memory),
            Int32(product.m),
            Int32(product.n),
            Int32(product.k),
            _source[DType.uint8](product.bias),
            grid_dim=launch.x,
            block_dim=launch.threads,
        )
    else:
        comptime kernel = matmul_prefill[m_tiles, out_dtype, bias_dtype, k_tail]
        context.enqueue_function(
            context.compile_function[kernel, compile_options=CDNA4_COMPILE_OPTIONS](),
            _source[DType.uint8](product.a),
            _source[DType.uint8](product.a_scales),
            _source[DType.uint8](product.w_codes),
            _source[DType.uint8](product.w_scales),
            _target[DType.uint8](memory),
            Int32(product.m),
            Int32(product.n),
            Int32(product.k),
            _target[out_dtype](product.result),
            _source[DType.uint8](product.bias),
            grid_dim=launch.x,
            block_dim=launch.threads,
        )


def quantize[
    dtype: DType, rounding: Rounding
](context: DeviceContext, x: Int, codes: Int, scales: Int, m: Int, k: Int) raises:
    """Launches the quantizer: contiguous floats [m, k] at `x` to plain codes and scales."""
    if m == 0:
        return
    if m * k * size_of[dtype]() >= MAX_TENSOR_BYTES:
        raise Error(String("x: got [", m, ", ", k, "], expected less than 2 GiB"))
    comptime kernel = quantize_rows[dtype, rounding, Plain]
    context.enqueue_function(
        context.compile_function[kernel, compile_options=CDNA4_COMPILE_OPTIONS](),
        _source[dtype](x),
        _target[DType.uint8](codes),
        _target[DType.uint8](scales),
        Int32(m),
        Int32(k),
        grid_dim=(ceildiv(k // BLOCK, QUANTIZE_BLOCKS), ceildiv(m, QUANTIZE_ROWS)),
        block_dim=QUANTIZE_WAVES * LANES,
    )

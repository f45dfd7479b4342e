"""One product as a kernel sees it: activations, weights, and where the result goes.

Activations come in one of the kinds below, told apart at run time by a branch
that all threads take together. Whatever the kind, a lane gets a chunk of eight
values and the scale byte of their block, the values not yet scaled:

    kind        values of a chunk            scale byte
    FLOATS      the bfloat16 numbers         that of one
    QUANTIZED   rounded to E2M1 right here   as the rounding rule says
    ENCODED     decoded E2M1                 as stored
"""

from std.memory import bitcast

from ..codec import round_to
from ..formats import FORMAT
from ..layouts import RUN_BYTES
from .codec import CHUNK, Chunk, LANES_PER_BLOCK, decode_chunk
from .codec import round_magnitudes, scale_of_block
from .launch import DevicePointer

comptime FLOATS = 0
"""Activations stay bfloat16: the weight-only product."""
comptime QUANTIZED = 1
"""Activations are floats that the kernel quantizes."""
comptime ENCODED = 2
"""Activations are codes and scales, plain layout."""

comptime BFLOAT16 = 0
"""Code of an element type, as the bindings number them."""
comptime FLOAT16 = 1
"""Code of an element type, as the bindings number them."""
comptime FLOAT32 = 2
"""Code of an element type, as the bindings number them."""


@always_inline
def load_floats[
    width: Int, alignment_elements: Int
](base: DevicePointer[DType.uint8], offset: Int, dtype: Int32) -> SIMD[DType.float32, width]:
    """Loads neighbours of an element type known at run time, as float32."""
    if dtype == BFLOAT16:
        return (
            base.unsafe_bitcast[BFloat16]()
            .unsafe_load[width=width, alignment=2 * alignment_elements](offset)
            .cast[DType.float32]()
        )
    if dtype == FLOAT16:
        return (
            base.unsafe_bitcast[Float16]()
            .unsafe_load[width=width, alignment=2 * alignment_elements](offset)
            .cast[DType.float32]()
        )
    return base.unsafe_bitcast[Float32]().unsafe_load[
        width=width, alignment=4 * min(alignment_elements, 4)
    ](offset)


@always_inline
def store_floats[
    width: Int, alignment_elements: Int
](base: DevicePointer[DType.uint8], offset: Int, dtype: Int32, values: SIMD[DType.float32, width],):
    """Rounds neighbours to an element type known at run time and stores them."""
    if dtype == BFLOAT16:
        base.unsafe_bitcast[BFloat16]().unsafe_store[alignment=2 * alignment_elements](
            offset, round_to[DType.bfloat16](values)
        )
    elif dtype == FLOAT16:
        base.unsafe_bitcast[Float16]().unsafe_store[alignment=2 * alignment_elements](
            offset, values.cast[DType.float16]()
        )
    else:
        base.unsafe_bitcast[Float32]().unsafe_store[alignment=4 * min(alignment_elements, 4)](
            offset, values
        )


@fieldwise_init
struct Activations(TrivialRegisterPassable):
    """The left operand, [rows, k], in any of the kinds."""

    var values: DevicePointer[DType.uint8]
    """Floats or codes."""
    var scales: DevicePointer[DType.uint8]
    """Scales of the kind ENCODED."""
    var row_stride: Int
    """Elements from one row of floats to the next."""
    var kind: Int32
    """FLOATS, QUANTIZED or ENCODED."""
    var dtype: Int32
    """The element type of floats."""
    var carry: UInt32
    """The rounding rule's carry for float32 bits."""
    var k: Int
    """Elements of a row."""

    @always_inline
    def chunk[aligned: Bool](self, row: Int, chunk: Int) -> Tuple[Chunk, UInt32]:
        """Returns eight values and their scale; four lanes ask for a block together."""
        if self.kind == ENCODED:
            var block = row * (self.k // FORMAT.block_size) + chunk // LANES_PER_BLOCK
            var code_at = row * FORMAT.packed_bytes(self.k) + chunk * RUN_BYTES
            comptime alignment = RUN_BYTES if aligned else 1
            var bytes = self.values.unsafe_load[width=RUN_BYTES, alignment=alignment](code_at)
            return (
                decode_chunk(bitcast[DType.uint32, 1](bytes)),
                self.scales[unsafe_offset=block].cast[DType.uint32](),
            )
        comptime alignment = CHUNK if aligned else 1
        var x = load_floats[CHUNK, alignment](
            self.values, row * self.row_stride + chunk * CHUNK, self.dtype
        )
        if self.kind == FLOATS:
            return (x, UInt32(FORMAT.scale_bias))
        var scale = scale_of_block(x, self.carry)
        var unsigned = round_magnitudes(x, scale)[1]
        var signs = bitcast[DType.uint32, CHUNK](x) & UInt32(1 << 31)
        if scale == UInt32(FORMAT.scale_nan):
            unsigned = Chunk(0)
        return (
            bitcast[DType.float32, CHUNK](bitcast[DType.uint32, CHUNK](unsigned) | signs),
            scale,
        )


@fieldwise_init
struct Result(TrivialRegisterPassable):
    """Where a product goes and what is added to it."""

    var output: DevicePointer[DType.uint8]
    """C, [rows, columns], contiguous."""
    var dtype: Int32
    """The element type of C."""
    var bias: DevicePointer[DType.uint8]
    """Added to every row, [columns]."""
    var bias_dtype: Int32
    """The element type of the bias; negative for no bias."""
    var columns: Int
    """N."""

    @always_inline
    def store[
        width: Int, alignment_elements: Int
    ](self, row: Int, column: Int, sums: SIMD[DType.float32, width]):
        """Adds the bias, rounds and stores neighbours of a row."""
        var biased = sums
        if self.bias_dtype >= 0:
            biased += load_floats[width, 1](self.bias, column, self.bias_dtype)
        store_floats[width, alignment_elements](
            self.output, row * self.columns + column, self.dtype, biased
        )

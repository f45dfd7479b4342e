"""A product as a kernel gets it: activations, weights, those of experts, and where the result goes.

Activations come in one of the kinds below, told apart at run time by a branch
that all threads take together. Whatever the kind, a lane gets a chunk of eight
values and the scale of their block, the values not yet scaled:

    kind        values of a chunk               scale
    kept        rounded to bfloat16 numbers     one
    quantized   rounded to elements right here  as the rounding rule says
    encoded     decoded elements                as stored

E4M3 scales are part of the values, and the scale is the tensor scale.

A float scale of a whole row is known only when the row was read: `amax_of_row` comes before.
"""

from std.bit import log2_floor

from ..experts import Experts
from ..launch.queue import DevicePointer, KernelStruct, device_pointer
from ..layouts import OperandLayout, Plain, RUN_BYTES
from ..numbers.floats import round_to
from ..numbers.formats import Format, block_of, has_e4m3_scales, has_float_scales
from ..numbers.rounding import carry_of, float_scale_from_amax, tensor_scale_from_amax
from ..numbers.scales import decode_scale
from ..problem import Left, LeftKind, NO_BIAS, Problem
from .codec import ANY_BITS, Chunk, LANES_PER_BLOCK
from .codec import amax_of_lanes, decode_chunk, element_of
from .codec import finite_magnitude_of_chunk, magnitude_of_chunk
from .codec import rounded_over, rounded_under_tensor_scale, rounded_values, scale_of_block
from .host import BFLOAT16, CHUNK
from .views import AnyFloats, PackedRows


comptime LOG2_LANES_PER_FLOAT_BLOCK = log2_floor(Format.FP8_BLOCK.block_k // CHUNK)
"""Lanes that hold a block with a float scale that is no whole row, as an exponent."""


@fieldwise_init
struct Activations(KernelStruct):
    """The left operand, [rows, k], in any of the kinds."""

    var values: DevicePointer[DType.uint8]
    """Floats or codes."""
    var scales: DevicePointer[DType.uint8]
    """Scales of codes, or factors of floats that are kept."""
    var row_stride: Int
    """Floats from one row to the next."""
    var kind: Int32
    """The code of a `LeftKind`."""
    var dtype: Int32
    """The position of the type of floats in `FLOAT_TYPES`."""
    var format: Int32
    """The position in `FORMATS` of what floats are rounded to, or of what codes are."""
    var carry: UInt32
    """What `carry_of` returns."""
    var k: Int
    """Elements of a row."""

    def __init__(out self, left: Left, k: Int):
        """Takes a left side whose rows have `k` elements."""
        self.values = device_pointer[DType.uint8](left.values)
        self.scales = device_pointer[DType.uint8](left.scales)
        self.row_stride = left.row_stride
        self.kind = Int32(left.kind.code)
        self.dtype = Int32(left.dtype)
        self.format = Int32(left.format)
        self.carry = carry_of(left.format, left.rounding)
        self.k = k

    def __init__(out self, problem: Problem):
        """Takes the left side of a problem."""
        self = Self(problem.left, problem.k)

    @always_inline
    def is_kept(self) -> Bool:
        """Says whether floats stay bfloat16: the weight-only product."""
        return self.kind == Int32(LeftKind.KEPT.code)

    @always_inline
    def is_encoded(self) -> Bool:
        """Says whether there are codes and scales, plain layout."""
        return self.kind == Int32(LeftKind.ENCODED.code)

    @always_inline
    def factors(self) -> DevicePointer[DType.float32]:
        """Returns what sums of rows that are kept meet, a float32 each."""
        return self.scales.unsafe_bitcast[Float32]()

    @always_inline
    def has_factors(self) -> Bool:
        """Says whether there are any, of floats that are kept."""
        return Int(self.scales) != 0

    @always_inline
    def floats(self) -> AnyFloats:
        """Views floats, quantized or not."""
        return AnyFloats(self.values, self.row_stride, self.dtype)

    @always_inline
    def _has_whole_rows(self) -> Bool:
        """Says whether a row has one float scale."""
        var format = Int(self.format)
        return has_float_scales(format) and block_of(format).k_blocks(self.k) == 1

    @always_inline
    def amax_of_row[bits: Int, aligned: Bool](self, row: Int, lane: Int) -> UInt32:
        """Returns the float32 bits of the largest magnitude of a row, where `chunk` wants it.

        All lanes of a warp call it.
        """
        var amax = UInt32(0)
        comptime if bits == ANY_BITS:
            var is_quantized = self.kind == Int32(LeftKind.QUANTIZED.code)
            if is_quantized and self._has_whole_rows():
                comptime LANES = 32
                for chunk in range(lane, self.k // CHUNK, LANES):
                    var x = self.floats().load[CHUNK, CHUNK if aligned else 1](row, chunk * CHUNK)
                    amax = max(amax, self._magnitude_of_row(x))
                amax = amax_of_lanes[log2_floor(LANES)](amax)
        return amax

    @always_inline
    def _magnitude_of_row(self, x: Chunk) -> UInt32:
        """Returns the largest magnitude that counts for the scale of a row."""
        if has_e4m3_scales(Int(self.format)):
            return finite_magnitude_of_chunk(x)
        return magnitude_of_chunk(x)

    @always_inline
    def chunk[
        bits: Int, aligned: Bool
    ](self, row: Int, chunk: Int, in_range: Bool, row_amax: UInt32) -> Tuple[Chunk, Float64]:
        """Returns eight values and their scale; the lanes of a block ask together.

        `bits` are those of an element, or `ANY_BITS`. What is not `in_range` only keeps others
        company.
        """
        var element = element_of[bits](self.format)
        if self.is_encoded():
            var encoded = Weights(self.values, self.scales, self.format)
            return encoded.chunk[Plain, bits, RUN_BYTES if aligned else 1](row, chunk, self.k)
        var x = self.floats().load[CHUNK, CHUNK if aligned else 1](row, chunk * CHUNK)
        if self.is_kept():
            if self.dtype != BFLOAT16:
                x = round_to[DType.bfloat16](x).cast[DType.float32]()
            return (x, Float64(1))
        comptime if bits == ANY_BITS:
            if has_e4m3_scales(Int(self.format)):
                var tensor_scale = tensor_scale_from_amax(row_amax)
                var values = rounded_under_tensor_scale(x, tensor_scale, element)
                return (values, tensor_scale.cast[DType.float64]())
            if has_float_scales(Int(self.format)):
                var amax = magnitude_of_chunk(x) if in_range else UInt32(0)
                amax = amax_of_lanes[LOG2_LANES_PER_FLOAT_BLOCK](amax)
                if self._has_whole_rows():
                    amax = row_amax
                var scale = float_scale_from_amax(amax, element, self.carry != 0)
                return (rounded_over(x, scale, element), scale.cast[DType.float64]())
        var scale = scale_of_block(x, self.carry, element)
        return (rounded_values(x, scale, element), decode_scale(scale.cast[DType.uint8]()))


@fieldwise_init
struct Weights(KernelStruct):
    """The right operand, [rows, k], in a layout known at compile time."""

    var codes: DevicePointer[DType.uint8]
    var scales: DevicePointer[DType.uint8]
    var format: Int32
    """The position in `FORMATS`."""

    def __init__(out self, problem: Problem):
        """Takes the right side of a problem."""
        self.codes = device_pointer[DType.uint8](problem.right.codes)
        self.scales = device_pointer[DType.uint8](problem.right.scales)
        self.format = Int32(problem.right.format)

    @always_inline
    def chunk[
        Layout: OperandLayout, bits: Int, alignment: Int = 1
    ](self, row: Int, chunk: Int, k: Int) -> Tuple[Chunk, Float64]:
        """Returns eight values and the scale of their block, or of E4M3 scales the row's."""
        var element = element_of[bits](self.format)
        var packed = PackedRows[Layout](self.codes, self.scales, k)
        var values = decode_chunk(packed.chunk[bits, alignment](element, row, chunk), element)
        comptime if bits == ANY_BITS:
            if has_e4m3_scales(Int(self.format)):
                values *= packed.e4m3_scale(row, chunk * CHUNK)
                return (values, packed.tensor_scale(row).cast[DType.float64]())
            if has_float_scales(Int(self.format)):
                var block = block_of(Int(self.format))
                var scale = packed.float_scale(row, chunk * CHUNK, block)
                return (values, scale.cast[DType.float64]())
        return (values, decode_scale(packed.scale(row, chunk // LANES_PER_BLOCK)))


@fieldwise_init
struct ExpertWeights(KernelStruct):
    """The right sides of all experts, and what is added to their rows."""

    var codes: Int
    """Address of those of the first."""
    var scales: Int
    """Address of those of the first."""
    var codes_step: Int
    """Bytes from the codes of one to those of the next."""
    var scales_step: Int
    """Bytes from the scales of one to those of the next."""
    var bias: DevicePointer[DType.uint8]
    """[count, columns]."""
    var format: Int32
    """The position in `FORMATS`."""
    var bias_dtype: Int32
    """The position of the type of the bias; negative for no bias."""
    var count: Int32
    """Experts."""
    var columns: Int32
    """Rows of the weights of each."""

    def __init__(out self, experts: Experts, columns: Int):
        """Takes experts whose weights have so many rows each."""
        self.codes = experts.right.codes
        self.scales = experts.right.scales
        self.codes_step = experts.codes_step
        self.scales_step = experts.scales_step
        self.bias = device_pointer[DType.uint8](experts.bias)
        self.format = Int32(experts.right.format)
        self.bias_dtype = Int32(experts.bias_dtype)
        self.count = Int32(experts.count)
        self.columns = Int32(columns)

    @always_inline
    def has(self, expert: Int) -> Bool:
        """Says whether there is such an expert."""
        return 0 <= expert < Int(self.count)

    @always_inline
    def of(self, expert: Int) -> Weights:
        """Returns the weights of an expert that there is."""
        return Weights(
            device_pointer[DType.uint8](self.codes + expert * self.codes_step),
            device_pointer[DType.uint8](self.scales + expert * self.scales_step),
            self.format,
        )

    @always_inline
    def biased(self, expert: Int, column: Int, sum: Float32) -> Float32:
        """Adds the bias of an expert that there is, if it has one."""
        if self.bias_dtype < 0:
            return sum
        var biases = AnyFloats(self.bias, Int(self.columns), self.bias_dtype)
        return sum + biases.load[1, 1](expert, column)[0]


@fieldwise_init
struct Result(KernelStruct):
    """Where a product goes and what is added to it."""

    var output: DevicePointer[DType.uint8]
    """C, [rows, columns], contiguous."""
    var bias: DevicePointer[DType.uint8]
    """Added to every row, [columns]."""
    var dtype: Int32
    """The position of the type of C in `FLOAT_TYPES`."""
    var bias_dtype: Int32
    """The position of the type of the bias; negative for no bias."""
    var rows: UInt32
    """M."""
    var columns: UInt32
    """N."""

    def __init__(out self, values: Int, dtype: Int, rows: Int, columns: Int):
        """Takes a result to which nothing is added."""
        self.output = device_pointer[DType.uint8](values)
        self.bias = device_pointer[DType.uint8](0)
        self.dtype = Int32(dtype)
        self.bias_dtype = Int32(NO_BIAS)
        self.rows = UInt32(rows)
        self.columns = UInt32(columns)

    def __init__(out self, problem: Problem):
        """Takes the result of a problem."""
        self = Self(problem.result.values, problem.result.dtype, problem.m, problem.n)
        self.bias = device_pointer[DType.uint8](problem.result.bias)
        self.bias_dtype = Int32(problem.result.bias_dtype)

    @always_inline
    def elements(self) -> AnyFloats:
        """Views C."""
        return AnyFloats(self.output, Int(self.columns), self.dtype)

    @always_inline
    def has_bias(self) -> Bool:
        """Says whether there is something to add."""
        return self.bias_dtype >= 0

    @always_inline
    def bias_of[width: Int](self, column: Int) -> SIMD[DType.float32, width]:
        """Loads the bias of some columns, if there is one."""
        return AnyFloats(self.bias, 0, self.bias_dtype).load[width, 1](0, column)

    @always_inline
    def store[
        width: Int, alignment_elements: Int
    ](self, row: Int, column: Int, sums: SIMD[DType.float32, width]):
        """Adds the bias, rounds and stores neighbours of a row."""
        var biased = sums
        if self.has_bias():
            biased += self.bias_of[width](column)
        self.elements().store[width, alignment_elements](row, column, biased)

    @always_inline
    def store_columns[
        width: Int
    ](self, row: UInt32, column: UInt32, sums: SIMD[DType.float32, width]):
        """Stores those neighbours of a row that exist: all at once if rows are made of such."""
        if self.columns % UInt32(width) == 0:
            if column < self.columns:
                self.store[width, width](Int(row), Int(column), sums)
        else:
            comptime for i in range(width):
                if column + UInt32(i) < self.columns:
                    self.store[1, 1](Int(row), Int(column) + i, SIMD[DType.float32, 1](sums[i]))

"""A product as a kernel gets it: activations, weights, and where the result goes.

Activations come in one of the kinds below, told apart at run time by a branch
that all threads take together. Whatever the kind, a lane gets a chunk of eight
values and the scale byte of their block, the values not yet scaled:

    kind        values of a chunk               scale byte
    kept        the bfloat16 numbers            that of one
    quantized   rounded to elements right here  as the rounding rule says
    encoded     decoded elements                as stored
"""

from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.memory import bitcast

from ..launch.queue import DevicePointer, device_pointer
from ..layouts import OperandLayout, OperandShape, Plain, RUN_BYTES, padded_blocks
from ..numbers.elements import Element
from ..numbers.floats import F32_MANTISSA_BITS, FLOAT_TYPES, round_to
from ..numbers.formats import FORMATS
from ..numbers.rounding import Rounding
from ..numbers.scales import E8M0_BIAS
from ..problem import LeftKind, Problem
from .codec import ANY_BITS, BLOCK, CHUNK, Chunk, Codes, LANES_PER_BLOCK
from .codec import decode_chunk, element_of, rounded_values, scale_of_block, unpack


def float_code[dtype: DType]() -> Int32:
    """Returns the position of a type in `FLOAT_TYPES`."""
    comptime for i in range(len(FLOAT_TYPES)):
        comptime if FLOAT_TYPES[i] == dtype:
            return Int32(i)
    return -1


comptime BFLOAT16 = float_code[DType.bfloat16]()
comptime FLOAT16 = float_code[DType.float16]()
comptime FLOAT32 = float_code[DType.float32]()


def carry_of(format: Int, rounding: Rounding) -> UInt32:
    """Returns a rule's carry for float32 bits and the elements of a format."""
    comptime for i in range(len(FORMATS)):
        if format == i:
            return UInt32(rounding.carry[F32_MANTISSA_BITS, FORMATS[i].element]())
    return 0


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


@always_inline
def load_codes[
    Layout: OperandLayout, bits: Int, alignment: Int
](
    codes: DevicePointer[DType.uint8], element: Element, row: Int, chunk: Int, shape: OperandShape
) -> Codes:
    """Loads the codes of a chunk from any layout; `bits` may be `ANY_BITS`."""
    comptime if bits == ANY_BITS:
        # Runs of a chunk of the widest element; of a narrower one, all but the first are unused.
        if element.bits == 4:
            return load_codes[Layout, 4, alignment](codes, element, row, chunk, shape)
        return load_codes[Layout, 8, alignment](codes, element, row, chunk, shape)
    else:
        comptime RUNS = CHUNK * bits // 8 // RUN_BYTES
        var row_bytes = shape.k * bits // 8
        var words = SIMD[DType.uint32, CHUNK * bits // 32]()
        comptime for i in range(RUNS):
            var at = Layout.code_offset(row, (chunk * RUNS + i) * RUN_BYTES, row_bytes)
            words[i] = bitcast[DType.uint32, 1](
                codes.unsafe_load[width=RUN_BYTES, alignment=alignment](at)
            )[0]
        return unpack[bits](words)


@fieldwise_init
struct Activations(DevicePassable, TrivialRegisterPassable):
    """The left operand, [rows, k], in any of the kinds."""

    comptime device_type: AnyType = Self

    var values: DevicePointer[DType.uint8]
    """Floats or codes."""
    var scales: DevicePointer[DType.uint8]
    """Scales of codes."""
    var row_stride: Int
    """Floats from one row to the next."""
    var kind: Int32
    """The code of a `LeftKind`."""
    var dtype: Int32
    """The position of the type of floats in `FLOAT_TYPES`."""
    var format: Int32
    """The position in `FORMATS` of what floats are rounded to, or of what codes are."""
    var carry: UInt32
    """The rounding rule's carry for float32 bits."""
    var k: Int
    """Elements of a row."""

    def __init__(out self, problem: Problem):
        """Takes the left side of a problem."""
        var left = problem.left
        self.values = device_pointer[DType.uint8](left.values)
        self.scales = device_pointer[DType.uint8](left.scales)
        self.row_stride = left.row_stride
        self.kind = Int32(left.kind.code)
        self.dtype = Int32(left.dtype)
        self.format = Int32(left.format)
        self.carry = carry_of(left.format, left.rounding)
        self.k = problem.k

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "Activations"

    @always_inline
    def is_kept(self) -> Bool:
        """Says whether floats stay bfloat16: the weight-only product."""
        return self.kind == Int32(LeftKind.KEPT.code)

    @always_inline
    def is_encoded(self) -> Bool:
        """Says whether there are codes and scales, plain layout."""
        return self.kind == Int32(LeftKind.ENCODED.code)

    @always_inline
    def chunk[bits: Int, aligned: Bool](self, row: Int, chunk: Int) -> Tuple[Chunk, UInt32]:
        """Returns eight values and their scale; four lanes ask for a block together.

        `bits` are those of an element, or `ANY_BITS`.
        """
        var element = element_of[bits](self.format)
        if self.is_encoded():
            var block = row * (self.k // BLOCK) + chunk // LANES_PER_BLOCK
            comptime alignment = RUN_BYTES if aligned else 1
            var codes = load_codes[Plain, bits, alignment](
                self.values, element, row, chunk, OperandShape(0, self.k)
            )
            return (
                decode_chunk(codes, element),
                self.scales[unsafe_offset=block].cast[DType.uint32](),
            )
        comptime alignment = CHUNK if aligned else 1
        var x = load_floats[CHUNK, alignment](
            self.values, row * self.row_stride + chunk * CHUNK, self.dtype
        )
        if self.is_kept():
            return (x, UInt32(E8M0_BIAS))
        var scale = scale_of_block(x, self.carry, element)
        return (rounded_values(x, scale, element), scale)


@fieldwise_init
struct Weights(DevicePassable, TrivialRegisterPassable):
    """The right operand, [rows, k], in a layout known at compile time."""

    comptime device_type: AnyType = Self

    var codes: DevicePointer[DType.uint8]
    var scales: DevicePointer[DType.uint8]
    var format: Int32
    """The position in `FORMATS`."""

    def __init__(out self, problem: Problem):
        """Takes the right side of a problem."""
        self.codes = device_pointer[DType.uint8](problem.right.codes)
        self.scales = device_pointer[DType.uint8](problem.right.scales)
        self.format = Int32(problem.right.format)

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "Weights"

    @always_inline
    def chunk[
        Layout: OperandLayout, bits: Int
    ](self, row: Int, chunk: Int, shape: OperandShape) -> Tuple[Chunk, UInt8]:
        """Returns eight values and the scale byte of their block."""
        var element = element_of[bits](self.format)
        var codes = load_codes[Layout, bits, 1](self.codes, element, row, chunk, shape)
        var scale_at = Layout.scale_offset(
            row, chunk // LANES_PER_BLOCK, padded_blocks[Layout](shape.k // BLOCK)
        )
        return (decode_chunk(codes, element), self.scales[unsafe_offset=scale_at])


@fieldwise_init
struct Result(DevicePassable, TrivialRegisterPassable):
    """Where a product goes and what is added to it."""

    comptime device_type: AnyType = Self

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

    def __init__(out self, problem: Problem):
        """Takes the result of a problem."""
        self.output = device_pointer[DType.uint8](problem.result.values)
        self.bias = device_pointer[DType.uint8](problem.result.bias)
        self.dtype = Int32(problem.result.dtype)
        self.bias_dtype = Int32(problem.result.bias_dtype)
        self.rows = UInt32(problem.m)
        self.columns = UInt32(problem.n)

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "Result"

    @always_inline
    def store[
        width: Int, alignment_elements: Int
    ](self, row: Int, column: Int, sums: SIMD[DType.float32, width]):
        """Adds the bias, rounds and stores neighbours of a row."""
        var biased = sums
        if self.bias_dtype >= 0:
            biased += load_floats[width, 1](self.bias, column, self.bias_dtype)
        store_floats[width, alignment_elements](
            self.output, row * Int(self.columns) + column, self.dtype, biased
        )

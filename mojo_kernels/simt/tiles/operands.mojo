"""The left side of a product as bfloat16 numbers, and what numbers cannot hold.

    workspace    numbers, [rows, k]; not there if the activations are such numbers
                 factors, a float32 for each row and 128 of K: float scales of the left side
                 marks of rows, a byte for each row and `PART` of K
                 marks of columns, a byte for each column and part of K that groups have
                 sums of those parts, see `parts`

Elements of MX formats have at most eight significant bits, as bfloat16 has: a number is an element
times its scale, exactly, unless it is too large or too small. Float scales do not become part of
numbers but multiply sums, see `Factor`. What is marked has a scale for which this does not hold, and
its elements of C are computed another way.
"""

from std.math import ceildiv
from std.memory import bitcast

from ...launch.queue import DevicePointer, KernelStruct, device_pointer
from ...numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS
from ...numbers.formats import has_float_scales
from ...problem import LeftKind, Problem
from ..host import (
    BFLOAT16,
    NUMBER_BYTES,
    PART,
    STAGE,
    TilePlaces,
    column_mark_bytes,
    is_left_aligned,
)

comptime SAFE = Range(-100, 100)
"""The exponents of numbers whose products float32 takes as it takes any."""
comptime SAFE_BESIDE_FACTORS = Range(-100, 48)
"""The same where sums of them are multiplied by factors."""
comptime SAFE_SCALES = Range(-80, 24)
"""The exponents of scales that make all elements safe, beside factors too."""
comptime LARGEST_FACTOR = 48
"""The exponent of the largest factor; sums of a stage of numbers are below 2 ** 72."""
comptime LARGEST_FACTOR_BITS = UInt32((F32_EXPONENT_BIAS + LARGEST_FACTOR) << F32_MANTISSA_BITS)
"""The bits of the largest factor that is not extreme."""
comptime INFINITY = UInt32(255 << F32_MANTISSA_BITS)
"""The bits of infinity; NaN has larger ones."""
comptime MAGNITUDE = UInt32((1 << 31) - 1)
"""The bits of a float but for the sign."""


@fieldwise_init
struct Range(TrivialRegisterPassable):
    """Exponents from the least to the largest."""

    var least: Int
    var largest: Int

    @always_inline
    def has(self, bits: UInt32) -> Bool:
        """Says whether a float of these bits, sign aside, has such an exponent."""
        var least = UInt32((self.least + F32_EXPONENT_BIAS) << F32_MANTISSA_BITS)
        var behind = UInt32((self.largest + 1 + F32_EXPONENT_BIAS) << F32_MANTISSA_BITS)
        return bits - least < behind - least


@fieldwise_init
struct FactoredRows(KernelStruct):
    """Rows of numbers, their factors and marks."""

    var numbers: DevicePointer[DType.uint8]
    """The first row."""
    var row_bytes: Int
    """Bytes from one row to the next."""
    var factors: DevicePointer[DType.float32]
    """[row, stage]."""
    var row_marks: DevicePointer[DType.uint8]
    """[row, part]."""
    var column_marks: DevicePointer[DType.uint8]
    """Those of weights."""
    var rows: UInt32
    """M."""
    var k: UInt32
    """Elements of a row."""
    var row_parts: UInt32
    """Marks of a row; 0 if rows have none."""
    var column_parts: UInt32
    """Marks of a column."""

    @staticmethod
    def at(m: Int, k: Int, column_parts: Int, address: Int) -> Self:
        """Returns the rows of a product in a workspace."""
        var places = TilePlaces.of(m, k)
        return Self(
            device_pointer[DType.uint8](address),
            k * NUMBER_BYTES,
            device_pointer[DType.float32](address + places.factors),
            device_pointer[DType.uint8](address + places.row_marks),
            device_pointer[DType.uint8](address + places.column_marks),
            UInt32(m),
            UInt32(k),
            UInt32(ceildiv(k, PART)),
            UInt32(column_parts),
        )

    def sums(self, n: Int) -> DevicePointer[DType.float32]:
        """Returns the sums of parts of K, behind all marks."""
        var num_marks = column_mark_bytes(n, Int(self.column_parts))
        return device_pointer[DType.float32](Int(self.column_marks) + num_marks)

    def reading(self, problem: Problem) -> Self:
        """Returns the rows with numbers that lie where the activations are."""
        var staged = self
        staged.numbers = device_pointer[DType.uint8](problem.left.values)
        staged.row_bytes = problem.left.row_stride * NUMBER_BYTES
        staged.row_parts = 0
        return staged

    @always_inline
    def num_stages(self) -> UInt32:
        """Returns the factors of a row."""
        return stages_of(self.k)


@always_inline
def stages_of(k: UInt32) -> UInt32:
    """Returns the stages of a row of k elements."""
    return (k + UInt32(STAGE - 1)) // UInt32(STAGE)


def are_numbers(problem: Problem) -> Bool:
    """Says whether activations are rows of numbers as they come, and all of them safe."""
    var left = problem.left
    var is_kept = left.kind == LeftKind.KEPT and Int32(left.dtype) == BFLOAT16
    return is_kept and is_left_aligned(left) and not has_factors(problem)


def has_factors(problem: Problem) -> Bool:
    """Says whether sums are multiplied by factors: one side has float scales."""
    return has_float_scales(problem.left.format) or has_float_scales(problem.right.format)


@always_inline
def packed_numbers[
    count: SIMDLength, //
](values: SIMD[DType.float32, count]) -> SIMD[DType.uint32, count // 2]:
    """Returns floats as bfloat16 numbers, which they are, in their order."""
    var bits = bitcast[DType.uint32, count](values)
    var pairs = SIMD[DType.uint32, count // 2]()
    comptime for i in range(count // 2):
        pairs[i] = (bits[2 * i] >> 16) | (bits[2 * i + 1] & 0xFFFF0000)
    return pairs


@always_inline
def are_lost[
    count: SIMDLength, //, safe: Range
](values: SIMD[DType.float32, count], numbers: SIMD[DType.float32, count]) -> Bool:
    """Says whether an element is finite and not zero, and its number not safe; NaN is."""
    var elements = bitcast[DType.uint32, count](values) & MAGNITUDE
    var bits = bitcast[DType.uint32, count](numbers) & MAGNITUDE
    var found = False
    comptime for i in range(count):
        var is_element = elements[i] != 0 and elements[i] < INFINITY
        found |= is_element and bits[i] <= INFINITY and not safe.has(bits[i])
    return found


@always_inline
def is_extreme(factor: Float32) -> Bool:
    """Says whether sums times a factor may leave float32 where C does not, or are no C at all.

    An infinite factor makes NaN of products of both signs, whose sum has one.
    """
    var magnitude = bitcast[DType.uint32](factor) & MAGNITUDE
    return LARGEST_FACTOR_BITS < magnitude and magnitude <= INFINITY


@always_inline
def scaled(sum: Float32, of_row: Float32, of_column: Float32) -> Float32:
    """Returns a sum times two factors, the larger one first, so that only C may be too small."""
    var row_is_larger = abs(of_row) >= abs(of_column)
    var larger = of_row if row_is_larger else of_column
    var smaller = of_column if row_is_larger else of_row
    return sum * larger * smaller

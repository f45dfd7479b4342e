"""One product as every backend sees it: C[m, n] = left[m, k] @ right[n, k].T + bias[n].

The left side is a named sum:

    kept         floats, multiplied as bfloat16
    quantized    floats, rounded to a format by a rule inside the kernel
    encoded      codes and scales of a format, plain layout
    integers     floats, rounded to 16-bit integers under a power of two a block; on a CPU

Everything is known at run time: addresses on the device that computes, sizes, and positions in
the tables `FORMATS`, `FLOAT_TYPES`, `LAYOUTS`. Whoever makes a problem has checked it; a kernel's
`supports` says whether it takes one, its `launch` picks the compile-time instance, among those
that `Known` leaves: a graph knows everything but m when it is compiled, an extension module nothing.
"""

from .numbers.formats import NO_FORMAT
from .numbers.rounding import Rounding

comptime NO_BIAS = -1
"""The element type of a bias that is not there."""


@fieldwise_init
struct LeftKind(Equatable, TrivialRegisterPassable, Writable):
    """Which of the sum a left side is."""

    var code: Int

    comptime KEPT = Self(0)
    comptime QUANTIZED = Self(1)
    comptime ENCODED = Self(2)
    comptime INTEGERS = Self(3)


@fieldwise_init
struct Left(TrivialRegisterPassable):
    """The left side, [m, k]; fields that its kind has no use for are zero or `NO_FORMAT`."""

    var kind: LeftKind
    var values: Int
    """Address of floats, or of codes."""
    var scales: Int
    """Address of the scales of codes; or of floats that are kept, of a float32 for each row."""
    var dtype: Int
    """Position of the type of floats in `FLOAT_TYPES`."""
    var row_stride: Int
    """Floats from one row to the next."""
    var format: Int
    """Position in `FORMATS` of what floats are rounded to, or of what codes are."""
    var rounding: Rounding
    """How floats are rounded."""

    @staticmethod
    def kept(values: Int, dtype: Int, row_stride: Int, factors: Int = 0) -> Self:
        """Returns floats that stay floats; rows that kernels prepare may have factors."""
        return Self(
            LeftKind.KEPT,
            values,
            factors,
            dtype,
            row_stride,
            NO_FORMAT,
            Rounding.EVEN,
        )

    @staticmethod
    def quantized(
        values: Int,
        dtype: Int,
        row_stride: Int,
        format: Int,
        rounding: Rounding,
    ) -> Self:
        """Returns floats that are rounded to a format."""
        return Self(LeftKind.QUANTIZED, values, 0, dtype, row_stride, format, rounding)

    @staticmethod
    def integers(values: Int, dtype: Int, row_stride: Int) -> Self:
        """Returns floats that are rounded to 16-bit integers."""
        return Self(LeftKind.INTEGERS, values, 0, dtype, row_stride, NO_FORMAT, Rounding.EVEN)

    @staticmethod
    def encoded(codes: Int, scales: Int, format: Int) -> Self:
        """Returns plain codes and scales."""
        return Self(LeftKind.ENCODED, codes, scales, 0, 0, format, Rounding.EVEN)


@fieldwise_init
struct Right(TrivialRegisterPassable):
    """The right side, the weights [n, k]: codes and scales in any layout."""

    var codes: Int
    """Address."""
    var scales: Int
    """Address."""
    var format: Int
    """Position in `FORMATS`."""
    var layout: Int
    """Position in `LAYOUTS`."""


@fieldwise_init
struct Result(TrivialRegisterPassable):
    """Where C goes, and what is added to each of its rows."""

    var values: Int
    """Address of C, [m, n], contiguous."""
    var dtype: Int
    """Position of its type in `FLOAT_TYPES`."""
    var bias: Int
    """Address of the bias, [n]."""
    var bias_dtype: Int
    """Position of its type in `FLOAT_TYPES`, or `NO_BIAS`."""

    def has_bias(self) -> Bool:
        """Says whether there is something to add."""
        return self.bias_dtype != NO_BIAS


@fieldwise_init
struct Problem(TrivialRegisterPassable):
    """One product."""

    var left: Left
    var right: Right
    var result: Result
    var m: Int
    """Rows of the left side."""
    var n: Int
    """Rows of the right side."""
    var k: Int
    """Elements of a row of both."""


comptime ANY = -2
"""In `Known`: any position of a table."""


@fieldwise_init
struct Known(TrivialRegisterPassable):
    """What is known of a problem when a launch is compiled: positions in tables, or `ANY`."""

    var kind: Int
    """Of the left side."""
    var dtype: Int
    """Of the floats of the left side."""
    var left_format: Int
    var rounding: Int
    var right_format: Int
    var layout: Int
    """Of the right side."""
    var result_dtype: Int
    var bias_dtype: Int

    comptime NOTHING = Self(ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY)

    def has_kind(self, kind: LeftKind) -> Bool:
        """Says whether the left side may be of a kind."""
        return self.kind == ANY or self.kind == kind.code


def may_be(known: Int, position: Int) -> Bool:
    """Says whether a field of `Known` leaves a position possible."""
    return known == ANY or known == position

"""What the operations beside products take: addresses, sizes, positions in the tables.

Products have `problem.mojo`. Whoever makes a call has checked it.
"""

from .numbers.rounding import Rounding


@fieldwise_init
struct QuantizeCall(TrivialRegisterPassable):
    """Floats [rows, k] to a plain operand."""

    var values: Int
    var dtype: Int
    var row_stride: Int
    var rows: Int
    var k: Int
    var format: Int
    var rounding: Rounding
    var codes: Int
    var scales: Int
    var tensor_scales: Int
    """Address of a float32 for each row, for E4M3 scales; 0 to have them from the floats."""


@fieldwise_init
struct DequantizeCall(TrivialRegisterPassable):
    """An operand in any layout to contiguous floats [rows, k]."""

    var codes: Int
    var scales: Int
    var format: Int
    var layout: Int
    var rows: Int
    var k: Int
    var values: Int
    var dtype: Int


@fieldwise_init
struct RelayoutCall(TrivialRegisterPassable):
    """An operand [rows, k] to another layout, padding written."""

    var codes: Int
    var scales: Int
    var layout: Int
    var codes_out: Int
    var scales_out: Int
    var layout_out: Int
    var format: Int
    var rows: Int
    var k: Int

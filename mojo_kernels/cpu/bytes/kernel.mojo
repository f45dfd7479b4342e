"""Small integers on both sides, MXFP4, MXFP6, NVFP4 or MXINT8: which problems, and their launch."""

from ...layouts import OperandShape, Plain
from ...numbers.floats import FLOAT_TYPES
from ...numbers.formats import FORMATS, Format, NO_FORMAT, has_e4m3_scales
from ...numbers.scales import Scale
from ...operands import Matrix, Operand, matrix
from ...problem import Known, Left, LeftKind, Right, may_be
from ..block_order import RowGroups
from ..launch import decoding_of, multiply_panels, prepare
from ..limits import BYTES, limits_of
from ..ranges import RangedProblem
from ..scaled_rows import EncodedScaledRows, QuantizedScaledRows, ScaledRows
from ..scratch import Scratch
from ..threads import Team
from .activations import (
    ExpandedRows,
    BlockSource,
    ExpandGroups,
    ExpandScaledRows,
    IntegersOnTheFly,
    Prequantized,
    QuantizedOnTheFly,
)
from .dot import Reach
from .integers import ScaleKinds, has_integers, largest_integer, unit_shift
from .panel import ByteProduct

comptime NAME: StaticString = "cpu/bytes/kernel.mojo"
comptime REASON: StaticString = "both sides are small integers: an integer dot product a block"
comptime DIGITS_REASON: StaticString = "16-bit integers: two integer dot products a block, of bytes"


def may_support[known: Known]() -> Bool:
    """Says whether `supports` can be true of a problem of which this is known."""
    comptime if known.kind == LeftKind.KEPT.code:
        return False
    else:
        return _may_have_integers[known.left_format]() and _may_have_integers[known.right_format]()


def _may_have_integers[known_format: Int]() -> Bool:
    comptime for i in range(len(FORMATS)):
        comptime if may_be(known_format, i) and has_integers(FORMATS[i]):
            return True
    return False


def supports(left: Left, right: Right) -> Bool:
    """Says whether both sides are small integers."""
    return _has_integers(left.format) and _has_integers(right.format)


def supports_digits(left: Left, right: Right) -> Bool:
    """Says whether the left side becomes integers of two digits, beside small ones."""
    return left.kind == LeftKind.INTEGERS and _has_integers(right.format)


def _has_integers(format: Int) -> Bool:
    comptime for i in range(len(FORMATS)):
        comptime if has_integers(FORMATS[i]):
            if format == i:
                return True
    return False


def groups_of(rows: Int, right: Right) -> RowGroups:
    """Returns how some rows are cut."""
    return limits_of[BYTES]().of(decoding_of(right)).cut(rows)


def num_bytes(left: Left, right: Right, rows: Int, k: Int) -> Int:
    """Returns the scratch memory that `launch` takes for some rows."""
    var scales = ScaleKinds(has_e4m3_scales(left.format), has_e4m3_scales(right.format))
    var digits = 2 if left.kind == LeftKind.INTEGERS else 1
    return ExpandedRows.num_bytes(OperandShape(rows, k), digits, scales)


def launch[known: Known, T: Team](problem: RangedProblem, mut scratch: Scratch, team: T):
    """Computes a problem that this kernel supports."""
    var right = problem.experts.right
    comptime for i in range(len(FORMATS)):
        comptime for j in range(len(FORMATS)):
            comptime left_may_be = may_be(known.left_format, i) and has_integers(FORMATS[i])
            comptime right_may_be = may_be(known.right_format, j) and has_integers(FORMATS[j])
            comptime if left_may_be and right_may_be:
                if problem.left.format == i and right.format == j:
                    return _launch_pair[known, i, j](problem, scratch, team)


def launch_digits[known: Known, T: Team](problem: RangedProblem, mut scratch: Scratch, team: T):
    """Computes a problem whose left side becomes integers of two digits."""
    comptime for j in range(len(FORMATS)):
        comptime if may_be(known.right_format, j) and has_integers(FORMATS[j]):
            if problem.experts.right.format == j:
                return _launch_pair[known, INTEGERS, j](problem, scratch, team)


comptime INTEGERS = NO_FORMAT
"""Where the position of a left format stands: its kind is `LeftKind.INTEGERS`."""


def _launch_pair[
    known: Known, left: Int, right: Int, T: Team
](problem: RangedProblem, mut scratch: Scratch, team: T):
    """Computes a problem of one pair of formats."""
    comptime DIGITS = 2 if left == INTEGERS else 1
    comptime LEFT = Format.MXINT8 if left == INTEGERS else FORMATS[left]
    comptime RIGHT = FORMATS[right].element
    comptime SCALES = ScaleKinds.of(LEFT, FORMATS[right])
    comptime REACH = Reach.of(largest_integer[LEFT.element](), largest_integer[RIGHT]())
    comptime SHIFT = unit_shift[LEFT.element]()
    var shape = OperandShape(problem.ranges.rows, problem.k)
    var limits = limits_of[BYTES]().of(decoding_of(problem.experts.right))
    var activations = ExpandedRows.carve(shape, limits, DIGITS, SHIFT, SCALES, scratch)
    if activations.are_looked_up[SCALES]():
        activations.make_tables[LEFT.element, RIGHT]()
    _prepare[known, left, FORMATS[right]](problem, activations, team)
    var product = ByteProduct[REACH, SCALES, DIGITS](activations)
    multiply_panels[known, FORMATS[right].kin()](product, problem, team)


def _prepare[
    known: Known, format: Int, right: Format, T: Team
](problem: RangedProblem, activations: ExpandedRows, team: T):
    """Expands the blocks of the left side, whether they came so or are quantized now."""
    var left = problem.left
    comptime if format != INTEGERS and known.has_kind(LeftKind.ENCODED):
        comptime LEFT = FORMATS[format].kin()
        comptime blocks = FORMATS[format].block()
        if left.kind == LeftKind.ENCODED:
            var a = Operand[Plain, LEFT].at(
                left.values, left.scales, problem.sources.rows, problem.k, materialize[blocks]()
            )
            comptime if LEFT.scale == Scale.E4M3:
                return _expand_scaled[right](EncodedScaledRows(a), problem, activations, team)
            else:
                return _expand[right](Prequantized(a), problem, activations, team)
    comptime if format == INTEGERS or known.has_kind(LeftKind.QUANTIZED):
        comptime for i in range(len(FLOAT_TYPES)):
            comptime if may_be(known.dtype, i):
                if left.dtype == i:
                    var x = matrix[FLOAT_TYPES[i]](
                        left.values, problem.sources.rows, problem.k, left.row_stride
                    )
                    comptime if format == INTEGERS:
                        return _expand[right](IntegersOnTheFly(x), problem, activations, team)
                    else:
                        return _quantize[format, right](x, problem, activations, team)


def _quantize[
    dtype: DType, //, format: Int, right: Format, T: Team
](x: Matrix[dtype], problem: RangedProblem, activations: ExpandedRows, team: T):
    """Expands the blocks of floats that are rounded to a format."""
    comptime LEFT = FORMATS[format].kin()
    comptime blocks = FORMATS[format].block()
    var rounding = problem.left.rounding
    comptime if LEFT.scale == Scale.E4M3:
        var source = QuantizedScaledRows[LEFT](x, rounding, materialize[blocks]())
        _expand_scaled[right](source, problem, activations, team)
    else:
        _expand[right](QuantizedOnTheFly[LEFT](x, rounding), problem, activations, team)


def _expand_scaled[
    right: Format, Source: ScaledRows, T: Team
](source: Source, problem: RangedProblem, activations: ExpandedRows, team: T):
    """Expands the blocks of one source with tensor scales."""
    prepare(ExpandScaledRows[right=right](source, problem.sources, activations), problem, team)


def _expand[
    right: Format, Source: BlockSource, T: Team
](source: Source, problem: RangedProblem, activations: ExpandedRows, team: T):
    """Expands the blocks of one source."""
    prepare(ExpandGroups[right=right](source, problem.sources, activations), problem, team)

"""Small integers on both sides, MXFP4, MXFP6, NVFP4 or MXINT8: which problems, and their launch."""

from ...layouts import OperandShape, Plain
from ...numbers.floats import FLOAT_TYPES
from ...numbers.formats import FORMATS, Format, has_e4m3_scales
from ...numbers.scales import Scale
from ...operands import Operand, matrix
from ...problem import Known, Left, LeftKind, Right, may_be
from ..block_order import RowGroups
from ..launch import decoding_of, multiply_panels, prepare
from ..ranges import RangedProblem
from ..scaled_rows import EncodedScaledRows, QuantizedScaledRows, ScaledRows
from ..scratch import Scratch
from ..threads import Team
from .activations import (
    ExpandedRows,
    BlockSource,
    ExpandGroups,
    ExpandScaledRows,
    LIMITS,
    Prequantized,
    QuantizedOnTheFly,
)
from .dot import Reach
from .integers import ScaleKinds, has_integers, largest_integer, unit_shift
from .panel import ByteProduct

comptime NAME: StaticString = "cpu/bytes/kernel.mojo"
comptime REASON: StaticString = "both sides are small integers: an integer dot product a block"


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


def _has_integers(format: Int) -> Bool:
    comptime for i in range(len(FORMATS)):
        comptime if has_integers(FORMATS[i]):
            if format == i:
                return True
    return False


def groups_of(rows: Int, right: Right) -> RowGroups:
    """Returns how some rows are cut."""
    return LIMITS.cut(rows, decoding_of(right))


def num_bytes(left: Left, right: Right, rows: Int, k: Int) -> Int:
    """Returns the scratch memory that `launch` takes for some rows."""
    var scales = ScaleKinds(has_e4m3_scales(left.format), has_e4m3_scales(right.format))
    return ExpandedRows.num_bytes(OperandShape(rows, k), scales)


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


def _launch_pair[
    known: Known, left: Int, right: Int, T: Team
](problem: RangedProblem, mut scratch: Scratch, team: T):
    """Computes a problem of one pair of formats."""
    comptime LEFT = FORMATS[left].element
    comptime RIGHT = FORMATS[right].element
    comptime SCALES = ScaleKinds.of(FORMATS[left], FORMATS[right])
    comptime REACH = Reach.of(largest_integer[LEFT](), largest_integer[RIGHT]())
    var shape = OperandShape(problem.ranges.rows, problem.k)
    var decoding = decoding_of(problem.experts.right)
    var activations = ExpandedRows.carve(shape, decoding, unit_shift[LEFT](), SCALES, scratch)
    if activations.are_looked_up[SCALES]():
        activations.make_tables[LEFT, RIGHT]()
    _prepare[known, left, FORMATS[right]](problem, activations, team)
    var product = ByteProduct[REACH, SCALES](activations)
    multiply_panels[known, FORMATS[right].kin()](product, problem, team)


def _prepare[
    known: Known, format: Int, right: Format, T: Team
](problem: RangedProblem, activations: ExpandedRows, team: T):
    """Expands the blocks of the left side, whether they came so or are quantized now."""
    comptime FORMAT_OF_LEFT = FORMATS[format].kin()
    comptime HAS_E4M3 = FORMAT_OF_LEFT.scale == Scale.E4M3
    comptime blocks = FORMATS[format].block()
    var left = problem.left
    comptime if known.has_kind(LeftKind.ENCODED):
        if left.kind == LeftKind.ENCODED:
            var a = Operand[Plain, FORMAT_OF_LEFT].at(
                left.values, left.scales, problem.sources.rows, problem.k, materialize[blocks]()
            )
            comptime if HAS_E4M3:
                return _expand_scaled[right](EncodedScaledRows(a), problem, activations, team)
            else:
                return _expand[right](Prequantized(a), problem, activations, team)
    comptime if known.has_kind(LeftKind.QUANTIZED):
        comptime for i in range(len(FLOAT_TYPES)):
            comptime if may_be(known.dtype, i):
                if left.dtype == i:
                    var x = matrix[FLOAT_TYPES[i]](
                        left.values, problem.sources.rows, problem.k, left.row_stride
                    )
                    comptime if HAS_E4M3:
                        var source = QuantizedScaledRows[FORMAT_OF_LEFT](
                            x, left.rounding, materialize[blocks]()
                        )
                        return _expand_scaled[right](source, problem, activations, team)
                    else:
                        var source = QuantizedOnTheFly[FORMAT_OF_LEFT](x, left.rounding)
                        return _expand[right](source, problem, activations, team)


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

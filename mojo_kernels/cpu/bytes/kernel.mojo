"""Small integers on both sides, MXFP4 or MXINT8: which problems, and their launch."""

from std.math import ceildiv

from ...layouts import OperandShape, Plain
from ...numbers.elements import Element
from ...numbers.floats import FLOAT_TYPES
from ...numbers.formats import FORMATS
from ...operands import Operand, matrix
from ...problem import Known, LeftKind, Problem, may_be
from ..block_order import RowGroups
from ..launch import groups_per_task, is_decoding_cheap, multiply_panels
from ..scratch import Scratch
from ..threads import Team
from .activations import (
    Activations,
    BlockSource,
    ExpandGroups,
    LIMITS,
    Prequantized,
    QuantizedOnTheFly,
)
from .dot import Reach
from .integers import has_integers, largest_integer, unit_shift
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


def supports(problem: Problem) -> Bool:
    """Says whether both sides are small integers."""
    return _has_integers(problem.left.format) and _has_integers(problem.right.format)


def _has_integers(format: Int) -> Bool:
    comptime for i in range(len(FORMATS)):
        comptime if has_integers(FORMATS[i]):
            if format == i:
                return True
    return False


def groups_of(problem: Problem) -> RowGroups:
    """Returns how the rows of a problem are cut."""
    return LIMITS.cut(problem.m, is_decoding_cheap(problem))


def launch[known: Known, T: Team](problem: Problem, team: T):
    """Computes a problem that this kernel supports."""
    comptime for i in range(len(FORMATS)):
        comptime for j in range(len(FORMATS)):
            comptime left_may_be = may_be(known.left_format, i) and has_integers(FORMATS[i])
            comptime right_may_be = may_be(known.right_format, j) and has_integers(FORMATS[j])
            comptime if left_may_be and right_may_be:
                if problem.left.format == i and problem.right.format == j:
                    return _launch_pair[known, i, j](problem, team)


def _launch_pair[known: Known, left: Int, right: Int, T: Team](problem: Problem, team: T):
    """Computes a problem of one pair of formats."""
    comptime LEFT = FORMATS[left].element
    comptime RIGHT = FORMATS[right].element
    comptime REACH = Reach.of(largest_integer[LEFT](), largest_integer[RIGHT]())
    var shape = OperandShape(problem.m, problem.k)
    var scratch = Scratch(Activations.num_bytes(shape))
    var activations = Activations.carve(shape, groups_of(problem), unit_shift[LEFT](), scratch)
    _prepare[known, left, RIGHT](problem, activations, team)
    multiply_panels[known, FORMATS[right]](ByteProduct[REACH](activations), problem, team)
    _ = scratch^


def _prepare[
    known: Known, format: Int, right: Element, T: Team
](problem: Problem, activations: Activations, team: T):
    """Expands the blocks of the left side, whether they came so or are quantized now."""
    comptime FORMAT_OF_LEFT = FORMATS[format]
    var left = problem.left
    comptime if known.has_kind(LeftKind.ENCODED):
        if left.kind == LeftKind.ENCODED:
            var a = Operand[Plain, FORMAT_OF_LEFT].at(
                left.values, left.scales, problem.m, problem.k
            )
            return _expand[right](Prequantized(a), activations, team)
    comptime if known.has_kind(LeftKind.QUANTIZED):
        comptime for i in range(len(FLOAT_TYPES)):
            comptime if may_be(known.dtype, i):
                if left.dtype == i:
                    var x = matrix[FLOAT_TYPES[i]](
                        left.values, problem.m, problem.k, left.row_stride
                    )
                    var source = QuantizedOnTheFly[FORMAT_OF_LEFT](x, left.rounding)
                    return _expand[right](source, activations, team)


def _expand[
    right: Element, Source: BlockSource, T: Team
](source: Source, activations: Activations, team: T):
    """Expands the blocks of one source."""
    var shape = activations.shape
    var groups = groups_per_task(shape.k, activations.groups.largest())
    var num_tasks = ceildiv(activations.groups.count, groups)
    team.run_all(ExpandGroups[right=right](source, activations, groups), num_tasks)

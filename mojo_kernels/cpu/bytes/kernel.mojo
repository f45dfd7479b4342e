"""MXFP4 x MXFP4 on integer dot products: which problems, and their launch."""

from std.math import ceildiv

from ...layouts import OperandShape, Plain
from ...numbers.floats import FLOAT_TYPES
from ...operands import Operand, matrix
from ...problem import Known, LeftKind, Problem, may_be
from ..launch import groups_per_task, multiply_panels
from ..scratch import Scratch
from ..threads import Team
from .activations import (
    Activations,
    BlockSource,
    ExpandGroups,
    LEFT,
    Prequantized,
    QuantizedOnTheFly,
)
from .panel import ByteProduct, RIGHT

comptime NAME: StaticString = "cpu/bytes/kernel.mojo"
comptime REASON: StaticString = "both sides are MXFP4: an integer dot product a block"


def may_support[known: Known]() -> Bool:
    """Says whether `supports` can be true of a problem of which this is known."""
    return (
        may_be(known.left_format, LEFT.code())
        and may_be(known.right_format, RIGHT.code())
        and known.kind != LeftKind.KEPT.code
    )


def supports(problem: Problem) -> Bool:
    """Says whether both sides are MXFP4."""
    return problem.left.format == LEFT.code() and problem.right.format == RIGHT.code()


def launch[known: Known, T: Team](problem: Problem, team: T):
    """Computes a problem that this kernel supports."""
    var shape = OperandShape(problem.m, problem.k)
    var scratch = Scratch(Activations.num_bytes(shape))
    var activations = Activations.carve(shape, scratch)
    _prepare[known](problem, activations, team)
    multiply_panels[known, RIGHT](ByteProduct(activations), problem, team)
    _ = scratch^


def _prepare[known: Known, T: Team](problem: Problem, activations: Activations, team: T):
    """Expands the blocks of the left side, whether they came so or are quantized now."""
    var left = problem.left
    comptime if known.has_kind(LeftKind.ENCODED):
        if left.kind == LeftKind.ENCODED:
            var a = Operand[Plain, LEFT].at(left.values, left.scales, problem.m, problem.k)
            return _expand(Prequantized(a), activations, team)
    comptime if known.has_kind(LeftKind.QUANTIZED):
        comptime for i in range(len(FLOAT_TYPES)):
            comptime if may_be(known.dtype, i):
                if left.dtype == i:
                    var x = matrix[FLOAT_TYPES[i]](
                        left.values, problem.m, problem.k, left.row_stride
                    )
                    return _expand(QuantizedOnTheFly(x, left.rounding), activations, team)


def _expand[Source: BlockSource, T: Team](source: Source, activations: Activations, team: T):
    """Expands the blocks of one source."""
    var shape = activations.shape
    var groups = groups_per_task[ByteProduct](shape.k)
    var num_tasks = ceildiv(shape.rows, groups * ByteProduct.GROUP_ROWS)
    team.run_all(ExpandGroups(source, activations, groups), num_tasks)

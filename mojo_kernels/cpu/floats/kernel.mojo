"""Any left side x any weights on products of bfloat16: their launch."""

from std.math import ceildiv

from ...layouts import OperandShape, Plain
from ...numbers.floats import FLOAT_TYPES
from ...numbers.formats import FORMATS
from ...operands import Operand, matrix
from ...problem import Known, LeftKind, Problem, may_be
from ..block_order import RowGroups
from ..launch import groups_per_task, is_decoding_cheap, multiply_panels
from ..scratch import Scratch
from ..threads import Team
from .activations import (
    EncodedRows,
    FillRows,
    FloatActivations,
    LIMITS,
    KeptRows,
    QuantizedRows,
    RowBlocks,
)
from .panel import FloatProduct

comptime NAME: StaticString = "cpu/floats/kernel.mojo"
comptime REASON: StaticString = "both sides are exact in bfloat16: its dot products, block by block"


def groups_of(problem: Problem) -> RowGroups:
    """Returns how the rows of a problem are cut."""
    return LIMITS.cut(problem.m, is_decoding_cheap(problem))


def launch[known: Known, T: Team](problem: Problem, team: T):
    """Computes any problem: every format is exact in bfloat16."""
    var shape = OperandShape(problem.m, problem.k)
    var has_scales = problem.left.kind != LeftKind.KEPT
    var scratch = Scratch(FloatActivations.num_bytes(shape, has_scales))
    var activations = FloatActivations.carve(shape, groups_of(problem), has_scales, scratch)
    _prepare[known](problem, activations, team)
    comptime for i in range(len(FORMATS)):
        comptime if may_be(known.right_format, i):
            if problem.right.format == i:
                multiply_panels[known, FORMATS[i]](FloatProduct(activations), problem, team)
    _ = scratch^


def _prepare[known: Known, T: Team](problem: Problem, activations: FloatActivations, team: T):
    """Brings the left side into bfloat16 and into order."""
    var left = problem.left
    comptime if known.has_kind(LeftKind.ENCODED):
        comptime for j in range(len(FORMATS)):
            comptime if may_be(known.left_format, j):
                if left.kind == LeftKind.ENCODED and left.format == j:
                    var a = Operand[Plain, FORMATS[j]].at(
                        left.values, left.scales, problem.m, problem.k
                    )
                    return _fill(EncodedRows(a), activations, team)
    comptime for i in range(len(FLOAT_TYPES)):
        comptime if may_be(known.dtype, i):
            if left.kind != LeftKind.ENCODED and left.dtype == i:
                var x = matrix[FLOAT_TYPES[i]](left.values, problem.m, problem.k, left.row_stride)
                comptime if known.has_kind(LeftKind.KEPT):
                    if left.kind == LeftKind.KEPT:
                        return _fill(KeptRows(x), activations, team)
                comptime if known.has_kind(LeftKind.QUANTIZED):
                    comptime for j in range(len(FORMATS)):
                        comptime if may_be(known.left_format, j):
                            if left.format == j:
                                var rows = QuantizedRows[FORMATS[j]](x, left.rounding)
                                return _fill(rows, activations, team)


def _fill[Source: RowBlocks, T: Team](source: Source, activations: FloatActivations, team: T):
    """Fills the activations from one source."""
    var shape = activations.shape
    var groups = groups_per_task(shape.k, activations.groups.largest())
    var num_tasks = ceildiv(activations.groups.count, groups)
    team.run_all(FillRows(source, activations, groups), num_tasks)

"""Any left side x any weights on products of bfloat16: their launch."""

from ...layouts import OperandShape, Plain
from ...numbers.floats import FLOAT_TYPES
from ...numbers.formats import FORMATS
from ...operands import Operand, matrix
from ...problem import Known, Left, LeftKind, Right, may_be
from ..block_order import RowGroups
from ..launch import decoding_of, multiply_panels, prepare
from ..ranges import RangedProblem
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


def groups_of(rows: Int, right: Right) -> RowGroups:
    """Returns how some rows are cut."""
    return LIMITS.cut(rows, decoding_of(right))


def num_bytes(left: Left, rows: Int, k: Int) -> Int:
    """Returns the scratch memory that `launch` takes for some rows."""
    return FloatActivations.num_bytes(OperandShape(rows, k), left.kind != LeftKind.KEPT)


def launch[known: Known, T: Team](problem: RangedProblem, mut scratch: Scratch, team: T):
    """Computes any problem: every format is exact in bfloat16."""
    var shape = OperandShape(problem.ranges.rows, problem.k)
    var has_scales = problem.left.kind != LeftKind.KEPT
    var right = problem.experts.right
    var activations = FloatActivations.carve(shape, decoding_of(right), has_scales, scratch)
    _prepare[known](problem, activations, team)
    comptime for i in range(len(FORMATS)):
        comptime if may_be(known.right_format, i):
            if right.format == i:
                multiply_panels[known, FORMATS[i]](FloatProduct(activations), problem, team)


def _prepare[known: Known, T: Team](problem: RangedProblem, activations: FloatActivations, team: T):
    """Brings the left side into bfloat16 and into order."""
    var left, rows = problem.left, problem.sources.rows
    comptime if known.has_kind(LeftKind.ENCODED):
        comptime for j in range(len(FORMATS)):
            comptime if may_be(known.left_format, j):
                if left.kind == LeftKind.ENCODED and left.format == j:
                    var a = Operand[Plain, FORMATS[j]].at(left.values, left.scales, rows, problem.k)
                    return _fill(EncodedRows(a), problem, activations, team)
    comptime for i in range(len(FLOAT_TYPES)):
        comptime if may_be(known.dtype, i):
            if left.kind != LeftKind.ENCODED and left.dtype == i:
                var x = matrix[FLOAT_TYPES[i]](left.values, rows, problem.k, left.row_stride)
                comptime if known.has_kind(LeftKind.KEPT):
                    if left.kind == LeftKind.KEPT:
                        return _fill(KeptRows(x), problem, activations, team)
                comptime if known.has_kind(LeftKind.QUANTIZED):
                    comptime for j in range(len(FORMATS)):
                        comptime if may_be(known.left_format, j):
                            if left.format == j:
                                var source = QuantizedRows[FORMATS[j]](x, left.rounding)
                                return _fill(source, problem, activations, team)


def _fill[
    Source: RowBlocks, T: Team
](source: Source, problem: RangedProblem, activations: FloatActivations, team: T):
    """Fills the activations from one source."""
    prepare(FillRows(source, problem.sources, activations), problem, team)

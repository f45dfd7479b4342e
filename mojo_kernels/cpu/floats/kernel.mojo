"""Any left side x any weights on products of bfloat16: their launch."""

from ...layouts import OperandShape, Plain
from ...numbers.floats import FLOAT_TYPES
from ...numbers.formats import FORMATS, Format, block_of, has_e4m3_scales, has_float_scales
from ...operands import Matrix, Operand, matrix
from ...problem import Known, Left, LeftKind, Right, may_be
from ..block_order import Decoding, RowGroups
from ..launch import decoding_of, multiply_panels, prepare
from ..limits import FLOATS, limits_of
from ..ranges import RangedProblem
from ..scaled_rows import EncodedScaledRows, QuantizedScaledRows, ScaledRows
from ..scratch import Scratch
from ..threads import Team
from .activations import (
    CodedRows,
    FillRows,
    FloatActivations,
    KeptRows,
    LeftScales,
    RoundedRows,
    RowBlocks,
)
from .panel import FloatProduct
from .scaled_rows import FillScaledRows

comptime NAME: StaticString = "cpu/floats/kernel.mojo"
comptime REASON: StaticString = "both sides are exact in bfloat16: its dot products, block by block"


def groups_of(rows: Int, left: Left, right: Right) -> RowGroups:
    """Returns how some rows are cut."""
    return limits_of[FLOATS]().of(_decoding_of(left, right)).cut(rows)


def _decoding_of(left: Left, right: Right) -> Decoding:
    """Returns what it takes to decode the weights; beside factors they are beforehand, and so are
    those under E4M3 scales."""
    var is_dear = LeftScales.of(left).factors or has_e4m3_scales(right.format)
    return Decoding.DEAR if is_dear else decoding_of(right)


def num_bytes(left: Left, rows: Int, k: Int) -> Int:
    """Returns the scratch memory that `launch` takes for some rows."""
    return FloatActivations.num_bytes(OperandShape(rows, k), LeftScales.of(left))


def launch[known: Known, T: Team](problem: RangedProblem, mut scratch: Scratch, team: T):
    """Computes any problem: every format is exact in bfloat16."""
    var shape = OperandShape(problem.ranges.rows, problem.k)
    var scales = LeftScales.of(problem.left)
    var right = problem.experts.right
    var limits = limits_of[FLOATS]().of(_decoding_of(problem.left, right))
    var activations = FloatActivations.carve(shape, limits, scales, scratch)
    var product = FloatProduct(activations, has_float_scales(right.format))
    _prepare[known](problem, activations, team)
    comptime for i in range(len(FORMATS)):
        comptime if may_be(known.right_format, i):
            if right.format == i:
                multiply_panels[known, FORMATS[i].kin()](product, problem, team)


def _prepare[known: Known, T: Team](problem: RangedProblem, activations: FloatActivations, team: T):
    """Brings the left side into bfloat16 and into order."""
    var left, rows = problem.left, problem.sources.rows
    comptime if known.has_kind(LeftKind.ENCODED):
        comptime for j in range(len(FORMATS)):
            comptime if may_be(known.left_format, j):
                if left.kind == LeftKind.ENCODED and left.format == j:
                    var a = Operand[Plain, FORMATS[j].kin()].at(
                        left.values, left.scales, rows, problem.k, block_of(j)
                    )
                    comptime if FORMATS[j].scale.has_float():
                        return _fill_scaled(EncodedScaledRows(a), problem, activations, team)
                    else:
                        return _fill(CodedRows(a), problem, activations, team)
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
                                return _fill_quantized[FORMATS[j].kin()](
                                    x, problem, activations, team
                                )


def _fill_quantized[
    format: Format, dtype: DType, T: Team
](x: Matrix[dtype], problem: RangedProblem, activations: FloatActivations, team: T):
    """Fills the activations with floats that are rounded to a format."""
    var left = problem.left
    comptime if format.scale.has_float():
        var source = QuantizedScaledRows[format](x, left.rounding, block_of(left.format))
        _fill_scaled(source, problem, activations, team)
    else:
        _fill(RoundedRows[format](x, left.rounding), problem, activations, team)


def _fill_scaled[
    Source: ScaledRows, T: Team
](source: Source, problem: RangedProblem, activations: FloatActivations, team: T):
    """Fills the activations from one source under float scales."""
    prepare(FillScaledRows(source, problem.sources, activations), problem, team)


def _fill[
    Source: RowBlocks, T: Team
](source: Source, problem: RangedProblem, activations: FloatActivations, team: T):
    """Fills the activations from one source."""
    prepare(FillRows(source, problem.sources, activations), problem, team)

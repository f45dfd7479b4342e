"""Entries of quantize, dequantize and relayout on the CPU: cut into tasks, launch.

Arguments are valid by contract; whoever is in front of this validates them.
"""

from std.math import ceildiv
from std.memory import unsafe_memcpy

from ..calls import DequantizeCall, QuantizeCall, RelayoutCall
from ..layouts import LAYOUTS, OperandLayout, Plain, e4m3_bytes_of, e4m3_row_bytes
from ..numbers.floats import FLOAT_TYPES
from ..numbers.formats import FORMATS, Format, block_of, has_e4m3_scales, has_float_scales
from ..numbers.formats import scale_bytes_of
from ..numbers.rounding import Rounding
from ..operands import Matrix, Operand, flat, matrix
from .rows import DequantizeRows, FloatRows, QuantizeRows, QuantizeScaledRows
from .rows import RelayoutE4M3, RelayoutRows, StoredBytes
from .threads import Team

comptime ELEMENTS_PER_TASK = 65536
"""A task of half this size takes some 10 us, and waking a team that spins takes 5 us: two of them
are faster than both on one thread (AMD EPYC family 25, 2026-11-22)."""


def rows_per_task(k: Int, multiple: Int) -> Int:
    """Returns how many rows of `k` elements make a task: a multiple of `multiple`."""
    return max(1, ELEMENTS_PER_TASK // (k * multiple)) * multiple


def groups_per_task(k: Int, group_rows: Int) -> Int:
    """Returns how many groups of rows of the left side are worth a task of their own."""
    return rows_per_task(k, group_rows) // group_rows


def even_rows_per_task(rows: Int, k: Int, multiple: Int) -> Int:
    """Returns the same for `rows` in all, cut into parts that are as large as each other: a small
    last part would wake a thread for little."""
    var tasks = max(1, ceildiv(rows, rows_per_task(k, multiple)))
    return max(1, ceildiv(rows, tasks * multiple)) * multiple


def quantize[
    format: Format, dtype: DType, T: Team
](
    x: Matrix[dtype],
    result: Operand[Plain, format],
    rounding: Rounding,
    team: T,
    tensor_scales: Int = 0,
):
    """Quantizes [rows, k] floats along K into a plain operand, perhaps under given scales."""
    comptime if format.scale.has_float():
        var multiple = 1 << result.block.row_bits
        var rows = even_rows_per_task(result.shape.rows, result.shape.k, multiple)
        var work = QuantizeScaledRows(x, result, rounding, tensor_scales, rows)
        team.run_all(work^, ceildiv(result.shape.rows, rows))
    else:
        var rows = even_rows_per_task(result.shape.rows, result.shape.k, 1)
        team.run_all(QuantizeRows(x, result, rounding, rows), ceildiv(result.shape.rows, rows))


def run_quantize[T: Team](call: QuantizeCall, team: T) -> Bool:
    """Quantizes what a call says; says whether the tables know its types."""
    comptime for i in range(len(FLOAT_TYPES)):
        comptime for j in range(len(FORMATS)):
            if call.dtype == i and call.format == j:
                var x = matrix[FLOAT_TYPES[i]](call.values, call.rows, call.k, call.row_stride)
                var result = Operand[Plain, FORMATS[j].kin()].at(
                    call.codes, call.scales, call.rows, call.k, block_of(j)
                )
                quantize(x, result, call.rounding, team, call.tensor_scales)
                return True
    return False


def dequantize[
    Layout: OperandLayout, format: Format, T: Team
](operand: Operand[Layout, format], result: FloatRows, team: T):
    """Decodes an operand in any layout to [rows, k] floats."""
    var rows = even_rows_per_task(operand.shape.rows, operand.shape.k, 1)
    team.run_all(DequantizeRows(operand, result, rows), ceildiv(operand.shape.rows, rows))


def run_dequantize[T: Team](call: DequantizeCall, team: T) -> Bool:
    """Decodes what a call says; says whether the tables know its layout and format."""
    comptime for i in range(len(LAYOUTS)):
        comptime for j in range(len(FORMATS)):
            if call.layout == i and call.format == j:
                var operand = Operand[LAYOUTS[i], FORMATS[j].kin()].at(
                    call.codes, call.scales, call.rows, call.k, block_of(j)
                )
                dequantize(operand, FloatRows(call.values, call.dtype, call.rows, call.k), team)
                return True
    return False


def run_relayout[T: Team](call: RelayoutCall, team: T) -> Bool:
    """Moves what a call says; says whether the tables know its layouts."""
    var row_bytes, k_blocks = 0, 0
    comptime for i in range(len(FORMATS)):
        comptime format = FORMATS[i]
        if call.format == i:
            row_bytes = format.packed_bytes(call.k)
            comptime if not format.scale.has_float():
                k_blocks = call.k // format.block_k
    comptime for i in range(len(LAYOUTS)):
        comptime for j in range(len(LAYOUTS)):
            if call.layout == i and call.layout_out == j:
                var source = StoredBytes[LAYOUTS[i]].at(
                    call.codes, call.scales, call.rows, row_bytes, k_blocks
                )
                var target = StoredBytes[LAYOUTS[j]].at(
                    call.codes_out, call.scales_out, call.rows, row_bytes, k_blocks
                )
                relayout(source, target, team)
                if has_float_scales(call.format):
                    # Not blocks that a layout knows.
                    _move_scales[LAYOUTS[i], LAYOUTS[j]](call, team)
                return True
    return False


def _move_scales[
    Source: OperandLayout, Target: OperandLayout, T: Team
](call: RelayoutCall, team: T):
    """Moves scales that stay in their order, or E4M3 scales that a layout orders."""
    comptime if Source.E4M3_RUN > 0 or Target.E4M3_RUN > 0:
        if has_e4m3_scales(call.format):
            var k, num_bytes = call.k, e4m3_bytes_of[Target](call.rows, call.k)
            var rows = num_bytes // e4m3_row_bytes[Target](k)
            var at_once = even_rows_per_task(rows, e4m3_row_bytes[Target](k), 1)
            var source = flat[DType.uint8](call.scales, e4m3_bytes_of[Source](call.rows, k))
            var target = flat[DType.uint8](call.scales_out, num_bytes)
            var work = RelayoutE4M3[Source, Target](source, target, call.rows, rows, k, at_once)
            return team.run_all(work^, ceildiv(rows, at_once))
    var count = scale_bytes_of(call.format, call.rows, call.k)
    var source = flat[DType.uint8](call.scales, count)
    var target = flat[DType.uint8](call.scales_out, count)
    unsafe_memcpy(dest=target.ptr, src=source.ptr, count=count)


def relayout[
    Source: OperandLayout, Target: OperandLayout, T: Team
](source: StoredBytes[Source], target: StoredBytes[Target], team: T):
    """Moves an operand to another layout and writes the target's padding."""
    var multiple = max(Target.ROW_MULTIPLE, Target.SCALE_ROW_MULTIPLE)
    var rows = even_rows_per_task(target.padded_rows(), source.row_bytes, multiple)
    team.run_all(RelayoutRows(source, target, rows), ceildiv(target.padded_rows(), rows))

"""Entries of quantize, dequantize and relayout on the CPU: cut into tasks, launch.

Arguments are valid by contract; whoever is in front of this validates them.
"""

from std.math import ceildiv

from ..layouts import OperandLayout, Plain
from ..numbers.formats import Format
from ..numbers.rounding import Rounding
from ..operands import Matrix, Operand
from .rows import DequantizeRows, FloatRows, QuantizeRows, RelayoutRows, StoredBytes
from .threads import Team

comptime ELEMENTS_PER_TASK = 65536
"""A task of this size takes some microseconds: worth a thread. Guess."""


def rows_per_task(k: Int, multiple: Int) -> Int:
    """Returns how many rows of `k` elements make a task: a multiple of `multiple`."""
    return max(1, ELEMENTS_PER_TASK // (k * multiple)) * multiple


def quantize[
    format: Format, dtype: DType, T: Team
](x: Matrix[dtype], result: Operand[Plain, format], rounding: Rounding, team: T):
    """Quantizes [rows, k] floats along K into a plain operand."""
    var rows = rows_per_task(result.shape.k, 1)
    team.run_all(QuantizeRows(x, result, rounding, rows), ceildiv(result.shape.rows, rows))


def dequantize[
    Layout: OperandLayout, format: Format, T: Team
](operand: Operand[Layout, format], result: FloatRows, team: T):
    """Decodes an operand in any layout to [rows, k] floats."""
    var rows = rows_per_task(operand.shape.k, 1)
    team.run_all(DequantizeRows(operand, result, rows), ceildiv(operand.shape.rows, rows))


def relayout[
    Source: OperandLayout, Target: OperandLayout, T: Team
](source: StoredBytes[Source], target: StoredBytes[Target], team: T):
    """Moves an operand to another layout and writes the target's padding."""
    var multiple = max(Target.ROW_MULTIPLE, Target.SCALE_ROW_MULTIPLE)
    var rows = rows_per_task(source.row_bytes, multiple)
    team.run_all(RelayoutRows(source, target, rows), ceildiv(target.padded_rows(), rows))

"""Copies rows with gaps between them: one thread an element.

For kernels that want contiguous rows; elements are told apart by their size alone.
"""

from ..launch.queue import DevicePointer
from .quantize import global_thread
from .views import rows_of


def copy_rows[
    dtype: DType
](
    source: DevicePointer[dtype],
    row_stride: Int64,
    rows: Int64,
    columns: Int64,
    target: DevicePointer[dtype],
):
    """Copies [rows, columns] elements, rows of the source `row_stride` apart."""
    var row, column = divmod(global_thread(), Int(columns))
    if row < Int(rows):
        var element = rows_of(source, Int(row_stride))[row, column]
        rows_of(target, Int(columns))[row, column] = element

"""Host entries of NVIDIA GPUs: Hopper's kernels on Hopper, the portable ones on others.

Arguments are valid by contract: addresses on the device of the queue, sizes, and the codes
of `python_arguments`. `hopper.dispatch.workspace_bytes` says what memory a product wants.
"""

from .backend import has_hopper
from .codec import Rounding
from .hopper import dispatch as hopper
from .hopper.dispatch import Product
from .hopper.quantize import quantize as quantize_on_hopper
from .layouts import OperandLayout
from .simt.launch import Queue
from .simt.quantize import quantize as quantize_portably


def quantize[
    dtype: DType
](
    queue: Queue,
    x: Int,
    row_stride: Int,
    rows: Int,
    k: Int,
    rounding: Rounding,
    codes: Int,
    scales: Int,
) raises:
    """Quantizes [rows, k] floats at address `x` into a plain operand."""
    comptime if has_hopper():
        quantize_on_hopper[dtype](queue, x, row_stride, rows, k, rounding, codes, scales)
    else:
        quantize_portably[dtype](queue, x, row_stride, rows, k, rounding, codes, scales)


def multiply[Layout: OperandLayout](queue: Queue, product: Product) raises:
    """Computes activations @ weights.T + bias."""
    comptime if has_hopper():
        hopper.multiply[Layout](queue, product)
    else:
        comptime for aligned in [False, True]:
            if product.is_aligned() == aligned:
                hopper.launch_portable[Layout, aligned](queue, product)

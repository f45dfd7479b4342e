"""Host entries of NVIDIA GPUs: Hopper's kernels on Hopper, the portable ones on others.

Experts have the portable kernels everywhere. Arguments are valid by contract, see
`hopper.host.dispatch`.
"""

from ..backend import has_hopper
from ..calls import QuantizeCall
from ..hopper.host import dispatch as hopper
from ..launch.queue import Queue
from ..problem import ANY, Known, Problem
from ..simt import matmul as portable
from ..simt.quantize import quantize as quantize_portably


def quantize[
    known_dtype: Int = ANY, known_format: Int = ANY
](call: QuantizeCall, mut queue: Some[Queue]) raises:
    """Quantizes [rows, k] floats into a plain operand."""
    comptime if has_hopper():
        hopper.quantize[known_dtype, known_format](call, queue)
    else:
        quantize_portably[known_dtype, known_format](call, queue)


def multiply[known: Known](problem: Problem, mut queue: Some[Queue], plan_code: Int = 0) raises:
    """Computes left @ right.T + bias; `plan_code` is for tests and tuning, see `hopper.plan`."""
    comptime if has_hopper():
        hopper.multiply[known](problem, queue, plan_code)
    else:
        portable.launch[known](problem, queue)

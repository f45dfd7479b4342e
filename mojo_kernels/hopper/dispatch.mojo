"""Launches of a Hopper GPU: the kernel that a plan names, or the portable one.

A problem is valid by contract: addresses on the device of the queue, checked sizes, positions in
the tables.
"""

from ..calls import QuantizeCall
from ..launch.queue import Queue
from ..problem import ANY, Known, Problem
from ..simt import dispatch as portable
from ..simt.quantize import quantize as quantize_portably
from . import quantize as fast
from .aligned import kernel as aligned
from .few import kernel as few
from .fp8 import kernel as fp8
from .host.gemm import aligned_may_take, mapped_may_take
from .many import kernel as many
from .mapped import launch as mapped
from .middle import kernel as middle
from .numbers import kernel as numbers
from .plan import Kernel, MAX_RANKS, Plan, may_take_operands


def launch[
    known: Known
](problem: Problem, plan: Plan, mut queue: Some[Queue], has_workspace: Bool = True) raises:
    """Computes left @ right.T + bias as planned, by clusters of a size that there is.

    The portable kernels may have no workspace; plans for others say what they want.
    """
    if plan.kernel == Kernel.PORTABLE:
        return portable.launch[known](problem, queue, has_workspace)
    if plan.ranks < 1 or plan.ranks > MAX_RANKS or MAX_RANKS % plan.ranks != 0:
        raise Error(String("plan: got ", plan.ranks, " ranks, expected 1, 2, 4 or 8"))
    comptime if may_take_operands[known]():
        if plan.kernel == Kernel.FEW:
            return few.launch(problem, plan, queue)
        if plan.kernel == Kernel.MIDDLE:
            return middle.launch(problem, plan, queue)
        if plan.kernel == Kernel.MANY or plan.kernel == Kernel.MANY_EVEN:
            return many.launch(problem, plan, queue)
        if plan.kernel.wants_bytes():
            return fp8.launch(problem, plan, queue)
        if plan.kernel == Kernel.NUMBERS:
            return numbers.launch(problem, plan, queue)
    comptime if aligned_may_take[known]():
        if plan.kernel == Kernel.ALIGNED or plan.kernel == Kernel.ALIGNED_FEW:
            return aligned.launch(problem, plan, queue)
    comptime if mapped_may_take[known]():
        if plan.kernel == Kernel.MAPPED:
            return mapped.launch(problem, plan, queue)
    portable.launch[known](problem, queue)


def quantize[
    known_dtype: Int = ANY, known_format: Int = ANY
](call: QuantizeCall, mut queue: Some[Queue]) raises:
    """Quantizes [rows, k] floats into a plain operand."""
    comptime if fast.may_support(known_dtype, known_format):
        if fast.supports(call):
            return fast.quantize(call, queue)
    quantize_portably[known_dtype, known_format](call, queue)

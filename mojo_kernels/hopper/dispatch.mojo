"""Launches of a Hopper GPU: the kernel that the table picks, or a plan names, or the portable one.

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
from .host.choices import choose
from .host.gemm import aligned_may_take, aligned_takes, fp8_takes, is_kept_bfloat16
from .host.gemm import mapped_may_take, mapped_takes
from .host.plans import asks_for_none, plan_of_mapped, plan_of_mxfp8
from .many import kernel as many
from .mapped import launch as mapped
from .middle import kernel as middle
from .numbers import kernel as numbers
from .plan import Kernel, MAX_RANKS, Plan, may_take_operands, takes_operands


def multiply[known: Known](problem: Problem, mut queue: Some[Queue], plan_code: Int = 0) raises:
    """Computes left @ right.T + bias; a plan that is not 0 takes the place of the table's."""
    var plan = Plan.PORTABLE
    if plan_code == plan.code():
        return portable.launch[known](problem, queue)
    if takes_operands(problem):
        plan = choose(
            problem.m, problem.n, problem.k, fp8_takes(problem), is_kept_bfloat16(problem)
        ).plan
        if plan_code > 0:
            plan = Plan.from_code(plan_code)
    elif mapped_takes(problem):
        plan = plan_of_mapped(
            problem.m, problem.n, problem.k, problem.left.format, problem.right.format, plan_code
        )
    elif aligned_takes(problem):
        plan = plan_of_mxfp8(problem.m, problem.n, problem.k, problem.right.format, plan_code)
    if plan.kernel == Kernel.PORTABLE:
        # Others than what was expected, at other addresses: tiles want what nobody has asked for.
        var is_asked = not asks_for_none(
            problem.m,
            problem.n,
            problem.k,
            problem.left.format,
            problem.right.format,
            problem.right.layout,
            plan_code,
        )
        return portable.launch[known](problem, queue, has_workspace=is_asked)
    launch[known](problem, plan, queue)


def launch[known: Known](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Launches the kernel of a plan, whose clusters have to be of a size that there is."""
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

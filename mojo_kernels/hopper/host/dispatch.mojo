"""Launches of a Hopper GPU: the kernel that the table picks, or a plan names, or the portable one.

A problem is valid by contract: addresses on the device of the queue, checked sizes, positions in
the tables.
"""

from ...calls import QuantizeCall
from ...launch.queue import Queue, Workspace, larger
from ...numbers.formats import NO_FORMAT
from ...problem import ANY, Known, Problem
from ...simt import dispatch as portable
from ...simt.quantize import quantize as quantize_portably
from .. import quantize as fast
from ..aligned import kernel as aligned
from ..few import kernel as few
from ..fp8 import kernel as fp8
from ..fp8.bases import workspace_of as workspace_of_rows
from ..many import kernel as many
from ..mapped import launch as mapped
from ..middle import kernel as middle
from ..numbers import kernel as numbers
from ..numbers.operands import workspace_of as workspace_of_weights
from ..staged.activations import workspace_of as workspace_of_numbers
from ..plan import Kernel, MAX_RANKS, PRESHUFFLED, Plan, may_take_operands, takes_formats
from .choices import MAX_FEW_ROWS, choice_of_mapped, choice_of_mxfp8, choose


def multiply[known: Known](problem: Problem, mut queue: Some[Queue], plan_code: Int = 0) raises:
    """Computes left @ right.T + bias; a plan that is not 0 takes the place of the table's."""
    var plan = Plan.PORTABLE
    if plan_code == plan.code():
        return portable.launch[known](problem, queue)
    if few.supports(problem):
        plan = choose(
            problem.m, problem.n, problem.k, fp8.supports(problem), numbers.supports(problem)
        ).plan
        if plan_code > 0:
            plan = Plan.from_code(plan_code)
    elif mapped.supports(problem):
        plan = plan_of_mapped(
            problem.m, problem.n, problem.k, problem.left.format, problem.right.format, plan_code
        )
    elif aligned.supports(problem):
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
    comptime if aligned.may_take_operands[known]():
        if plan.kernel == Kernel.ALIGNED or plan.kernel == Kernel.ALIGNED_FEW:
            return aligned.launch(problem, plan, queue)
    comptime if mapped.may_take_operands[known]():
        if plan.kernel == Kernel.MAPPED:
            return mapped.launch(problem, plan, queue)
    portable.launch[known](problem, queue)


def plan_of_mapped(
    m: Int, n: Int, k: Int, left_format: Int, right_format: Int, plan_code: Int
) -> Plan:
    """Returns the plan for E4M3 rows: that of a code for them, if any."""
    if plan_code > 0 and Plan.from_code(plan_code).kernel == Kernel.MAPPED:
        return Plan.from_code(plan_code)
    return choice_of_mapped(m, n, k, left_format, right_format).plan


def plan_of_mxfp8(m: Int, n: Int, k: Int, right_format: Int, plan_code: Int) -> Plan:
    """Returns the plan for MXFP8 activations: one that is like that of a code, if any."""
    if plan_code > 0:
        var plan = Plan.from_code(plan_code)
        if plan.kernel == Kernel.ALIGNED:
            return plan
        if plan.kernel.wants_bytes():
            return plan.of_mxfp8()
    return choice_of_mxfp8(m, n, k, right_format).plan


def workspace_of(
    m: Int, n: Int, k: Int, left_format: Int, right_format: Int, layout: Int, plan_code: Int = 0
) -> Workspace:
    """Returns the workspace that a product may want, with the plan of a code that is not 0.

    Only of MXFP8 and float scales, few rows want one. Results are not known here: those
    of float32 have another plan than those of two bytes, and the space is enough for either.
    """
    if plan_code == materialize[Plan.PORTABLE]().code():
        return Workspace(0, 0)
    if layout == mapped.PLAIN and mapped.takes_formats(left_format, right_format):
        return mapped.workspace_of(m, k)
    if aligned.takes_formats(left_format, right_format):
        var plan = plan_of_mxfp8(m, n, k, right_format, plan_code)
        return aligned.workspace_of(m, n, k, plan)
    if m <= MAX_FEW_ROWS and plan_code <= 0:
        return Workspace(0, 0)
    if plan_code > 0:
        return workspace_of(m, n, k, Plan.from_code(plan_code))
    var space = workspace_of(m, n, k, choose(m, n, k, False, False).plan)
    if fp8.takes(left_format, k):
        space = larger(space, workspace_of(m, n, k, choose(m, n, k, True, False).plan))
    if left_format == NO_FORMAT:
        space = larger(space, workspace_of(m, n, k, choose(m, n, k, False, True).plan))
    return space


def workspace_of(m: Int, n: Int, k: Int, plan: Plan) -> Workspace:
    """Returns the workspace that a plan for MXFP4 weights wants."""
    if plan.kernel == Kernel.FEW:
        return Workspace(0, 0)
    if plan.kernel.wants_bytes():
        return workspace_of_rows(m, n, k, plan)
    if plan.kernel == Kernel.NUMBERS:
        return workspace_of_weights(n, k)
    if plan.kernel == Kernel.MIDDLE:
        return workspace_of_numbers(m, k)
    return many.workspace_of(m, n, k, plan)


def asks_for_none(
    m: Int,
    n: Int,
    k: Int,
    left_format: Int,
    right_format: Int,
    layout: Int,
    plan_code: Int = 0,
) -> Bool:
    """Says whether nobody asks for a workspace of a product, whatever its addresses and types.

    That is where fast kernels for few rows take it, which want none.
    """
    if not takes(left_format, right_format, layout, plan_code):
        return False
    return workspace_of(m, n, k, left_format, right_format, layout, plan_code).num_bytes() == 0


def takes(left_format: Int, right_format: Int, layout: Int, plan_code: Int) -> Bool:
    """Says whether the fast kernels for MXFP4 weights are for a product, all addresses aligned."""
    var is_forced = plan_code == materialize[Plan.PORTABLE]().code()
    return takes_formats(left_format, right_format) and layout == PRESHUFFLED and not is_forced


def quantize[
    known_dtype: Int = ANY, known_format: Int = ANY
](call: QuantizeCall, mut queue: Some[Queue]) raises:
    """Quantizes [rows, k] floats into a plain operand."""
    comptime if fast.may_support(known_dtype, known_format):
        if fast.supports(call):
            return fast.quantize(call, queue)
    quantize_portably[known_dtype, known_format](call, queue)

"""The plan that a product gets, its own or that of a code, and the workspace that Python asks for."""

from ...launch.grid import Workspace, larger
from ...numbers.formats import NO_FORMAT
from ...problem import Problem
from ..plan import Kernel, PRESHUFFLED, Plan, takes_formats, takes_operands
from .choices import MAX_FEW_ROWS, choice_of_mapped, choice_of_mxfp8, choose
from .gemm import PLAIN, aligned_takes, fp8_takes, is_kept_bfloat16, mapped_takes
from .workspace import workspace_of as workspace_of_plan, workspace_of_aligned, workspace_of_mapped


def plan_of(problem: Problem, plan_code: Int) -> Plan:
    """Returns the plan for a problem, that of a code that is not 0, or the portable one."""
    comptime PORTABLE = Plan.PORTABLE
    var m, n, k = problem.m, problem.n, problem.k
    var left_format, right_format = problem.left.format, problem.right.format
    if plan_code == materialize[PORTABLE]().code():
        return PORTABLE
    if takes_operands(problem):
        if plan_code > 0:
            return Plan.from_code(plan_code)
        return choose(m, n, k, fp8_takes(problem), is_kept_bfloat16(problem)).plan
    if mapped_takes(problem):
        return plan_of_mapped(m, n, k, left_format, right_format, plan_code)
    if aligned_takes(problem):
        return plan_of_mxfp8(m, n, k, right_format, plan_code)
    return PORTABLE


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
    if layout == PLAIN and mapped_takes(left_format, right_format):
        return workspace_of_mapped(m, k)
    if aligned_takes(left_format, right_format):
        var plan = plan_of_mxfp8(m, n, k, right_format, plan_code)
        return workspace_of_aligned(m, n, k, plan.tokens, plan.kernel == Kernel.ALIGNED)
    if m <= MAX_FEW_ROWS and plan_code <= 0:
        return Workspace(0, 0)
    if plan_code > 0:
        return workspace_of_plan(m, n, k, Plan.from_code(plan_code))
    var space = workspace_of_plan(m, n, k, choose(m, n, k, False, False).plan)
    if fp8_takes(left_format, k):
        space = larger(space, workspace_of_plan(m, n, k, choose(m, n, k, True, False).plan))
    if left_format == NO_FORMAT:
        space = larger(space, workspace_of_plan(m, n, k, choose(m, n, k, False, True).plan))
    return space


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


def asks_for_none(problem: Problem, plan_code: Int) -> Bool:
    """Says so of a problem."""
    var left_format, right_format = problem.left.format, problem.right.format
    return asks_for_none(
        problem.m, problem.n, problem.k, left_format, right_format, problem.right.layout, plan_code
    )


def takes(left_format: Int, right_format: Int, layout: Int, plan_code: Int) -> Bool:
    """Says whether the fast kernels for MXFP4 weights are for a product, all addresses aligned."""
    var is_forced = plan_code == materialize[Plan.PORTABLE]().code()
    return takes_formats(left_format, right_format) and layout == PRESHUFFLED and not is_forced

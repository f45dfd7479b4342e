"""The plan that a product gets, its own or a forced one, and the workspace that Python asks for."""

from ...launch.grid import Workspace, larger
from ...numbers.formats import NO_FORMAT
from ...problem import Problem
from ...simt.host import takes as tiles_take, workspace_of_tiles
from ..plan import Kernel, OperandType, PRESHUFFLED, Plan, takes_formats, takes_operands
from .choices import MAX_FEW_ROWS, choice_of_mapped, choice_of_mxfp8, choose
from .gemm import PLAIN, aligned_takes, fp8_takes, is_kept_bfloat16, mapped_takes
from .workspace import workspace_of as workspace_of_plan, workspace_of_prepared, workspace_of_mapped


def forced_plan(text: StringSlice) raises -> Optional[Plan]:
    """Returns the plan that tests, tuning or a user force; an empty text leaves it to the table."""
    if text.byte_length() == 0:
        return None
    var plan = Plan.parse(text)
    if plan.kernel == Kernel.TILES:
        raise Error(String("plan: got '", text, "', expected 'portable', which chooses its tiles"))
    return plan


def plan_of(problem: Problem, forced: Optional[Plan]) -> Plan:
    """Returns the plan for a problem, a forced one for its operands, or the portable one."""
    var m, n, k = problem.m, problem.n, problem.k
    var left_format, right_format = problem.left.format, problem.right.format
    if is_portable(forced):
        return Plan.PORTABLE
    if takes_operands(problem):
        if is_of_mxfp4(forced):
            return forced.value()
        return choose(m, n, k, fp8_takes(problem), is_kept_bfloat16(problem)).plan
    if mapped_takes(problem):
        return plan_of_mapped(m, n, k, left_format, right_format, forced)
    if aligned_takes(problem):
        return plan_of_mxfp8(m, n, k, right_format, forced)
    return Plan.PORTABLE


def plan_of_mapped(
    m: Int, n: Int, k: Int, left_format: Int, right_format: Int, forced: Optional[Plan]
) -> Plan:
    """Returns the plan for E4M3 rows: a forced one for them, if any."""
    if forced and forced.value().kernel == Kernel.SS_E4M3:
        return forced.value()
    return choice_of_mapped(m, n, k, left_format, right_format).plan


def plan_of_mxfp8(m: Int, n: Int, k: Int, right_format: Int, forced: Optional[Plan]) -> Plan:
    """Returns the plan for MXFP8 activations: a forced one for them, if any."""
    if forced and forced.value().kernel in (Kernel.RS_E4M3, Kernel.SS_E4M3_PREPARED):
        return forced.value()
    return choice_of_mxfp8(m, n, k, right_format).plan


def workspace_of(
    m: Int,
    n: Int,
    k: Int,
    left_format: Int,
    right_format: Int,
    layout: Int,
    forced: Optional[Plan] = None,
) -> Workspace:
    """Returns the workspace that a product may want, with a forced plan or the table's.

    Only of MXFP8 and float scales, few rows want one. Results are not known here: those
    of float32 have another plan than those of two bytes, and the space is enough for either.
    """
    if is_portable(forced):
        return Workspace(0, 0)
    if layout == PLAIN and mapped_takes(left_format, right_format):
        return workspace_of_mapped(m, k)
    if aligned_takes(left_format, right_format):
        var plan = plan_of_mxfp8(m, n, k, right_format, forced)
        return workspace_of_prepared(m, n, k, plan)
    if is_of_mxfp4(forced):
        return workspace_of_plan(m, n, k, forced.value())
    if m <= MAX_FEW_ROWS:
        return Workspace(0, 0)
    var space = workspace_of_plan(m, n, k, choose(m, n, k, False, False).plan)
    if fp8_takes(left_format, k):
        space = larger(space, workspace_of_plan(m, n, k, choose(m, n, k, True, False).plan))
    if left_format == NO_FORMAT:
        space = larger(space, workspace_of_plan(m, n, k, choose(m, n, k, False, True).plan))
    return space


def lent(
    m: Int,
    n: Int,
    k: Int,
    left_format: Int,
    right_format: Int,
    layout: Int,
    forced: Optional[Plan] = None,
) -> Workspace:
    """Returns the workspace that a product is lent, whatever its addresses and types.

    If it is any, it is enough for the portable kernels too.
    """
    var space = workspace_of(m, n, k, left_format, right_format, layout, forced)
    # That is where fast kernels for few rows take it, at any address that is aligned.
    var is_ours = takes_formats(left_format, right_format) and layout == PRESHUFFLED
    if space.num_bytes() == 0 and is_ours and not is_portable(forced):
        return space
    return larger(space, workspace_of_tiles(m, n, k)) if tiles_take(m, k) else space


def is_of_mxfp4(forced: Optional[Plan]) -> Bool:
    """Says whether a forced plan is for MXFP4 weights; which activations, its launch says."""
    return forced and forced.value().kernel.operand != OperandType.E4M3


def is_portable(forced: Optional[Plan]) -> Bool:
    """Says whether a forced plan leaves products to the portable kernels."""
    return forced and forced.value().kernel == Kernel.PORTABLE

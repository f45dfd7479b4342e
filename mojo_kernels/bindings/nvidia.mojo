"""Host entries of NVIDIA GPUs: Hopper's kernels on Hopper, the portable ones on others.

Arguments are valid by contract, see
`hopper.dispatch`.
"""

from ..backend import has_hopper
from ..calls import QuantizeCall
from ..experts import ExpertsProblem, GroupedProblem
from ..hopper import dispatch as hopper
from ..hopper.experts import dispatch as hopper_experts
from ..hopper.host import moe, plans
from ..hopper.plan import Kernel, Plan
from ..launch.grid import Workspace, larger
from ..launch.queue import Queue
from ..problem import ANY, Known, Problem
from ..simt import experts as portable_experts
from ..simt import dispatch as portable
from ..simt.host import workspace_of as workspace_of_portable
from ..simt.quantize import quantize as quantize_portably


def quantize[
    known_dtype: Int = ANY, known_format: Int = ANY
](call: QuantizeCall, mut queue: Some[Queue]) raises:
    """Quantizes [rows, k] floats into a plain operand."""
    comptime if has_hopper():
        hopper.quantize[known_dtype, known_format](call, queue)
    else:
        quantize_portably[known_dtype, known_format](call, queue)


def forced_plan(text: StringSlice) raises -> Optional[Plan]:
    """Returns the plan that tests, tuning or a user force; an empty text leaves it to the table."""
    if text.byte_length() == 0:
        return None
    var plan = Plan.parse(text)
    if plan.kernel == Kernel.TILES:
        raise Error(String("plan: got '", text, "', expected 'portable', which chooses its tiles"))
    return plan


def multiply[
    known: Known
](problem: Problem, mut queue: Some[Queue], forced: Optional[Plan] = None) raises:
    """Computes left @ right.T + bias; a forced plan is Hopper's."""
    comptime if has_hopper():
        var plan = plans.plan_of(problem, forced)
        # Others than what was expected, at other addresses: tiles want what nobody has asked for.
        var is_asked = plan.kernel != Kernel.PORTABLE or not plans.asks_for_none(problem, forced)
        hopper.launch[known](problem, plan, queue, has_workspace=is_asked)
    else:
        portable.launch[known](problem, queue)


def workspace_of(
    m: Int,
    n: Int,
    k: Int,
    left_format: Int,
    right_format: Int,
    layout: Int,
    forced: Optional[Plan] = None,
) -> Workspace:
    """Returns the workspace that a product wants, whatever its addresses and types."""
    var portable_space = portable.workspace_of(m, n, k)
    comptime if has_hopper():
        if plans.asks_for_none(m, n, k, left_format, right_format, layout, forced):
            return Workspace(0, 0)
        var space = plans.workspace_of(m, n, k, left_format, right_format, layout, forced)
        return larger(space, portable_space)
    else:
        return portable_space


def workspace_of(problem: GroupedProblem) -> Workspace:
    """Returns the workspace of a grouped product."""
    comptime if has_hopper():
        return moe.workspace_of(problem)
    else:
        return Workspace(0, 0)


def workspace_of(problem: ExpertsProblem) -> Workspace:
    """Returns the workspace of a layer of experts."""
    comptime if has_hopper():
        return moe.workspace_of(problem)
    else:
        return workspace_of_portable(problem)


def multiply_grouped[known: Known](problem: GroupedProblem, mut queue: Some[Queue]) raises:
    """Computes the products of rows that are sorted by expert."""
    comptime if has_hopper():
        hopper_experts.multiply_grouped[known](problem, queue)
    else:
        portable_experts.multiply_grouped[known](problem, queue)


def multiply_experts[
    known_gate_up: Known, known_down: Known
](problem: ExpertsProblem, mut queue: Some[Queue]) raises:
    """Computes a layer of experts."""
    comptime if has_hopper():
        hopper_experts.multiply_experts[known_gate_up, known_down](problem, queue)
    else:
        portable_experts.multiply_experts[known_gate_up, known_down](problem, queue)

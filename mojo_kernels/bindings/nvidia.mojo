"""Host entries of NVIDIA GPUs: Hopper's kernels on Hopper, the portable ones on others.

Arguments are valid by contract, see
`hopper.dispatch`.
"""

from ..backend import has_hopper
from ..experts import ExpertsProblem, GroupedProblem
from ..hopper import dispatch as hopper, moe as hopper_experts
from ..hopper.host import gemm, moe
from ..hopper.plan import Plan
from ..launch.grid import Workspace
from ..launch.queue import Queue
from ..problem import Known, Problem
from ..simt import experts as portable_experts
from ..simt import dispatch as portable
from ..simt.host import workspace_of as workspace_of_portable


def multiply[
    known: Known
](problem: Problem, plan: Plan, mut queue: Some[Queue], *, is_lent: Bool) raises:
    """Computes left @ right.T + bias as planned, or by portable kernels: at other addresses than
    the plan is for, or on other GPUs than Hopper.

    Unless they are lent a workspace, portable kernels are those that want none.
    """
    comptime if has_hopper():
        if gemm.takes(problem):
            return hopper.launch[known](problem, plan, queue, is_lent)
    portable.launch[known](problem, queue, is_lent)


def workspace_of(m: Int, n: Int, k: Int) -> Workspace:
    """Returns the workspace that a product by portable kernels wants."""
    return portable.workspace_of(m, n, k)


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

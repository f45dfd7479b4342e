"""Launches of a Hopper GPU: the kernel that the table picks, or a plan names, or the portable one.

A problem is valid by contract: addresses on the device of the queue, checked sizes, positions in
the tables.
"""

from ...calls import QuantizeCall
from ...launch.queue import Queue, Workspace
from ...problem import Problem
from ...simt import matmul as portable
from ...simt.quantize import quantize as quantize_portably
from .. import quantize as fast
from ..few import matmul as few
from ..many import matmul as many
from ..middle import matmul as middle
from ..plan import Kernel, Plan
from ..staged.activations import workspace_of as workspace_of_stages
from .choices import MAX_FEW_ROWS, choose, plan_of


def multiply(problem: Problem, mut queue: Some[Queue], plan_code: Int = 0) raises:
    """Computes left @ right.T + bias; a plan that is not 0 takes the place of the table's."""
    var plan = Plan.PORTABLE
    if few.supports(problem):
        plan = plan_of(choose(problem.m, problem.n, problem.k))
        if plan_code > 0:
            plan = Plan.from_code(plan_code)
    launch(problem, plan, queue)


def launch(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Launches the kernel of a plan."""
    if plan.kernel == Kernel.FEW:
        few.launch(problem, plan, queue)
    elif plan.kernel == Kernel.MIDDLE:
        middle.launch(problem, plan, queue)
    elif plan.kernel == Kernel.MANY:
        many.launch(problem, plan, queue)
    else:
        portable.launch(problem, queue)


def workspace_of(m: Int, k: Int) -> Workspace:
    """Returns the workspace that a product of `m` rows of activations may want."""
    return Workspace(0, 0) if m <= MAX_FEW_ROWS else workspace_of_stages(m, k)


def quantize(call: QuantizeCall, mut queue: Some[Queue]) raises:
    """Quantizes [rows, k] floats into a plain operand."""
    if fast.supports(call):
        fast.quantize(call, queue)
    else:
        quantize_portably(call, queue)

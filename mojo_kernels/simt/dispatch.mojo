"""Products on any GPU: tiles on tensor cores where there are such, else, and of tiny ones, warps."""

from ..backend import has_warp_products
from ..launch.queue import Queue, Workspace
from ..problem import Known, Problem
from . import matmul as warps
from .tiles import kernel as tiles


def launch[
    known: Known
](problem: Problem, mut queue: Some[Queue], has_workspace: Bool = True) raises:
    """Launches what computes a problem; only tiles want a workspace."""
    comptime if has_warp_products():
        if has_workspace and tiles.supports(problem):
            return tiles.launch[known](problem, queue)
    warps.launch[known](problem, queue)


def workspace_of(m: Int, n: Int, k: Int) -> Workspace:
    """Returns the workspace that a product may want."""
    comptime if has_warp_products():
        if tiles.takes(m, k):
            return tiles.workspace_of(m, n, k)
    return Workspace(0, 0)

"""Products on any GPU: tiles on tensor cores where there are such and rows enough, else warps."""

from ..backend import has_warp_products
from ..launch.queue import Queue, Workspace
from ..problem import Known, Problem
from . import matmul as warps
from .tiles import kernel as tiles
from .tiles.operands import workspace_of as workspace_of_tiles


def launch[known: Known](problem: Problem, mut queue: Some[Queue]) raises:
    """Launches what computes a problem."""
    comptime if has_warp_products():
        if tiles.supports(problem):
            return tiles.launch[known](problem, queue)
    warps.launch[known](problem, queue)


def workspace_of(m: Int, n: Int, k: Int) -> Workspace:
    """Returns the workspace that a product may want."""
    comptime if has_warp_products():
        if tiles.takes(m):
            return workspace_of_tiles(m, n, k)
    return Workspace(0, 0)


def max_few_rows() -> Int:
    """Returns how many rows a product may have that wants no workspace."""
    return tiles.FEW_ROWS

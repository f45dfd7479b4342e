"""Products on any GPU: tiles on tensor cores where there are such, else, and of tiny ones, warps."""

from ..backend import has_warp_products
from ..launch.grid import Workspace
from ..launch.queue import Queue
from ..problem import Known, Problem
from . import matmul as warps
from .host import takes, workspace_of_tiles
from .tiles import kernel as tiles


def launch[known: Known](problem: Problem, mut queue: Some[Queue], is_lent: Bool) raises:
    """Launches what computes a problem; tiles want a workspace, and are for who is lent one."""
    comptime if has_warp_products():
        if is_lent and takes(problem):
            return tiles.launch[known](problem, queue)
    warps.launch[known](problem, queue)


def workspace_of(m: Int, n: Int, k: Int) -> Workspace:
    """Returns the workspace that a product may want."""
    comptime if has_warp_products():
        if takes(m, k):
            return workspace_of_tiles(m, n, k)
    return Workspace(0, 0)

"""What a Hopper GPU does for a product, asked without one."""

from std.math import ceildiv
from std.python import Python, PythonObject

from mojo_kernels.hopper.few import matmul as few
from mojo_kernels.hopper.few.shape import SHORT, Shape, TOKENS
from mojo_kernels.hopper.host.choices import CHOICES, Choice, PORTABLE, choose
from mojo_kernels.hopper.host.dispatch import workspace_of
from mojo_kernels.hopper.layout import BLOCK, TILE_ROWS
from mojo_kernels.hopper.many import matmul as many
from mojo_kernels.hopper.middle import matmul as middle
from mojo_kernels.hopper.plan import Kernel, Plan, takes_formats
from mojo_kernels.launch.queue import Grid
from mojo_kernels.simt import matmul as portable

comptime WARP_THREADS = 32


def explain_cuda(arguments: PythonObject) raises -> PythonObject:
    """Takes (m, n, k, left format, right format), -1 for activations that stay bfloat16.

    Returns the row of Hopper's table, for weights preshuffled for CUDA; -1 for the portable kernel.
    """
    var m, n, k = Int(py=arguments[0]), Int(py=arguments[1]), Int(py=arguments[2])
    if not takes_formats(Int(py=arguments[3]), Int(py=arguments[4])):
        return _row(materialize[PORTABLE](), -1, m, n, k)
    var row = choose(m, n, k)
    comptime for i in range(len(CHOICES)):
        comptime choice = CHOICES[i]
        if row == i:
            return _row(materialize[choice](), row, m, n, k)
    raise Error("no row covers the shape")


def _row(choice: Choice, row: Int, m: Int, n: Int, k: Int) raises -> PythonObject:
    var plan = choice.plan
    var grid = _grid(plan, m, n, k)
    var is_portable = plan.kernel == Kernel.PORTABLE
    return Python.dict(
        kernel=PythonObject(plan.kernel.file()),
        reason=PythonObject(String(choice.reason)),
        row=PythonObject(row),
        cut=PythonObject(plan.name()),
        tile_m=PythonObject(plan.tokens),
        tile_n=PythonObject(plan.columns),
        splits=PythonObject(plan.ranks),
        waves=PythonObject(grid.threads // WARP_THREADS),
        grid=Python.tuple(grid.x, grid.y, grid.z),
        threads=PythonObject(grid.threads),
        workspace_bytes=PythonObject(0 if is_portable else workspace_of(m, k).num_bytes()),
    )


def _grid(plan: Plan, m: Int, n: Int, k: Int) -> Grid:
    """Returns the grid of a plan."""
    if plan.kernel == Kernel.FEW:
        var share = ceildiv(k // BLOCK, plan.ranks)
        var shape = Shape(plan.tokens // TOKENS, plan.columns // TILE_ROWS, False)
        shape.is_short = share <= SHORT * shape.k_warps()
        return few.grid(m, n, plan, shape, share)
    if plan.kernel == Kernel.MIDDLE:
        return middle.grid[64](m, n, plan) if plan.tokens == 64 else middle.grid[128](m, n, plan)
    if plan.kernel == Kernel.MANY:
        return many.grid(m, n)
    return portable.grid(m, n)

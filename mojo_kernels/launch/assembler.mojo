"""A queue on which nothing runs: it keeps the machine code of what would have been launched.

The assembly is that of the code object that `HipQueue` launches, for a device that
need not be there.
"""

from max.gpu.host.compile import _compile_code, get_gpu_target
from std.builtin.device_passable import DevicePassable

from ..backend import CDNA4, CDNA4_OPTIONS
from .grid import Grid, Workspace
from .queue import Queue


struct Assembler(Queue):
    """Keeps assembly texts in the order of the launches."""

    var texts: List[String]

    def __init__(out self):
        """Begins with nothing."""
        self.texts = []

    def launch[
        declared: TypeList[Trait=AnyType, ...],
        //,
        kernel: def(* args: * declared) thin -> None,
        *Given: DevicePassable,
        sums_apart: Bool = False,
    ](mut self, grid: Grid, *args: *Given) raises:
        """Compiles the kernel; it is not launched."""
        var code = _compile_code[
            kernel, target=get_gpu_target[CDNA4](), compile_options=CDNA4_OPTIONS[sums_apart]
        ]()
        self.texts.append(String(code.asm))

    def workspace(mut self, space: Workspace) raises -> Int:
        """Returns no memory."""
        return 0

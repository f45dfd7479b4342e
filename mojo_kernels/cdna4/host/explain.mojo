"""What the dispatch does with a product, in words and numbers, without a launch."""

from ...launch.queue import Grid, Workspace
from ...numbers.formats import Format
from ...numbers.rounding import Rounding
from ..prefill.crew import workspace_of
from ..prefill.shape import grid_of
from ..types import Formats, ProductTypes, has_kernels, unsupported
from .choices import CHOICES, Choice, Family
from .dispatch import choose, quantized_workspace


@fieldwise_init
struct Explanation(Copyable, Movable):
    """The row of the table for a product, and its launch."""

    var row: Int
    var choice: Choice
    var k_tail: Bool
    """Whether the kernel is the one that can end within a step."""
    var chunks_per_wave: Int
    """Steps of a wave of a decode or middle kernel; 0 for others."""
    var grid: Grid
    var workspace: Workspace
    var quantizes_first: Bool
    """Whether a launch of its own makes codes of floats before."""

    def kernel(self) -> String:
        """Returns the file of the kernel."""
        var room = "decode" if self.choice.family == Family.DECODE else "prefill"
        room = "middle" if self.choice.family == Family.MIDDLE else room
        return String("cdna4/", room, "/kernel.mojo")


def explain(m: Int, n: Int, k: Int, formats: Formats, *, is_encoded: Bool) raises -> Explanation:
    """Returns what happens to bfloat16 activations, or to codes, and to weights [n, k]."""
    comptime BF16 = DType.bfloat16
    if not has_kernels(formats):
        raise Error(unsupported(formats))
    var x = Optional[DType](None) if is_encoded else Optional(BF16)
    var types = ProductTypes(formats, x, Rounding.EVEN, BF16, None)
    var is_first = types.quantizes_first()
    var row = choose(m, n, k, types.encoded() if is_first else types)
    comptime for i in range(len(CHOICES)):
        comptime choice = CHOICES[i]
        if row == i:
            var found = _explain(choice, row, m, n, k, formats.left, has_codes=not is_encoded)
            if is_first or choice.quantizes_first(types):
                var handed_over = quantized_workspace(formats.left, m, k).handed_over_bytes
                found.workspace.handed_over_bytes = handed_over
                found.quantizes_first = True
            return found^
    raise Error(String("no row ", row))


def _explain(
    choice: Choice, row: Int, m: Int, n: Int, k: Int, left: Format, *, has_codes: Bool
) -> Explanation:
    """Returns the explanation of a row."""
    var k_tail = choice.has_tail(k)
    if choice.family == Family.DECODE:
        var shape = choice.shape
        var chunks = shape.chunks_per_wave(k)
        var grid, space = shape.grid(m, n), shape.workspace(m, n)
        return Explanation(row, choice, k_tail, chunks, grid, space, False)
    if choice.family == Family.MIDDLE:
        var shape = choice.middle()
        var stages = shape.stages(k)
        var grid, space = shape.grid(m, n), shape.workspace(m, n)
        return Explanation(row, choice, k_tail, stages, grid, space, False)
    var workspace = workspace_of(left, choice.m_tiles, m, k, has_codes=has_codes)
    return Explanation(row, choice, k_tail, 0, grid_of(choice.m_tiles, m, n), workspace, False)

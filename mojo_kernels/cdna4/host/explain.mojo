"""What the dispatch does with a product, in words and numbers."""

from ...launch.recorder import Recorded, Recorder
from ...numbers.rounding import Rounding
from ..instructions.matrix import LANES
from ..types import Formats, ProductTypes, WORKSPACE
from .dispatch import CHOICES, Choice, Family, choose, launch


@fieldwise_init
struct Explanation(Copyable, Movable):
    """The row of the table for a product, and its launch."""

    var row: Int
    var choice: Choice
    var k_tail: Bool
    """Whether the kernel is the one that can end within a step."""
    var chunks_per_wave: Int
    """Steps of a wave of a decode kernel; 0 for others."""
    var recorded: Recorded
    """The first launch."""

    def kernel(self) -> String:
        """Returns the file of the kernel."""
        var room = "decode" if self.choice.family == Family.DECODE else "prefill"
        return String("cdna4/", room, "/kernel.mojo")


def explain(m: Int, n: Int, k: Int, *, is_encoded: Bool) raises -> Explanation:
    """Returns what happens to bfloat16 activations, or to codes, of weights [n, k]."""
    if is_encoded:
        return _explain[None](m, n, k)
    return _explain[Optional(DType.bfloat16)](m, n, k)


def _explain[x: Optional[DType]](m: Int, n: Int, k: Int) raises -> Explanation:
    comptime types = ProductTypes(Formats.MXFP4, x, Rounding.EVEN, DType.bfloat16, None)
    var recorder = Recorder(WORKSPACE)
    launch[types](types.problem(m, n, k), recorder)
    var row = choose(m, n, k, types)
    comptime for i in range(len(CHOICES)):
        comptime choice = CHOICES[i]
        if row == i:
            var chunks = choice.shape.chunks_per_wave(k) if choice.family == Family.DECODE else 0
            return Explanation(row, choice, choice.has_tail(k), chunks, recorder.launches[0].copy())
    raise Error(String("no row ", row))

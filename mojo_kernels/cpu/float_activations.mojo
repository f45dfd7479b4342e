"""Activations that stay floats, in the order in which the product of floats reads them.

Every number is rounded to bfloat16, to nearest even, if it is not bfloat16 yet. A block
becomes the words of its steps, see `float_dot`; blocks lie in the order that `block_order`
pictures.

A row knows the window of its exponent fields, zeros left out. With the window of a weight
tile it tells whether float32 can take their sums, see `float_panel`.
"""

from layout import Coord
from std.memory import bitcast
from std.sys import CompilationTarget

from ..codec import FloatBits, round_to
from ..formats import BLOCK
from ..layouts import OperandShape
from ..operands import Bytes, Flat, Matrix
from .activations import ScaleWindow
from .block_order import BlockOrder
from .float_dot import STEPS, activation_words
from .scratch import Scratch, padded
from .threads import Work

comptime GROUP_ROWS = 8 if CompilationTarget.has_avx512f() else 2
"""Rows whose sums of a block fit in the vector registers together."""
comptime STRETCH_BLOCKS = 8
"""Blocks of K that are multiplied at a time: the weights of a stretch, decoded,
fit the first-level cache."""


@fieldwise_init
struct FloatActivations(TrivialRegisterPassable):
    """All rows of the left operand."""

    var shape: OperandShape
    """M and k."""
    var words: Flat[DType.uint32]
    """`STEPS` words for each block."""
    var lows: Bytes
    """The low end of each row's exponent window."""
    var highs: Bytes
    """The high end of each row's exponent window."""

    @staticmethod
    def num_bytes(shape: OperandShape) -> Int:
        """Returns the scratch memory that `carve` takes."""
        var blocks = shape.rows * shape.k_blocks()
        return padded[DType.uint32](blocks * STEPS) + 2 * padded[DType.uint8](shape.rows)

    @staticmethod
    def carve(shape: OperandShape, mut scratch: Scratch) -> Self:
        """Takes room for `shape` from `scratch`."""
        var blocks = shape.rows * shape.k_blocks()
        return Self(
            shape,
            scratch.carve[DType.uint32](blocks * STEPS),
            scratch.carve[DType.uint8](shape.rows),
            scratch.carve[DType.uint8](shape.rows),
        )

    @always_inline
    def order(self) -> BlockOrder[GROUP_ROWS, STRETCH_BLOCKS]:
        """Returns the place of every block."""
        return BlockOrder[GROUP_ROWS, STRETCH_BLOCKS](self.shape)

    def window(self, first_row: Int, num_rows: Int) -> ScaleWindow:
        """Returns the exponent window of some rows."""
        var window = ScaleWindow.EMPTY
        for row in range(first_row, first_row + num_rows):
            window.low = min(window.low, Int(self.lows.load[width=1](Coord(row))))
            window.high = max(window.high, Int(self.highs.load[width=1](Coord(row))))
        return window


@fieldwise_init
struct KeepGroups[dtype: DType](Work):
    """Fills `FloatActivations`, some groups of rows a task."""

    var x: Matrix[Self.dtype]
    """The activations, [M, k]."""
    var out: FloatActivations
    """What is filled."""
    var groups_per_task: Int
    """Groups of rows of a task."""

    def run(self, task: Int):
        """Fills the groups of task `task`."""
        var rows_per_task = self.groups_per_task * GROUP_ROWS
        var first = task * rows_per_task
        for row in range(first, min(first + rows_per_task, self.out.shape.rows)):
            self._keep(row)

    def _keep(self, row: Int):
        """Writes the words of a row and its window."""
        comptime bf16 = FloatBits[DType.bfloat16]
        comptime Magnitudes = SIMD[bf16.bits, BLOCK]
        var order = self.out.order()
        var least_less_1 = Magnitudes(Magnitudes.MAX)
        var largest = Magnitudes(0)
        for block in range(self.out.shape.k_blocks()):
            var floats = self.x.load[width=BLOCK, alignment=1](Coord(row, block * BLOCK))
            var kept = _rounded(floats)
            var at = order.index(row, block) * STEPS
            self.out.words.store[alignment=4](Coord(at), activation_words(kept))

            var magnitudes = bf16.of(kept) & Magnitudes(bf16.MAGNITUDE)
            largest = max(largest, magnitudes)
            # One less than zero wraps around to more than any magnitude.
            least_less_1 = min(least_less_1, magnitudes - 1)

        var least = Int(least_less_1.reduce_min()) + 1
        var low = min(least >> bf16.MANTISSA_BITS, ScaleWindow.EMPTY.low)
        self.out.lows.store(Coord(row), UInt8(low))
        self.out.highs.store(Coord(row), UInt8(Int(largest.reduce_max()) >> bf16.MANTISSA_BITS))


@always_inline
def _rounded[dtype: DType](x: SIMD[dtype, BLOCK]) -> SIMD[DType.bfloat16, BLOCK]:
    comptime if dtype == DType.bfloat16:
        return rebind[SIMD[DType.bfloat16, BLOCK]](x)
    else:
        return round_to[DType.bfloat16](x.cast[DType.float32]())

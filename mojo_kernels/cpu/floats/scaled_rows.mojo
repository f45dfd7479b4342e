"""Activations whose scales are floats: elements as bfloat16, and a factor beside each block.

    row, of 160 elements       0 .. 127                    128 .. 159
    scales of `fp8_block`      s0                          s1
    words, blocks of 32        elements 0 .. 31, ..        elements 128 .. 159
    factors                    s0     s0     s0     s0     s1

Numbers under E4M3 scales are theirs times the elements, and the factors the tensor scale of the row.
"""

from layout import Coord
from std.math import ceildiv
from std.memory import bitcast

from ...numbers.floats import F32_MANTISSA_BITS
from ...numbers.scales import E8M0_BIAS, E8M0_NAN
from ..encode import FloatScaledBlock
from ..quantize import groups_per_task
from ..ranges import RangeWork, RowRange, RowSources
from ..scaled_rows import ScaledRows
from ..vectors import BLOCK
from ..window import ScaleWindow, float_scale_ends
from .activations import Block, FloatActivations, LARGEST_FIELD, exact_bf16, window_of
from .dot import STEPS, activation_words


@fieldwise_init
struct FillScaledRows[Source: ScaledRows](RangeWork):
    """Fills `FloatActivations`, some groups of rows a task."""

    var source: Self.Source
    var sources: RowSources
    """Which rows of the source."""
    var out: FloatActivations

    def num_tasks(self, rows: RowRange) -> Int:
        """Returns how many tasks the groups of a range are."""
        var groups = self.out.of_range(rows).groups
        return ceildiv(groups.count, groups_per_task(self.out.shape.k, groups.largest()))

    def run(self, rows: RowRange, task: Int):
        """Fills the groups of a task."""
        var part = self.out.of_range(rows)
        var groups = part.groups
        var count = groups_per_task(part.shape.k, groups.largest())
        var last = min((task + 1) * count, groups.count)
        for row in range(groups.start(task * count), groups.start(last)):
            part.windows.put(row, self._fill(self.sources.of(rows.first + row), row, part))

    def _fill(self, source_row: Int, row: Int, part: FloatActivations) -> ScaleWindow:
        """Writes words and factors of a row, and returns the window of their products."""
        var order, k = part.order(), part.shape.k
        var k_bits = self.source.shape().k_bits
        var window = ScaleWindow.EMPTY
        for scale_block in range(self.source.shape().k_blocks(k)):
            var first = scale_block << k_bits
            var last = k if k - first <= 1 << k_bits else first + (1 << k_bits)
            var scale = self.source.scale(source_row, first, last)
            var field = (bitcast[DType.uint32](scale) >> F32_MANTISSA_BITS) & 255
            var scale_ends = float_scale_ends[1](field)
            for block in range(first // BLOCK, last // BLOCK):
                var numbers = _numbers_of(self.source.block(source_row, block, scale))
                var index = order.index(row, block)
                part.words.store[alignment=4](Coord(index * STEPS), activation_words(numbers))
                var ends = window_of(numbers)
                # NaN and infinity reach the window, those of a scale even above zeros.
                if ends.high > LARGEST_FIELD or Int(scale_ends[1]) == E8M0_NAN:
                    window = window.including(LARGEST_FIELD + 1)
                elif ends.high > 0:
                    var low = ends.low + Int(scale_ends[0]) - E8M0_BIAS
                    var high = ends.high + Int(scale_ends[1]) - E8M0_BIAS
                    window = window.including(max(low, 0))
                    window = window.including(min(high, LARGEST_FIELD + 1))
                else:
                    part.factors.store(Coord(index), Float32(0))
                    continue
                part.factors.store(Coord(index), scale)
        return window


@always_inline
def _numbers_of(block: FloatScaledBlock[_]) -> Block:
    """Returns the numbers of a block, which bfloat16 holds."""
    return exact_bf16(rebind[SIMD[DType.float32, BLOCK]](block.numbers()))

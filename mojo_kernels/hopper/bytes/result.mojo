"""How sums meet their factors: stage by stage, or in the end.

A lane has sums of pairs of tokens, of an octet of tokens each, and of two weight rows:

    lane 4 * r + p holds      rows r, r + 8 of tokens 2 * p, 2 * p + 1, 2 * p + 8, 2 * p + 9, ..
"""

from layout import Coord, row_major
from max.gpu.sync import syncwarp
from std.math import fma
from std.memory import bitcast

from ...simt.views import flat_of
from ..fp8.result import RowFactors
from ..instructions.shared_memory import load_pair
from ..instructions.warp import lane_here
from ..instructions.wgmma import FP8_TOKENS, Fp8Sums, OCTET, PART_SUMS
from ..layout import K_LANES
from ..many.result import Columns
from ..staged.weights import ROWS
from .stages import TokenStages
from .weights import Factors, WeightScales

comptime PAIR = 2
"""Tokens of a lane in an octet."""


@always_inline
def add_scaled(partial: Fp8Sums, tokens_at: UInt32, factors: Factors, mut sums: Fp8Sums):
    """Adds sums, times the factors of weight rows and of tokens, a set of which lies somewhere.

    No lane of the warp reads the set afterwards.
    """
    comptime order = row_major[FP8_TOKENS // OCTET, ROWS, PAIR]()
    var pairs = tokens_at + lane_here() % UInt32(K_LANES) * UInt32(4 * PAIR)
    comptime for octet in range(FP8_TOKENS // OCTET):
        var tokens = bitcast[DType.float32, PAIR](load_pair(pairs + UInt32(4 * OCTET * octet)))
        comptime for row in range(ROWS):
            comptime for token in range(PAIR):
                comptime part, at = divmod(Int(order(Coord(octet, row, token))), PART_SUMS)
                sums[part][at] = fma(
                    partial[part][at] * factors[row], tokens[token], sums[part][at]
                )
    syncwarp()


@fieldwise_init
struct TileFactors[in_the_end: Bool](RowFactors):
    """The factors of sums on their way to C: of whole rows, or of none."""

    var stages: TokenStages
    var scales: WeightScales

    @always_inline
    def of_weight(self, row: Int) -> Float32:
        comptime if Self.in_the_end:
            return self.scales.at(self.scales.of_row(UInt32(row)), 0)
        else:
            return 1

    @always_inline
    def scale(self, sums: Columns, token: Int, of_weights: Columns) -> Columns:
        comptime if Self.in_the_end:
            # The token's last: only C itself may be too large or too small.
            return sums * of_weights * flat_of(self.stages.factor(UInt32(token), 0, 0))[0]
        else:
            return sums

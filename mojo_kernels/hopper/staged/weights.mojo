"""The weights of a consumer warp: from a stage to operands in registers.

A warp multiplies 16 weight rows, mostly half a tile. Of each block of a stage a lane reads eight
bytes of codes, of two rows eight codes each, and the words of scales that have theirs.
"""

from layout import Coord
from max.gpu import thread_idx

from ..instructions.packed import join_bytes, multiply_pairs_by_half
from ..instructions.shared_memory import load_pair, load_word, store_word
from ..instructions.warp import any_lane, keep_branch
from ..layout import K_LANES, TILE_ROWS
from ..operands.weights import (
    Rows,
    any_overflows,
    may_need_two_factors,
    scaled_pairs_of_any,
    single_factor,
    unscaled_pairs,
)
from ..pipeline.stages import RsStage
from ..shapes import HALVES, STEP_BLOCKS, TILES, WARP_ROWS

comptime ROWS = 2
"""Rows of a lane."""


@always_inline
def half_of(warp: UInt32) -> UInt32:
    """Returns which half of its tile a consumer warp multiplies."""
    return warp // UInt32(TILES) % UInt32(HALVES)


@always_inline
def first_row_of(warp: UInt32) -> UInt32:
    """Returns the first weight row of a consumer warp, of those of its group."""
    return warp % UInt32(TILES) * UInt32(TILE_ROWS) + half_of(warp) * UInt32(WARP_ROWS)


trait WeightReader(TrivialRegisterPassable):
    """Where a warp finds its weight rows in a stage."""

    def load(self, stage: RsStage[_], num_blocks: UInt32) -> StepWeights:
        """Loads them from a stage that is full, of which so many blocks exist."""
        ...


@fieldwise_init
struct HalfTile(WeightReader):
    """Reads the rows of `first_row_of`."""

    var warp: UInt32

    @always_inline
    def load(self, stage: RsStage[_], num_blocks: UInt32) -> StepWeights:
        return StepWeights.load(stage, self.warp, num_blocks)


@fieldwise_init
struct StepWeights(TrivialRegisterPassable):
    """What a lane has of its warp's rows in a step."""

    var words: SIMD[DType.uint32, ROWS * STEP_BLOCKS]
    """Words of codes, the first block's two rows first."""
    var scales: SIMD[DType.uint32, STEP_BLOCKS]
    """Scales of both rows, each in its own half of the register, one register a block."""

    @staticmethod
    @always_inline
    def load(stage: RsStage[_], warp: UInt32, num_blocks: UInt32) -> Self:
        """Loads a stage that is full, of which so many blocks exist."""
        var lane = UInt32(thread_idx.x) % 32
        var tile = warp % UInt32(TILES)
        var half = half_of(warp)
        var loaded = Self(0, 0)
        comptime for block in range(STEP_BLOCKS):
            var codes_at = stage.codes().at(Coord(tile, block, lane, half * UInt32(ROWS)))
            var scales_at = stage.scales().at(Coord(tile, block, lane // UInt32(K_LANES)))
            loaded.words = loaded.words.insert[offset=ROWS * block](load_pair(codes_at))
            loaded.scales[block] = join_bytes(load_word(scales_at), 0x4140 + 0x0202 * half)
        return loaded.without_end(num_blocks)

    @always_inline
    def without_end(self, num_blocks: UInt32) -> Self:
        """Returns the weights of as many blocks as exist.

        Codes of a block past the end are whatever they are: finite, times tokens of zero.
        """
        var kept = self
        if num_blocks < UInt32(STEP_BLOCKS):
            kept.scales[1] = 0
        return kept

    @always_inline
    def may_need_two(self) -> Bool:
        """Says whether one factor may not do for all scales of the warp."""
        return any_lane(may_need_two_factors(self.scales.reduce_or()))

    @always_inline
    def decode[block: Int](self, may_need_two: Bool, flag: UInt32) -> Rows[ROWS]:
        """Decodes a block; raises the flag where bfloat16 cannot hold it."""
        var words = self.words.slice[ROWS, offset=ROWS * block]()
        var scales = self.scales[block]
        var operands = Rows[ROWS](uninitialized=True)
        if may_need_two:
            keep_branch()
            if any_overflows(scales):
                store_word(flag, 1)
            comptime for row in range(ROWS):
                operands[row] = scaled_pairs_of_any(words[row], (scales >> UInt32(16 * row)) & 0xFF)
            return operands^
        var factors = single_factor(scales)
        comptime for row in range(ROWS):
            operands[row] = multiply_pairs_by_half[row == 1](unscaled_pairs(words[row]), factors)
        return operands^

"""Codes of weights become bfloat16 operands in registers: the left side of an RS main loop.

A warp multiplies 16 weight rows. Of each block of a stage a lane reads eight codes of two rows, and
their scales:

    rows of a warp     a lane's two                which
    plain              half of a tile              r, r + 8 of the half       r = lane / 4
    gates and ups      neighbours                  row 2 r is a gate, 2 r + 1 its up, or both by turns
                       halves                      eight rows, and eight that are half the weights on
"""

from layout import Coord
from max.gpu import thread_idx

from ...simt.instructions import pick_bytes
from ..instructions.packed import LOW_BYTES, join_bytes, multiply_pairs_by_half
from ..instructions.shared_memory import load_pair, load_word, store_word
from ..instructions.warp import any_lane, keep_branch
from ..layout import K_LANES, TILE_ROWS
from ..codec import (
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
    """Returns the first weight row of a consumer warp, of those of its CTA."""
    return warp % UInt32(TILES) * UInt32(TILE_ROWS) + half_of(warp) * UInt32(WARP_ROWS)


trait WeightReader(TrivialRegisterPassable):
    """Finds a lane's two weight rows in a stage."""

    def load(self, stage: RsStage[_], num_blocks: UInt32) -> StageWeights:
        """Loads them from a stage that is full, of which so many blocks exist."""
        ...


@fieldwise_init
struct HalfTile(WeightReader):
    """Reads the rows of `first_row_of`."""

    var warp: UInt32

    @always_inline
    def load(self, stage: RsStage[_], num_blocks: UInt32) -> StageWeights:
        var lane = UInt32(thread_idx.x) % 32
        var tile = self.warp % UInt32(TILES)
        var half = half_of(self.warp)
        var loaded = StageWeights(0, 0)
        comptime for block in range(STEP_BLOCKS):
            var codes_at = stage.codes().at(Coord(tile, block, lane, half * UInt32(ROWS)))
            var scales_at = stage.scales().at(Coord(tile, block, lane // UInt32(K_LANES)))
            loaded.words = loaded.words.insert[offset=ROWS * block](load_pair(codes_at))
            loaded.scales[block] = join_bytes(load_word(scales_at), 0x4140 + 0x0202 * half)
        return loaded.without_end(num_blocks)


@fieldwise_init
struct GatePairs(WeightReader):
    """Reads eight gates and their ups, or sixteen rows of both by turns."""

    var tile: UInt32
    """The tile of the stage that has a lane's first row."""
    var next_tile: UInt32
    """The one that has its second row."""
    var word: UInt32
    """Which of the lane's words of a tile is that of the first row."""
    var next_word: UInt32
    """The same of the second row."""

    @staticmethod
    @always_inline
    def of(warp: UInt32, are_neighbours: Bool) -> Self:
        """Returns where a warp finds the rows of its eight hidden numbers."""
        if are_neighbours:
            var tile, half = divmod(warp, UInt32(HALVES))
            return Self(tile, tile, UInt32(ROWS) * half, UInt32(ROWS) * half + 1)
        var tile, word = divmod(warp, UInt32(TILES))
        return Self(tile, tile + UInt32(TILES // 2), word, word)

    @always_inline
    def load(self, stage: RsStage[_], num_blocks: UInt32) -> StageWeights:
        var lane = UInt32(thread_idx.x) % 32
        var row_lane = lane // UInt32(K_LANES)
        # Bytes of both words of scales: one for the lower half, one for the upper one.
        var selector = self.word | (UInt32(4) + self.next_word) << 8
        var loaded = StageWeights(0, 0)
        comptime for block in range(STEP_BLOCKS):
            var codes, scales = stage.codes(), stage.scales()
            var first = codes.at(Coord(self.tile, block, lane, self.word))
            var second = codes.at(Coord(self.next_tile, block, lane, self.next_word))
            loaded.words[ROWS * block] = load_word(first)
            loaded.words[ROWS * block + 1] = load_word(second)
            var both = pick_bytes(
                load_word(scales.at(Coord(self.tile, block, row_lane))),
                load_word(scales.at(Coord(self.next_tile, block, row_lane))),
                selector,
            )
            loaded.scales[block] = both & LOW_BYTES
        return loaded.without_end(num_blocks)


@fieldwise_init
struct StageWeights(TrivialRegisterPassable):
    """What a lane has of its warp's rows in a stage."""

    var words: SIMD[DType.uint32, ROWS * STEP_BLOCKS]
    """Words of codes, the first block's two rows first."""
    var scales: SIMD[DType.uint32, STEP_BLOCKS]
    """Scales of both rows, each in its own half of the register, one register a block."""

    @always_inline
    def without_end(self, num_blocks: UInt32) -> Self:
        """Returns the weights of as many blocks as exist.

        Codes of a block past the end are whatever they are: finite, times rows of zeros.
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

"""The weights of a consumer warp: from the codes of a stage to operands in registers.

Two warps share a tile of 32 weight rows. A lane reads eight of the sixteen bytes that lie together,
codes of two rows, and the word of scales that has theirs. Lanes that are eight apart find theirs in
the same banks, so that one reads the other half:

    rows of a tile, by lane     0 .. 7, 16 .. 23    8 .. 15, 24 .. 31
    first warp                  r, r + 8            r + 16, r + 24       r = lane / 4
    second warp                 r + 16, r + 24      r, r + 8

An instruction has 32 of K. Which ones is nobody's concern, if tokens have the same, see `prepare.stores`:
lane 4 r + t decodes block t, eight codes an instruction, so that what follows from its scales is found
once a stage.

    bits     of block t, instruction i has     first word, and second
    4        chunk i ^ t                       its only one
    8        chunk i, or i ^ 1 for odd t       the first one, or the second one for t > 1

Of different blocks these are different chunks, or words, because blocks are in the same banks.
"""

from layout import Coord

from ..dense.result import WarpColumns
from ..instructions.shared_memory import load_pair, load_word
from ..instructions.warp import keep_here, lane_here
from ..instructions.wgmma import STEP_BYTES
from ..layout import K_LANES
from ..shapes import HALVES, OCTET, ROW_BYTES, WARP_ROWS
from .operands import DirectOperands, GRANULE_BITS, GRANULE_WORDS, Words
from .stages import DirectStages

comptime INSTRUCTIONS = ROW_BYTES // STEP_BYTES
"""Instructions of a stage."""
comptime Fragments = Array[SIMD[DType.uint32, 4], INSTRUCTIONS]
"""A lane's weights in a stage, for each instruction."""


@always_inline
def half_of(warp: UInt32) -> UInt32:
    """Returns which half of a tile's rows the lane has."""
    return (warp ^ lane_here() // UInt32(OCTET)) % UInt32(HALVES)


@always_inline
def columns_of(first_column: UInt32, warp: UInt32) -> WarpColumns:
    """Returns the columns of C of a warp, and of the lane."""
    var first = first_column + warp * UInt32(WARP_ROWS)
    var tile = first - warp % UInt32(HALVES) * UInt32(WARP_ROWS)
    var row = half_of(warp) * UInt32(WARP_ROWS) + lane_here() // UInt32(K_LANES)
    return WarpColumns(first, tile + row)


trait WordReader(TrivialRegisterPassable):
    """Finds what a lane needs of its two weight rows in a stage."""

    def words[bits: Int, instruction: Int](self, stages: DirectStages[_, bits, _]) -> Words[bits]:
        """Loads codes of an instruction: words of both rows, then their second ones, if any."""
        ...

    def scales(self, stages: DirectStages[...]) -> UInt32:
        """Loads the scales of the lane's block, bytes."""
        ...


@fieldwise_init
struct LaneWords(TrivialRegisterPassable):
    """Where a lane's words are in a stage, and its scales, from the stage's codes and scales on."""

    var codes: SIMD[DType.uint32, INSTRUCTIONS]
    """Of four bits the word of each instruction; of eight first and second words of two of them."""
    var scales: UInt32

    @staticmethod
    @always_inline
    def of(stages: DirectStages[...], tile: UInt32, row: UInt32) -> Self:
        """Returns those of some row of a tile, kept."""
        comptime Stages = type_of(stages)
        var row_lane, block = divmod(lane_here(), UInt32(K_LANES))
        var codes = SIMD[DType.uint32, INSTRUCTIONS]()
        comptime for i in range(INSTRUCTIONS):
            var word = UInt32(i) ^ block
            comptime if Stages.bits != GRANULE_BITS:
                comptime second, odd = divmod(i, 2)
                word = (UInt32(odd) ^ block % 2) * 2 + (UInt32(second) ^ block // 2)
            var granule = block * UInt32(Stages.BLOCK_GRANULES)
            var lane = row_lane * UInt32(K_LANES) + word
            codes[i] = Stages.Codes(0).at(Coord(tile, granule, lane, row))
        var scales = SIMD[DType.uint32, 1](Stages.Scales(0).at(Coord(tile, block, row_lane)))
        return Self(keep_here(codes), keep_here(scales)[0])


@fieldwise_init
struct LanePlaces(WordReader):
    """Where a lane's codes and scales are: rows that are an octet apart."""

    var first: LaneWords

    @staticmethod
    @always_inline
    def of_warp(stages: DirectStages[...], warp: UInt32) -> Self:
        """Returns those of this lane."""
        return Self(
            LaneWords.of(stages, warp // UInt32(HALVES), half_of(warp) * UInt32(GRANULE_WORDS))
        )

    @always_inline
    def words[bits: Int, instruction: Int](self, stages: DirectStages[_, bits, _]) -> Words[bits]:
        comptime COUNT = bits // GRANULE_BITS
        comptime granule, first = divmod(instruction, INSTRUCTIONS // COUNT)
        var found = Words[bits]()
        comptime for second in range(COUNT):
            comptime at = first + INSTRUCTIONS // COUNT * second
            var codes = type_of(stages.codes())(stages.codes().base + self.first.codes[at])
            var pair = load_pair(codes.at(Coord(0, granule, 0, 0)))
            comptime for row in range(GRANULE_WORDS):
                found[GRANULE_WORDS * second + row] = pair[row]
        return found

    @always_inline
    def scales(self, stages: DirectStages[...]) -> UInt32:
        return load_word(stages.scales().base + self.first.scales)


@always_inline
def fragments_of[
    Operands: DirectOperands
](
    rows: Operands.Rows,
    stages: DirectStages[_, Operands.CODE_BITS, _],
    reader: Some[WordReader],
) -> Fragments:
    """Returns the weights of a stage that is full."""
    comptime BITS = Operands.CODE_BITS
    var words = Array[Words[BITS], INSTRUCTIONS](uninitialized=True)
    var scales = reader.scales(stages)
    comptime for i in range(INSTRUCTIONS):
        words[i] = reader.words[BITS, i](stages)
    var block = Operands.block_of(rows, scales)
    var found = Fragments(uninitialized=True)
    comptime for i in range(INSTRUCTIONS):
        found[i] = Operands.fragment(block, words[i])
    return found^

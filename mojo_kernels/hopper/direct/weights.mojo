"""The weights of a consumer warp: from the codes of a stage to operands in registers.

Two warps share a tile of 32 weight rows. Of each granule a lane reads eight of the sixteen bytes
that lie together, codes of two rows, and of each block the word of scales that has theirs. Lanes
that are eight apart find theirs in the same banks, so that one reads the other half:

    rows of a tile, by lane     0 .. 7, 16 .. 23    8 .. 15, 24 .. 31
    first warp                  r, r + 8            r + 16, r + 24       r = lane / 4
    second warp                 r + 16, r + 24      r, r + 8
"""

from layout import Coord

from ..dense.result import WarpColumns
from ..instructions.shared_memory import load_pair, load_word
from ..instructions.warp import keep_here, lane_here
from ..instructions.wgmma import OCTET, ROW_BYTES, STEP_BYTES
from ..layout import K_LANES
from ..staged.stages import HALVES, WARP_ROWS
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

    def words[bits: Int, block: Int](self, stages: DirectStages[_, bits, _]) -> Words[bits]:
        """Loads codes of a block: of each granule a word of both rows."""
        ...

    def scales[block: Int](self, stages: DirectStages[...]) -> UInt32:
        """Loads scales of a block, bytes."""
        ...


@fieldwise_init
struct LanePlaces(WordReader):
    """Where a lane's codes and scales are in a stage, from its codes and its scales on."""

    var codes: UInt32
    var scales_at: UInt32

    @staticmethod
    @always_inline
    def of_warp(stages: DirectStages[...], warp: UInt32) -> Self:
        """Returns those of this lane, kept."""
        comptime Stages = type_of(stages)
        var lane = lane_here()
        var tile = warp // UInt32(HALVES)
        var row = half_of(warp) * UInt32(GRANULE_WORDS)
        var places = keep_here(
            SIMD[DType.uint32, 2](
                Stages.Codes(0).at(Coord(tile, 0, lane, row)),
                Stages.Scales(0).at(Coord(tile, 0, lane // UInt32(K_LANES))),
            )
        )
        return Self(places[0], places[1])

    @always_inline
    def words[bits: Int, block: Int](self, stages: DirectStages[_, bits, _]) -> Words[bits]:
        comptime GRANULES = bits // GRANULE_BITS
        var codes = type_of(stages.codes())(stages.codes().base + self.codes)
        var found = Words[bits]()
        comptime for granule in range(GRANULES):
            var pair = load_pair(codes.at(Coord(0, GRANULES * block + granule, 0, 0)))
            comptime for row in range(GRANULE_WORDS):
                found[GRANULE_WORDS * granule + row] = pair[row]
        return found

    @always_inline
    def scales[block: Int](self, stages: DirectStages[...]) -> UInt32:
        var scales = type_of(stages.scales())(stages.scales().base + self.scales_at)
        return load_word(scales.at(Coord(0, block, 0)))


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
    var scales = SIMD[DType.uint32, INSTRUCTIONS](0)
    comptime for i in range(INSTRUCTIONS):
        words[i] = reader.words[BITS, i](stages)
        scales[i] = reader.scales[i](stages)
    var found = Fragments(uninitialized=True)
    comptime for i in range(INSTRUCTIONS):
        found[i] = Operands.fragment(rows, words[i], scales[i])
    return found^

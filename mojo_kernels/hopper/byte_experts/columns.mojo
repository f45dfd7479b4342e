"""Which weight rows a lane multiplies, where they are in a stage, and which numbers they lead to.

A group of threads computes 128 columns, each of its two warp groups 64 of them, or 32 hidden numbers:

    gating         tiles of a warp group          rows of a lane                hidden numbers of a lane
    none           two neighbours                 r, r + 8 of a half tile
    neighbours     two neighbours                 the same                      one, with a lane 4 apart
    halves         one of gates, one of ups       the same row of both          one, its own

Which half, or which eight rows of a tile, follows from the warp and from lane // 8: lanes that are eight
apart find theirs in the same banks, so that each reads another of the words that lie there.
"""

from layout import Coord

from ...simt.instructions import pick_bytes
from ..direct.operands import GRANULE_BITS, Words
from ..direct.stages import DirectStages
from ..direct.weights import LaneWords, WordReader, half_of
from ..experts.result import Part
from ..host.moe import HIDDEN
from ..instructions.shared_memory import load_word
from ..instructions.warp import lane_here
from ..layout import K_LANES, ROWS_PER_LANE, TILE_ROWS
from ..shapes import COLUMNS, HALVES, OCTET, TILES, WARPS, WARP_ROWS

comptime GROUP_COLUMNS = COLUMNS // 2
"""Columns of a warp group."""
comptime GROUP_HIDDEN = HIDDEN // 2
"""Hidden numbers of a warp group."""
comptime group_numbers[gating: Gating] = GROUP_COLUMNS if gating == Gating.NONE else GROUP_HIDDEN
"""Numbers of a warp group in a row of the result."""


@fieldwise_init
struct Gating(Equatable, TrivialRegisterPassable):
    """Where gates and their ups are among weight rows."""

    var code: Int

    comptime NONE = Self(0)
    comptime NEIGHBOURS = Self(1)
    comptime HALVES = Self(2)
    comptime COUNT = 3
    """How many there are."""


@fieldwise_init
struct LaneRows(TrivialRegisterPassable):
    """A lane's two rows of the weights of an expert, and where their sums go."""

    var first: UInt32
    var second: UInt32
    var scale_place: UInt32
    """Where the first one's scale is in a word of the reader."""
    var column: UInt32
    """The place of the first one's sums, or of the hidden number, among those of the warp group."""

    @staticmethod
    @always_inline
    def of[gating: Gating](part: Part, warp: UInt32) -> Self:
        """Returns those of a lane of a consumer warp."""
        var group, in_group = divmod(warp, UInt32(WARPS))
        var row = lane_here() // UInt32(K_LANES)
        comptime if gating == Gating.HALVES:
            var word = word_of(in_group)
            var hidden = word * UInt32(OCTET) + row
            var first = part.first_column + group * UInt32(GROUP_HIDDEN) + hidden
            return Self(first, first + part.half, 0, hidden)
        else:
            comptime STEP = 1 if gating == Gating.NONE else 2
            var half = half_of(warp)
            var tile = in_group // UInt32(HALVES)
            var in_rows = tile * UInt32(TILE_ROWS) + half * UInt32(WARP_ROWS) + row
            var first = part.first_column * UInt32(STEP) + group * UInt32(GROUP_COLUMNS) + in_rows
            var column = in_rows
            comptime if gating == Gating.NEIGHBOURS:
                # Lanes of even rows have the first of two numbers, those of odd ones the second.
                column = in_rows // 2 + (row % 2) * UInt32(OCTET // 2)
            return Self(first, first + UInt32(OCTET), half * UInt32(HALVES), column)

    @always_inline
    def within(self, last: UInt32) -> Self:
        """Returns rows that there are: the last one stands in for those past it."""
        var found = self
        found.first, found.second = min(self.first, last), min(self.second, last)
        return found


@always_inline
def word_of(warp: UInt32) -> UInt32:
    """Returns which of a tile's four words a lane reads, of a warp in its group."""
    return (warp ^ lane_here() // UInt32(OCTET)) % UInt32(ROWS_PER_LANE)


@fieldwise_init
struct GatePlaces(WordReader):
    """Where a lane's codes and scales are, the same row of a tile of gates and of one of ups."""

    var gates: LaneWords
    var selector: UInt32
    """Bytes of both words of scales."""

    comptime UPS = TILES // 2
    """Tiles from that of gates to that of ups."""

    @staticmethod
    @always_inline
    def of_warp(stages: DirectStages[...], warp: UInt32) -> Self:
        """Returns those of this lane."""
        var tile, in_group = divmod(warp, UInt32(WARPS))
        var word = word_of(in_group)
        return Self(
            LaneWords.of(stages, tile, word),
            word | (UInt32(ROWS_PER_LANE) + word) << 4,
        )

    @always_inline
    def words[bits: Int, instruction: Int](self, stages: DirectStages[_, bits, _]) -> Words[bits]:
        comptime assert bits == GRANULE_BITS, "a word of each row"
        var codes = type_of(stages.codes())(stages.codes().base + self.gates.codes[instruction])
        var found = Words[bits]()
        found[0] = load_word(codes.base)
        found[1] = load_word(codes.at(Coord(Self.UPS, 0, 0, 0)))
        return found

    @always_inline
    def scales(self, stages: DirectStages[...]) -> UInt32:
        var scales = type_of(stages.scales())(stages.scales().base + self.gates.scales)
        return pick_bytes(
            load_word(scales.base), load_word(scales.at(Coord(Self.UPS, 0, 0))), self.selector
        )

"""Codes of weights in a stage become FP8 operands in the registers of a consumer warp.

Two warps share a tile of 32 weight rows. A lane reads codes of two rows, and the scales of both. Lanes
that are eight apart find theirs in the same banks, so that one reads the other half of what lies
together; which half, or which of four words, follows from the warp and from lane // 8:

    gating         tiles of a warp group          rows of a lane          its sums lead to
    none           two neighbours                 r, r + 8 of a half      two columns
    neighbours     two neighbours                 the same                one hidden number, with a lane
                                                                          4 apart
    halves         one of gates, one of ups       the same row of both    one hidden number

An instruction has 32 of K. Which ones is nobody's concern, if rows of A have the same, see `fp8.places`:
lane 4 r + t decodes block t, eight codes an instruction, so that what follows from its scales is found
once a stage.

    bits     of block t, instruction i has     first word, and second
    4        chunk i ^ t                       its only one
    8        chunk i, or i ^ 1 for odd t       the first one, or the second one for t > 1

Of different blocks these are different chunks, or words, because blocks are in the same banks.
"""

from layout import Coord

from ...simt.instructions import pick_bytes
from ..gemm_operands import GRANULE_WORDS, RsOperands, Words
from ..host.moe import HIDDEN
from ..instructions.shared_memory import load_pair, load_word, wait_phase
from ..instructions.warp import keep_here, lane_here
from ..instructions.wgmma import STEP_BYTES
from ..layout import GRANULE_BITS, K_LANES, ROWS_PER_LANE, TILE_ROWS
from ..pipeline.stages import RsRing, RsStage
from ..product import Gating
from ..shapes import COLUMNS, GROUPS, HALVES, OCTET, ROW_BYTES, RsLayout, TILES, WARPS, WARP_ROWS

comptime INSTRUCTIONS = ROW_BYTES // STEP_BYTES
"""Instructions of a stage."""
comptime Fragments = Array[SIMD[DType.uint32, 4], INSTRUCTIONS]
"""A lane's weights in a stage, for each instruction."""
comptime GROUP_COLUMNS = COLUMNS // GROUPS
"""Columns of a warp group."""
comptime GROUP_HIDDEN = HIDDEN // GROUPS
"""Hidden numbers of a warp group."""
comptime group_numbers[gating: Gating] = GROUP_COLUMNS if gating == Gating.NONE else GROUP_HIDDEN
"""Numbers of a warp group in a row of the result."""
comptime UPS = TILES // 2
"""Tiles from that of gates to that of ups, of `HALVES`."""


@always_inline
def half_of(warp: UInt32) -> UInt32:
    """Returns which half of a tile's rows a lane has."""
    return (warp ^ lane_here() // UInt32(OCTET)) % UInt32(HALVES)


@always_inline
def word_of(warp: UInt32) -> UInt32:
    """Returns which of a tile's four words a lane reads, of a warp in its group."""
    return (warp ^ lane_here() // UInt32(OCTET)) % UInt32(ROWS_PER_LANE)


@fieldwise_init
struct LaneRows(TrivialRegisterPassable):
    """A lane's two weight rows, and where their sums go."""

    var first: UInt32
    var second: UInt32
    var scale_place: UInt32
    """Where the first one's scale is in a word of the reader."""
    var column: UInt32
    """The place of the first one's sums, or of the hidden number, among those of the warp group."""

    @staticmethod
    @always_inline
    def of[gating: Gating](column: UInt32, half: UInt32, warp: UInt32) -> Self:
        """Returns those of a lane of a consumer warp, of a tile that begins with a column of C.

        Of `HALVES` there are so many weight rows from a gate to its up.
        """
        var group, in_group = divmod(warp, UInt32(WARPS))
        var row = lane_here() // UInt32(K_LANES)
        comptime if gating == Gating.HALVES:
            var hidden = word_of(in_group) * UInt32(OCTET) + row
            var first = column + group * UInt32(GROUP_HIDDEN) + hidden
            return Self(first, first + half, 0, hidden)
        else:
            comptime STEP = 1 if gating == Gating.NONE else 2
            var half_tile = half_of(warp)
            var tile = in_group // UInt32(HALVES)
            var in_rows = tile * UInt32(TILE_ROWS) + half_tile * UInt32(WARP_ROWS) + row
            var first = column * UInt32(STEP) + group * UInt32(GROUP_COLUMNS) + in_rows
            var place = in_rows
            comptime if gating == Gating.NEIGHBOURS:
                # Lanes of even rows have the first of two numbers, those of odd ones the second.
                place = in_rows // 2 + (row % 2) * UInt32(OCTET // 2)
            return Self(first, first + UInt32(OCTET), half_tile * UInt32(HALVES), place)

    @always_inline
    def within(self, last: UInt32) -> Self:
        """Returns rows that there are: the last one stands in for those past it."""
        var found = self
        found.first, found.second = min(self.first, last), min(self.second, last)
        return found


@fieldwise_init
struct LaneReader[layout: RsLayout, gating: Gating](TrivialRegisterPassable):
    """Where a lane's words are in a stage, from the stage's codes and scales on."""

    comptime Stage = RsStage[Self.layout]
    comptime BITS = Self.layout.bits

    var codes: SIMD[DType.uint32, INSTRUCTIONS]
    """Of four bits the word of each instruction; of eight first and second words of two of them."""
    var scales_at: UInt32
    var selector: UInt32
    """Bytes of both words of scales, of gates and ups in halves."""

    @staticmethod
    @always_inline
    def of_warp(warp: UInt32) -> Self:
        """Returns those of this lane, kept."""
        var tile, word = warp // UInt32(HALVES), half_of(warp) * UInt32(GRANULE_WORDS)
        comptime if Self.gating == Gating.HALVES:
            tile = warp // UInt32(WARPS)
            word = word_of(warp % UInt32(WARPS))
        var row_lane, block = divmod(lane_here(), UInt32(K_LANES))
        var codes = SIMD[DType.uint32, INSTRUCTIONS]()
        comptime for i in range(INSTRUCTIONS):
            var at = UInt32(i) ^ block
            comptime if Self.BITS != GRANULE_BITS:
                comptime second, odd = divmod(i, 2)
                at = (UInt32(odd) ^ block % 2) * 2 + (UInt32(second) ^ block // 2)
            var granule = block * UInt32(Self.Stage.BLOCK_GRANULES)
            var lane = row_lane * UInt32(K_LANES) + at
            codes[i] = Self.Stage.Codes(0).at(Coord(tile, granule, lane, word))
        var scales = SIMD[DType.uint32, 1](Self.Stage.Scales(0).at(Coord(tile, block, 0, row_lane)))
        return Self(
            keep_here(codes), keep_here(scales)[0], word | (UInt32(ROWS_PER_LANE) + word) << 4
        )

    @always_inline
    def words[instruction: Int](self, stage: Self.Stage) -> Words[Self.BITS]:
        """Loads codes of an instruction: words of both rows, then their second ones, if any."""
        comptime COUNT = Self.BITS // GRANULE_BITS
        comptime granule, first = divmod(instruction, INSTRUCTIONS // COUNT)
        var found = Words[Self.BITS]()
        comptime for second in range(COUNT):
            comptime at = first + INSTRUCTIONS // COUNT * second
            var codes = Self.Stage.Codes(stage.codes().base + self.codes[at])
            comptime if Self.gating == Gating.HALVES:
                comptime assert COUNT == 1, "a word of each row"
                found[0] = load_word(codes.base)
                found[1] = load_word(codes.at(Coord(UPS, 0, 0, 0)))
            else:
                var pair = load_pair(codes.at(Coord(0, granule, 0, 0)))
                comptime for row in range(GRANULE_WORDS):
                    found[GRANULE_WORDS * second + row] = pair[row]
        return found

    @always_inline
    def scales(self, stage: Self.Stage) -> UInt32:
        """Loads the scales of the lane's block, bytes."""
        var scales = Self.Stage.Scales(stage.scales().base + self.scales_at)
        comptime if Self.gating == Gating.HALVES:
            var of_ups = load_word(scales.at(Coord(UPS, 0, 0, 0)))
            return pick_bytes(load_word(scales.base), of_ups, self.selector)
        return load_word(scales.base)


@fieldwise_init
struct Decoder[Operands: RsOperands, layout: RsLayout, gating: Gating](TrivialRegisterPassable):
    """What a lane knows of its two weight rows all along K."""

    var rows: Self.Operands.Rows
    var reader: LaneReader[Self.layout, Self.gating]

    @always_inline
    def decode(self, ring: RsRing[Self.layout]) -> Fragments:
        """Returns the weights of a stage as soon as it is full."""
        wait_phase(ring.full(), ring.parity)
        var stage = ring.here()
        var words = Array[Words[Self.layout.bits], INSTRUCTIONS](uninitialized=True)
        var scales = self.reader.scales(stage)
        comptime for i in range(INSTRUCTIONS):
            words[i] = self.reader.words[i](stage)
        var block = Self.Operands.block_of(self.rows, scales)
        var found = Fragments(uninitialized=True)
        comptime for i in range(INSTRUCTIONS):
            found[i] = Self.Operands.fragment(
                block, rebind[Words[Self.Operands.CODE_BITS]](words[i])
            )
        return found^

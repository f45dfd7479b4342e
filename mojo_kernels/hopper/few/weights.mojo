"""A warp's way along a tile of weights: codes and scales on the way several blocks ahead."""

from ...launch.queue import DevicePointer
from ...simt.arguments import Weights
from ..instructions.warp import any_lane, load_streaming
from ..layout import K_LANES, ROWS_PER_LANE, ROW_LANES, TILE_BYTES
from ..operands.weights import may_need_two_factors

comptime WORDS_PER_TILE = TILE_BYTES // 4
"""Words of a tile's codes."""


struct WeightStream[ahead: Int, step: Int](Movable):
    """A warp's way along one tile of weights: every `step`-th block, `ahead` of them a round.

    Codes are loaded a round before they are used, each in the place of the one that was just
    decoded; scales all at the start of the round before, so that it can be known of a whole
    round what they need.
    """

    var codes: DevicePointer[DType.uint32]
    """This lane's codes of the round's first block."""
    var scales: DevicePointer[DType.uint32]
    """This lane's scales of the round's first block."""
    var left: UInt32
    """Blocks from the one of this round's start on."""
    var words: Array[SIMD[DType.uint32, 4], Self.ahead]
    """The codes of the round's blocks."""
    var word_scales: Array[UInt32, Self.ahead]
    """The scales of the round's blocks."""
    var next_scales: Array[UInt32, Self.ahead]
    """The scales of the next round's blocks."""

    @always_inline
    def __init__(
        out self,
        w: Weights,
        first: Int,
        left: UInt32,
        lane: UInt32,
    ):
        """Starts the loads of the first round, which begins at block `first` of all tiles."""
        self.codes = w.codes.unsafe_bitcast[UInt32]().unsafe_offset(
            first * WORDS_PER_TILE + Int(lane) * ROWS_PER_LANE
        )
        self.scales = w.scales.unsafe_bitcast[UInt32]().unsafe_offset(
            first * ROW_LANES + Int(lane // UInt32(K_LANES))
        )
        self.left = left
        self.words = Array[SIMD[DType.uint32, 4], Self.ahead](fill=SIMD[DType.uint32, 4](0))
        self.word_scales = Array[UInt32, Self.ahead](fill=0)
        self.next_scales = Array[UInt32, Self.ahead](uninitialized=True)
        comptime for i in range(Self.ahead):
            if UInt32(i) < left:
                self.word_scales[i] = self.scales[unsafe_offset=i * Self.step * ROW_LANES]
                self.words[i] = load_streaming(
                    self.codes.unsafe_offset(i * Self.step * WORDS_PER_TILE)
                )

    @always_inline
    def advance(mut self):
        """Points to the next round."""
        self.codes = self.codes.unsafe_offset(Self.ahead * Self.step * WORDS_PER_TILE)
        self.scales = self.scales.unsafe_offset(Self.ahead * Self.step * ROW_LANES)

    @always_inline
    def has_next(self, i: Int) -> Bool:
        """Says whether the next round has a block `i`."""
        return UInt32(i + Self.ahead) < self.left

    @always_inline
    def load_scales[i: Int](mut self):
        """Starts the load of the scales of the next round's block `i`."""
        self.next_scales[i] = self.scales[unsafe_offset=i * Self.step * ROW_LANES]

    @always_inline
    def load_codes[i: Int](mut self):
        """Starts the load of the next round's block `i` in place of this round's."""
        self.words[i] = load_streaming(self.codes.unsafe_offset(i * Self.step * WORDS_PER_TILE))

    @always_inline
    def end_round(mut self):
        """Goes on to the next round."""
        self.left -= min(self.left, UInt32(Self.ahead))
        comptime for i in range(Self.ahead):
            self.word_scales[i] = self.next_scales[i]

    @always_inline
    def may_need_two_factors(self) -> Bool:
        """Says, the same to all lanes, whether the round has scales for `decode_rows_of_any`."""
        var all_bits = UInt32(0)
        comptime for i in range(Self.ahead):
            all_bits |= self.word_scales[i]
        return any_lane(may_need_two_factors(all_bits))

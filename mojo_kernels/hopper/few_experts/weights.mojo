"""A warp's way along tiles of weights: `AHEAD` blocks on the way, those of the next tile too.

    slot         0    1   ..   7
    round 0      b0   b1  ..   b7       blocks of this tile, every `K_WARPS`-th
    round 1      b8   b9  b10  -        what is left; nothing is loaded for the others,
    next tile    b0   b1  b2   b3 ..    which have had the next tile's since round 0

A slot is loaded again as soon as it was decoded.
"""

from ...launch.queue import device_pointer
from ...simt.host import VECTOR_BYTES
from ...simt.routing import ExpertWeights
from ..instructions.warp import load_constant, load_streaming
from ..layout import K_LANES, ROWS_PER_LANE, TILE_BYTES, TILE_ROWS
from ..shapes import K_WARPS, WORD_BYTES
from .room import AHEAD

comptime CODES_STEP = K_WARPS * TILE_BYTES // VECTOR_BYTES
"""Vectors from a warp's codes to those of its next block."""
comptime SCALES_STEP = K_WARPS * TILE_ROWS // WORD_BYTES
"""Words from a warp's scales to those of its next block."""
comptime Codes = SIMD[DType.uint32, ROWS_PER_LANE]
"""A lane's codes of a block."""


@fieldwise_init
struct Place(TrivialRegisterPassable):
    """A lane's codes and scales, from some block on, seen from the first expert's first ones."""

    var codes: UInt32
    """In vectors."""
    var scales: UInt32
    """In words."""

    @staticmethod
    @always_inline
    def of(experts: ExpertWeights, expert: UInt32, block: UInt32, lane: UInt32) -> Self:
        """Returns the place of one of all blocks of an expert."""
        comptime BLOCK_VECTORS = UInt32(TILE_BYTES // VECTOR_BYTES)
        comptime BLOCK_WORDS = UInt32(TILE_ROWS // WORD_BYTES)
        var codes = expert * UInt32(experts.codes_step // VECTOR_BYTES)
        var scales = expert * UInt32(experts.scales_step // WORD_BYTES)
        return Self(
            codes + block * BLOCK_VECTORS + lane,
            scales + block * BLOCK_WORDS + lane // UInt32(K_LANES),
        )

    @always_inline
    def advance(mut self, blocks: Int):
        """Goes on by blocks of the warp."""
        self.codes += UInt32(blocks * CODES_STEP)
        self.scales += UInt32(blocks * SCALES_STEP)

    @always_inline
    def load_codes[i: Int](self, experts: ExpertWeights) -> Codes:
        """Starts the load of the codes of the warp's `i`-th block from here."""
        var address = experts.codes + Int(self.codes) * VECTOR_BYTES
        var words = device_pointer[DType.uint32](address)
        return load_streaming(words.unsafe_offset(i * CODES_STEP * ROWS_PER_LANE))

    @always_inline
    def load_scales[i: Int](self, experts: ExpertWeights) -> UInt32:
        """Starts the load of the scales of the warp's `i`-th block from here."""
        var address = experts.scales + Int(self.scales) * WORD_BYTES
        var words = device_pointer[DType.uint32](address)
        return load_constant(words.unsafe_offset(i * SCALES_STEP))


struct WeightRing(Movable):
    """The blocks that a warp has on the way."""

    var experts: ExpertWeights
    var ahead: Place
    """The block that follows those of the round."""
    var next: Place
    """The first block of the next tile."""
    var next_left: UInt32
    """Its blocks; none if there is no next one."""
    var words: Array[Codes, AHEAD]
    var word_scales: Array[UInt32, AHEAD]

    @always_inline
    def __init__(out self, experts: ExpertWeights, first: Place, blocks: UInt32):
        """Starts the first loads of the first tile, which is the next one from here."""
        self.experts = experts
        self.ahead = first
        self.next = first
        self.next_left = blocks
        self.words = Array[Codes, AHEAD](fill=Codes(0))
        self.word_scales = Array[UInt32, AHEAD](fill=0)
        comptime for i in range(AHEAD):
            self.load[i](0)

    @always_inline
    def begin(mut self, next: Place, next_left: UInt32):
        """Goes on to the next tile, and says which one follows it."""
        self.ahead = self.next
        self.ahead.advance(AHEAD)
        self.next = next
        self.next_left = next_left

    @always_inline
    def load[i: Int](mut self, left: UInt32):
        """Starts the load of what follows in a slot; `left` are the blocks of this tile."""
        var is_here = UInt32(i + AHEAD) < left
        if is_here or UInt32(i) < self.next_left:
            var place = self.next
            place.codes = self.ahead.codes if is_here else self.next.codes
            place.scales = self.ahead.scales if is_here else self.next.scales
            self.word_scales[i] = place.load_scales[i](self.experts)
            self.words[i] = place.load_codes[i](self.experts)

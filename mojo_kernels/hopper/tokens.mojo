"""Rows of activations ("tokens") on their way to shared memory, in fragment order.

Four neighbouring lanes hold a block, eight elements each. What they store are
bfloat16 pairs in the order of the weights' pairs, k and k + 4 in one register:

    offset in fragment   0 .. 15              16 .. 31     ...   64 .. 79     ...
    token                0                    0                  1
    pairs of k           0,4 1,5 2,6 3,7      8,12 ...           0,4 ...

A fragment is 8 tokens x 1 block, half a KiB. Tokens that do not exist are never
stored: what their part of a fragment holds ends in sums that nobody reads.
"""

from max.gpu import thread_idx
from max.gpu.primitives.warp import shuffle_xor
from std.bit import log2_floor
from std.memory import bitcast
from std.sys._assembly import inlined_assembly

from ..codec import MAGNITUDE_CODE, SIGN_CODE, scale_from_amax
from ..formats import FORMAT
from ..simt.codec import CHUNK, Chunk, encode_chunk, f32_of_scale, rounded_chunk, scale_of_block
from ..simt.problem import Activations, BFLOAT16, ENCODED, FLOATS, load_floats
from .fragments import (
    BF16_MANTISSA_BITS,
    BOTH_HALVES,
    EXPONENT_UNIT,
    Pairs,
    WORD_PAIRS,
    in_fragment_order,
    keep_branch,
    overflows,
    scaled_pairs_of_any,
)
from .layout import K_LANES
from .shared_memory import store_quad

comptime TOKENS = 8
"""Tokens of a fragment."""
comptime FRAGMENT_BYTES = 512
"""Bytes of a fragment."""
comptime LANE_BYTES = 16
"""Bytes that one lane adds to a fragment."""


@fieldwise_init
struct TokenPairs(TrivialRegisterPassable):
    """Eight elements of a token in fragment order."""

    var pairs: Pairs
    """Four registers of bfloat16 pairs."""
    var overflow: Bool
    """Whether bfloat16 cannot hold some of them."""


@always_inline
def packed_max(a: UInt32, b: UInt32) -> UInt32:
    """Returns the larger of two 16-bit halves, each."""
    return inlined_assembly[
        "max.u16x2 $0, $1, $2;", UInt32, constraints="=r,r,r", has_side_effect=False
    ](a, b)


@always_inline
def packed_min(a: UInt32, b: UInt32) -> UInt32:
    """Returns the smaller of two 16-bit halves, each."""
    return inlined_assembly[
        "min.u16x2 $0, $1, $2;", UInt32, constraints="=r,r,r", has_side_effect=False
    ](a, b)


@always_inline
def packed_add[operation: StaticString](a: UInt32, b: UInt32) -> UInt32:
    """Adds ("add") or subtracts ("sub") bfloat16 pairs, rounding to nearest even."""
    return inlined_assembly[
        operation + ".rn.bf16x2 $0, $1, $2;", UInt32, constraints="=r,r,r", has_side_effect=False
    ](a, b)


@always_inline
def pairs_of_floats(values: Chunk) -> Pairs:
    """Packs numbers that bfloat16 holds, in fragment order."""
    comptime UPPER = UInt32(0xFFFF0000)
    var bits = bitcast[DType.uint32, CHUNK](values)
    var pairs = Pairs()
    comptime for i in range(CHUNK // 2):
        pairs[i] = (bits[i] >> 16) | (bits[i + CHUNK // 2] & UPPER)
    return pairs


@always_inline
def floats_of_neighbours(neighbours: Pairs) -> Chunk:
    """Unpacks pairs of bfloat16 neighbours."""
    var bits = SIMD[DType.uint32, CHUNK]()
    comptime for i in range(CHUNK // 2):
        bits[2 * i] = neighbours[i] << 16
        bits[2 * i + 1] = neighbours[i] & 0xFFFF0000
    return bitcast[DType.float32, CHUNK](bits)


@always_inline
def scale_of_neighbours(neighbours: Pairs, carry: UInt32) -> Tuple[UInt32, UInt32]:
    """Returns the scale byte of the block that four lanes hold, and its largest magnitude.

    A block with a NaN or an infinity has the scale NaN. All lanes of the warp call it.
    """
    comptime MAGNITUDES = UInt32(0x7FFF) * BOTH_HALVES
    comptime NOT_FINITE = UInt32(0x7F80)
    var maxima = neighbours[0] & MAGNITUDES
    comptime for i in range(1, CHUNK // 2):
        maxima = packed_max(maxima, neighbours[i] & MAGNITUDES)
    comptime for step in range(2):
        maxima = packed_max(maxima, shuffle_xor(maxima, UInt32(1 << step)))
    var amax = max(maxima >> 16, maxima & 0xFFFF)
    var scale = scale_from_amax[BF16_MANTISSA_BITS](amax, carry >> 16)
    return (UInt32(FORMAT.scale_nan) if amax >= NOT_FINITE else scale, amax)


@always_inline
def rounds_packed(scale: UInt32) -> Bool:
    """Says whether two numbers under a scale can be rounded at once, in bfloat16."""
    comptime MIN_PACKED_SCALE = 8
    comptime MAX_PACKED_SCALE = 240
    return scale >= MIN_PACKED_SCALE and scale <= MAX_PACKED_SCALE


@always_inline
def packed_anchor(pair: UInt32, scale: UInt32) -> UInt32:
    """Returns the numbers whose last mantissa bit is one step of the codes around `pair`.

    They are 64 times the start of each magnitude's binade, none below the scale's own;
    the steps of `simt.codec.round_magnitudes`, on two numbers at once.
    """
    comptime EXPONENTS = UInt32(0x7F80) * BOTH_HALVES
    comptime TO_ANCHOR = UInt32(BF16_MANTISSA_BITS - FORMAT.mantissa_bits) * EXPONENT_UNIT
    return packed_max(pair & EXPONENTS, scale * EXPONENT_UNIT) + TO_ANCHOR


@always_inline
def round_packed(neighbours: Pairs, scale: UInt32) -> Pairs:
    """Rounds bfloat16 numbers under a scale of which `rounds_packed` is true."""
    comptime SIGNS = UInt32(0x8000) * BOTH_HALVES
    comptime MAGNITUDES = UInt32(0x7FFF) * BOTH_HALVES
    comptime LARGEST_OVER_SCALE = UInt32(FORMAT.emax) * EXPONENT_UNIT + (EXPONENT_UNIT >> 1)
    var largest = scale * EXPONENT_UNIT + LARGEST_OVER_SCALE
    var rounded = Pairs()
    comptime for i in range(CHUNK // 2):
        var anchor = packed_anchor(neighbours[i], scale)
        var shifted = packed_add["add"](neighbours[i] & MAGNITUDES, anchor)
        rounded[i] = packed_min(packed_add["sub"](shifted, anchor), largest)
        rounded[i] |= neighbours[i] & SIGNS
    return rounded


@always_inline
def round_neighbours(neighbours: Pairs, scale: UInt32, amax: UInt32) -> TokenPairs:
    """Rounds bfloat16 numbers to what their MX encoding under any scale stands for."""
    if rounds_packed(scale):
        return TokenPairs(in_fragment_order(round_packed(neighbours, scale)), False)
    keep_branch()
    if amax == 0:
        return TokenPairs(in_fragment_order(neighbours), False)
    var values = rounded_or_nan(floats_of_neighbours(neighbours), scale)
    return TokenPairs(pairs_of_floats(values), overflows(scale))


@always_inline
def encode_neighbours(neighbours: Pairs, scale: UInt32) -> UInt32:
    """Returns the packed codes of bfloat16 numbers under their block's scale."""
    comptime MAGNITUDES = UInt32(0x7FFF) * BOTH_HALVES
    comptime LARGEST = UInt32(MAGNITUDE_CODE) * BOTH_HALVES
    comptime SIGN_CODES = UInt32(SIGN_CODE) * BOTH_HALVES
    # From the exponent of an anchor to the codes that come before its binade.
    comptime TO_EARLIER = BF16_MANTISSA_BITS - FORMAT.mantissa_bits
    if not rounds_packed(scale):
        keep_branch()
        return encode_chunk[True](floats_of_neighbours(neighbours), scale)

    var first_anchor = packed_anchor(0, scale)
    var word = UInt32(0)
    comptime for i in range(CHUNK // 2):
        var anchor = packed_anchor(neighbours[i], scale)
        var shifted = packed_add["add"](neighbours[i] & MAGNITUDES, anchor)
        var codes = (shifted - anchor) + ((anchor - first_anchor) >> UInt32(TO_EARLIER))
        codes = packed_min(codes, LARGEST) | ((neighbours[i] >> 12) & SIGN_CODES)
        # The upper half's code next to the lower half's: one byte.
        word |= ((codes | (codes >> 12)) & 0xFF) << UInt32(8 * i)
    return word


@always_inline
def rounded_or_nan(x: Chunk, scale: UInt32) -> Chunk:
    """Returns a chunk rounded to its MX values, all NaN under the scale NaN."""
    if scale == UInt32(FORMAT.scale_nan):
        return Chunk(f32_of_scale(scale))
    return rounded_chunk(x, scale)


@always_inline
def load_neighbours(a: Activations, token: UInt32, chunk: UInt32) -> Pairs:
    """Loads eight bfloat16 numbers of a token."""
    var at = Int(token) * a.row_stride + Int(chunk) * CHUNK
    return a.values.unsafe_bitcast[UInt32]().unsafe_load[width=WORD_PAIRS, alignment=LANE_BYTES](
        at >> 1
    )


@always_inline
def pairs_of_neighbours(a: Activations, neighbours: Pairs) -> TokenPairs:
    """Makes of bfloat16 numbers what the kind of the activations asks."""
    if a.kind == FLOATS:
        return TokenPairs(in_fragment_order(neighbours), False)
    var scale, amax = scale_of_neighbours(neighbours, a.carry)
    return round_neighbours(neighbours, scale, amax)


@always_inline
def load_token(a: Activations, token: UInt32, chunk: UInt32) -> TokenPairs:
    """Loads eight elements of a token as the kind of the activations asks."""
    if a.kind == ENCODED:
        keep_branch()
        var chunk_of_all = Int(token) * (a.k // CHUNK) + Int(chunk)
        var word = a.values.unsafe_bitcast[UInt32]()[unsafe_offset=chunk_of_all]
        var block = UInt64(chunk_of_all) // UInt64(K_LANES)
        var scale = a.scales[unsafe_offset=Int(block)].cast[DType.uint32]()
        return TokenPairs(scaled_pairs_of_any(word, scale), overflows(scale))
    if a.dtype == BFLOAT16:
        keep_branch()
        return pairs_of_neighbours(a, load_neighbours(a, token, chunk))

    var x = load_floats[CHUNK, CHUNK](
        a.values, Int(token) * a.row_stride + Int(chunk) * CHUNK, a.dtype
    )
    var scale = scale_of_block(x, a.carry)
    return TokenPairs(pairs_of_floats(rounded_or_nan(x, scale)), overflows(scale))


@fieldwise_init
struct StagedChunks[token_tiles: Int, num_threads: Int](TrivialRegisterPassable):
    """Which chunks a thread stages, one step after the other.

    Four lanes take a block; of all quads, 2**log_blocks_at_once in a row take the same
    token. Quads past an end repeat the last block or token and store the same again.
    """

    var num_tokens: UInt32
    """Tokens to stage."""
    var num_blocks: UInt32
    """Blocks of each."""
    var log_blocks: UInt32
    """Logarithm of the blocks that are staged at once."""
    var base: UInt32
    """Where the fragments go."""
    var token_step: UInt32
    """How far the tokens are, in steps."""
    var block_step: UInt32
    """How far the blocks of these tokens are, in steps."""

    comptime LOG_QUADS = log2_floor(Self.num_threads // K_LANES)
    """Logarithm of the quads of lanes."""

    @always_inline
    def num_steps(self) -> UInt32:
        """Returns the steps that stage everything."""
        var tokens_at_once = UInt32(1 << Self.LOG_QUADS) >> self.log_blocks
        return ((self.num_tokens + tokens_at_once - 1) // tokens_at_once) * self.block_steps()

    @always_inline
    def block_steps(self) -> UInt32:
        """Returns the steps that stage all blocks of some tokens."""
        return (self.num_blocks + (UInt32(1) << self.log_blocks) - 1) >> self.log_blocks

    @always_inline
    def token(self) -> UInt32:
        """Returns this thread's token of the step."""
        var quad = UInt32(thread_idx.x) // UInt32(K_LANES)
        var before = self.token_step << (UInt32(Self.LOG_QUADS) - self.log_blocks)
        return min(before + (quad >> self.log_blocks), self.num_tokens - 1)

    @always_inline
    def block(self) -> UInt32:
        """Returns this thread's block of the step."""
        var quad = UInt32(thread_idx.x) // UInt32(K_LANES)
        var within = quad & ((UInt32(1) << self.log_blocks) - 1)
        return min((self.block_step << self.log_blocks) + within, self.num_blocks - 1)

    @always_inline
    def address(self) -> UInt32:
        """Returns where this thread's chunk of the step goes."""
        var tile = self.token() // UInt32(TOKENS)
        var lane = self.token() % UInt32(TOKENS) * UInt32(K_LANES)
        lane += UInt32(thread_idx.x) % UInt32(K_LANES)
        var fragment = self.block() * UInt32(Self.token_tiles) + tile
        return self.base + fragment * UInt32(FRAGMENT_BYTES) + lane * UInt32(LANE_BYTES)

    @always_inline
    def advance(mut self):
        """Goes on to the next step; past the end the last tokens repeat."""
        self.block_step += 1
        if self.block_step == self.block_steps():
            self.block_step = 0
            self.token_step += 1


struct TokenStage[token_tiles: Int, num_threads: Int](Movable):
    """Puts the fragments of some blocks into shared memory, several loads on the way.

    Fragments lie block after block, the tiles of eight tokens of a block together. The
    first loads start with the construction, so that others can start behind them.
    """

    comptime LOADS = 4
    """Chunks of bfloat16 numbers that a thread loads at once."""
    comptime TOGETHER = min(Self.token_tiles, Self.LOADS)
    """Chunks that a thread quantizes at once, so that one does not wait for the other."""

    var a: Activations
    """Where the tokens come from."""
    var first_token: UInt32
    """The first token."""
    var first_chunk: UInt32
    """The first chunk of K, for this lane."""
    var chunks: StagedChunks[Self.token_tiles, Self.num_threads]
    """The chunks to stage next."""
    var left: Int32
    """Steps that are not loaded yet."""
    var neighbours: Array[Pairs, Self.LOADS]
    """What was loaded."""
    var addresses: Array[UInt32, Self.LOADS]
    """Where it goes."""

    @always_inline
    def __init__(
        out self,
        a: Activations,
        first_token: UInt32,
        first_block: UInt32,
        chunks: StagedChunks[Self.token_tiles, Self.num_threads],
    ):
        """Starts the first loads."""
        self.a = a
        self.first_token = first_token
        var k_lane = UInt32(thread_idx.x) % UInt32(K_LANES)
        self.first_chunk = first_block * UInt32(K_LANES) + k_lane
        self.chunks = chunks
        self.left = Int32(chunks.num_steps())
        self.neighbours = Array[Pairs, Self.LOADS](uninitialized=True)
        self.addresses = Array[UInt32, Self.LOADS](uninitialized=True)
        if self.is_bfloat16():
            self._load()

    @always_inline
    def is_bfloat16(self) -> Bool:
        """Says whether this is the common case."""
        return self.a.kind != ENCODED and self.a.dtype == BFLOAT16

    @always_inline
    def _load(mut self):
        """Starts the next loads; past the end they repeat earlier ones."""
        comptime for i in range(Self.LOADS):
            var chunk = self.first_chunk + self.chunks.block() * UInt32(K_LANES)
            self.neighbours[i] = load_neighbours(
                self.a, self.first_token + self.chunks.token(), chunk
            )
            self.addresses[i] = self.chunks.address()
            self.chunks.advance()
        self.left -= Int32(Self.LOADS)

    @always_inline
    def finish(mut self) -> Bool:
        """Stores all fragments; says if bfloat16 cannot hold them."""
        var overflow = False
        if not self.is_bfloat16():
            keep_branch()
            for _ in range(self.left):
                var chunk = self.first_chunk + self.chunks.block() * UInt32(K_LANES)
                var loaded = load_token(self.a, self.first_token + self.chunks.token(), chunk)
                overflow |= loaded.overflow
                store_quad(self.chunks.address(), loaded.pairs)
                self.chunks.advance()
            return overflow
        while True:
            overflow |= self._store()
            if self.left <= 0:
                return overflow
            self._load()

    @always_inline
    def _store(self) -> Bool:
        """Stores what was loaded; says if bfloat16 cannot hold it."""
        if self.a.kind == FLOATS:
            comptime for i in range(Self.LOADS):
                store_quad(self.addresses[i], in_fragment_order(self.neighbours[i]))
            return False
        var overflow = False
        comptime for first in range(0, Self.LOADS, Self.TOGETHER):
            overflow |= self._quantize[first]()
        return overflow

    @always_inline
    def _quantize[first: Int](self) -> Bool:
        """Quantizes and stores some chunks; says if bfloat16 cannot hold them."""
        var scales = Array[UInt32, Self.TOGETHER](fill=0)
        var maxima = Array[UInt32, Self.TOGETHER](fill=0)
        var all_packed = True
        comptime for i in range(Self.TOGETHER):
            scales[i], maxima[i] = scale_of_neighbours(self.neighbours[first + i], self.a.carry)
            all_packed &= rounds_packed(scales[i])
        if all_packed:
            comptime for i in range(Self.TOGETHER):
                var rounded = round_packed(self.neighbours[first + i], scales[i])
                store_quad(self.addresses[first + i], in_fragment_order(rounded))
            return False
        keep_branch()
        var overflow = False
        comptime for i in range(Self.TOGETHER):
            var pairs = round_neighbours(self.neighbours[first + i], scales[i], maxima[i])
            overflow |= pairs.overflow
            store_quad(self.addresses[first + i], pairs.pairs)
        return overflow

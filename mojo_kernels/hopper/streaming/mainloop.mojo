"""The main loop of a warp: codes become bfloat16 fragments in registers, and meet those of A.

Weights are the left operand of the instruction and rows of A the right one, so the sums of a lane are
C^T: columns g, g + 8 of a tile and rows 2 t, 2 t + 1. Some blocks of weights are on their way to
registers, of the next tile too:

    slot         0    1   ..   7
    round 0      b0   b1  ..   b7       blocks of this tile, every `k_warps`-th
    round 1      b8   b9  b10  -        what is left; slots without a block are not loaded again,
    next tile    b0   b1  b2   b3 ..    for they have had the next tile's since round 0

A slot is loaded again as soon as its block is decoded. One factor applies the scales of nearly all
weights. Where some scale wants two, sums begin anew, and all blocks are decoded with two.
"""

from layout import Coord
from max.gpu.primitives.warp import shuffle_idx
from std.math import ceildiv

from ...launch.queue import device_pointer
from ...numbers.scales import Scale
from ...simt.arguments import ExpertWeights
from ...simt.host import VECTOR_BYTES
from ...tiles import RegisterTile
from ..instructions.packed import weight_fragment
from ..instructions.shared_memory import load_quad
from ..instructions.warp import (
    FRAGMENT_SUMS,
    keep_here,
    lane_here,
    load_constant,
    load_streaming,
    multiply_add,
)
from ..layout import K_LANES, ROWS_PER_LANE, TILE_BYTES, TILE_ROWS, block_scales
from ..codec import (
    E4M3_HALVINGS,
    Rows,
    any_overflows,
    decode_rows,
    decode_rows_of_any,
    unusual_bits,
)
from ..decode.bf16 import SumFactor, TensorPlanes, tensor_scale_of
from ..shapes import FRAGMENT_ROWS, StreamConfig, WORD_BYTES
from .activations import Fragments

comptime HALVES = 2
"""Fragments of weight rows of a tile."""
comptime WarpSums[row_fragments: Int] = RegisterTile[
    DType.float32, FRAGMENT_SUMS, row_fragments, HALVES
]
"""A lane's partial sums, [fragment of rows, half of the columns], four each."""
comptime PAIR = FRAGMENT_SUMS // HALVES
"""Neighbouring rows of A of a lane in a fragment."""
comptime LANES = 32
"""Lanes of a warp."""
comptime RowFactors[row_fragments: Int] = Array[
    Float32, ceildiv(FRAGMENT_ROWS * row_fragments, LANES)
]
"""What sums of rows of A are multiplied by: a lane has those of rows so many apart."""
comptime Codes = SIMD[DType.uint32, ROWS_PER_LANE]
"""A lane's codes of a block."""
comptime BLOCK_VECTORS = TILE_BYTES // VECTOR_BYTES
"""Vectors of codes of a block of a tile."""
comptime SCALE_WORDS = TILE_ROWS // WORD_BYTES
"""Words of a scale of all its rows."""


@fieldwise_init
struct BlockPlace[scale: Scale](TrivialRegisterPassable):
    """Addresses of a lane's codes and scales of a block."""

    var codes: Int
    var scales: Int

    comptime BLOCK_WORDS = SCALE_WORDS * block_scales(Self.scale)
    """Words of the scales of a block of a tile."""

    @staticmethod
    @always_inline
    def of(
        weights: ExpertWeights, expert: UInt32, tile: UInt32, block: UInt32, lane: UInt32
    ) -> Self:
        """Returns the place of one of all blocks of an expert, which is one of a tile."""
        var codes = block * UInt32(BLOCK_VECTORS) + lane
        var scales = block * UInt32(Self.BLOCK_WORDS) + lane // UInt32(K_LANES)
        comptime if Self.scale == Scale.E4M3:
            comptime LANES = UInt32(K_LANES // block_scales(Self.scale))
            scales += tile * UInt32(SCALE_WORDS * Self.scale.row_bytes)
            scales += lane % UInt32(K_LANES) // LANES * UInt32(SCALE_WORDS)
        return Self(
            weights.codes + Int(expert) * weights.codes_step + Int(codes) * VECTOR_BYTES,
            weights.scales + Int(expert) * weights.scales_step + Int(scales) * WORD_BYTES,
        )

    @always_inline
    def advance(mut self, blocks: Int):
        """Goes on by blocks of a tile."""
        self.codes += blocks * BLOCK_VECTORS * VECTOR_BYTES
        self.scales += blocks * Self.BLOCK_WORDS * WORD_BYTES

    @always_inline
    def load_codes[blocks: Int](self) -> Codes:
        """Starts the load of the codes so many blocks of the tile from here."""
        var words = device_pointer[DType.uint32](self.codes)
        return load_streaming(words.unsafe_offset(blocks * BLOCK_VECTORS * ROWS_PER_LANE))

    @always_inline
    def load_scales[blocks: Int](self) -> UInt32:
        """Starts the load of the scales so many blocks of the tile from here."""
        return load_constant(
            device_pointer[DType.uint32](self.scales).unsafe_offset(blocks * Self.BLOCK_WORDS)
        )


struct WeightStream[CONFIG: StreamConfig](Movable):
    """The blocks that a warp has on the way."""

    comptime AHEAD = Self.CONFIG.loads_ahead()
    comptime Place = BlockPlace[Self.CONFIG.scale]
    comptime STEP = Self.CONFIG.k_warps
    """Blocks of the tile from one of the warp's to the next."""

    var ahead: Self.Place
    """The first block of the next round."""
    var left: UInt32
    """Blocks of this tile from this round on."""
    var next: Self.Place
    """The first block of the next tile."""
    var next_left: UInt32
    """Its blocks; none if there is no next one."""
    var codes: Array[Codes, Self.AHEAD]
    """Of the round's blocks."""
    var scales: Array[UInt32, Self.AHEAD]
    """Of the round's blocks."""

    @always_inline
    def __init__(out self, first: Self.Place, blocks: UInt32):
        """Starts the first loads of the first tile, which is the next one from here."""
        self.ahead = first
        self.left = 0
        self.next = first
        self.next_left = blocks
        self.codes = Array[Codes, Self.AHEAD](fill=Codes(0))
        self.scales = Array[UInt32, Self.AHEAD](fill=0)
        comptime for i in range(Self.AHEAD):
            if UInt32(i) < blocks:
                self.scales[i] = first.load_scales[i * Self.STEP]()
                self.codes[i] = first.load_codes[i * Self.STEP]()

    @always_inline
    def begin(mut self, left: UInt32, next: Self.Place, next_left: UInt32):
        """Goes on to the next tile, of which `left` blocks are the warp's; says what follows it."""
        self.ahead = self.next
        self.ahead.advance(Self.AHEAD * Self.STEP)
        self.left = left
        self.next = next
        self.next_left = next_left

    @always_inline
    def refill[i: Int](mut self):
        """Starts the load of what follows in a slot, if anything does."""
        comptime if Self.CONFIG.is_short:
            return
        var is_here = UInt32(i + Self.AHEAD) < self.left
        if is_here or UInt32(i) < self.next_left:
            var place = Self.Place(
                self.ahead.codes if is_here else self.next.codes,
                self.ahead.scales if is_here else self.next.scales,
            )
            self.scales[i] = place.load_scales[i * Self.STEP]()
            self.codes[i] = place.load_codes[i * Self.STEP]()


@always_inline
def clear[row_fragments: Int, //](sums: WarpSums[row_fragments]):
    """Begins sums anew."""
    comptime for fragment in range(row_fragments):
        comptime for half in range(HALVES):
            sums[fragment, half] = 0


@always_inline
def apply_tensor_scales[
    row_fragments: Int, //
](planes: TensorPlanes, sums: WarpSums[row_fragments]):
    """Multiplies sums by the tensor scales of a lane's four weight rows."""
    comptime for row in range(ROWS_PER_LANE):
        var factor = SumFactor.of(planes, UInt32(row))
        comptime half, next = divmod(row, ROWS_PER_LANE // HALVES)
        comptime for fragment in range(row_fragments):
            comptime for i in range(FRAGMENT_SUMS // HALVES):
                comptime at = next * FRAGMENT_SUMS // HALVES + i
                sums[fragment, half][at] = factor.apply(sums[fragment, half][at])


@always_inline
def apply_both[
    row_fragments: Int, //
](
    planes: TensorPlanes,
    of_rows: RowFactors[row_fragments],
    have_factors: Bool,
    sums: WarpSums[row_fragments],
):
    """Multiplies sums by tensor scales of a lane's weight rows, and by factors of rows of A.

    Those are one where rows have none.
    """
    var pair = UInt32(PAIR) * (lane_here() % UInt32(K_LANES))
    var of_lane = Array[Float32, PAIR * row_fragments](uninitialized=True)
    comptime for i in range(PAIR * row_fragments):
        comptime fragment, neighbour = divmod(i, PAIR)
        comptime load, in_load = divmod(FRAGMENT_ROWS * fragment + neighbour, LANES)
        of_lane[i] = shuffle_idx(of_rows[load], pair + UInt32(in_load))
    comptime for row in range(ROWS_PER_LANE):
        var of_weight = SumFactor.of(planes, UInt32(row))
        if have_factors:
            var tensor_scale = tensor_scale_of(planes, UInt32(row))
            of_weight = SumFactor.beside_factors[E4M3_HALVINGS](tensor_scale)
        comptime half, next = divmod(row, ROWS_PER_LANE // HALVES)
        comptime for fragment in range(row_fragments):
            comptime for i in range(PAIR):
                comptime at = next * PAIR + i
                sums[fragment, half][at] = of_weight.apply_beside(
                    sums[fragment, half][at], of_lane[PAIR * fragment + i]
                )


@always_inline
def multiply_block[
    row_fragments: Int, //
](decoded: Rows[ROWS_PER_LANE], rows: Fragments[row_fragments], sums: WarpSums[row_fragments]):
    """Adds the products of one block: two fragments of weights, all rows, K in two steps."""
    comptime for fragment in range(row_fragments):
        var pairs = load_quad(rows.at(Coord(0, fragment, 0, 0)))
        comptime for half in range(HALVES):
            comptime for step in range(2):
                comptime row, pair = 2 * half, 2 * step
                sums[fragment, half] = multiply_add(
                    weight_fragment[pair](decoded[row], decoded[row + 1]),
                    SIMD[DType.uint32, 2](pairs[pair], pairs[pair + 1]),
                    sums[fragment, half],
                )


@always_inline
def multiply_round[
    CONFIG: StreamConfig, row_fragments: Int, //, is_whole: Bool
](
    mut stream: WeightStream[CONFIG],
    mut rows: Fragments[row_fragments],
    sums: WarpSums[row_fragments],
    end: UInt32,
) -> UInt32:
    """Adds the products of a round under scales that are usual; returns bits that say if some are not.

    Slots from `end` on have no block, unless the round is a whole one.
    """
    var all_scales = UInt32(0)
    comptime for i in range(stream.AHEAD):
        if is_whole or UInt32(i) < end:
            var scales = keep_here(SIMD[DType.uint32, 1](stream.scales[i]))[0]
            var decoded = decode_rows[CONFIG.scale](keep_here(stream.codes[i]), scales)
            stream.refill[i]()
            multiply_block(decoded, rows.starting_at(Coord(i * stream.STEP, 0, 0, 0)), sums)
            all_scales |= unusual_bits[CONFIG.scale](scales)
    stream.ahead.advance(stream.AHEAD * stream.STEP)
    stream.left -= min(stream.left, UInt32(stream.AHEAD))
    rows = rows.starting_at(Coord(stream.AHEAD * stream.STEP, 0, 0, 0))
    return all_scales


@always_inline
def multiply[
    CONFIG: StreamConfig, row_fragments: Int, //
](
    mut stream: WeightStream[CONFIG],
    stop: UInt32,
    var rows: Fragments[row_fragments],
    sums: WarpSums[row_fragments],
) -> UInt32:
    """Adds the products of a warp's blocks until `stop` of the tile are left: in whole rounds, if any.

    Returns bits of all scales: `multiply_anew` is for what some of them want.
    """
    comptime AHEAD = UInt32(stream.AHEAD)
    var all_scales = UInt32(0)
    # Whole rounds ask nobody whether there is a block: blocks are decoded while others are multiplied,
    # which takes 5 to 8 % off.
    while stream.left >= stop + AHEAD:
        all_scales |= multiply_round[True](stream, rows, sums, AHEAD)
    while stream.left > stop:
        all_scales |= multiply_round[False](stream, rows, sums, stream.left)
    return all_scales


@always_inline
def multiply_anew[
    CONFIG: StreamConfig, row_fragments: Int, //
](
    stream: WeightStream[CONFIG],
    var place: BlockPlace[CONFIG.scale],
    blocks: UInt32,
    var rows: Fragments[row_fragments],
    sums: WarpSums[row_fragments],
) -> Bool:
    """Adds the products of some blocks under any scales; says if bfloat16 cannot hold a weight."""
    var overflow = False
    for _ in range(blocks):
        var scales = place.load_scales[0]()
        comptime if CONFIG.scale == Scale.E8M0:
            overflow |= any_overflows(scales)
        var codes = place.load_codes[0]()
        multiply_block(decode_rows_of_any[CONFIG.scale](codes, scales), rows, sums)
        place.advance(stream.STEP)
        rows = rows.starting_at(Coord(stream.STEP, 0, 0, 0))
    return overflow

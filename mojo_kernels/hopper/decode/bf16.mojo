"""Codes of weights become bfloat16 operands in registers: the left side of an RS main loop.

A warp multiplies 16 weight rows. Of each block of a stage a lane reads eight codes of two rows, and
their scales:

    rows of a warp     a lane's two                which
    plain              half of a tile              r, r + 8 of the half       r = lane / 4
    gates and ups      neighbours                  row 2 r is a gate, 2 r + 1 its up, or both by turns
                       halves                      eight rows, and eight that are half the weights on

Under E8M0 scales a block has one for 32 codes of a row, under E4M3 scales one for 16: lanes have theirs.
Tensor scales, one a row behind the E4M3 scales of a tile, lie byte by byte: the first bytes of all
rows, then the second ones. Sums meet them after the main loop, in registers, and the factors of rows of
A with them, if those have any.
"""

from layout import Coord
from max.gpu import thread_idx
from max.gpu.primitives.warp import shuffle_idx
from std.math import ceildiv
from std.memory import bitcast

from ...launch.queue import DevicePointer, device_pointer
from ...numbers.scales import Scale
from ...simt.arguments import Weights
from ...simt.instructions import pick_bytes
from ...simt.views import flat_of
from ..instructions.packed import LOW_BYTES, join_bytes, join_halves, multiply_pairs_by_half
from ..instructions.shared_memory import load_pair, load_word, store_word
from ..accumulator import PAIR, place_of
from ..instructions.warp import any_lane, keep_branch, keep_here, load_constant
from ..instructions.wgmma import Accumulator
from ..layout import BLOCK, K_LANES, TILE_BYTES, TILE_ROWS, block_scales, tile_scale_bytes
from ..codec import (
    E4M3_HALVINGS,
    Rows,
    any_overflows,
    factor_of,
    may_need_two_factors,
    scaled_pairs_under,
    unscaled_pairs,
    unusual_bits,
)
from ..pipeline.stages import RsStage
from ..plan import NARROW_COLUMNS
from ..product import StageTiles
from ..shapes import (
    HALVES,
    LANE_BYTES,
    OCTET,
    RsLayout,
    STEP_BLOCKS,
    TILES,
    WARP_ROWS,
    WORD_BYTES,
)

comptime ROWS = 2
"""Rows of a lane."""
comptime LANES = 32
"""Lanes of a warp."""


@always_inline
def half_of[tiles: Int = TILES](warp: UInt32) -> UInt32:
    """Returns which half of its tile a consumer warp multiplies, of a CTA's so many tiles."""
    return warp // UInt32(tiles) % UInt32(HALVES)


@always_inline
def first_row_of[tiles: Int = TILES](warp: UInt32) -> UInt32:
    """Returns the first weight row of a consumer warp, of those of its CTA."""
    return warp % UInt32(tiles) * UInt32(TILE_ROWS) + half_of[tiles](warp) * UInt32(WARP_ROWS)


@always_inline
def load_scales[layout: RsLayout, //](stage: RsStage[layout], tile: UInt32, block: Int) -> UInt32:
    """Loads the scales of four rows of a tile for a lane's codes of a block, bytes."""
    var row_lane, k_lane = divmod(UInt32(thread_idx.x) % 32, UInt32(K_LANES))
    comptime LANES = UInt32(K_LANES // block_scales(layout.scale))
    comptime if layout.scale == Scale.E4M3:
        return load_word(stage.scales().at(Coord(tile, block, k_lane // LANES, row_lane)))
    return load_word(stage.scales().at(Coord(tile, block, 0, row_lane)))


trait WeightReader(TrivialRegisterPassable):
    """Finds a lane's two weight rows in a stage."""

    def load[
        layout: RsLayout, //
    ](self, stage: RsStage[layout], num_blocks: UInt32) -> StageWeights[layout.scale]:
        """Loads them from a stage that is full, of which so many blocks exist."""
        ...

    comptime HAS_TWO_TILES: Bool
    """Whether its rows may be of two tiles."""

    def place[row: Int](self) -> Tuple[UInt32, UInt32]:
        """Returns the tile of the stage that has a row, and which of a lane's words of it."""
        ...


@fieldwise_init
struct HalfTile(WeightReader):
    """Reads the rows of `first_row_of`."""

    comptime HAS_TWO_TILES = False

    var warp: UInt32

    @always_inline
    def load[
        layout: RsLayout, //
    ](self, stage: RsStage[layout], num_blocks: UInt32) -> StageWeights[layout.scale]:
        var lane = UInt32(thread_idx.x) % 32
        var tile = self.warp % UInt32(TILES)
        var half = half_of(self.warp)
        var loaded = StageWeights[layout.scale](0, 0)
        comptime for block in range(STEP_BLOCKS):
            var codes_at = stage.codes().at(Coord(tile, block, lane, half * UInt32(ROWS)))
            loaded.words = loaded.words.insert[offset=ROWS * block](load_pair(codes_at))
            var scales = load_scales(stage, tile, block)
            loaded.scales[block] = join_bytes(scales, 0x4140 + 0x0202 * half)
        return loaded.without_end(num_blocks)

    @always_inline
    def place[row: Int](self) -> Tuple[UInt32, UInt32]:
        return (self.warp % UInt32(TILES), UInt32(ROWS) * half_of(self.warp) + UInt32(row))


comptime CHUNK_ORDER = 0x3120
"""Chunks of a block in the order of bytes from which `pairs_of_bytes` makes a word, one a nibble."""


@fieldwise_init
struct OrderedHalfTile(WeightReader):
    """Reads the rows of `first_row_of` for rows of A whose elements lie in their order.

    Of each chunk of eight elements of A, a lane's fragment has two neighbours: so of the words of all
    four lanes of a weight row a byte each, which is the lane's number among them.

        lane                0        1        2        3
        elements of A    0, 1     2, 3     4, 5     6, 7    of every chunk

    All lanes of a row read the same word at once, those of another row one of another lane, so that
    eight rows meet in no bank.
    """

    comptime HAS_TWO_TILES = False
    comptime TILES = NARROW_COLUMNS // TILE_ROWS
    """Of a CTA."""

    var warp: UInt32
    var places: SIMD[DType.uint32, K_LANES]
    """Where both rows' words are in a block of the first stage, in the order of loads."""
    var of_words: UInt32
    """Picks the lane's byte of two words."""
    var of_bytes: UInt32
    """Picks the bytes of two pairs of words in `CHUNK_ORDER`, whatever the order of loads."""

    @staticmethod
    @always_inline
    def of(warp: UInt32) -> Self:
        """Returns those of this lane of a warp, kept."""
        var row, byte = divmod(UInt32(thread_idx.x) % 32, UInt32(K_LANES))
        var tile, turn = warp % UInt32(Self.TILES), row // 2
        var first = tile * UInt32(STEP_BLOCKS * TILE_BYTES)
        first += half_of[Self.TILES](warp) * UInt32(ROWS * WORD_BYTES)
        var places = SIMD[DType.uint32, K_LANES]()
        var of_bytes = UInt32(0)
        comptime for i in range(K_LANES):
            var lane = row * UInt32(K_LANES) + (UInt32(i) + turn) % UInt32(K_LANES)
            places[i] = first + lane * UInt32(LANE_BYTES)
            comptime CHUNK = UInt32((CHUNK_ORDER >> (4 * i)) % 16)
            var load = (CHUNK - turn) % UInt32(K_LANES)
            of_bytes |= (load + load // 2 * 2) << UInt32(4 * i)
        var of_words = byte | (byte + UInt32(WORD_BYTES)) << 4
        return Self(
            warp,
            keep_here(places),
            keep_here(SIMD[DType.uint32, 1](of_words))[0],
            keep_here(SIMD[DType.uint32, 1](of_bytes))[0],
        )

    @always_inline
    def load[
        layout: RsLayout, //
    ](self, stage: RsStage[layout], num_blocks: UInt32) -> StageWeights[layout.scale]:
        comptime assert layout.scale == Scale.E8M0, "all of a block's codes have one scale"
        var loaded = StageWeights[layout.scale](0, 0)
        comptime for block in range(STEP_BLOCKS):
            var pairs = Array[SIMD[DType.uint32, ROWS], K_LANES](uninitialized=True)
            comptime for i in range(K_LANES):
                var at = stage.codes().base + self.places[i] + UInt32(TILE_BYTES * block)
                pairs[i] = load_pair(at)
            comptime for row in range(ROWS):
                var bytes = pick_bytes(
                    pick_bytes(pairs[0][row], pairs[1][row], self.of_words),
                    pick_bytes(pairs[2][row], pairs[3][row], self.of_words),
                    self.of_bytes,
                )
                loaded.words[ROWS * block + row] = pairs_of_bytes(bytes)
            var scales = load_scales(stage, self.warp % UInt32(Self.TILES), block)
            var half = half_of[Self.TILES](self.warp)
            loaded.scales[block] = join_bytes(scales, 0x4140 + 0x0202 * half)
        return loaded.without_end(num_blocks)

    @always_inline
    def place[row: Int](self) -> Tuple[UInt32, UInt32]:
        var half = half_of[Self.TILES](self.warp)
        return (self.warp % UInt32(Self.TILES), UInt32(ROWS) * half + UInt32(row))


@always_inline
def pairs_of_bytes(bytes: UInt32) -> UInt32:
    """Returns a word whose codes of each byte are four apart; bytes come in `CHUNK_ORDER`.

    Codes 1 and 4 are exchanged, and 3 and 6.
    """
    var differences = (bytes ^ (bytes >> 12)) & 0xF0F0
    return bytes ^ differences ^ (differences << 12)


@fieldwise_init
struct GatePairs(WeightReader):
    """Reads eight gates and their ups, or sixteen rows of both by turns."""

    comptime HAS_TWO_TILES = True

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
    def load[
        layout: RsLayout, //
    ](self, stage: RsStage[layout], num_blocks: UInt32) -> StageWeights[layout.scale]:
        var lane = UInt32(thread_idx.x) % 32
        # Bytes of both words of scales: one for the lower half, one for the upper one.
        var selector = self.word | (UInt32(4) + self.next_word) << 8
        var loaded = StageWeights[layout.scale](0, 0)
        comptime for block in range(STEP_BLOCKS):
            var codes = stage.codes()
            var first = codes.at(Coord(self.tile, block, lane, self.word))
            var second = codes.at(Coord(self.next_tile, block, lane, self.next_word))
            loaded.words[ROWS * block] = load_word(first)
            loaded.words[ROWS * block + 1] = load_word(second)
            var both = pick_bytes(
                load_scales(stage, self.tile, block),
                load_scales(stage, self.next_tile, block),
                selector,
            )
            loaded.scales[block] = both & LOW_BYTES
        return loaded.without_end(num_blocks)

    @always_inline
    def place[row: Int](self) -> Tuple[UInt32, UInt32]:
        comptime if row == 0:
            return (self.tile, self.word)
        return (self.next_tile, self.next_word)


@fieldwise_init
struct StageWeights[scale: Scale](TrivialRegisterPassable):
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
        comptime if Self.scale == Scale.E4M3:
            var unusual = UInt32(0)
            comptime for block in range(STEP_BLOCKS):
                unusual |= unusual_bits[Self.scale](self.scales[block])
            return any_lane(may_need_two_factors(unusual))
        return any_lane(may_need_two_factors(self.scales.reduce_or()))

    @always_inline
    def decode[block: Int](self, may_need_two: Bool, flag: UInt32) -> Rows[ROWS]:
        """Decodes a block; raises the flag where bfloat16 cannot hold it."""
        var words = self.words.slice[ROWS, offset=ROWS * block]()
        var scales = self.scales[block]
        var operands = Rows[ROWS](uninitialized=True)
        if may_need_two:
            keep_branch()
            comptime if Self.scale == Scale.E8M0:
                if any_overflows(scales):
                    store_word(flag, 1)
            comptime for row in range(ROWS):
                var byte = (scales >> UInt32(16 * row)) & 0xFF
                operands[row] = scaled_pairs_under[Self.scale](words[row], byte)
            return operands^
        var factors = factor_of[Self.scale](scales)
        comptime for row in range(ROWS):
            operands[row] = multiply_pairs_by_half[row == 1](unscaled_pairs(words[row]), factors)
        return operands^


comptime TensorPlanes = SIMD[DType.uint32, WORD_BYTES]
"""The first bytes of the tensor scales of a lane's four rows of a tile, the second ones, and so on."""


@always_inline
def load_tensor_planes(scales: Int, tile: UInt32, k: UInt32) -> TensorPlanes:
    """Loads those of a tile of 32 rows of `k` elements, of scales at an address."""
    var end = Int(tile + 1) * tile_scale_bytes(Scale.E4M3, Int(k // UInt32(BLOCK)))
    var at = scales + end + WORD_BYTES * Int(UInt32(thread_idx.x) % 32 // UInt32(K_LANES))
    var planes = TensorPlanes()
    comptime for i in range(WORD_BYTES):
        comptime BEFORE = (WORD_BYTES - i) * TILE_ROWS
        planes[i] = load_constant(device_pointer[DType.uint32](at - BEFORE))
    # Here, so that nobody waits for them after the main loop.
    return keep_here(planes)


@always_inline
def tensor_scale_of(planes: TensorPlanes, word: UInt32) -> Float32:
    """Returns the tensor scale of one of a lane's four rows of a tile."""
    var selector = word | (UInt32(WORD_BYTES) + word) << 4
    var low = pick_bytes(planes[0], planes[1], selector)
    var high = pick_bytes(planes[2], planes[3], selector)
    return bitcast[DType.float32](join_halves[False](low, high))


@fieldwise_init
struct SumFactor(TrivialRegisterPassable):
    """What sums of a weight row are multiplied by: its tensor scale, and what codes were halved."""

    var first: Float32
    var second: Float32
    """Behind the first one: together they may be too large for a float32."""

    @staticmethod
    @always_inline
    def of(planes: TensorPlanes, word: UInt32) -> Self:
        """Returns that of one of a lane's four rows of a tile."""
        var scale = tensor_scale_of(planes, word)
        comptime DOUBLED = Float32(1 << E4M3_HALVINGS)
        var is_small = abs(scale) < 1
        return Self(scale * DOUBLED if is_small else scale, 1 if is_small else DOUBLED)

    @staticmethod
    @always_inline
    def beside_factors[halvings: Int](tensor_scale: Float32) -> Self:
        """Returns that of a weight row, of sums so often halved, that rows of NVFP4 are multiplied by.

        Such sums are zero or from 2**-20 to 2**44, of K below 2**21: times `first` they stay within
        float32. What is left, a power of two, goes to the factor of a row of A.
        """
        comptime DOUBLED, LARGE, SMALL = Float32(1 << halvings), Float32(2) ** 60, Float32(2) ** -44
        var magnitude = abs(tensor_scale)
        if magnitude > Float32(2) ** 83:
            return Self(tensor_scale * (DOUBLED / LARGE), LARGE)
        if magnitude < Float32(2) ** -106:
            return Self(tensor_scale * (DOUBLED / SMALL), SMALL)
        return Self(tensor_scale * DOUBLED, 1)

    @always_inline
    def apply_beside(self, sum: Float32, of_row: Float32) -> Float32:
        """Multiplies a sum by the factor of a row of A, too, last: only C may leave float32."""
        return sum * self.first * (of_row * self.second)

    @always_inline
    def apply[width: SIMDLength, //](self, sums: SIMD[DType.float32, width]) -> type_of(sums):
        """Multiplies sums."""
        return sums * self.first * self.second


@fieldwise_init
struct RowTensorScales[Reader: WeightReader](TrivialRegisterPassable):
    """The tensor scales of a lane's two weight rows, on the way."""

    var reader: Self.Reader
    var first: TensorPlanes
    var second: TensorPlanes

    @staticmethod
    @always_inline
    def load(reader: Self.Reader, w: Weights, tiles: StageTiles, k: UInt32) -> Self:
        """Loads those of the rows that a reader finds in the stages of some tiles."""
        var first = load_tensor_planes(Int(w.scales), tiles.tile(reader.place[0]()[0]), k)
        var second = first
        comptime if Self.Reader.HAS_TWO_TILES:
            second = load_tensor_planes(Int(w.scales), tiles.tile(reader.place[1]()[0]), k)
        return Self(reader, first, second)

    @always_inline
    def apply_both[
        rows: Int, //, at_once: Int
    ](
        self,
        factors: DevicePointer[DType.float32],
        first: UInt32,
        last: UInt32,
        mut sums: Accumulator[rows],
    ):
        """Multiplies all sums of the lane, by factors of rows of A too, so many rows at once.

        Factors are those of rows from one on.
        """
        var of_weights = Array[SumFactor, ROWS](uninitialized=True)
        comptime for row in range(ROWS):
            var word = self.reader.place[row]()[1]
            of_weights[row] = SumFactor.beside_factors[E4M3_HALVINGS](
                tensor_scale_of(self.first if row == 0 else self.second, word)
            )
        comptime for row in range(0, rows, at_once):
            var here = first + UInt32(row)
            if row == 0 or here <= last:
                keep_branch()
                _apply_both[row, at_once](of_weights, factors, here, last, sums)

    @always_inline
    def apply[rows: Int, //](self, mut sums: Accumulator[rows]):
        """Multiplies all sums of the lane."""
        comptime for row in range(ROWS):
            var word = self.reader.place[row]()[1]
            var factor = SumFactor.of(self.first if row == 0 else self.second, word)
            comptime for octet in range(rows // OCTET):
                comptime for i in range(PAIR):
                    comptime part, at = place_of(octet, row, i)
                    sums[part][at] = factor.apply(sums[part][at])


@always_inline
def _apply_both[
    rows: Int, //, first_row: Int, count: Int
](
    of_weights: Array[SumFactor, ROWS],
    factors: DevicePointer[DType.float32],
    first: UInt32,
    last: UInt32,
    mut sums: Accumulator[rows],
):
    """Does so with some rows of A from one on, whose factors begin with one.

    A lane loads one of 32, and gets those of others: as many loads as it has sums would take the
    registers of these.
    """
    comptime LOADS = ceildiv(count, LANES)
    var lane = UInt32(thread_idx.x) % UInt32(LANES)
    var loaded = Array[Float32, LOADS](uninitialized=True)
    comptime for i in range(LOADS):
        loaded[i] = flat_of(factors)[Int(min(first + UInt32(LANES * i) + lane, last))]
    var pair = UInt32(PAIR) * (lane % UInt32(K_LANES))
    comptime for octet in range(count // OCTET):
        comptime for i in range(PAIR):
            comptime load, in_load = divmod(OCTET * octet + i, LANES)
            var of_row = shuffle_idx(loaded[load], pair + UInt32(in_load))
            comptime for row in range(ROWS):
                comptime part, at = place_of(first_row // OCTET + octet, row, i)
                sums[part][at] = of_weights[row].apply_beside(sums[part][at], of_row)

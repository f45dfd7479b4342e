"""Who fills the stages of a product, from one tile of C to the next as they empty.

    a thread    starts the copies of boxes
    a warp      puts factors into slots: of four of the consumers' tokens a lane, loaded some stages
                ahead; and in the end of a tile those of columns, biases and marks

Operands say which tokens and columns are marked, by their factors.
"""

from max.gpu.primitives.warp import vote
from std.collections import Array

from ...numbers.floats import FLOAT_TYPES, float_code
from ...simt.arguments import Result
from ...simt.views import flat_of
from ..dense.result import GROUPS
from ..dense.share import Share
from ..instructions.shared_memory import arrive, store_word, wait_phase
from ..instructions.warp import keep_branch, lane_here
from .operands import MappedOperands, Scaling
from .scales import LIFT, UNLIFT
from .slots import ENTRIES, TileFacts, store_float
from .stages import MappedStages, PART_COLUMNS, PART_TOKENS, columns_of

comptime AHEAD = 4
"""Stages whose factors are on the way."""
comptime LANE_ENTRIES = ENTRIES // 32
"""Factors of a lane."""
comptime Factors = SIMD[DType.float32, LANE_ENTRIES]
comptime PARTS = GROUPS
"""Parts of a tile."""
comptime Parts = SIMD[DType.float32, PARTS]


@always_inline
def copy_boxes[
    tokens: Int, //
](mut stages: MappedStages[tokens], left: Int, right: Int, share: Share[tokens, ...]):
    """Copies the stages of all tiles; one thread calls it."""
    var index = share.first()
    while share.has(index):
        var tile = share.tile(index)
        index = share.after(index)
        var token = UInt32(tile.row * tokens)
        var column = UInt32(tile.column * stages.COLUMNS)
        for step in range(share.first_step, share.end_step):
            wait_phase(stages.empty(), stages.parity)
            stages.copy_both(left, right, step, token, column)
            stages.advance()


@fieldwise_init
struct Loaded(TrivialRegisterPassable):
    """The factors of a lane's tokens in a stage, on their way."""

    var of_tokens: Factors
    var of_parts: Parts
    """Those of the weights that parts of the tile have."""


@fieldwise_init
struct TileScales[Operands: MappedOperands, tokens: Int](TrivialRegisterPassable):
    """Where a lane finds the factors of its tokens of a tile, and those of the tile's columns."""

    var operands: Self.Operands
    var token_places: SIMD[DType.uint32, LANE_ENTRIES]
    """The tokens' first factors."""
    var part_places: SIMD[DType.uint32, PARTS]
    """Those of the weights of parts that lie beside each other."""

    @staticmethod
    @always_inline
    def of(operands: Self.Operands, token: UInt32, column: UInt32) -> Self:
        """Finds those of the tile that begins somewhere."""
        var found = Self(operands, 0, 0)
        comptime for i in range(LANE_ENTRIES):
            comptime first = 32 * i % Self.tokens
            found.token_places[i] = operands.token_place(token + UInt32(first) + lane_here())
        comptime for i in range(PARTS):
            comptime first = PART_COLUMNS * i % columns_of(Self.tokens)
            found.part_places[i] = operands.column_place(column + UInt32(first))
        return found

    @always_inline
    def load(self, step: UInt32) -> Loaded:
        """Loads the factors of a stage."""
        var loaded = Loaded(0, 1)
        comptime for i in range(LANE_ENTRIES):
            loaded.of_tokens[i] = self.operands.token_factor(self.token_places[i], step)
        comptime if Self.Operands.SCALING == Scaling.TILES:
            if self.operands.has_tiles():
                comptime for i in range(PARTS):
                    loaded.of_parts[i] = self.operands.column_factor(self.part_places[i], step)
        return loaded


@always_inline
def put_factors[
    tokens: Int, Operands: MappedOperands, //
](mut stages: MappedStages[tokens], operands: Operands, share: Share[tokens, ...], result: Result):
    """Fills the slots of all tiles; a warp calls it."""
    var index = share.first()
    var last = share.end_step - 1
    while share.has(index):
        var tile = share.tile(index)
        index = share.after(index)
        var token = UInt32(tile.row * tokens)
        var column = UInt32(tile.column * stages.COLUMNS)
        var scales = TileScales[Operands, tokens].of(operands, token, column)
        var found = Found(0, 0)
        var loaded = Array[Loaded, AHEAD](uninitialized=True)
        comptime if Operands.SCALING.is_of_stages():
            comptime for i in range(AHEAD):
                loaded[i] = scales.load(min(share.first_step + UInt32(i), last))
        for first in range(share.first_step, last, UInt32(AHEAD)):
            comptime for i in range(AHEAD):
                var step = first + UInt32(i)
                if step < last:
                    wait_phase(stages.empty(), stages.parity)
                    comptime if Operands.SCALING.is_of_stages():
                        put_tokens[Operands](stages, loaded[i], found)
                        loaded[i] = scales.load(min(step + UInt32(AHEAD), last))
                    comptime if Operands.SCALING == Scaling.COLUMNS:
                        put_ends(stages, scales, column, step, found)
                    say_full(stages)
        # The tile's last stage has what is of the whole tile, too.
        wait_phase(stages.empty(), stages.parity)
        var biases = load_biases[stages.COLUMNS // 32](result, column + lane_here())
        put_tokens[Operands](stages, scales.load(last), found)
        put_ends(stages, scales, column, last, found)
        comptime for i in range(stages.COLUMNS // 32):
            store_float(stages.slot().bias_at(UInt32(32 * i) + lane_here()), biases[i])
        put_marks(stages, operands, found)
        if lane_here() == 0:
            TileFacts(token, column, not share.has(index)).put(stages.slot())
        say_full(stages)


@always_inline
def say_full(mut stages: MappedStages[_]):
    """Says that a lane has filled its part of a slot, and goes on to the next one."""
    arrive(stages.full())
    stages.advance()


@fieldwise_init
struct Found(TrivialRegisterPassable):
    """What a lane has found that float32 sums cannot take, of a tile."""

    var largest: Factors
    """The largest factor that sums of each of its tokens meet; where they meet one, that."""
    var columns: UInt32
    """A bit for each of its columns."""


@always_inline
def put_tokens[
    tokens: Int, //, Operands: MappedOperands
](stages: MappedStages[tokens], loaded: Loaded, mut found: Found):
    """Puts the factors of a lane's tokens, those of their tiles multiplied in."""
    var lifted = LIFT * loaded.of_parts
    comptime for i in range(LANE_ENTRIES):
        var factor = loaded.of_tokens[i]
        comptime if Operands.SCALING == Scaling.TILES:
            factor *= lifted[32 * i // PART_TOKENS]
            found.largest[i] = max(found.largest[i], abs(factor))
        else:
            found.largest[i] = factor
        store_float(stages.slot().factor_at(UInt32(32 * i) + lane_here()), factor)


@always_inline
def put_ends[
    tokens: Int, Operands: MappedOperands, //
](
    stages: MappedStages[tokens],
    scales: TileScales[Operands, tokens],
    first_column: UInt32,
    step: UInt32,
    mut found: Found,
):
    """Puts the factors of a lane's columns."""
    comptime COUNT = stages.COLUMNS // 32
    var slot = stages.slot()
    var column = first_column + lane_here()
    # All loads before the first store.
    var ends = SIMD[DType.float32, COUNT](1)
    var have_ends = Operands.SCALING != Scaling.TILES or not scales.operands.has_tiles()
    if have_ends:
        comptime for i in range(COUNT):
            var place = scales.operands.column_place(column + UInt32(32 * i))
            ends[i] = scales.operands.column_factor(place, step)
    comptime for i in range(COUNT):
        var at = UInt32(32 * i) + lane_here()
        var is_lost = have_ends and scales.operands.loses_column(ends[i])
        found.columns |= UInt32(1 if is_lost else 0) << UInt32(i)
        comptime if Operands.SCALING == Scaling.TILES:
            ends[i] *= UNLIFT
        store_float(slot.end_at(at), ends[i])


@always_inline
def load_biases[count: Int](result: Result, column: UInt32) -> SIMD[DType.float32, count]:
    """Loads the biases of every 32nd column, the last one's for those past the end."""
    var found = SIMD[DType.float32, count](0)
    comptime for dtype in FLOAT_TYPES:
        if result.bias_dtype == Int32(float_code(dtype)):
            keep_branch()
            var biases = flat_of(result.bias.unsafe_bitcast[Scalar[dtype]]())
            comptime for i in range(count):
                var at = min(column + UInt32(32 * i), result.columns - 1)
                found[i] = biases[Int(at)].cast[DType.float32]()
    return found


@always_inline
def put_marks(stages: MappedStages[_], operands: Some[MappedOperands], found: Found):
    """Puts the marks of a tile."""
    var slot = stages.slot()
    var word = UInt32(0)
    comptime for i in range(slot.TOKEN_WORDS):
        var marks = vote[DType.uint32](operands.loses_token(found.largest[i]))
        word = marks if lane_here() == UInt32(i) else word
    comptime for i in range(slot.COLUMN_WORDS):
        var marks = vote[DType.uint32]((found.columns >> UInt32(i)) % 2 == 1)
        word = marks if lane_here() == UInt32(slot.TOKEN_WORDS + i) else word
    if lane_here() < UInt32(slot.WORDS):
        store_word(slot.mark_at(lane_here()), word)

"""What a lane has of a tile of C: the sums of its warp's products, and their totals under factors."""

from max.gpu import thread_idx

from ...tiles import in_registers
from ..host import FACTORS_OF_STAGES, ROW_BYTES, STAGE_STEPS, STEP, TileShape, WARP_COLUMNS
from ..instructions import FRAGMENT_SUMS, Quad, keep_branch, load_fragments, multiply_add
from .factors import FactorPlaces, Sums
from .flags import Flags
from .place import CHUNK_BYTES, FRAGMENT_COLUMNS, FRAGMENT_ROWS, LanePlace, place_in_stage


@fieldwise_init
struct Product[tile: TileShape, has_e4m3: Bool, factors: Int](TrivialRegisterPassable):
    """Sums of a warp's rows, and the factors of the stage that they are of."""

    comptime Sums = Sums[Self.tile.warp_rows()]
    comptime Places = FactorPlaces[Self.tile, Self.has_e4m3]

    var sums: Self.Sums
    var totals: Self.Sums
    """Sums of stages times their factors, where stages have factors."""
    var places: Self.Places
    var of_stage: Self.Places.Found

    @staticmethod
    @always_inline
    def of(places: Self.Places) -> Self:
        """Begins with nothing."""
        return Self(
            zeros[Self.tile.warp_rows()](),
            zeros[Self.tile.warp_rows()](),
            places,
            Self.Places.Found(1, 1),
        )

    @always_inline
    def add(mut self, place: LanePlace[Self.tile], step: UInt32, is_last: Bool):
        """Adds the products of a step; factors are loaded meanwhile, and meet the sums of a stage.

        They meet before anything else is loaded, which they would wait for.
        """
        comptime HAS_FACTORS = Self.factors == FACTORS_OF_STAGES
        comptime if HAS_FACTORS:
            if step % UInt32(STAGE_STEPS) == 0:
                self.of_stage = self.places.load(step // UInt32(STAGE_STEPS))
        multiply(place, self.sums)
        comptime if HAS_FACTORS:
            if is_last or (step + 1) % UInt32(STAGE_STEPS) == 0:
                self._end_stage(place.flags())

    @always_inline
    def _end_stage(self, flags: Flags[_]):
        """Adds the sums of a stage to the totals, and begins anew."""
        if not self.of_stage.are_usual():
            keep_branch()
            self.of_stage.add_any(self.sums, self.totals)
            self.places.flag(self.of_stage, flags)
        else:
            keep_branch()
            self.of_stage.add_usual(self.sums, self.totals)
        clear[Self.tile.warp_rows()](self.sums)

    @always_inline
    def apply(self, flags: Flags[_]):
        """Multiplies sums by the factors of rows and columns, which have one for all of K."""
        var of_all = self.places.load(0)
        self.places.flag(of_all, flags)
        of_all.apply(self.sums)

    @always_inline
    def found(self) -> Self.Sums:
        """Returns the lane's elements of C."""
        return self.totals if Self.factors == FACTORS_OF_STAGES else self.sums


@always_inline
def zeros[warp_rows: Int]() -> Sums[warp_rows]:
    """Returns sums of nothing."""
    comptime M_TILES = warp_rows // FRAGMENT_ROWS
    comptime N_TILES = WARP_COLUMNS // FRAGMENT_COLUMNS
    var sums = in_registers[DType.float32, FRAGMENT_SUMS, M_TILES, N_TILES]()
    clear[warp_rows](sums)
    return sums


@always_inline
def clear[warp_rows: Int](sums: Sums[warp_rows]):
    """Makes them sums of nothing."""
    comptime for m_tile in range(warp_rows // FRAGMENT_ROWS):
        comptime for n_tile in range(WARP_COLUMNS // FRAGMENT_COLUMNS):
            sums[m_tile, n_tile] = 0


@always_inline
def multiply[tile: TileShape, //](place: LanePlace[tile], sums: Sums[tile.warp_rows()]):
    """Adds a warp's products of a stage."""
    comptime M_TILES = tile.warp_rows() // FRAGMENT_ROWS
    comptime PAIRS = WARP_COLUMNS // FRAGMENT_ROWS
    var warp, lane = divmod(UInt32(thread_idx.x), UInt32(32))
    var row_warp, column_warp = divmod(warp, UInt32(tile.column_warps()))
    # Lane l tells where row l % 16 of A is, the first or the second eight of K; of B, row l % 8 of
    # the first or second eight rows, K in turn.
    var row = row_warp * UInt32(tile.warp_rows()) + lane % 16
    var left = place.left(place.stage) + place_in_stage(row, lane // 16)
    var column = column_warp * UInt32(WARP_COLUMNS) + lane // 16 * 8 + lane % 8
    var right = place.right(place.stage) + place_in_stage(column, lane // 8 % 2)
    comptime for k_step in range(STEP // FRAGMENT_ROWS):
        comptime TURN = UInt32(2 * k_step * CHUNK_BYTES)
        var of_left = Array[Quad[DType.uint32], M_TILES](uninitialized=True)
        comptime for i in range(M_TILES):
            of_left[i] = load_fragments((left ^ TURN) + UInt32(i * FRAGMENT_ROWS * ROW_BYTES))
        comptime for pair in range(PAIRS):
            var at = (right ^ TURN) + UInt32(pair * FRAGMENT_ROWS * ROW_BYTES)
            var of_right = load_fragments(at)
            comptime for i in range(M_TILES):
                comptime for j in range(2):
                    sums[i, 2 * pair + j] = multiply_add(
                        of_left[i], of_right.slice[2, offset=2 * j](), sums[i, 2 * pair + j]
                    )

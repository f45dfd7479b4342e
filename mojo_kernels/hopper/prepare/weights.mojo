"""Rows of B on their way into stages: tiles of 32, loaded by units, put as tensor cores take them.

A warp has the 32 rows of a stage, a tile of `PreshuffledCuda`. Its lanes load units, some granules
of 16 bytes of all rows, and put them together in shared memory:

    loaded    rows r, r + 8, r + 16, r + 24    bytes 4 t .. 4 t + 3 of a granule    in lane 4 r + t
    put       part p of row r, 16 bytes        at part p ^ (r % 8) of the row's 128 bytes
"""

from layout import Coord
from max.gpu import thread_idx
from max.gpu.sync import syncwarp
from std.builtin.device_passable import DevicePassable

from ...launch.queue import DevicePointer
from ...layouts import GRANULE_BYTES
from ...simt.arguments import Weights
from ...simt.views import flat_of
from ..dense.stages import StagedRows
from ..host.workspace import PREPARE_WARPS as WARPS
from ..instructions.shared_memory import load_quad, shared_base, store_quad
from ..instructions.warp import keep_branch, lane_here, load_streaming
from ..layout import BLOCK, K_LANES, ROWS_PER_LANE, ROW_LANES, TILE_BYTES, TILE_ROWS
from ..shapes import LANE_BYTES, PARTS, ROW_BYTES

comptime TILE_WORDS = TILE_BYTES // 4
"""Words of a granule of all rows of a tile."""
comptime SHARED_BYTES = WARPS * StageRows.NUM_BYTES
"""Shared memory of a CTA: a stage for each warp."""


trait StagedOperands(DevicePassable, TrivialRegisterPassable):
    """How rows of B become stages, and where those are in the workspace, if they are there."""

    comptime IN_WORKSPACE: Bool
    """Whether they are; else only what is known of rows."""
    comptime CODE_BITS: Int
    """Bits of a code of the right side."""
    comptime STAGE_CODES: Int
    """Codes of a row in a stage."""
    comptime GRANULES: Int
    """Granules of a unit: those that a lane loads together."""
    comptime BLOCKS: Int
    """Blocks of a unit, which have a scale byte a row."""
    comptime PUT_BYTES: Int
    """Bytes that the four lanes of a row put next to each other."""

    def weights(self) -> StagedRows:
        """Returns where the right side is in the workspace."""
        ...

    def num_steps(self) -> UInt32:
        """Returns the stages of K."""
        ...

    def inspect(self, w: Weights, tile: UInt32, k: UInt32, cta: UInt32) -> UInt32:
        """Finds shared exponents or fallback flags of a tile; all threads of a CTA of it call it.

        Nothing is written before other kernels have ended, which may read what was there. Returns
        what `put` wants to know of the lane's rows.
        """
        ...

    def put[part: Int](self, unit: Unit[Self.GRANULES, Self.BLOCKS], rows: StageRows):
        """Puts a unit to its place: some part of the 32 rows of a stage."""
        ...


@fieldwise_init
struct Unit[granules: Int, blocks: Int](TrivialRegisterPassable):
    """What a lane has of some granules of a tile."""

    var words: SIMD[DType.uint32, ROWS_PER_LANE * Self.granules]
    """Of each granule, a word of four rows."""
    var scales: SIMD[DType.uint32, Self.blocks]
    """Of each block, the scale bytes of four rows."""
    var rows: UInt32
    """What `inspect` found of the lane's rows."""


@fieldwise_init
struct StageRows(TrivialRegisterPassable):
    """A warp's 32 rows of a stage in shared memory, as one of its lanes sees them."""

    comptime NUM_BYTES = TILE_ROWS * ROW_BYTES
    """Bytes of all rows."""

    var base: UInt32
    """Where the first row begins."""
    var lane_at: UInt32
    """Where the lane's first bytes go, from there on."""

    @staticmethod
    @always_inline
    def of[put_bytes: Int](base: UInt32) -> Self:
        """Returns those of a lane, if each of a row's four lanes puts so many bytes at a time."""
        var row_lane, k_lane = divmod(lane_here(), UInt32(K_LANES))
        var part, in_part = divmod(k_lane * UInt32(put_bytes), UInt32(LANE_BYTES))
        var row_at = row_lane * UInt32(ROW_BYTES)
        return Self(base, row_at + (row_lane ^ part) * UInt32(LANE_BYTES) + in_part)

    @always_inline
    def at[row: Int, part: Int](self) -> UInt32:
        """Returns where the lane's bytes go, of one of its four rows, so many parts further on."""
        comptime FURTHER = UInt32(part * LANE_BYTES)
        return self.base + (self.lane_at ^ FURTHER) + UInt32(row * ROW_LANES * ROW_BYTES)

    @always_inline
    def clear_from(self, first: UInt32):
        """Makes zeros of the parts of all rows from one on; a whole warp calls it."""
        syncwarp()
        var row = lane_here()
        for part in range(first, UInt32(PARTS)):
            var at = row * UInt32(ROW_BYTES) + (part ^ (row % UInt32(PARTS))) * UInt32(LANE_BYTES)
            store_quad(self.base + at, SIMD[DType.uint32, 4](0))


@fieldwise_init
struct TileUnits[Operands: StagedOperands](TrivialRegisterPassable):
    """Where a lane finds what it has of a tile."""

    comptime Unit = Unit[Self.Operands.GRANULES, Self.Operands.BLOCKS]
    comptime GRANULE_CODES = GRANULE_BYTES * 8 // Self.Operands.CODE_BITS
    """Codes of a granule."""
    comptime UNITS = Self.Operands.STAGE_CODES // Self.GRANULE_CODES // Self.Operands.GRANULES
    """Units of a stage."""
    comptime Stage = Array[Self.Unit, Self.UNITS]
    """What a lane has of a stage."""

    var k: UInt32
    """Codes of a row."""
    var words: DevicePointer[DType.uint32]
    """The lane's first words."""
    var scales: DevicePointer[DType.uint32]
    """The lane's first scales."""
    var rows: UInt32
    """What `inspect` found of the lane's rows."""

    @staticmethod
    @always_inline
    def of(w: Weights, k: UInt32, tile: UInt32) -> Self:
        """Finds a tile."""
        var lane = lane_here()
        var num_granules = k // UInt32(Self.GRANULE_CODES)
        return Self(
            k,
            w.codes.unsafe_bitcast[UInt32]().unsafe_offset(
                Int(tile) * Int(num_granules) * TILE_WORDS + Int(lane) * ROWS_PER_LANE
            ),
            w.scales.unsafe_bitcast[UInt32]().unsafe_offset(
                Int(tile) * Int(k // UInt32(BLOCK)) * ROW_LANES + Int(lane // UInt32(K_LANES))
            ),
            0,
        )

    @always_inline
    def load(self, operands: Self.Operands, step: UInt32) -> Self.Stage:
        """Loads a stage; the last stage, granules and blocks stand in for those past the end.

        So no load is under a condition, and nobody waits for it here.
        """
        var there = min(step, operands.num_steps() - 1)
        var loaded = Self.Stage(uninitialized=True)
        comptime for part in range(Self.UNITS):
            loaded[part] = self._load_unit(there * UInt32(Self.UNITS) + UInt32(part))
        return loaded^

    @always_inline
    def _load_unit(self, unit: UInt32) -> Self.Unit:
        """Loads a unit of a tile."""
        var found = Self.Unit(0, 0, self.rows)
        var first = unit * UInt32(Self.Operands.GRANULES)
        var last = self.k // UInt32(Self.GRANULE_CODES) - 1
        comptime for i in range(Self.Operands.GRANULES):
            var at = min(first + UInt32(i), last) * UInt32(TILE_WORDS)
            var loaded = load_streaming(self.words.unsafe_offset(Int(at)))
            comptime for row in range(ROWS_PER_LANE):
                found.words[ROWS_PER_LANE * i + row] = loaded[row]
        var first_block = unit * UInt32(Self.Operands.BLOCKS)
        var last_block = self.k // UInt32(BLOCK) - 1
        comptime for i in range(Self.Operands.BLOCKS):
            var at = min(first_block + UInt32(i), last_block) * UInt32(ROW_LANES)
            found.scales[i] = flat_of(self.scales)[Int(at)]
        return found

    @always_inline
    def clear_tail(self, rows: StageRows, step: UInt32):
        """Makes zeros of what is past the end of K in a stage."""
        comptime PART_CODES = Self.Operands.STAGE_CODES // PARTS
        var end = self.k - step * UInt32(Self.Operands.STAGE_CODES)
        if end < UInt32(Self.Operands.STAGE_CODES):
            keep_branch()
            rows.clear_from(end // UInt32(PART_CODES))


@always_inline
def store_tile[
    Operands: StagedOperands, //
](operands: Operands, w: Weights, k: UInt32, tile: UInt32, cta: UInt32, tile_ctas: UInt32):
    """Prepares a tile, together with the other CTAs that share it."""
    comptime if Operands.IN_WORKSPACE:
        # The first stage is on the way while rows are inspected.
        var units = TileUnits[Operands].of(w, k, tile)
        var loaded = units.load(operands, _first_step(cta))
        units.rows = operands.inspect(w, tile, k, cta)
        comptime for part in range(units.UNITS):
            loaded[part].rows = units.rows
        _store_stages(operands, units, loaded^, tile, cta, tile_ctas)
    else:
        _ = operands.inspect(w, tile, k, cta)


@always_inline
def _first_step(cta: UInt32) -> UInt32:
    """Returns the first stage that a warp stores, of those of its CTA."""
    return cta * UInt32(WARPS) + UInt32(thread_idx.x) // 32


@always_inline
def _store_stages[
    Operands: StagedOperands, //
](
    operands: Operands,
    units: TileUnits[Operands],
    var loaded: TileUnits[Operands].Stage,
    tile: UInt32,
    cta: UInt32,
    tile_ctas: UInt32,
):
    """Writes a tile's stages to the workspace: those of a CTA, of so many that share the tile.

    A warp takes a stage, the one of `_first_step` is loaded, and puts it together in shared memory.
    Meanwhile the next one is on the way.
    """
    var warp = UInt32(thread_idx.x) // 32
    var lane = lane_here()
    var rows = StageRows.of[Operands.PUT_BYTES](shared_base() + warp * UInt32(StageRows.NUM_BYTES))
    var stages = operands.weights()
    var first_row = tile * UInt32(TILE_ROWS)
    var turn = tile_ctas * UInt32(WARPS)
    for step in range(_first_step(cta), operands.num_steps(), turn):
        comptime for part in range(units.UNITS):
            operands.put[part](loaded[part], rows)
        loaded = units.load(operands, UInt32(step) + turn)
        units.clear_tail(rows, UInt32(step))
        syncwarp()
        # Eight lanes have a row; a lane has rows four apart, so that two of eight are its own.
        comptime LANE_ROWS = 32 // PARTS
        var row, part = divmod(lane, UInt32(PARTS))
        comptime for i in range(StageRows.NUM_BYTES // (32 * LANE_BYTES)):
            comptime octet, first = divmod(LANE_ROWS * i, 8)
            var in_octet = UInt32(first) + row
            var place = stages.part(first_row + in_octet, UInt32(step), part ^ in_octet)
            place = place.unsafe_offset(octet * Int(stages.octet_bytes()))
            var at = (UInt32(32 * i) + lane) * UInt32(LANE_BYTES)
            flat_of(place.unsafe_bitcast[UInt32]()).store[alignment=LANE_BYTES](
                Coord(0), load_quad(rows.base + at)
            )
        syncwarp()

"""The units of a tile of 32 weight rows, loaded one by one, and its stages in the workspace."""

from layout import Coord
from max.gpu import thread_idx
from max.gpu.sync import syncwarp

from ...launch.queue import DevicePointer
from ...layouts import GRANULE_BYTES
from ...simt.arguments import Weights
from ...simt.views import flat_of
from ..instructions.shared_memory import load_quad
from ..instructions.warp import keep_branch, lane_here, load_streaming
from ..layout import BLOCK, K_LANES, ROWS_PER_LANE, ROW_LANES, TILE_BYTES, TILE_ROWS
from ..shapes import LANE_BYTES, PARTS
from .operands import StagedOperands
from .units import StageRows, Unit

comptime TILE_WORDS = TILE_BYTES // 4
"""Words of a granule of all rows of a tile."""


@fieldwise_init
struct TileUnits[Operands: StagedOperands](TrivialRegisterPassable):
    """Where a lane finds what it has of a tile."""

    comptime Unit = Unit[Self.Operands.GRANULES, Self.Operands.BLOCKS]
    comptime GRANULE_CODES = GRANULE_BYTES * 8 // Self.Operands.CODE_BITS
    """Codes of a granule."""
    comptime STAGE_GRANULES = Self.Operands.STAGE_CODES // Self.GRANULE_CODES
    """Granules of a row in a stage."""
    comptime UNITS = Self.STAGE_GRANULES // Self.Operands.GRANULES
    """Units of a stage."""
    comptime PART_CODES = Self.Operands.STAGE_CODES // PARTS
    """Codes of a part of a row in a stage."""

    var k: UInt32
    """Codes of a row."""
    var words: DevicePointer[DType.uint32]
    """The lane's first words."""
    var scales: DevicePointer[DType.uint32]
    """The lane's first scales."""
    var rows: UInt32
    """What the operands want to know of the lane's rows."""

    @staticmethod
    @always_inline
    def of(w: Weights, k: UInt32, tile: UInt32) -> Self:
        """Finds a tile of weight rows."""
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
    def load[part: Int](self, step: UInt32) -> Self.Unit:
        """Loads a unit of a stage; the last granules and blocks stand in for those past the end.

        So no load is under a condition, and nobody waits for it here.
        """
        var found = Self.Unit(0, 0, self.rows)
        var unit = step * UInt32(Self.UNITS) + UInt32(part)
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
        var end = self.k - step * UInt32(Self.Operands.STAGE_CODES)
        if end < UInt32(Self.Operands.STAGE_CODES):
            keep_branch()
            rows.clear_from(end // UInt32(Self.PART_CODES))


comptime StageUnits[Operands: StagedOperands] = Array[
    TileUnits[Operands].Unit, TileUnits[Operands].UNITS
]
"""What a lane has of a stage."""


@always_inline
def load_stage[
    Operands: StagedOperands, //
](operands: Operands, units: TileUnits[Operands], step: UInt32) -> StageUnits[Operands]:
    """Loads a stage, the last one for those past the end; nobody waits for it here."""
    var there = min(step, operands.num_steps() - 1)
    var loaded = StageUnits[Operands](uninitialized=True)
    comptime for part in range(TileUnits[Operands].UNITS):
        loaded[part] = units.load[part](there)
    return loaded^


@always_inline
def first_step_of[num_warps: Int](group: UInt32) -> UInt32:
    """Returns the first stage that a warp stores, of those of its group."""
    return group * UInt32(num_warps) + UInt32(thread_idx.x) // 32


@always_inline
def store_stages[
    Operands: StagedOperands, //, num_warps: Int
](
    operands: Operands,
    units: TileUnits[Operands],
    var loaded: StageUnits[Operands],
    tile: UInt32,
    base: UInt32,
    group: UInt32,
    num_groups: UInt32,
):
    """Writes a tile's stages to the workspace: those of a group, of so many that share the tile.

    A warp takes a stage, the one of `first_step_of` is loaded, and puts it together in shared
    memory, at some place from `base` on. Meanwhile the next one is on the way.
    """
    comptime Units = TileUnits[Operands]
    var warp = UInt32(thread_idx.x) // 32
    var lane = lane_here()
    var rows = StageRows(
        base + warp * UInt32(StageRows.NUM_BYTES), StageRows.place_of_lane[Operands.PUT_BYTES]()
    )
    var stages = operands.weights()
    var first_row = tile * UInt32(TILE_ROWS)
    var turn = num_groups * UInt32(num_warps)
    for step in range(first_step_of[num_warps](group), operands.num_steps(), turn):
        comptime for part in range(Units.UNITS):
            operands.put[part](loaded[part], rows)
        loaded = load_stage(operands, units, UInt32(step) + turn)
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

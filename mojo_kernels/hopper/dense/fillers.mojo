"""Who fills the stages of a product, from one tile of C to the next as they empty.

Eight warps: each puts 32 rows of weights of every other stage, while loads of its next one are on the
way. One of their lanes copies the stage's tokens.
"""

from max.gpu import thread_idx
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import syncwarp

from ...simt.arguments import Weights
from ..instructions.shared_memory import arrive, publish_stores, wait_phase
from ..instructions.warp import lane_here
from ..layout import TILE_ROWS
from ..many.kernel import CONSUMER_WARPS
from ..staged.stages import TILES
from .operands import DenseOperands
from .pipeline import DenseStages, FILLER_TURNS
from .share import Share
from .units import StageRows
from .weights import TileUnits


@fieldwise_init
struct Turn(TrivialRegisterPassable):
    """A stage that is a filler's: of a tile of C, and along K."""

    var tile: UInt32
    var step: UInt32

    @always_inline
    def settle(mut self, share: Share[_]):
        """Goes on to the tile that the stage is of."""
        while self.step >= share.end_step:
            self.step -= share.end_step - share.first_step
            self.tile = share.after(self.tile)


@always_inline
def make_stages[
    tokens: Int, //, Operands: DenseOperands
](
    mut stages: DenseStages[tokens],
    operands: Operands,
    share: Share[tokens],
    w: Weights,
    k: UInt32,
    columns: UInt32,
):
    """Makes stages of weights; a warp of the fillers calls it.

    The first lane of the first one of a stage starts the copy of its tokens.
    """
    comptime Units = TileUnits[Operands]
    var warp = broadcast(UInt32(thread_idx.x) // 32) - UInt32(CONSUMER_WARPS)
    var number, filler = divmod(warp, UInt32(TILES))
    stages.advance(number)
    var turn = Turn(share.first(), share.first_step + number)
    turn.settle(share)
    var next = turn
    var units = units_of(operands, share, turn.tile, filler, w, k, columns)
    var loaded = Array[Units.Unit, Units.UNITS](uninitialized=True)
    comptime for part in range(Units.UNITS):
        loaded[part] = units.load[part](next.step)
    var is_first_lane = lane_here() == 0
    var lane_at = StageRows.place_of_lane[Operands.PUT_BYTES]()
    var row = UInt32(0)
    var tile = UInt32.MAX
    while share.has(turn.tile):
        if turn.tile != tile:
            tile = turn.tile
            row = UInt32(share.tile(tile).row)
        # The last stage stands in for those past the end.
        next.step += UInt32(FILLER_TURNS)
        if next.step >= share.end_step:
            next.settle(share)
            if next.tile != tile:
                units = units_of(operands, share, next.tile, filler, w, k, columns)
        wait_phase(stages.empty(), stages.parity)
        if filler == 0 and is_first_lane:
            stages.copy_tokens(
                operands.tokens().stage(row, turn.step), operands.factors_of(row, turn.step)
            )
        var rows = StageRows(stages.weights() + filler * UInt32(StageRows.NUM_BYTES), lane_at)
        comptime for part in range(Units.UNITS):
            operands.put[part](loaded[part], rows)
            loaded[part] = units.load[part](next.step)
        units.clear_tail(rows, turn.step)
        publish_stores()
        syncwarp()
        if is_first_lane:
            arrive(stages.full())
        stages.advance(UInt32(FILLER_TURNS))
        turn = next


@always_inline
def units_of[
    tokens: Int, Operands: DenseOperands, //
](
    operands: Operands,
    share: Share[tokens],
    tile: UInt32,
    filler: UInt32,
    w: Weights,
    k: UInt32,
    columns: UInt32,
) -> TileUnits[Operands]:
    """Finds the weight rows of a filler; the last tile stands in for those past the end."""
    var index = min(tile, UInt32(share.schedule.num_tiles()) - 1)
    var column = UInt32(share.tile(index).column)
    var found = min(column * UInt32(TILES) + filler, (columns - 1) // UInt32(TILE_ROWS))
    var units = TileUnits[Operands].of(w, k, found)
    units.rows = operands.rows_of(found)
    return units

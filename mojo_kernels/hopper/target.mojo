"""Where rows of C go, and what becomes of sums on the way: bias, and gates with their ups.

That is of the usual gates. Of others a product stores the sums, of gates and ups or of ups alone, and
`activate_sums` makes hidden numbers of them: a call of a gate within a product would cost it registers.

A row of four columns a lane, of a CTA's 128 weight rows:

    gates and ups    of a lane            hidden numbers of a lane
    neighbours       gate up gate up      two, its own
    halves           4 gates | 4 ups      lane l and l + 16 exchange: two each
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import shuffle_xor
from std.utils import StaticTuple

from ..experts import NUMBERS
from ..launch.queue import DevicePointer, KernelStruct, Queue, device_pointer
from ..numbers.floats import float_bytes
from ..numbers.gates import Gate
from ..simt.arguments import ExpertWeights, Result
from .host.moe import SUM_THREADS, grid_of_sums
from .routing import RowParts, RowTile

comptime PART_COLUMNS = 4
"""Columns of a lane."""
comptime LANE_HIDDEN = PART_COLUMNS // 2
"""Hidden numbers of a lane."""
comptime HALF_LANES = 16
"""Lanes that have the gates of halves, or their ups."""


@fieldwise_init
struct Target(KernelStruct):
    """Where rows go, and what becomes of sums on the way."""

    var rows: Result
    """All rows: of sums, or of hidden numbers."""
    var gate_word: Int32
    """The gate and the order of its rows, or none."""
    var limit: Float32
    var alpha: Float32

    def __init__(out self, rows: Result, gate: Gate):
        """Takes rows that a gate, or none, leads to."""
        self.rows = rows
        self.gate_word = gate.word()
        self.limit = gate.limit
        self.alpha = gate.alpha

    @always_inline
    def gate(self) -> Gate:
        """Returns the gate."""
        return Gate.of_word(self.gate_word, self.limit, self.alpha)

    @always_inline
    def of(self, tile: RowTile, experts: ExpertWeights) -> Result:
        """Returns the rows of a tile as a result of their own, with the bias of their expert."""
        var result = self.rows
        var dtype_bytes = float_bytes(Int(result.dtype))
        result.output = result.output.unsafe_offset(
            Int(tile.first_row) * Int(result.columns) * dtype_bytes
        )
        result.rows = tile.rows
        if tile.expert >= 0 and experts.bias_dtype >= 0:
            var row_bytes = Int(experts.columns) * float_bytes(Int(experts.bias_dtype))
            result.bias = experts.bias.unsafe_offset(Int(tile.expert) * row_bytes)
            result.bias_dtype = experts.bias_dtype
        return result


@fieldwise_init
struct Part(TrivialRegisterPassable):
    """Which columns of a tile of rows a CTA has."""

    var first_column: UInt32
    """The first column of the result."""
    var half: UInt32
    """Columns of the weights from a gate to its up; 0 for neighbours, and for no gate."""


@fieldwise_init
struct TileOfC(TrivialRegisterPassable):
    """Where a tile of C goes, and what becomes of sums on the way."""

    var result: Result
    """All of C, or of a list the tile's rows alone."""
    var first_row: UInt32
    """The first row in there."""
    var part: Part
    """The columns."""
    var gate: Gate


@always_inline
def store_hidden(to: TileOfC, row: UInt32, lane: UInt32, sums: SIMD[DType.float32, PART_COLUMNS]):
    """Stores what gates and ups of a row become; a warp calls it."""
    var part, result, gate = to.part, to.result, to.gate
    var biased = sums
    if part.half == 0:
        var column = part.first_column + lane * UInt32(LANE_HIDDEN)
        if result.has_bias() and column < result.columns:
            biased += result.bias_of[PART_COLUMNS](2 * Int(column))
        var gates, ups = biased.deinterleave()
        if column < result.columns:
            _store_hidden(result, row, column, gate.of_usual(gates, ups))
        return
    # Lanes below have four gates, those above their ups.
    var upper, below = divmod(lane, UInt32(HALF_LANES))
    var first = part.first_column + below * UInt32(PART_COLUMNS)
    if result.has_bias() and first < result.columns:
        biased += result.bias_of[PART_COLUMNS](Int(first + upper * part.half))
    var low, high = biased.slice[LANE_HIDDEN](), biased.slice[LANE_HIDDEN, offset=LANE_HIDDEN]()
    var mine = low if upper == 0 else high
    var given = high if upper == 0 else low
    var theirs = SIMD[DType.float32, LANE_HIDDEN]()
    comptime for i in range(LANE_HIDDEN):
        theirs[i] = shuffle_xor(given[i], UInt32(HALF_LANES))
    var gates = mine if upper == 0 else theirs
    var ups = theirs if upper == 0 else mine
    var column = first + upper * UInt32(LANE_HIDDEN)
    if column < result.columns:
        _store_hidden(result, row, column, gate.of_usual(gates, ups))


@always_inline
def _store_hidden(
    result: Result, row: UInt32, column: UInt32, numbers: SIMD[DType.float32, LANE_HIDDEN]
):
    """Stores hidden numbers, whose rows are made of blocks."""
    result.elements().store[LANE_HIDDEN, LANE_HIDDEN](Int(row), Int(column), numbers)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(SUM_THREADS)))
def activate_sums(
    sums: DevicePointer[DType.float32],
    gate_word: Int32,
    limit: Float32,
    alpha: Float32,
    hidden: Result,
    parts: UInt32,
):
    """Makes hidden numbers of sums, whose rows are those of the weights; each has so many parts.

    The grid is (rows, CTAs of a row).
    """
    wait_on_dependent_grids()
    launch_dependent_grids()
    var gate = Gate.of_word(gate_word, limit, alpha)
    var row, columns = Int(block_idx.x), Int(hidden.columns)
    var of_parts = RowParts(sums, gate.sums(columns), hidden.rows, parts)
    var column = (Int(block_idx.y) * SUM_THREADS + Int(thread_idx.x)) * NUMBERS
    if column < columns:
        var step, to_ups = (2, NUMBERS) if gate.is_interleaved() else (1, columns)
        var at = column * step
        var gates = of_parts.sum(row, at)
        var numbers = gate.of_sums(gates)
        if gate.is_there():
            var ups = of_parts.sum(row, at + to_ups)
            if gate.is_interleaved():
                gates, ups = gates.join(ups).deinterleave()
            numbers = gate.of(gates, ups)
        hidden.elements().store[NUMBERS, NUMBERS](row, column, numbers)


def launch_activation(
    sums: Int, gate: Gate, hidden: Result, mut queue: Some[Queue], parts: Int = 1
) raises:
    """Launches `activate_sums` on float32 at an address."""
    queue.launch[activate_sums](
        grid_of_sums(Int(hidden.rows), Int(hidden.columns)),
        device_pointer[DType.float32](sums),
        gate.word(),
        gate.limit,
        gate.alpha,
        hidden,
        UInt32(parts),
    )

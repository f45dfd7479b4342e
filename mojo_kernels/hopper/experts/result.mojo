"""From the sums of a tile to its rows: reduce, add the expert's bias, gate, round, store.

Sums of a group's columns lie in shared memory, those of even steps and those of odd ones. A warp
takes a token, a lane four columns; gates meet their ups in a lane, or two:

    columns of a group    of a lane           hidden numbers of a lane
    interleaved           gate up gate up     two, its own
    halves                4 gates | 4 ups     lane l and l + 16 exchange: two each

Results of rows that go to no expert are zero.
"""

from layout import Coord
from max.gpu import thread_idx
from max.gpu.primitives.warp import shuffle_xor
from max.gpu.sync import syncwarp
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.memory import bitcast

from ...layouts import PreshuffledCuda
from ...numbers.gates import Gate
from ...simt.arguments import Activations, Result, Weights
from ...simt.codec import ANY_BITS
from ...simt.host import bytes_of
from ...simt.matmul import warp_sums
from ...simt.routing import ExpertWeights
from ..host.moe import HIDDEN
from ..instructions.shared_memory import TileAddresses, load_quad
from ..instructions.warp import lane_here
from ..middle.result import PART_COLUMNS
from ..shapes import COLUMNS, MIDDLE_CONSUMER_WARPS as CONSUMER_WARPS, PASS_TOKENS, SUM_STRIDE
from .groups import Lists, RowTile

comptime LANE_HIDDEN = PART_COLUMNS // 2
"""Hidden numbers of a lane."""
comptime HALF_LANES = 16
"""Lanes that have the gates of halves, or their ups."""
comptime pass_tokens_of[tokens: Int] = min(tokens, PASS_TOKENS)
"""Tokens whose sums meet at a time."""
comptime Sums[tokens: Int] = TileAddresses[DType.float32, pass_tokens_of[tokens], SUM_STRIDE]
"""Sums of some tokens, [token, column]; those of odd steps go on behind those of even ones."""


@fieldwise_init
struct Target(DevicePassable, TrivialRegisterPassable):
    """Where rows go, and what becomes of sums on the way."""

    comptime device_type: AnyType = Self

    var rows: Result
    """All rows: of sums, or of hidden numbers."""
    var gate_code: Int32
    """The position of the gate, or that of none."""
    var limit: Float32
    var alpha: Float32

    def __init__(out self, rows: Result, gate: Gate):
        """Takes rows that a gate, or none, leads to."""
        self.rows = rows
        self.gate_code = Int32(gate.code)
        self.limit = gate.limit
        self.alpha = gate.alpha

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "Target"

    @always_inline
    def gate(self) -> Gate:
        """Returns the gate."""
        return Gate(Int(self.gate_code), self.limit, self.alpha)

    @always_inline
    def columns_step(self) -> UInt32:
        """Returns the columns of the result that a group of threads stores."""
        return UInt32(HIDDEN) if self.gate().is_there() else UInt32(COLUMNS)

    @always_inline
    def of(self, tile: RowTile, experts: ExpertWeights) -> Result:
        """Returns the rows of a tile as a result of their own, with the bias of their expert."""
        var result = self.rows
        var dtype_bytes = bytes_of(Int(result.dtype))
        result.output = result.output.unsafe_offset(
            Int(tile.first_row) * Int(result.columns) * dtype_bytes
        )
        result.rows = tile.rows
        if tile.expert >= 0 and experts.bias_dtype >= 0:
            var row_bytes = Int(experts.columns) * bytes_of(Int(experts.bias_dtype))
            result.bias = experts.bias.unsafe_offset(Int(tile.expert) * row_bytes)
            result.bias_dtype = experts.bias_dtype
        return result


@fieldwise_init
struct Part(TrivialRegisterPassable):
    """Which columns of a tile a group of threads has."""

    var first_column: UInt32
    """The first column of the result."""
    var half: UInt32
    """Columns of the weights from a gate to its up; 0 for neighbours, and for no gate."""

    @staticmethod
    @always_inline
    def find(
        lists: Lists, index: UInt32, num_groups: UInt32, target: Target, half: UInt32
    ) -> Tuple[RowTile, Self]:
        """Returns a tile, and the columns of it, of which there are `num_groups`."""
        var at, group = divmod(index, num_groups)
        return (lists.tile(at), Self(group * target.columns_step(), half))

    @always_inline
    def weight_tile(self, filler: UInt32, tile_rows: UInt32, is_gated: Bool) -> UInt32:
        """Returns the tile of weight rows that a filler copies; it need not exist."""
        if self.half == 0:
            var first = self.first_column * UInt32(2 if is_gated else 1)
            return first // tile_rows + filler
        var fillers = UInt32(HIDDEN) // tile_rows
        var first = self.first_column // tile_rows + filler % fillers
        return first + (self.half // tile_rows if filler >= fillers else 0)


@always_inline
def store_zeros[warps: Int](part: Part, result: Result):
    """Stores rows of no expert; so many warps, all consumers, call it."""
    var warp, lane = divmod(UInt32(thread_idx.x), UInt32(32))
    var column = part.first_column + lane * UInt32(PART_COLUMNS)
    for row in range(warp, result.rows, UInt32(warps)):
        result.store_columns[PART_COLUMNS](
            UInt32(row), column, SIMD[DType.float32, PART_COLUMNS](0)
        )


@always_inline
def store_rows[
    tokens: Int, is_gated: Bool
](both: Sums[tokens], first: UInt32, part: Part, target: Target, result: Result):
    """Adds up and stores the tokens of this warp, of those whose sums are there."""
    comptime PASS = pass_tokens_of[tokens]
    comptime ODD = PASS
    var warp, lane = divmod(UInt32(thread_idx.x), UInt32(32))
    var quad = lane * UInt32(PART_COLUMNS)
    comptime for i in range(max(PASS // CONSUMER_WARPS, 1)):
        var token = warp + UInt32(i * CONSUMER_WARPS)
        if first + token < result.rows:
            var even = load_quad(both.at(Coord(token, quad)))
            var odd = load_quad(both.at(Coord(token + UInt32(ODD), quad)))
            var total = bitcast[DType.float32, PART_COLUMNS](even)
            total += bitcast[DType.float32, PART_COLUMNS](odd)
            comptime if is_gated:
                store_hidden(part, target, result, first + token, lane, total)
            else:
                result.store_columns[PART_COLUMNS](first + token, part.first_column + quad, total)


@always_inline
def store_hidden(
    part: Part,
    target: Target,
    result: Result,
    token: UInt32,
    lane: UInt32,
    sums: SIMD[DType.float32, PART_COLUMNS],
):
    """Stores what gates and ups of a token become; a warp calls it."""
    var gate = target.gate()
    var biased = sums
    if part.half == 0:
        var column = part.first_column + lane * UInt32(LANE_HIDDEN)
        if result.has_bias() and column < result.columns:
            biased += result.bias_of[PART_COLUMNS](2 * Int(column))
        var gates, ups = biased.deinterleave()
        if column < result.columns:
            _store_hidden(result, token, column, gate.of(gates, ups))
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
        _store_hidden(result, token, column, gate.of(gates, ups))


@always_inline
def _store_hidden(
    result: Result, token: UInt32, column: UInt32, numbers: SIMD[DType.float32, LANE_HIDDEN]
):
    """Stores hidden numbers, whose rows are made of blocks."""
    result.elements().store[LANE_HIDDEN, LANE_HIDDEN](Int(token), Int(column), numbers)


@fieldwise_init
struct Exactly(TrivialRegisterPassable):
    """The operands of a tile as they came, for rows that bfloat16 cannot give."""

    var a: Activations
    """All activations."""
    var w: Weights
    """The weights of the tile's expert."""
    var columns: UInt32
    """Rows of the weights."""

    @always_inline
    def sum(self, row: Int, column: UInt32, lane: UInt32) -> Float32:
        """Returns one sum, in all lanes of a warp."""
        return warp_sums[PreshuffledCuda, ANY_BITS, False, 1](
            self.a, self.w, Int(self.columns), row, Int(column), Int(lane)
        )[0]

    @no_inline
    def store[
        is_gated: Bool
    ](
        self,
        row: Int,
        half: UInt32,
        gate: Gate,
        result: Result,
        result_row: UInt32,
        first: UInt32,
        end: UInt32,
    ):
        """Computes and stores columns of a row of activations; a warp calls it.

        `half` are the columns of the weights from a gate to its up, 0 for neighbours.
        """
        # The sums that other lanes stored before are not to overtake these.
        syncwarp()
        var lane = lane_here()
        for column in range(first, min(end, result.columns)):
            comptime if is_gated:
                var of_gate = UInt32(column) if half != 0 else UInt32(2) * UInt32(column)
                var of_up = of_gate + (half if half != 0 else UInt32(1))
                var gated = self.sum(row, of_gate, lane)
                var up = self.sum(row, of_up, lane)
                if result.has_bias():
                    gated += result.bias_of[1](Int(of_gate))[0]
                    up += result.bias_of[1](Int(of_up))[0]
                var number = gate.of(SIMD[DType.float32, 1](gated), SIMD[DType.float32, 1](up))
                if lane == 0:
                    result.elements().store[1, 1](Int(result_row), Int(column), number)
            else:
                var sum = self.sum(row, UInt32(column), lane)
                if lane == 0:
                    result.store[1, 1](Int(result_row), Int(column), SIMD[DType.float32, 1](sum))

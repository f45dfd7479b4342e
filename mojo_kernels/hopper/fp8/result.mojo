"""From a warp's sums of bytes to C: transpose, apply both factors, add the bias, round, store."""

from layout import Coord, row_major
from max.gpu.sync import syncwarp
from std.memory import bitcast

from ...simt.arguments import Result
from ...simt.codec import CHUNK
from ..instructions.shared_memory import load_quad, store_word
from ..instructions.warp import lane_here
from ..instructions.wgmma import FP8_TOKENS, Fp8Sums, OCTET, PART_SUMS
from ..layout import K_LANES
from ..many.result import Columns, LaneColumns, joined
from ..staged.stages import ROOM_TOKENS, Room, WARP_ROWS


trait RowFactors(TrivialRegisterPassable):
    """What the sums of a row of tokens and a row of weights are multiplied by."""

    def of_weight(self, row: Int) -> Float32:
        """Returns the factor of a row of weights."""
        ...

    def scale(self, sums: Columns, token: Int, of_weights: Columns) -> Columns:
        """Applies both factors to the sums of a token; `of_weights` are those of the columns."""
        ...


@always_inline
def factors_of(rows: Some[RowFactors], first_column: UInt32, result: Result) -> Columns:
    """Returns the factors of the weight rows of a lane's columns; zeros past the end."""
    var factors = Columns(0)
    comptime for i in range(CHUNK):
        if first_column + UInt32(i) < result.columns:
            factors[i] = rows.of_weight(Int(first_column) + i)
    return factors


@always_inline
def store_sums[first: Int](sums: Fp8Sums, target: Room):
    """Stores a thread's sums of a room's tokens from `first` on, [token, row of its warp].

    They are ordered by octets of tokens, then of rows, then by the two tokens of a lane.
    """
    comptime WARP_OCTETS = WARP_ROWS // OCTET
    comptime order = row_major[FP8_TOKENS // OCTET, WARP_OCTETS, 2]()
    comptime for octet in range(ROOM_TOKENS // OCTET):
        comptime for row_octet in range(WARP_OCTETS):
            comptime for token in range(2):
                comptime at = Int(order(Coord(first // OCTET + octet, row_octet, token)))
                store_word(
                    target.at(Coord(OCTET * octet + token, OCTET * row_octet)),
                    bitcast[DType.uint32](sums[at // PART_SUMS][at % PART_SUMS]),
                )


@always_inline
def store_tokens[
    in_halves: Bool
](
    sums: Fp8Sums,
    room: Room,
    rows: Some[RowFactors],
    result: Result,
    first_token: UInt32,
    first_column: UInt32,
):
    """Stores a warp's weight rows of all tokens, sixteen at a time; see `many.result`."""
    var lane = lane_here()
    var row_lane, pair = divmod(lane, UInt32(K_LANES))
    var written = room.starting_at(Coord(2 * pair, row_lane))
    var token, part = divmod(lane, UInt32(WARP_ROWS // CHUNK))
    var read = room.starting_at(Coord(token, part * UInt32(CHUNK)))
    var columns = LaneColumns.at(first_column + part * UInt32(CHUNK), result)
    var factors = factors_of(rows, columns.first, result)
    comptime for first in range(0, FP8_TOKENS, ROOM_TOKENS):
        store_sums[first](sums, written)
        syncwarp()
        var low = bitcast[DType.float32, 4](load_quad(read.at(Coord(0, 0))))
        var high = bitcast[DType.float32, 4](load_quad(read.at(Coord(0, 4))))
        syncwarp()
        var row = first_token + UInt32(first) + token
        if row < result.rows:
            var scaled = rows.scale(joined(low, high), Int(row), factors)
            columns.store[in_halves](result, row, scaled)

"""Encoded rows, ordered by tiles of groups for the ping-pong kernel, once for both operands of LDS.

    quantize_rows    rows of floats -> plain codes and scales
    order_rows       tiles of groups, their rows, and scales in words that feed four tiles

Rows of codes are gathered, or lie one behind another. Scales lie by tiles: tile t of all groups
(scheduler.mojo) has rows 256 * t .. of the layout `preshuffled_cdna4`, of which as many are used as
the tile has. Codes of six bits lie by tiles of their own, see prologue/shape.mojo: rows of 96 bytes
are no whole lines. The first product of a layer stores its hidden numbers in that order.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...launch.queue import Argument, Queue, argument
from ...numbers.formats import Format
from ..arguments import GroupedRows, OrderedRows, RECORD
from ..chip import LANES, LANE_BYTES, SCALE_GROUP_ROWS
from ..instructions.lds import allocate_lds
from ..operands.memory import Input, Output, bytes_of, input, listed_row, output, output_bytes
from ..operands.memory import quotient
from ..prologue.cooperative import RowsToPrepare
from ..prologue.shape import CODE_BLOCKS, PART_BLOCKS, TILED_ROWS, first_tiled_row, lies_by_tiles
from ..prologue.works import ReorderedScales, TiledCodes
from ..ping_pong.shape import THREADS, WAVES
from ..scheduler import GroupSizes, GroupTiles
from ..moe_shape import ROWS, encoded_blocks, order_grid


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def order_rows[
    format: Format, are_gathered: Bool
](
    sizes: Input[DType.int32],
    groups: Int32,
    m: Int32,
    encoded: Input[DType.uint8],
    num_encoded: Int32,
    k_blocks: Int32,
    list: Input[DType.int32],
    tiles: Output[DType.int32],
    rows: Output[DType.int32],
    scales: Output[DType.uint8],
    codes: Argument[Output[DType.uint8], lies_by_tiles(format)],
):
    """Stores what tile `x` of all groups is and which rows it has, and orders their scales.

    Of scales, and of codes by tiles, those of 64 blocks, from 64 * `y` on.

    `are_gathered`: Whether row r is that of a token in a list.
    """
    comptime Scales = ReorderedScales[False]
    comptime CODE_BYTES = LANE_BYTES[format]
    var lane = Int32(thread_idx.x) % LANES
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var index = Int32(block_idx.x)
    var all = GroupTiles[ROWS].of(GroupSizes.load(sizes, groups, m, lane), lane)
    if index == 0 and Int32(thread_idx.x) == 0:
        tiles[unsafe_offset=0] = all.count
    if index >= all.count:
        return
    var tile = all.tile(index, lane)
    if Int32(thread_idx.x) == 0:
        var record = tiles.unsafe_offset(Int(index + 1) * RECORD)
        record[unsafe_offset=0] = tile.expert
        record[unsafe_offset=1] = tile.first_row
        record[unsafe_offset=2] = tile.end_row
    var in_tile = wave * Int32(SCALE_GROUP_ROWS) + lane % Int32(SCALE_GROUP_ROWS)
    var row = tile.first_row + in_tile
    comptime if are_gathered:
        row = listed_row(list, row, tile.end_row)
        rows[unsafe_offset=Int(index) * ROWS + Int(in_tile)] = row
    if tile.first_row + wave * Int32(SCALE_GROUP_ROWS) >= tile.end_row:
        return
    var lds = allocate_lds[WAVES * Scales.LDS_BYTES]()
    var own_lds = lds.unsafe_offset(Int(wave) * Scales.LDS_BYTES)
    var plain = encoded.unsafe_offset(Int(num_encoded) * Int(k_blocks) * CODE_BYTES)
    var own_place = (Int(index) * ROWS + Int(wave) * SCALE_GROUP_ROWS) * Int(k_blocks)
    var own = scales.unsafe_offset(own_place)
    var to = output_bytes(own)
    var all_rows = RowsToPrepare(bytes_of(plain), bytes_of(plain), to, to, num_encoded, k_blocks, 0)
    var work = Scales.of(all_rows, own_lds, lane)
    work.start_from(row, Int32(block_idx.y))
    work.complete[0](Int32(block_idx.y))
    comptime if lies_by_tiles(format):
        comptime Codes = TiledCodes[format]
        var first = wave * Int32(SCALE_GROUP_ROWS)
        var to_row = first_tiled_row(tile.first_row, index)
        var count = min(tile.end_row - tile.first_row, Int32(ROWS))
        var moved = Codes.of(
            bytes_of(encoded), output_bytes(rebind[Output[DType.uint8]](codes)), num_encoded,
            k_blocks, to_row + first, to_row + count, lane,
        )  # fmt: skip
        comptime for i in range(Codes.COUNT):
            comptime for load in range(Codes.LOADS):
                var name = tile.first_row + first + Int32(i * TILED_ROWS) + Codes.row_of[load](lane)
                comptime if are_gathered:
                    name = listed_row(list, name, tile.end_row)
                moved.rows[i, load] = name
        comptime PARTS = PART_BLOCKS // CODE_BLOCKS
        comptime for part in range(PARTS):
            moved.move(Int32(block_idx.y) * Int32(PARTS) + Int32(part))


def launch_order[
    format: Format, are_gathered: Bool
](of: GroupedRows, ordered: OrderedRows, groups: Int, k: Int, mut queue: Some[Queue]) raises:
    """Launches the ordering of encoded rows of k numbers."""
    queue.launch[order_rows[format, are_gathered]](
        order_grid(of.m, groups, k),
        input[DType.int32](of.sizes),
        Int32(groups),
        Int32(of.m),
        input[DType.uint8](of.a),
        Int32(of.count),
        Int32(encoded_blocks(k)),
        input[DType.int32](of.list),
        output[DType.int32](ordered.tiles),
        output[DType.int32](ordered.rows),
        output[DType.uint8](ordered.scales),
        argument[lies_by_tiles(format)](output[DType.uint8](ordered.codes)),
    )

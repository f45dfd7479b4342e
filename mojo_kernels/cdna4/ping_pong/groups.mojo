"""Tiles of groups in the ping-pong kernel: their records, and what becomes of their sums."""

from max.gpu.intrinsics import AMDBufferResource
from std.memory import bitcast
from std.sys import size_of
from std.sys.intrinsics import readfirstlane

from ...layouts import PreshuffledCdna4
from ...numbers.rounding import Rounding
from ...tiles import in_registers
from ..arguments import Grouping, RECORD
from ..chip import BLOCK, SUMS, TILE, WORD_BYTES
from ..scheduler import GroupTile, TileOfC
from ..epilogue.hidden import EXCHANGED, HiddenCodes
from ..instructions.matrix import SumTile
from ..instructions.memory import scalar_here
from ..instructions.vector import anew, copied_here
from ..instructions.wave import lane_here
from ..epilogue.gate import QuickGate
from ..operands.memory import Bytes, Input, Output, OutputBytes, bytes_of, output_bytes
from ..operands.memory import quotient
from ..epilogue.target import NO_BIAS, Target
from ..prologue.shape import TILED_ROWS, first_tiled_row
from ..types import ProductTypes
from .operands import PingPongOperands
from .shape import COLUMNS, N_TILES, STAGE_BLOCKS, WAVES_N


@fieldwise_init
struct TileRecord(TrivialRegisterPassable):
    """What `order_rows` has stored of a tile, on its way."""

    var words: SIMD[DType.int32, RECORD]

    @staticmethod
    @always_inline
    def load(tiles: AMDBufferResource, index: Int32) -> Self:
        comptime BYTES = RECORD * WORD_BYTES
        var bytes = tiles.load[DType.uint8, BYTES]((index + 1) * Int32(BYTES))
        return Self(bitcast[DType.int32, RECORD](bytes))

    @always_inline
    def tile(self) -> GroupTile:
        return GroupTile(
            readfirstlane(self.words[0]), readfirstlane(self.words[1]), readfirstlane(self.words[2])
        )


@fieldwise_init
struct GroupedResult[
    types: ProductTypes, m_tiles: Int, k_tail: Bool, grouping: Grouping, rounding: Rounding
](TrivialRegisterPassable):
    """Where the sums of tiles go: to rows of their group, or gated and encoded.

    `rounding`: The scale rule of hidden numbers.
    """

    comptime Product = PingPongOperands[Self.types, Self.m_tiles, Self.k_tail, Self.grouping]
    comptime STORES = 2 if Self.grouping.is_gated else Self.m_tiles * N_TILES
    """Stores of a wave for its part of a tile, at least."""

    var values: OutputBytes
    """Sums, or codes."""
    var scales: OutputBytes
    """Those of codes."""
    var bias: Bytes
    var gate: QuickGate

    @staticmethod
    @always_inline
    def of(
        values: Output[DType.uint8],
        scales: Output[DType.uint8],
        bias: Input[DType.uint8],
        gate: QuickGate,
    ) -> Self:
        return Self(output_bytes(values), output_bytes(scales), bytes_of(bias), gate)

    @always_inline
    def bias_of(self, product: Self.Product, tile: TileOfC, lane: Int32) -> SumTile[N_TILES]:
        var target = Target[DType.float32, Self.types.bias].of(
            self.values.unsafe_bitcast[Float32](), self._addend(product, tile), 0, product.n
        )
        return target.bias_of_tiles[N_TILES](product.first_column(tile), lane)

    @always_inline
    def _addend(self, product: Self.Product, tile: TileOfC) -> Bytes:
        comptime BYTES = size_of[Self.types.bias.or_else(DType.uint8)]()
        return self.bias.unsafe_offset(Int(tile.rows.expert) * Int(product.n) * BYTES)

    @always_inline
    def store(self, product: Self.Product, sums: SumTile[Self.m_tiles, N_TILES], tile: TileOfC):
        comptime ROWS = Self.Product.ROWS
        # By lanes that nobody has kept all along K; bias is in the sums.
        var lane = anew(lane_here())
        var none = in_registers[DType.float32, SUMS, N_TILES]()
        comptime for n_tile in range(N_TILES):
            none[n_tile] = 0
        var n, wave = product.n, product.wave
        var first_row = quotient[WAVES_N](wave) * Int32(Self.Product.MainLoop.Tile.NEXT_WAVE * TILE)
        var first_column, num_rows = product.first_column(tile), tile.count()
        comptime if Self.grouping.is_gated:
            comptime ARE_TILED = Self.Product.ARE_TILED
            comptime Hidden = HiddenCodes[
                Self.types.formats.left,
                Self.rounding,
                Self.types.out,
                NO_BIAS,
                PreshuffledCdna4,
                TILED_ROWS if ARE_TILED else 1,
            ]
            var to_row = tile.rows.first_row
            comptime if ARE_TILED:
                to_row = first_tiled_row(to_row, tile.row)
            comptime STAGE_COLUMNS = 2 * BLOCK * STAGE_BLOCKS
            # Here, not before all tiles: places of rows would fill registers all along K.
            var stages = scalar_here(quotient[STAGE_COLUMNS](n + Int32(STAGE_COLUMNS - 1)))
            var target = Hidden.of(
                self.values, self.scales, to_row, num_rows, tile.row * Int32(ROWS),
                Int32(ROWS), stages * Int32(STAGE_BLOCKS), self._addend(product, tile), n,
                self.gate,
            )  # fmt: skip
            comptime for first in range(0, Self.m_tiles, EXCHANGED):
                if first_row + Int32(first * TILE) < num_rows:
                    target.store[first](sums, none, first_row, first_column, lane)
            var end_block = quotient[COLUMNS](n + Int32(COLUMNS - 1)) * Int32(WAVES_N)
            if (tile.column + 1) * Int32(WAVES_N) == end_block:
                target.fill(num_rows, end_block + wave, lane)
        else:
            var values = self.values.unsafe_bitcast[Scalar[Self.types.out]]()
            var target = Target[Self.types.out, NO_BIAS].of(
                values.unsafe_offset(Int(tile.rows.first_row) * Int(n)),
                self._addend(product, tile), num_rows, n,
            )  # fmt: skip
            target.store_tiles(sums, none, first_row, first_column, lane)


@always_inline
def set_sums[m_tiles: Int, //](sums: SumTile[m_tiles, N_TILES], columns: SumTile[N_TILES]):
    """Lets sums begin with the bias of their columns, here."""
    comptime for n_tile in range(N_TILES):
        var words = bitcast[DType.uint32, SUMS](columns[n_tile])
        comptime for m_tile in range(m_tiles):
            var low = copied_here(words.slice[2, offset=0]())
            var high = copied_here(words.slice[2, offset=2]())
            sums[m_tile, n_tile] = bitcast[DType.float32, SUMS](low.join(high))

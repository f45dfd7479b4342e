"""Where the rows of a product lie that are ready for FP8 tensor cores, with factors and marks.

    workspace    rows or stages of tokens: E4M3 bytes, see `codes`
                 rows of weights, of large products: MXFP8 as E4M3 bytes, MXFP4 as E5M2 bytes, see
                 `fp8.codes`
                 marks of tokens and bases of weight rows, bytes
                 factors of tokens, float32: [stage][token]

Tokens have a factor for each stage, 128 elements, infinity if they have none; weights one a row. What is
marked is computed in float64, from what the caller gave.
"""

from max.gpu.primitives.warp import vote
from std.builtin.device_passable import DeviceTypeEncoder
from std.math import align_up
from std.memory import bitcast

from ...launch.queue import DevicePointer, device_pointer
from ...layouts import GRANULE_BYTES, PreshuffledCuda
from ...simt.arguments import Activations, Result, Weights
from ...simt.codec import f32_of_scale
from ...simt.views import flat_of
from ..dense.operands import StagedOperands
from ..dense.stages import StagedRows
from ..dense.units import StageRows, Unit
from ..direct.operands import BlockFacts, DirectOperands, Words
from ..exact import TokenOctet, compute_marked
from ..fp8.codes import ByteTable, NO_BASE, RowTables, factor_of, fragment_of, scale_at
from ..fp8.places import Bases
from ..host.gemm import Scaling
from ..host.workspace import BytePlaces, PADDED
from ..instructions.shared_memory import store_pair, store_word
from ..instructions.warp import lane_here
from ..layout import BLOCK, ROWS_PER_LANE, TILE_ROWS
from ..mapped.operands import MARK, MappedOperands
from ..shapes import OCTET, ROW_BYTES, WARP_ROWS
from .codes import MARKED, aligned


@fieldwise_init
struct RowBases(TrivialRegisterPassable):
    """The bases of a lane's two rows, and where scale bytes of them are in a word of four."""

    var first: UInt32
    var second: UInt32
    var place: UInt32
    """The place of the first one's scale byte; the second one's is next to it."""


@fieldwise_init
struct AlignedRows[bits: Int, lies: Bool](
    DirectOperands, MappedOperands, StagedOperands, TrivialRegisterPassable
):
    """Rows of both sides one after the other, or stages of tokens; weights have so many bits."""

    comptime device_type: AnyType = Self
    comptime TYPE: StaticString = "e4m3" if Self.bits == 8 else (
        "e4m3.e5m2" if Self.lies else "e5m2.e4m3"
    )
    comptime SCALES_STAGES = True
    comptime Rows = RowBases
    comptime SCALING = Scaling.TILES
    comptime CODE_BITS = Self.bits
    comptime STAGE_CODES = ROW_BYTES
    comptime GRANULES = 4 if Self.bits == 8 else 2
    comptime BLOCKS = Self.GRANULES * GRANULE_BYTES * 8 // Self.bits // BLOCK
    comptime PUT_BYTES = 32 // Self.bits

    var left: StagedRows
    """The tokens."""
    var right: StagedRows
    """The weights, where they are in the workspace."""
    var bases: Bases
    """Those of weights, and `NO_BASE` for tokens that are marked."""
    var factors: DevicePointer[DType.float32]
    """Those of tokens."""
    var num_tokens: UInt32
    """Rows of tokens."""
    var num_weights: UInt32
    """Rows of weights."""

    @staticmethod
    def at(m: Int, n: Int, k: Int, tokens: Int, address: Int) -> Self:
        """Returns the operands of a product in a workspace, stages for tiles of so many rows."""
        var left = StagedRows.at(address, k, m, 1 if Self.lies else tokens)
        var places = BytePlaces.of(m, n, k, tokens, has_weights=Self.lies)
        var right = StagedRows.at(address + places.weights, k, n, 1)
        return Self(
            left,
            right,
            Bases.at(places, address),
            device_pointer[DType.float32](address + places.bases + places.all_bases),
            UInt32(m),
            UInt32(n),
        )

    @always_inline
    def tokens(self) -> StagedRows:
        return self.left

    @always_inline
    def weights(self) -> StagedRows:
        return self.right

    @always_inline
    def num_steps(self) -> UInt32:
        return self.left.num_steps

    @always_inline
    def put[part: Int](self, unit: Unit[Self.GRANULES, Self.BLOCKS], rows: StageRows):
        comptime for i in range(ROWS_PER_LANE):
            var base = scale_at(unit.rows, UInt32(i))
            comptime for block in range(Self.BLOCKS):
                comptime BLOCK_GRANULES = Self.GRANULES // Self.BLOCKS
                comptime first = BLOCK_GRANULES * block
                comptime at = Self.GRANULES * part + first
                var scale = scale_at(unit.scales[block], UInt32(i))
                comptime if Self.bits == 4:
                    var word = unit.words[ROWS_PER_LANE * first + i]
                    store_pair(rows.at[i, 2 * at](), ByteTable.of_base(base).bytes(word, scale))
                else:
                    var words = SIMD[DType.uint32, BLOCK_GRANULES]()
                    comptime for granule in range(BLOCK_GRANULES):
                        words[granule] = unit.words[ROWS_PER_LANE * (first + granule) + i]
                    words = aligned(words, base - scale)
                    comptime for granule in range(BLOCK_GRANULES):
                        store_word(rows.at[i, at + granule](), words[granule])

    @always_inline
    def rows_at(self, first: UInt32, second: UInt32, place: UInt32) -> RowBases:
        var bases = self.bases.of_weights()
        return RowBases(
            bases[Int(first)].cast[DType.uint32](), bases[Int(second)].cast[DType.uint32](), place
        )

    @staticmethod
    @always_inline
    def block_of(rows: RowBases, scales: UInt32) -> BlockFacts:
        comptime if Self.bits == 4:
            var first, second = ByteTable.of_base(rows.first), ByteTable.of_base(rows.second)
            return RowTables(first, second, rows.place).magnitudes(scales)
        else:
            var first, second = scale_at(scales, rows.place), scale_at(scales, rows.place + 1)
            return {rows.first - first, rows.second - second, 0, 0}

    @staticmethod
    @always_inline
    def fragment(block: BlockFacts, words: Words[Self.bits]) -> SIMD[DType.uint32, 4]:
        comptime if Self.bits == 4:
            return fragment_of(block, {words[0], words[1]})
        else:
            var upper = aligned(SIMD[DType.uint32, 2](words[0], words[2]), block[0])
            var lower = aligned(SIMD[DType.uint32, 2](words[1], words[3]), block[1])
            return {upper[0], lower[0], upper[1], lower[1]}

    @always_inline
    def factors_of(self, token: UInt32, step: UInt32) -> DevicePointer[DType.float32]:
        return self.factor_at(token, step)

    @always_inline
    def factor_at(self, token: UInt32, step: UInt32) -> DevicePointer[DType.float32]:
        """Returns where a token's factor is in a stage."""
        var num_tokens = align_up(self.num_tokens, UInt32(PADDED))
        return self.factors.unsafe_offset(Int(step) * Int(num_tokens) + Int(token))

    @always_inline
    def of_weight(self, row: Int) -> Float32:
        return self.factor_of_base(self.bases.of_weights()[row])

    @always_inline
    def of_token(self, row: Int) -> Float32:
        # Sums of stages have met it.
        return 1

    @always_inline
    def factor_of_base(self, base: UInt8) -> Float32:
        """Returns what sums of a weight row with a base are multiplied by."""
        var scale = base.cast[DType.uint32]()
        return factor_of(scale) if Self.bits == 4 else f32_of_scale(scale)

    @always_inline
    def mark_of_token(self, row: UInt32) -> Bool:
        return self.bases.of_tokens()[Int(row)] == NO_BASE

    @always_inline
    def mark_of_weights(self, row: UInt32) -> Bool:
        var of_lane = row // UInt32(TILE_ROWS) * UInt32(TILE_ROWS) + lane_here()
        return self.bases.of_weights()[Int(of_lane)] == NO_BASE

    @always_inline
    def token_place(self, row: UInt32) -> UInt32:
        return min(row, self.num_tokens - 1)

    @always_inline
    def token_factor(self, place: UInt32, step: UInt32) -> Float32:
        return flat_of(self.factor_at(place, step))[0]

    @always_inline
    def column_place(self, column: UInt32) -> UInt32:
        return min(column, self.num_weights - 1)

    @always_inline
    def column_factor(self, place: UInt32, step: UInt32) -> Float32:
        var base = self.bases.of_weights()[Int(place)]
        return MARK if base == NO_BASE else self.factor_of_base(base)

    @always_inline
    def has_tiles(self) -> Bool:
        return False

    @always_inline
    def loses_token(self, factor: Float32) -> Bool:
        return bitcast[DType.uint32](factor) >= MARKED

    @always_inline
    def loses_column(self, factor: Float32) -> Bool:
        return factor == MARK

    @always_inline
    def scale(self, sum: Float32, of_token: Float32, of_weight: Float32) -> Float32:
        return sum * of_weight * of_token

    @always_inline
    def store_marked(
        self,
        a: Activations,
        w: Weights,
        result: Result,
        first_row: UInt32,
        first_column: UInt32,
        of_rows: UInt32,
        of_columns: UInt32,
    ):
        var tokens = TokenOctet(first_row, 1, result.rows)
        compute_marked[PreshuffledCuda](a, w, result, tokens, first_column, of_rows, of_columns)

    @always_inline
    def store_marked(
        self, a: Activations, w: Weights, result: Result, tokens: TokenOctet, first_column: UInt32
    ):
        var of_rows = vote[DType.uint32](
            self.mark_of_token(min(tokens.row(lane_here() % UInt32(OCTET)), tokens.end - 1))
        )
        var column = min(first_column + lane_here() % UInt32(WARP_ROWS), result.columns - 1)
        var of_columns = vote[DType.uint32](self.bases.of_weights()[Int(column)] == NO_BASE)
        compute_marked[PreshuffledCuda](a, w, result, tokens, first_column, of_rows, of_columns)

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "AlignedRows"

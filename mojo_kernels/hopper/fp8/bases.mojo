"""Where the rows of a product lie that are ready for FP8 tensor cores, and their bases.

    workspace    stages of tokens: bytes
                 stages of weights: bytes, of large products
                 bases of the rows of tokens, then those of the weight rows
                 bases of blocks of tokens, where a row has none
                 parts of tiles of C, where shares are even

A row without a base is marked: its elements of C are computed once more, see `spread`.
"""

from std.builtin.device_passable import DeviceTypeEncoder
from std.math import align_up

from ...launch.queue import DevicePointer, device_pointer
from ...simt.arguments import Activations, Result, Weights
from ..dense.operands import StagedOperands
from ..dense.stages import StagedRows
from ..dense.units import StageRows, Unit
from ..direct.meeting import Meetings
from ..direct.operands import BlockFacts, DirectOperands, Words
from ..exact import TokenOctet
from ..host.gemm import Scaling
from ..host.workspace import BytePlaces, PADDED
from ..instructions.shared_memory import store_word
from ..instructions.warp import lane_here
from ..layout import ROWS_PER_LANE, TILE_ROWS
from ..mapped.operands import MARK, MappedOperands
from ..plan import OperandType, Plan
from ..shapes import BYTE_STEP_BLOCKS as STEP_BLOCKS, ROW_BYTES
from .codes import ByteTable, NO_BASE, RowTables, factor_of, fragment_of, scale_at
from .places import Bases, DECODES_NONE
from .spread import store_spread


@fieldwise_init
struct ByteRows[stages_weights: Bool](
    DirectOperands, MappedOperands, StagedOperands, TrivialRegisterPassable
):
    """Stages of bytes, and the bases of all rows."""

    comptime device_type: AnyType = Self
    comptime TYPE: StaticString = "e5m2"
    comptime SCALING = Scaling.ROWS
    comptime CODE_BITS = 4
    comptime STAGE_CODES = ROW_BYTES
    comptime GRANULES = STEP_BLOCKS
    comptime BLOCKS = STEP_BLOCKS
    comptime PUT_BYTES = 4
    comptime SCALES_STAGES = False
    comptime DECODES = DECODES_NONE if Self.stages_weights else 4
    """Bits of codes that are decoded as they go."""
    comptime Rows = RowTables

    var left: StagedRows
    """The tokens."""
    var right: StagedRows
    """The weights, where they are in the workspace."""
    var bases: Bases
    var num_tokens: UInt32
    """Rows of tokens."""
    var num_weights: UInt32
    """Rows of weights."""

    @staticmethod
    def at(m: Int, n: Int, k: Int, tokens: Int, address: Int) -> Self:
        """Returns the rows of a product in a workspace, tokens in tiles of so many rows.

        Where weights are there too, both sides have tiles of a row: rows as they lie, for maps.
        """
        var left = StagedRows.at(address, k, m, 1 if Self.stages_weights else tokens)
        var places = BytePlaces.of(m, n, k, tokens, has_weights=Self.stages_weights)
        var right = StagedRows.at(address + places.weights, k, n, 1)
        return Self(
            left,
            right,
            Bases.at(places, address),
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
            var table = ByteTable.of_base(scale_at(unit.rows, UInt32(i)))
            comptime for block in range(STEP_BLOCKS):
                var scale = scale_at(unit.scales[block], UInt32(i))
                var bytes = table.bytes(unit.words[ROWS_PER_LANE * block + i], scale)
                comptime for half in range(2):
                    store_word(rows.at[i, 2 * block + half](), bytes[half])

    @always_inline
    def factors_of(self, token: UInt32, step: UInt32) -> DevicePointer[DType.float32]:
        return device_pointer[DType.float32](0)

    @always_inline
    def rows_at(self, first: UInt32, second: UInt32, place: UInt32) -> RowTables:
        var bases = self.bases.of_weights()
        var base = bases[Int(first)].cast[DType.uint32]()
        var next = bases[Int(second)].cast[DType.uint32]()
        return RowTables(ByteTable.of_base(base), ByteTable.of_base(next), place)

    @staticmethod
    @always_inline
    def block_of(rows: RowTables, scales: UInt32) -> BlockFacts:
        return rows.magnitudes(scales)

    @staticmethod
    @always_inline
    def fragment(block: BlockFacts, words: Words[4]) -> SIMD[DType.uint32, 4]:
        return fragment_of(block, {words[0], words[1]})

    @always_inline
    def of_weight(self, row: Int) -> Float32:
        return factor_of(self.bases.of_weights()[row].cast[DType.uint32]())

    @always_inline
    def of_token(self, row: Int) -> Float32:
        return factor_of(self.bases.of_tokens()[row].cast[DType.uint32]())

    @always_inline
    def scale(self, sum: Float32, of_token: Float32, of_weight: Float32) -> Float32:
        return sum * (of_weight * of_token)

    @always_inline
    def mark_of_token(self, row: UInt32) -> Bool:
        return self.bases.of_tokens()[Int(row)] == NO_BASE

    @always_inline
    def mark_of_weights(self, row: UInt32) -> Bool:
        var of_lane = row // UInt32(TILE_ROWS) * UInt32(TILE_ROWS) + lane_here()
        return self.bases.of_weights()[Int(of_lane)] == NO_BASE

    @always_inline
    def store_marked(
        self, a: Activations, w: Weights, result: Result, tokens: TokenOctet, first_column: UInt32
    ):
        store_spread[Self.DECODES](
            self.left, self.bases, UInt32(a.k), w, result, tokens, first_column
        )

    @always_inline
    def token_place(self, row: UInt32) -> UInt32:
        return min(row, self.num_tokens - 1)

    @always_inline
    def token_factor(self, place: UInt32, step: UInt32) -> Float32:
        return factor_or_mark(self.bases.of_tokens()[Int(place)])

    @always_inline
    def column_place(self, column: UInt32) -> UInt32:
        return min(column, self.num_weights - 1)

    @always_inline
    def column_factor(self, place: UInt32, step: UInt32) -> Float32:
        return factor_or_mark(self.bases.of_weights()[Int(place)])

    @always_inline
    def has_tiles(self) -> Bool:
        return False

    @always_inline
    def loses_token(self, factor: Float32) -> Bool:
        return factor == MARK

    @always_inline
    def loses_column(self, factor: Float32) -> Bool:
        return factor == MARK

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
        if of_rows | of_columns != 0:
            var tokens = TokenOctet(first_row, 1, result.rows)
            if first_row < result.rows:
                store_spread[Self.DECODES](
                    self.left, self.bases, UInt32(a.k), w, result, tokens, first_column
                )

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "ByteRows"


@always_inline
def factor_or_mark(base: UInt8) -> Float32:
    """Returns the factor of a row; it is positive, so that `MARK` is none."""
    return MARK if base == NO_BASE else factor_of(base.cast[DType.uint32]())


def meetings_at[tokens: Int](m: Int, n: Int, k: Int, rows: ByteRows[_]) -> Meetings[tokens]:
    """Returns where groups meet that have even shares, behind the rows."""
    var tiles = Plan.stream_k(OperandType.E5M2, tokens).tiles(m, n).num_tiles()
    return Meetings[tokens].at(tiles, align_up(rows.bases.end_of(m, k), PADDED))

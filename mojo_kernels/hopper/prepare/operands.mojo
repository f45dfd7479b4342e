"""Rows that are ready for tensor cores, as operands of the product.

    operand    workspace
    E5M2       rows of A as E5M2; rows of B as well, of an SS main loop; shared exponents of all
               rows; those of blocks of A, where a row has none; partial sums of stream-K
    E4M3       rows of A, MXFP8 or MXFP6, as E4M3; rows of B as well, MXFP8 or MXFP6 as E4M3, MXFP4
               as E5M2; fallback flags of rows of A, shared exponents of rows of B; factors of A,
               float32: [stage][row]
    bf16       rows of B as bfloat16; fallback flags of tiles of 32 rows of B. A is where it was

An E5M2 row of A has one factor; of E4M3, each 128 elements, a stage, have one, infinity if they
share no exponent. Elements of C whose row of A or B shares none, or is no bfloat16 number, are the
fallback's: of E5M2 block by block, of the others in float64, from what the caller gave.
"""

from std.memory import bitcast

from ...launch.queue import DevicePointer, device_pointer
from ...layouts import PreshuffledCuda
from ...numbers.elements import Element
from ...numbers.floats import FLOAT_TYPES, float_code
from ...simt.arguments import Activations, Result, Weights
from ...simt.codec import f32_of_scale
from ...simt.views import flat_of
from ..epilogue.fallback import RowOctet, compute_marked
from ..gemm_operands import BlockFacts, MARK, RsOperands, SsOperands, StagedRows, Words
from ..host.gemm import Scaling
from ..host.workspace import MANY_CHUNKS, MAX_CHUNKS, PreparedPlaces
from ..instructions.warp import keep_branch, lane_here
from ..layout import OPERANDS, TILE_ROWS
from ..plan import OperandType
from . import e4m3, e5m2
from .codes import E5M2Table, NO_EXPONENT, NO_FACTOR, e5m2_factor, pick_codes, scale_at, scaled_down
from .exponents import SHARED_BYTES as EXPONENTS_BYTES, SharedExponents, StageFactors
from .fallback import store_fallback
from .kernel import ANY_CHUNKS, PreparedOperands, TilesOfB
from .source import LaneOfRow
from .stages import Order
from .weights import SHARED_BYTES as STAGES_BYTES, TileOfB, inspect_tile


@fieldwise_init
struct RowPair(TrivialRegisterPassable):
    """Shared exponents of a lane's two rows of B, and which bytes of a word are their scales."""

    var first: UInt32
    var second: UInt32
    var place: UInt32
    """The place of the first one's scale byte; the second one's is next to it."""


def _chunk_counts(operand: OperandType) -> List[Int]:
    """Returns the chunks of a lane that the encoder is compiled for: enough of them."""
    return [1, 2, 3, 4, 6, MANY_CHUNKS, MAX_CHUNKS] if operand == OperandType.E5M2 else [ANY_CHUNKS]


@fieldwise_init
struct PreparedRows[operand: OperandType, bits: Int, in_workspace: Bool](
    PreparedOperands, RsOperands, SsOperands
):
    """Rows for tensor cores; codes of B have so many bits, and may be in the workspace."""

    comptime IS_E5M2 = Self.operand == OperandType.E5M2
    comptime IS_E4M3 = Self.operand == OperandType.E4M3
    comptime IS_BF16 = Self.operand == OperandType.BF16
    comptime E4M3_TYPE: StaticString = "e4m3" if Self.bits == 8 else (
        "e4m3.e5m2" if Self.in_workspace else "e5m2.e4m3"
    )
    comptime TYPE: StaticString = Self.E4M3_TYPE if Self.IS_E4M3 else (
        "e5m2" if Self.IS_E5M2 else "bf16"
    )
    comptime SCALING = Scaling.NUMBERS if Self.IS_BF16 else (
        Scaling.ROWS if Self.IS_E5M2 else Scaling.TILES
    )
    comptime SCALES_STAGES = Self.IS_E4M3
    comptime HAS_A = not Self.IS_BF16
    comptime HAS_B = True
    comptime CLEARS_COUNTERS = Self.IS_E5M2
    comptime CHUNK_COUNTS = _chunk_counts(Self.operand)
    comptime SHARED_BYTES = STAGES_BYTES if Self.in_workspace else EXPONENTS_BYTES
    comptime ORDER = Order(Self.bits) if not Self.in_workspace else (
        Order.BLOCKS if Self.IS_E5M2 else Order.K
    )
    """The order of K of rows of A."""
    comptime Rows = RowPair
    comptime CODE_BITS = Self.bits
    comptime ELEMENT = OPERANDS.element if Self.bits == OPERANDS.element.bits else e4m3.ELEMENT
    """What codes of B are, unless another kernel prepared them."""
    comptime NUMBER_BYTES = 2 if Self.IS_BF16 else 1

    var left: StagedRows
    """Rows of A, where they are in the workspace."""
    var right: StagedRows
    """Rows of B, likewise."""
    var exponents: SharedExponents
    """Shared ones; of A as E4M3, fallback flags alone, of bfloat16, those of tiles of B."""
    var factors: StageFactors
    """Those of A as E4M3."""
    var num_a_rows: UInt32
    """Of those in the workspace."""
    var num_b_rows: UInt32

    @staticmethod
    def at(m: Int, n: Int, k: Int, tile_rows: Int, address: Int) -> Self:
        """Returns the rows of a product in a workspace, those of A in tiles of so many rows.

        Where B is there too, both sides have tiles of a row: rows as they lie, for tensor maps.
        """
        var rows = m if Self.HAS_A else 0
        var row_bytes = Self.NUMBER_BYTES * k
        var places = PreparedPlaces.of(rows, n, row_bytes, tile_rows, has_weights=Self.in_workspace)
        return Self(
            StagedRows.at(address, row_bytes, rows, 1 if Self.in_workspace else tile_rows),
            StagedRows.at(address + places.b_rows, row_bytes, n, 1),
            SharedExponents.at(places, address),
            StageFactors.at(places, address),
            UInt32(rows),
            UInt32(n),
        )

    @always_inline
    def encode[CHUNKS: Int, is_gathered: Bool](self, a: Activations, lane: LaneOfRow):
        comptime if Self.IS_E5M2:
            e5m2.encode_row[CHUNKS, Self.ORDER](a, self.left, self.exponents, lane)
        elif Self.IS_E4M3:
            self.encode_as_e4m3[e4m3.ELEMENT, is_gathered](a, lane)

    @always_inline
    def encode_as_e4m3[element: Element, is_gathered: Bool](self, a: Activations, lane: LaneOfRow):
        """Encodes a row of elements that E4M3 holds."""
        comptime CODES = e4m3.CODES
        var to, exponents, factors = self.left, self.exponents, self.factors
        comptime if not is_gathered:
            if a.is_encoded():
                return e4m3.encode_row[CODES, Self.ORDER, element](a, to, exponents, factors, lane)
        comptime for dtype in FLOAT_TYPES:
            if a.dtype == Int32(float_code(dtype)):
                keep_branch()
                e4m3.encode_row[dtype, Self.ORDER, element](a, to, exponents, factors, lane)

    @always_inline
    def prepare_tile(self, b: TilesOfB, k: UInt32, tile: UInt32, cta: UInt32):
        self.prepare_tile_of[Self.ELEMENT](b, k, tile, cta)

    @always_inline
    def prepare_tile_of[element: Element](self, b: TilesOfB, k: UInt32, tile: UInt32, cta: UInt32):
        """Prepares a tile of B whose codes are of an element."""
        comptime if Self.in_workspace:
            var of_b = TileOfB[Self.operand, element].of(b.w, k, tile)
            of_b.store(self.right, self.exponents, cta, b.tile_ctas)
        else:
            _ = inspect_tile[Self.operand, element](b.w, self.exponents, tile, k, cta)

    @always_inline
    def rows_of_a(self) -> StagedRows:
        return self.left

    @always_inline
    def num_steps(self) -> UInt32:
        return self.right.num_steps

    @always_inline
    def rows_at(self, first: UInt32, second: UInt32, place: UInt32) -> RowPair:
        var exponents = self.exponents.of_b()
        var of_first = exponents[Int(first)].cast[DType.uint32]()
        return RowPair(of_first, exponents[Int(second)].cast[DType.uint32](), place)

    @staticmethod
    @always_inline
    def block_of(rows: RowPair, scales: UInt32) -> BlockFacts:
        var first, second = scale_at(scales, rows.place), scale_at(scales, rows.place + 1)
        comptime if Self.bits == 4:
            var upper = E5M2Table.under(rows.first).magnitudes(first)
            return upper.join(E5M2Table.under(rows.second).magnitudes(second))
        else:
            return {rows.first - first, rows.second - second, 0, 0}

    @staticmethod
    @always_inline
    def fragment(block: BlockFacts, words: Words[Self.bits]) -> SIMD[DType.uint32, 4]:
        comptime if Self.bits == 4:
            var upper = pick_codes(words[0], block[0], block[1])
            var lower = pick_codes(words[1], block[2], block[3])
            return {upper[0], lower[0], upper[1], lower[1]}
        else:
            var upper = scaled_down(SIMD[DType.uint32, 2](words[0], words[2]), block[0])
            var lower = scaled_down(SIMD[DType.uint32, 2](words[1], words[3]), block[1])
            return {upper[0], lower[0], upper[1], lower[1]}

    @always_inline
    def factors_of(self, row: UInt32, step: UInt32) -> DevicePointer[DType.float32]:
        comptime if Self.IS_E4M3:
            return self.factors.of(row, step)
        return device_pointer[DType.float32](0)

    @staticmethod
    @always_inline
    def _factor_under(exponent: UInt8) -> Float32:
        """Returns what sums of a row of B are multiplied by; of A as well, as E5M2."""
        var scale = exponent.cast[DType.uint32]()
        return e5m2_factor(scale) if Self.bits == 4 else f32_of_scale(scale)

    @staticmethod
    @always_inline
    def _factor_or_mark(exponent: UInt8) -> Float32:
        """Returns the same; it is positive, so that `MARK` is none."""
        return MARK if exponent == NO_EXPONENT else Self._factor_under(exponent)

    @always_inline
    def of_weight(self, row: Int) -> Float32:
        return self._factor_under(self.exponents.of_b()[row])

    @always_inline
    def of_row(self, row: Int) -> Float32:
        comptime if Self.IS_E5M2:
            return self._factor_under(self.exponents.of_a()[row])
        return 1

    @always_inline
    def scale(self, sum: Float32, of_row: Float32, of_weight: Float32) -> Float32:
        comptime if Self.IS_BF16:
            return sum
        comptime if Self.IS_E5M2:
            return sum * (of_weight * of_row)
        return sum * of_weight * of_row

    @always_inline
    def mark_of_row(self, row: UInt32) -> Bool:
        return self.exponents.of_a()[Int(row)] == NO_EXPONENT

    @always_inline
    def mark_of_weights(self, row: UInt32) -> Bool:
        var of_lane = row // UInt32(TILE_ROWS) * UInt32(TILE_ROWS) + lane_here()
        return self.exponents.of_b()[Int(of_lane)] == NO_EXPONENT

    @always_inline
    def row_place(self, row: UInt32) -> UInt32:
        return min(row, self.num_a_rows - 1)

    @always_inline
    def row_factor(self, place: UInt32, step: UInt32) -> Float32:
        comptime if Self.IS_E5M2:
            return self._factor_or_mark(self.exponents.of_a()[Int(place)])
        elif Self.IS_E4M3:
            return flat_of(self.factors.of(place, step))[0]
        return 1

    @always_inline
    def column_place(self, column: UInt32) -> UInt32:
        return min(column, self.num_b_rows - 1)

    @always_inline
    def column_factor(self, place: UInt32, step: UInt32) -> Float32:
        comptime if Self.IS_BF16:
            return MARK if self.exponents.of_b()[Int(place) // TILE_ROWS] != 0 else 1
        return self._factor_or_mark(self.exponents.of_b()[Int(place)])

    @always_inline
    def has_tiles(self) -> Bool:
        return False

    @always_inline
    def loses_row(self, factor: Float32) -> Bool:
        comptime if Self.IS_E5M2:
            return factor == MARK
        elif Self.IS_E4M3:
            return bitcast[DType.uint32](factor) >= NO_FACTOR
        return False

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
        end_row: UInt32,
        first_column: UInt32,
        of_rows: UInt32,
        of_columns: UInt32,
    ):
        var octet = RowOctet(first_row, end_row)
        comptime if Self.IS_E5M2:
            if of_rows | of_columns != 0 and first_row < end_row:
                store_fallback[Self.ORDER](
                    self.left, self.exponents, UInt32(a.k), w, result, octet, first_column
                )
        else:
            compute_marked[PreshuffledCuda](a, w, result, octet, first_column, of_rows, of_columns)


@fieldwise_init
struct PreparedSixes[
    operand: OperandType, bits: Int, in_workspace: Bool, left: Element, right: Element
](PreparedOperands):
    """The same rows, of other elements than the main loop is compiled for: it is not told."""

    comptime Rows = PreparedRows[Self.operand, Self.bits, Self.in_workspace]
    comptime HAS_A = Self.Rows.HAS_A
    comptime HAS_B = True
    comptime CLEARS_COUNTERS = False
    comptime CHUNK_COUNTS = Self.Rows.CHUNK_COUNTS
    comptime SHARED_BYTES = Self.Rows.SHARED_BYTES

    var rows: Self.Rows

    @staticmethod
    def exists() -> Bool:
        """Says whether there is a kernel for both elements, of which one has six bits.

        Weights of six bits meet activations of the same, of E4M3, or those that are kept.
        """
        if Self.operand == OperandType.BF16:
            return Self.right.bits == 6 and Self.left == e4m3.ELEMENT
        if Self.operand != OperandType.E4M3:
            return False
        if Self.bits == OPERANDS.element.bits:
            return Self.left == Element.E2M3 and Self.right == OPERANDS.element
        var is_known = Self.left == Self.right or Self.left == e4m3.ELEMENT
        return Self.in_workspace and Self.right.bits == 6 and is_known

    @always_inline
    def encode[CHUNKS: Int, is_gathered: Bool](self, a: Activations, lane: LaneOfRow):
        comptime if Self.HAS_A:
            self.rows.encode_as_e4m3[Self.left, is_gathered](a, lane)

    @always_inline
    def prepare_tile(self, b: TilesOfB, k: UInt32, tile: UInt32, cta: UInt32):
        self.rows.prepare_tile_of[Self.right](b, k, tile, cta)

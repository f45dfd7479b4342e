"""What kernels on tensor cores want to know of both sides of a product.

    RS    weights are decoded in registers, rows of A are prepared
    SS    both sides are rows in memory

    Scaling    scales along K                     partial sums are multiplied
    ROWS       none: a row has one                in the end
    TILES      128 columns share theirs, or the   at each promotion by one factor a row of A, times
               weights have one a row             the tile's
    COLUMNS    each column has its own            at each promotion by the column's, then the row's
    NUMBERS    bfloat16 numbers have them         by nothing
    ENDS       the same, but for tensor scales    in the end, by the column's
    BOTH_ENDS  the same of both sides             in the end, by the column's, then the row's

The product of two factors may leave float32 where what it is a factor of does not: `LIFT` keeps it
away from below, and a row for which it is too large is left to the fallback, see `pipeline.boxes`.
"""

from layout.swizzle import Swizzle
from std.bit import log2_floor
from std.builtin.device_passable import DevicePassable
from std.math import ceildiv
from std.memory import bitcast

from ..launch.queue import DevicePointer, KernelStruct, device_pointer
from ..launch.tensor_map import MappedRows
from ..numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS
from ..problem import Left, Problem
from ..simt.arguments import Activations, Result, Weights
from .host.gemm import Scaling
from .host.workspace import ALL_ROWS
from .layout import GRANULE_BITS
from .shapes import LANE_BYTES, NUMBER_BYTES, PARTS, ROW_BYTES

comptime GRANULE_WORDS = 2
"""Words of a granule that a lane has: one of each of its two rows."""
comptime Words[bits: Int] = SIMD[DType.uint32, GRANULE_WORDS * bits // GRANULE_BITS]
"""What a lane has of the codes of an instruction: eight of both rows."""
comptime BlockFacts = SIMD[DType.uint32, 4]
"""What `fragment` wants to know of a block of a lane's two rows."""
comptime MARK = Float32(-1)
"""Stands for the factor of a row that is left to the fallback, where factors are positive."""
comptime BATCH = 4
"""Stages whose factors are loaded at once: 16 bytes."""
comptime LOG_LIFT = 40
"""Products of a row's and a tile's factor are so many binary exponents larger in a kernel.

What is then below float32's normal numbers, 2**-166, times the sums of 128 codes is nothing that
bfloat16 or float16 could show.
"""
comptime LIFT = bitcast[DType.float32](UInt32((F32_EXPONENT_BIAS + LOG_LIFT) << F32_MANTISSA_BITS))
comptime UNLIFT = bitcast[DType.float32](
    UInt32((F32_EXPONENT_BIAS - LOG_LIFT) << F32_MANTISSA_BITS)
)
comptime SWIZZLE = Swizzle(log2_floor(PARTS), 0, log2_floor(PARTS))
"""Exchanges the parts of a row by the row's number, as tensor cores expect rows of 128 bytes."""
comptime LOG_ALL_ROWS = UInt32(31)
"""The exponent of such a tile."""


@fieldwise_init
struct StagedRows(KernelStruct):
    """The rows of a side in a workspace."""

    var first: DevicePointer[DType.uint8]
    """The first stage of the first tile."""
    var num_steps: UInt32
    """Stages of a tile."""
    var log_tile_rows: UInt32
    """Rows of a tile, as an exponent: kernels need not divide."""
    var stage_bytes: UInt32
    """Bytes of a stage."""

    @staticmethod
    def at(address: Int, num_bytes: Int, num_rows: Int, tile_rows: Int) -> Self:
        """Returns rows of so many bytes that begin at an address; tiles may have all rows."""
        var is_tile = tile_rows != ALL_ROWS
        return Self(
            device_pointer[DType.uint8](address),
            UInt32(ceildiv(num_bytes, ROW_BYTES)),
            UInt32(log2_floor(tile_rows)) if is_tile else LOG_ALL_ROWS,
            UInt32(ROW_BYTES * (tile_rows if is_tile else num_rows)),
        )

    def mapped(self, num_rows: Int, box_rows: Int) -> MappedRows:
        """Returns so many rows as maps want them, cut into tiles: of tiles of a row."""
        var row_bytes = ROW_BYTES * Int(self.num_steps)
        return MappedRows(Int(self.first), num_rows, row_bytes, row_bytes, box_rows)

    @always_inline
    def place_of(self, row: UInt32) -> Tuple[UInt32, UInt32]:
        """Returns the tile of a row, and its place there."""
        var tile = row >> self.log_tile_rows
        return (tile, row - (tile << self.log_tile_rows))

    @always_inline
    def stage(self, tile: UInt32, step: UInt32) -> DevicePointer[DType.uint8]:
        """Returns where a stage begins."""
        var index = Int(tile) * Int(self.num_steps) + Int(step)
        return self.first.unsafe_offset(index * Int(self.stage_bytes))

    @always_inline
    def part(self, row: UInt32, step: UInt32, part: UInt32) -> DevicePointer[DType.uint8]:
        """Returns where sixteen bytes of a row lie."""
        var tile, in_tile = self.place_of(row)
        var at = SWIZZLE(in_tile * UInt32(PARTS) + part) * UInt32(LANE_BYTES)
        return self.stage(tile, step).unsafe_offset(Int(at))

    @always_inline
    def octet_bytes(self) -> UInt32:
        """Returns the bytes from a row of a stage to the eighth one behind it."""
        if self.log_tile_rows == 0:
            return self.num_steps * UInt32(8 * ROW_BYTES)
        return UInt32(8 * ROW_BYTES)


def kept_rows(problem: Problem, left: Left, box_rows: Int) -> MappedRows:
    """Returns rows of A that are bfloat16 numbers where they are, in boxes of so many."""
    var row_bytes, stride_bytes = NUMBER_BYTES * problem.k, NUMBER_BYTES * left.row_stride
    return MappedRows(left.values, problem.m, row_bytes, stride_bytes, box_rows)


trait Operands(DevicePassable, TrivialRegisterPassable):
    """What both sides' sums are multiplied by in the end, and what is computed another way."""

    comptime TYPE: StaticString
    """The instruction's name of a number: bf16, e4m3, e5m2; or two, that of its left side first."""

    def scale(self, sum: Float32, of_row: Float32, of_weight: Float32) -> Float32:
        """Applies the factors of a row of A and of a weight row to a sum."""
        ...

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
        """Computes and stores what is marked, a bit each; a warp calls it.

        Of eight rows of A, up to the end, and sixteen columns.
        """
        ...


trait RsOperands(Operands):
    """Rows of A in stages of 128 bytes, weights as codes under scales."""

    comptime CODE_BITS: Int
    """Bits of a weight's code: 4 or 8."""
    comptime SCALES_STAGES: Bool
    """Whether rows of A have a factor for each stage, by which its sums are promoted."""
    comptime Rows: TrivialRegisterPassable
    """What `block_of` wants to know of a lane's two rows."""

    def rows_of_a(self) -> StagedRows:
        """Returns the rows of A."""
        ...

    def num_steps(self) -> UInt32:
        """Returns the stages of K."""
        ...

    def factors_of(self, row: UInt32, step: UInt32) -> DevicePointer[DType.float32]:
        """Returns where the factors of a stage's rows of A are, from one on, if they have any."""
        ...

    def rows_at(self, first: UInt32, second: UInt32, place: UInt32) -> Self.Rows:
        """Returns that of two weight rows.

        The first one's scale is at a place of the words that have it, the second one's next to it.
        """
        ...

    @staticmethod
    def block_of(rows: Self.Rows, scales: UInt32) -> BlockFacts:
        """Returns that of a block of both rows; `scales` are some rows', of which two are meant."""
        ...

    @staticmethod
    def fragment(block: BlockFacts, words: Words[Self.CODE_BITS]) -> SIMD[DType.uint32, 4]:
        """Returns the bytes of an instruction: four of both rows, then the four others."""
        ...

    def of_weight(self, row: Int) -> Float32:
        """Returns the factor that all sums of a weight row meet."""
        ...

    def of_row(self, row: Int) -> Float32:
        """Returns the factor that all sums of a row of A meet."""
        ...

    def mark_of_row(self, row: UInt32) -> Bool:
        """Says whether a row of A is left to the fallback."""
        ...

    def mark_of_weights(self, row: UInt32) -> Bool:
        """Returns the lane's share of the same for the 32 rows of a tile, of which one is given."""
        ...


trait SsOperands(Operands):
    """Factors of both sides, and what cannot be multiplied by them."""

    comptime SCALING: Scaling

    def row_place(self, row: UInt32) -> UInt32:
        """Returns where the factors of a row of A begin, of the last one for those past it."""
        ...

    def row_factor(self, place: UInt32, step: UInt32) -> Float32:
        """Returns one of them, by the stage."""
        ...

    @always_inline
    def lie_in_batches(self, step: UInt32) -> Bool:
        """Says whether those of `BATCH` stages may be loaded at once, from a step on."""
        return False

    @always_inline
    def row_batch(self, place: UInt32, step: UInt32) -> SIMD[DType.float32, BATCH]:
        """Returns those of so many stages from one on."""
        return self.row_factor(place, step)

    def column_place(self, column: UInt32) -> UInt32:
        """Returns where the factors of a column begin, of the last one for those past it."""
        ...

    def column_factor(self, place: UInt32, step: UInt32) -> Float32:
        """Returns one of them, by the stage."""
        ...

    def has_tiles(self) -> Bool:
        """Says whether the columns of a tile share factors, of `TILES`; else each has one."""
        ...

    def loses_row(self, factor: Float32) -> Bool:
        """Says whether a row of A is left to the fallback, by the largest factor of its sums."""
        ...

    def loses_column(self, factor: Float32) -> Bool:
        """Says whether a column is left to the fallback, by one of its factors."""
        ...

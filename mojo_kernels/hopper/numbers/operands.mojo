"""Both sides of a product as bfloat16 numbers, and what of them these cannot hold.

    workspace    rows of tokens, of large products those of weights too
                 marks of tokens, a byte each; marks of tiles of weights, see `weights`

Activations that are kept are numbers where they are, and have no marks. What is marked has an element
that is no bfloat16 number: its elements of C are computed in float64.
"""

from max.gpu.primitives.warp import vote
from std.builtin.device_passable import DeviceTypeEncoder
from std.math import align_up, ceildiv

from ...launch.queue import DevicePointer, Workspace, device_pointer
from ...layouts import GRANULE_BYTES, PreshuffledCuda
from ...simt.arguments import Activations, Result, Weights
from ...simt.codec import ANY_BITS
from ...simt.views import flat_of
from ..dense.operands import DenseOperands
from ..dense.result import TokenOctet
from ..dense.stages import StagedRows
from ..dense.units import StageRows, Unit
from ..exact import compute_exactly, compute_marked
from ..instructions.warp import lane_here
from ..instructions.wgmma import NUMBER_BYTES, OCTET, ROW_BYTES
from ..layout import BLOCK, TILE_ROWS
from ..mapped.operands import MARK, MappedOperands, Scaling
from ..staged.stages import WARP_ROWS
from .codes import put_numbers

comptime ALIGNMENT = 256
"""What lies behind the stages begins at multiples of this."""


@fieldwise_init
struct NumberRows[bits: Int, lies: Bool](DenseOperands, MappedOperands, TrivialRegisterPassable):
    """Rows of both sides one after the other, or stages of tokens only; weights of so many bits."""

    comptime device_type: AnyType = Self
    comptime TYPE: StaticString = "bf16"
    comptime SCALING = Scaling.NUMBERS
    comptime SCALES_IN_THE_END = False
    comptime CODE_BITS = Self.bits
    comptime STAGE_CODES = ROW_BYTES // NUMBER_BYTES
    comptime GRANULES = 4 if Self.bits == 8 else 2
    comptime PUT_BYTES = 64 // Self.bits
    comptime BLOCKS = Self.STAGE_CODES // BLOCK

    var left: StagedRows
    """The tokens."""
    var right: StagedRows
    """The weights, where they are in the workspace."""
    var left_marks: DevicePointer[DType.uint8]
    """The marks of tokens."""
    var right_marks: DevicePointer[DType.uint8]
    """The marks of weights, of tiles of 32 rows."""
    var num_tokens: UInt32
    """Rows of tokens that are in the workspace: of those that are kept none."""
    var num_weights: UInt32
    """Rows of weights."""

    @staticmethod
    def at(m: Int, n: Int, k: Int, tokens: Int, address: Int) -> Self:
        """Returns the operands of a product in a workspace, stages for tiles of so many rows."""
        var left = StagedRows.at(address, NUMBER_BYTES * k, 1 if Self.lies else tokens)
        var right_at = address + left.num_bytes(m)
        var right = StagedRows.at(right_at, NUMBER_BYTES * k, 1)
        var marks_at = right_at
        comptime if Self.lies:
            # Whole tiles of weights are written.
            marks_at += right.num_bytes(align_up(n, TILE_ROWS))
        return Self(
            left,
            right,
            device_pointer[DType.uint8](marks_at),
            device_pointer[DType.uint8](marks_at + align_up(m, ALIGNMENT)),
            UInt32(m),
            UInt32(n),
        )

    def end_of(self, n: Int) -> Int:
        """Returns the address behind the operands."""
        return Int(self.right_marks) + ceildiv(n, TILE_ROWS)

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
        comptime for i in range(Self.GRANULES):
            comptime granule = Self.GRANULES * part + i
            var scales = unit.scales[i * GRANULE_BYTES * 8 // Self.bits // BLOCK]
            put_numbers[granule, Self.bits](unit.of_granule(i), scales, rows)

    @always_inline
    def of_weight(self, row: Int) -> Float32:
        return 1

    @always_inline
    def of_token(self, row: Int) -> Float32:
        return 1

    @always_inline
    def scale(self, sum: Float32, of_token: Float32, of_weight: Float32) -> Float32:
        return sum

    @always_inline
    def mark_of_token(self, row: UInt32) -> Bool:
        return row < self.num_tokens and flat_of(self.left_marks)[Int(row)] != 0

    @always_inline
    def mark_of_weights(self, row: UInt32) -> Bool:
        return flat_of(self.right_marks)[Int(row) // TILE_ROWS] != 0

    @always_inline
    def token_place(self, row: UInt32) -> UInt32:
        return row

    @always_inline
    def token_factor(self, place: UInt32, step: UInt32) -> Float32:
        return MARK if self.mark_of_token(place) else 1

    @always_inline
    def column_place(self, column: UInt32) -> UInt32:
        return min(column, self.num_weights - 1)

    @always_inline
    def column_factor(self, place: UInt32, step: UInt32) -> Float32:
        return MARK if self.mark_of_weights(place) else 1

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
        compute_marked[PreshuffledCuda](a, w, result, first_row, first_column, of_rows, of_columns)

    @always_inline
    def store_marked(
        self, a: Activations, w: Weights, result: Result, tokens: TokenOctet, first_column: UInt32
    ):
        var is_marked = self.mark_of_weights(min(first_column, result.columns - 1))
        is_marked |= self.mark_of_token(
            min(tokens.row(lane_here() % UInt32(OCTET)), tokens.end - 1)
        )
        store_exactly(vote[DType.uint32](is_marked), a, w, result, tokens, first_column)

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "NumberRows"


@always_inline
def store_exactly(
    marked: UInt32,
    a: Activations,
    w: Weights,
    result: Result,
    tokens: TokenOctet,
    first_column: UInt32,
):
    """Computes sixteen columns of some rows in float64, those whose bits are set."""
    for i in range(UInt32(OCTET)):
        var row = tokens.row(i)
        if row < tokens.end and (marked >> i) % 2 == 1:
            for column in range(first_column, first_column + UInt32(WARP_ROWS)):
                compute_exactly[ANY_BITS](a, w, result, row, column, lane_here())


def workspace_of(m: Int, n: Int, k: Int, tokens: Int, lies: Bool) -> Workspace:
    """Returns the workspace that a product wants, of so many rows of tokens that are not kept."""
    if lies:
        return Workspace(0, NumberRows[8, True].at(m, n, k, tokens, 0).end_of(n))
    return Workspace(0, NumberRows[8, False].at(m, n, k, tokens, 0).end_of(n))

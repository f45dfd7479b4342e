"""Both sides of a product as the dense kernel wants them, and how their scales get to C.

    workspace    stages of tokens, of large products those of weights too
                 a float32 for each token: its scale, where rows have one
                 marks of tokens, a byte each; marks of tiles of weights, see `weights`

What is marked has a factor, or an element, that float32 sums or bfloat16 numbers cannot take: its
elements of C are computed in float64.
"""

from max.gpu.primitives.warp import vote
from std.builtin.device_passable import DeviceTypeEncoder
from std.math import align_up, ceildiv

from ...launch.queue import DevicePointer, Workspace, device_pointer
from ...numbers.formats import block_of
from ...layouts import GRANULE_BYTES
from ...simt.arguments import Activations, Result, Weights
from ...simt.codec import ANY_BITS
from ...simt.views import flat_of
from ..dense.operands import DenseOperands
from ..dense.result import RowPair, TokenOctet
from ..dense.stages import StagedRows, WEIGHT_ROWS
from ..dense.units import StageRows, Unit
from ..direct.operands import DirectOperands, Words
from ..exact import compute_exactly
from ..instructions.warp import lane_here
from ..instructions.wgmma import OCTET, ROW_BYTES
from ..layout import BLOCK, TILE_ROWS
from ..mapped.operands import takes_format
from ..staged.stages import WARP_ROWS
from ..staged.weights import ROWS
from .numbers import put_bytes, put_numbers
from .scales import WeightScales

comptime NUMBER_BYTES = 2
"""Bytes of a bfloat16 number."""
comptime ALIGNMENT = 256
"""What lies behind the stages begins at multiples of this."""


@fieldwise_init
struct Scaling(Equatable, TrivialRegisterPassable):
    """Where sums meet the scales of operands."""

    var code: Int

    comptime ROWS = Self(0)
    """In the end: both sides are E4M3 and have a float scale a row."""
    comptime STAGES = Self(1)
    """After each stage: both sides are E4M3, and one has a float scale for each 128 elements."""
    comptime NUMBERS = Self(2)
    """Before: elements of MX formats times their scales are bfloat16 numbers."""

    @staticmethod
    def of(left: Int, right: Int, k: Int) -> Self:
        """Returns that of a pair of formats that the kernel takes."""
        if not takes_format(right):
            return Self.NUMBERS
        var blocks = max(block_of(left).k_blocks(k), block_of(right).k_blocks(k))
        return Self.ROWS if blocks == 1 else Self.STAGES


@fieldwise_init
struct StagedOperands[scaling: Scaling, bits: Int, stages_weights: Bool](
    DenseOperands, DirectOperands, TrivialRegisterPassable
):
    """Stages of both sides, or of tokens only, weights of so many bits, scales and marks."""

    comptime device_type: AnyType = Self
    comptime TYPE: StaticString = "bf16" if Self.scaling == Scaling.NUMBERS else "e4m3"
    comptime SCALES_STAGES = Self.scaling == Scaling.STAGES
    comptime SCALES_IN_THE_END = Self.scaling == Scaling.ROWS
    comptime SUM_STAGES = 1
    comptime STAGES_WEIGHTS = Self.stages_weights
    comptime CODE_BITS = Self.bits
    comptime STAGE_CODES = ROW_BYTES // (2 if Self.scaling == Scaling.NUMBERS else 1)
    comptime GRANULES = 4 if Self.bits == 8 else 2
    comptime PUT_BYTES = 64 // Self.bits if Self.scaling == Scaling.NUMBERS else 4
    comptime HAS_BLOCK_SCALES = Self.scaling == Scaling.NUMBERS
    comptime BLOCKS = Self.STAGE_CODES // BLOCK if Self.HAS_BLOCK_SCALES else 1
    comptime Rows = UInt32
    comptime Factors = SIMD[DType.uint32, ROWS]

    var left: StagedRows
    """The tokens."""
    var right: StagedRows
    """The weights, where they are in the workspace."""
    var scales: WeightScales
    """The float scales of weights."""
    var row_scales: DevicePointer[DType.float32]
    """The scales of tokens, where rows have one."""
    var left_marks: DevicePointer[DType.uint8]
    """The marks of tokens."""
    var right_marks: DevicePointer[DType.uint8]
    """The marks of weights, of tiles of 32 rows."""
    var num_weights: UInt32
    """Rows of weights."""

    @staticmethod
    def at(m: Int, n: Int, k: Int, tokens: Int, address: Int, scales: WeightScales) -> Self:
        """Returns the operands of a product in a workspace, tokens in tiles of so many rows."""
        comptime NUMBERS = Self.scaling == Scaling.NUMBERS
        var row_bytes = k * (NUMBER_BYTES if NUMBERS else 1)
        var left = StagedRows.at(address, row_bytes, tokens, Self.SCALES_STAGES)
        var right_at = address + left.num_bytes(m)
        var right = StagedRows.at(right_at, row_bytes, WEIGHT_ROWS, Self.SCALES_STAGES)
        var scales_at = right_at
        comptime if Self.stages_weights:
            scales_at += right.num_bytes(n)
        var marks_at = scales_at + align_up(4 * m, ALIGNMENT)
        return Self(
            left,
            right,
            scales,
            device_pointer[DType.float32](scales_at),
            device_pointer[DType.uint8](marks_at),
            device_pointer[DType.uint8](marks_at + align_up(m, ALIGNMENT)),
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
    def stage_factor(self, row: UInt32, step: UInt32) -> Float32:
        return self.scales.at(self.scales.of_row(row), step)

    @always_inline
    def put[part: Int](self, unit: Unit[Self.GRANULES, Self.BLOCKS], rows: StageRows):
        comptime for i in range(Self.GRANULES):
            comptime granule = Self.GRANULES * part + i
            comptime if Self.scaling != Scaling.NUMBERS:
                put_bytes[granule](unit.of_granule(i), rows)
            else:
                var scales = unit.scales[i * GRANULE_BYTES * 8 // Self.bits // BLOCK]
                put_numbers[granule, Self.bits](unit.of_granule(i), scales, rows)

    @always_inline
    def rows_at(self, row: UInt32) -> UInt32:
        return 0

    @staticmethod
    @always_inline
    def fragment(
        rows: UInt32, words: Words[Self.CODE_BITS], scales: UInt32
    ) -> SIMD[DType.uint32, 4]:
        comptime assert Self.CODE_BITS == 8, "codes are bytes"
        return words.slice[4]()

    @always_inline
    def factors_at(self, row: UInt32) -> SIMD[DType.uint32, ROWS]:
        var places = SIMD[DType.uint32, ROWS]()
        comptime for i in range(ROWS):
            places[i] = self.scales.of_row(min(row + UInt32(OCTET * i), self.num_weights - 1))
        return places

    @always_inline
    def stage_factors(self, rows: SIMD[DType.uint32, ROWS], step: UInt32) -> RowPair:
        var found = RowPair()
        comptime for i in range(ROWS):
            found[i] = self.scales.at(rows[i], step)
        return found

    @always_inline
    def of_weight(self, row: Int) -> Float32:
        comptime if Self.scaling == Scaling.ROWS:
            return self.scales.at(self.scales.of_row(UInt32(row)), 0)
        else:
            return 1

    @always_inline
    def of_token(self, row: Int) -> Float32:
        comptime if Self.scaling == Scaling.ROWS:
            return flat_of(self.row_scales)[row]
        else:
            return 1

    @always_inline
    def scale(self, sum: Float32, of_token: Float32, of_weight: Float32) -> Float32:
        # The token's last: only C itself may be too large or too small.
        return sum * of_weight * of_token

    @always_inline
    def mark_of_token(self, row: UInt32) -> Bool:
        comptime if Self.scaling == Scaling.NUMBERS:
            return flat_of(self.left_marks)[Int(row)] != 0
        else:
            return False

    @always_inline
    def mark_of_weights(self, row: UInt32) -> Bool:
        return flat_of(self.right_marks)[Int(row) // TILE_ROWS] != 0

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
        return "StagedOperands"


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


def workspace_of(
    m: Int, n: Int, k: Int, tokens: Int, scaling: Scaling, stages_weights: Bool
) -> Workspace:
    """Returns the workspace that a product wants."""
    var end = 0
    comptime for known in [Scaling.ROWS, Scaling.STAGES, Scaling.NUMBERS]:
        comptime for stages in [False, True]:
            if scaling == known and stages_weights == stages:
                comptime Operands = StagedOperands[known, 8, stages]
                end = Operands.at(m, n, k, tokens, 0, WeightScales.none()).end_of(n)
    return Workspace(0, end)

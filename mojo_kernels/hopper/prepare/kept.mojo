"""Rows of NVFP4 weights as bfloat16 numbers, for activations that are kept: codes times E4M3 scales.

All are exact. Sums of a column of C meet its tensor scale in the end, which is read where it lies.
"""

from ...layouts import PreshuffledCuda
from ...problem import Problem
from ...simt.arguments import Activations, Result, Weights
from ...simt.views import PackedRows
from ..gemm_operands import SsOperands, StagedRows
from ..host.gemm import Scaling
from ..layout import NVFP4
from ..plan import OperandType
from ..shapes import NUMBER_BYTES
from .exponents import SharedExponents
from .kernel import ANY_CHUNKS, PreparedOperands, TilesOfB
from .source import LaneOfRow
from .weights import SHARED_BYTES as STAGES_BYTES, TileOfB


@fieldwise_init
struct Nvfp4Rows(PreparedOperands, SsOperands):
    """The rows of B in the workspace; A is where it was."""

    comptime TYPE: StaticString = "bf16"
    comptime SCALING = Scaling.ENDS
    comptime HAS_A = False
    comptime HAS_B = True
    comptime CLEARS_COUNTERS = False
    comptime CHUNK_COUNTS: List[Int] = [ANY_CHUNKS]
    comptime SHARED_BYTES = STAGES_BYTES

    var right: StagedRows
    var w: Weights
    var k: UInt32
    var num_b_rows: UInt32

    @staticmethod
    def at(problem: Problem, address: Int) -> Self:
        """Returns the rows of a product in a workspace."""
        var n, k = problem.n, problem.k
        var right = StagedRows.at(address, NUMBER_BYTES * k, n, 1)
        return Self(right, Weights(problem), UInt32(k), UInt32(n))

    @always_inline
    def encode[CHUNKS: Int, is_gathered: Bool](self, a: Activations, lane: LaneOfRow):
        pass

    @always_inline
    def prepare_tile(self, b: TilesOfB, k: UInt32, tile: UInt32, cta: UInt32):
        var of_b = TileOfB[OperandType.BF16, NVFP4.element.bits, NVFP4.scale].of(b.w, k, tile)
        of_b.store(self.right, SharedExponents(b.w.scales, 0, 0), cta, b.tile_ctas)

    @always_inline
    def scale(self, sum: Float32, of_row: Float32, of_weight: Float32) -> Float32:
        return sum * of_weight

    @always_inline
    def row_place(self, row: UInt32) -> UInt32:
        return row

    @always_inline
    def row_factor(self, place: UInt32, step: UInt32) -> Float32:
        return 1

    @always_inline
    def column_place(self, column: UInt32) -> UInt32:
        return min(column, self.num_b_rows - 1)

    @always_inline
    def column_factor(self, place: UInt32, step: UInt32) -> Float32:
        var rows = PackedRows[PreshuffledCuda](self.w.codes, self.w.scales, Int(self.k))
        return rows.tensor_scale(Int(place))

    @always_inline
    def has_tiles(self) -> Bool:
        return False

    @always_inline
    def loses_row(self, factor: Float32) -> Bool:
        return False

    @always_inline
    def loses_column(self, factor: Float32) -> Bool:
        return False

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
        pass

"""Both sides as callers gave them: E4M3 under float scales."""

from std.builtin.device_passable import DeviceTypeEncoder

from ...layouts import Plain
from ...simt.arguments import Activations, Result, Weights
from ..epilogue.fallback import TokenOctet, compute_marked
from ..host.gemm import Scaling
from ..gemm_operands import SsOperands
from .scales import BATCH, FloatScales, is_extreme, is_too_large


@fieldwise_init
struct FloatOperands[scaling: Scaling](SsOperands):
    """Both sides as callers gave them: E4M3 under float scales."""

    comptime device_type: AnyType = Self
    comptime TYPE: StaticString = "e4m3"
    comptime SCALING = Self.scaling

    var left: FloatScales
    var right: FloatScales

    @always_inline
    def token_place(self, row: UInt32) -> UInt32:
        return self.left.of_row(row)

    @always_inline
    def token_factor(self, place: UInt32, step: UInt32) -> Float32:
        return self.left.load(place, step)

    @always_inline
    def lie_in_batches(self, step: UInt32) -> Bool:
        return self.left.lie_in_batches(step)

    @always_inline
    def token_batch(self, place: UInt32, step: UInt32) -> SIMD[DType.float32, BATCH]:
        return self.left.load_batch(place, step)

    @always_inline
    def column_place(self, column: UInt32) -> UInt32:
        return self.right.of_row(column)

    @always_inline
    def column_factor(self, place: UInt32, step: UInt32) -> Float32:
        return self.right.load(place, step)

    @always_inline
    def has_tiles(self) -> Bool:
        return self.right.row_blocks > 1

    @always_inline
    def loses_token(self, factor: Float32) -> Bool:
        comptime if Self.scaling == Scaling.TILES:
            return is_too_large(factor)
        return False

    @always_inline
    def loses_column(self, factor: Float32) -> Bool:
        return is_extreme(factor)

    @always_inline
    def scale(self, sum: Float32, of_token: Float32, of_weight: Float32) -> Float32:
        # The token's last: only C itself may be too large or too small.
        return sum * of_weight * of_token

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
        var tokens = TokenOctet(first_row, end_row)
        compute_marked[Plain](a, w, result, tokens, first_column, of_rows, of_columns)

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "FloatOperands"

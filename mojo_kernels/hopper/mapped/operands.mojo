"""What the kernel of mapped rows wants to know of both sides, and the sides with float scales.

    Scaling    scales along K                     sums are multiplied
    ROWS       none: a row has one                in the end
    TILES      128 columns share theirs, or the   after each stage by one factor a row: of the
               weights have one a row             token times of the tile
    COLUMNS    each column has its own            after each stage by the column's, then the token's
    NUMBERS    bfloat16 numbers have them         by nothing

The product of two factors may leave float32 where what it is a factor of does not: `LIFT` keeps it
away from below, and a row for which it is too large is marked, see `fill`.
"""

from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder

from ...layouts import Plain
from ...simt.arguments import Activations, Result, Weights
from ..exact import TokenOctet, compute_marked
from ..host.gemm import Scaling
from .scales import BATCH, FloatScales, is_extreme, is_too_large


comptime MARK = Float32(-1)
"""Stands for the factor of a row that is marked, where factors are positive."""


trait MappedOperands(DevicePassable, TrivialRegisterPassable):
    """Factors of both sides, and what cannot be multiplied by them."""

    comptime TYPE: StaticString
    """The instruction's name of a number: bf16, e4m3, e5m2; or two, that of tokens first."""
    comptime SCALING: Scaling

    def token_place(self, row: UInt32) -> UInt32:
        """Returns where the factors of a row of tokens begin, of the last one for those past it."""
        ...

    def token_factor(self, place: UInt32, step: UInt32) -> Float32:
        """Returns one of them, by the stage."""
        ...

    @always_inline
    def lie_in_batches(self, step: UInt32) -> Bool:
        """Says whether those of `BATCH` stages may be loaded at once, from a step on."""
        return False

    @always_inline
    def token_batch(self, place: UInt32, step: UInt32) -> SIMD[DType.float32, BATCH]:
        """Returns those of so many stages from one on."""
        return self.token_factor(place, step)

    def column_place(self, column: UInt32) -> UInt32:
        """Returns where the factors of a column begin, of the last one for those past it."""
        ...

    def column_factor(self, place: UInt32, step: UInt32) -> Float32:
        """Returns one of them, by the stage."""
        ...

    def has_tiles(self) -> Bool:
        """Says whether the columns of a tile share factors, of `TILES`; else each has one."""
        ...

    def loses_token(self, factor: Float32) -> Bool:
        """Says whether a token is marked, by the largest factor that its sums meet."""
        ...

    def loses_column(self, factor: Float32) -> Bool:
        """Says whether a column is marked, by one of its factors."""
        ...

    def scale(self, sum: Float32, of_token: Float32, of_weight: Float32) -> Float32:
        """Applies both factors of `ROWS`."""
        ...

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
        """Computes and stores what is marked of eight rows and sixteen columns; a warp calls it."""
        ...


@fieldwise_init
struct FloatOperands[scaling: Scaling](MappedOperands, TrivialRegisterPassable):
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
        first_column: UInt32,
        of_rows: UInt32,
        of_columns: UInt32,
    ):
        var tokens = TokenOctet(first_row, 1, result.rows)
        compute_marked[Plain](a, w, result, tokens, first_column, of_rows, of_columns)

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "FloatOperands"

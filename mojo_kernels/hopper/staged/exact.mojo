"""What bfloat16 cannot hold: which tokens are marked, and how their elements are computed."""

from max.gpu.primitives.warp import vote
from max.gpu.sync import syncwarp

from ...simt.arguments import Activations, Result, Weights
from ..exact import compute_exactly
from ..host.workspace import flags_of_row
from ..instructions.warp import lane_here
from ..shapes import WARP_ROWS
from ..prepare.bf16 import BF16Stages


@fieldwise_init
struct Marks[num_tokens: Int](TrivialRegisterPassable):
    """Which tokens of a tile bfloat16 cannot hold: a bit each, the same in all lanes."""

    comptime WORDS = Self.num_tokens // 32
    """Words of bits."""

    var words: SIMD[DType.uint32, Self.WORDS]
    """The bits."""

    @staticmethod
    @always_inline
    def read(staged: BF16Stages, a: Activations, rows: UInt32, first_token: UInt32) -> Self:
        """Reads the marks of a tile; a warp calls it. Kept numbers have none."""
        var found = Self(0)
        if a.is_kept():
            return found
        var row_marks = staged.row_flags(UInt32(a.k))
        var lane = lane_here()
        # All loads are on the way at once; rows past the end repeat the last one.
        var loaded = SIMD[DType.uint8, Self.WORDS](0)
        for mark in range(Int(flags_of_row(UInt32(a.k)))):
            comptime for i in range(Self.WORDS):
                var row = min(first_token + UInt32(32 * i) + lane, rows - 1)
                loaded[i] |= row_marks[Int(row), mark]
        comptime for i in range(Self.WORDS):
            found.words[i] = vote[DType.uint32](loaded[i] != 0)
        return found

    @always_inline
    def has(self, token: UInt32) -> Bool:
        """Says whether a token has a mark."""
        var has = False
        comptime for i in range(Self.WORDS):
            if token // 32 == UInt32(i):
                has = (self.words[i] >> (token % 32)) & 1 != 0
        return has


@fieldwise_init
struct Exact(TrivialRegisterPassable):
    """The operands as they came, for elements that bfloat16 cannot give."""

    var a: Activations
    """The activations."""
    var w: Weights
    """The weights."""

    @always_inline
    def store(self, result: Result, row: UInt32, first_column: UInt32):
        """Computes and stores a warp's columns of a row; the warp calls it."""
        # The sums that other lanes stored before are not to overtake these.
        syncwarp()
        var lane = lane_here()
        for column in range(first_column, first_column + UInt32(WARP_ROWS)):
            compute_exactly(self.a, self.w, result, row, column, lane)

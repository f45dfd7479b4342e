"""Where the bases of a product's rows lie in a workspace.

    a byte for each row of tokens, then for each weight row, both padded
    a byte for each block of each row of tokens, read where the row has no base
"""

from std.math import align_up

from ...launch.queue import DevicePointer, device_pointer
from ...operands import Flat, Matrix
from ...simt.views import flat_of, rows_of
from ..instructions.wgmma import ROW_BYTES
from ..layout import BLOCK

comptime STEP_BLOCKS = ROW_BYTES // BLOCK
"""Blocks of a row in a stage."""
comptime ALIGNMENT = 256
"""Rows that the bases of a side are padded to: what tiles have past the end is read, too."""


@fieldwise_init
struct Bases(TrivialRegisterPassable):
    """The bases of both sides."""

    var first: DevicePointer[DType.uint8]
    """That of the first row of tokens."""
    var weights_at: UInt32
    """Where those of weights begin."""
    var blocks_at: UInt32
    """Where those of blocks begin."""

    @staticmethod
    def at(m: Int, n: Int, address: Int) -> Self:
        """Returns those of m rows of tokens and n weight rows that begin at an address."""
        var of_tokens, of_weights = align_up(m, ALIGNMENT), align_up(n, ALIGNMENT)
        return Self(
            device_pointer[DType.uint8](address), UInt32(of_tokens), UInt32(of_tokens + of_weights)
        )

    def end_of(self, m: Int, k: Int) -> Int:
        """Returns the address behind them."""
        return Int(self.first) + Int(self.blocks_at) + m * (k // BLOCK)

    @always_inline
    def of_tokens(self) -> Flat[DType.uint8]:
        """Views those of the rows of tokens."""
        return flat_of(self.first)

    @always_inline
    def of_weights(self) -> Flat[DType.uint8]:
        """Views those of the weight rows."""
        return flat_of(self.first.unsafe_offset(Int(self.weights_at)))

    @always_inline
    def of_blocks(self, k: UInt32) -> Matrix[DType.uint8]:
        """Views those of the blocks of rows of tokens."""
        return rows_of(self.first.unsafe_offset(Int(self.blocks_at)), Int(k // UInt32(BLOCK)))

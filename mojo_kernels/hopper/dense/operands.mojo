"""What kernels of tensor core products want to know of their operands."""

from std.builtin.device_passable import DevicePassable

from ...simt.arguments import Activations, Result, Weights
from ..exact import TokenOctet
from .result import RowFactors
from .stages import StagedRows


trait ProductOperands(DevicePassable, RowFactors):
    """Both sides of a product, ready for tensor cores, and what their numbers are."""

    comptime TYPE: StaticString
    """The instruction's name of a number: bf16, e4m3, e5m2; or two, that of weights first."""

    def tokens(self) -> StagedRows:
        """Returns the left side."""
        ...

    def num_steps(self) -> UInt32:
        """Returns the stages of K."""
        ...

    def mark_of_token(self, row: UInt32) -> Bool:
        """Says whether a row of tokens is marked: its elements of C are computed in float64."""
        ...

    def mark_of_weights(self, row: UInt32) -> Bool:
        """Returns the lane's share of the same for the 32 rows of a tile, of which one is given."""
        ...

    def store_marked(
        self, a: Activations, w: Weights, result: Result, tokens: TokenOctet, first_column: UInt32
    ):
        """Computes and stores what is marked of some rows and sixteen columns; a warp calls it."""
        ...

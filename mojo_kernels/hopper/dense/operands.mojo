"""What kernels of tensor core products want to know of their operands."""

from std.builtin.device_passable import DevicePassable

from ...simt.arguments import Activations, Result, Weights
from ..exact import TokenOctet
from .result import RowFactors
from .stages import StagedRows
from .units import StageRows, Unit


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


trait StagedOperands(DevicePassable):
    """How weights become stages, and where those are in the workspace, if they are there."""

    def weights(self) -> StagedRows:
        """Returns where the right side is in the workspace."""
        ...

    def num_steps(self) -> UInt32:
        """Returns the stages of K."""
        ...

    comptime CODE_BITS: Int
    """Bits of a code of the right side."""
    comptime STAGE_CODES: Int
    """Codes of a row in a stage."""
    comptime GRANULES: Int
    """Granules of a unit: those that a lane loads together."""
    comptime BLOCKS: Int
    """Blocks of a unit, which have a scale byte a row."""
    comptime PUT_BYTES: Int
    """Bytes that the four lanes of a row put next to each other."""

    def put[part: Int](self, unit: Unit[Self.GRANULES, Self.BLOCKS], rows: StageRows):
        """Puts a unit to its place: some part of the 32 rows of a stage."""
        ...

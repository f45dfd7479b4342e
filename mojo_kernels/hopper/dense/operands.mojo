"""What the dense kernel wants to know of its operands."""

from std.builtin.device_passable import DevicePassable

from ...simt.arguments import Activations, Result
from .result import RowFactors
from .stages import StagedRows


trait DenseOperands(DevicePassable, RowFactors):
    """Both sides of a product, ready for tensor cores, and what their numbers are."""

    comptime TYPE: StaticString
    """The instruction's name of a number: bf16, e4m3 or e5m2."""
    comptime SCALES_STAGES: Bool
    """Whether stages have factors, which the sums of a stage are multiplied by."""

    def tokens(self) -> StagedRows:
        """Returns the left side."""
        ...

    def weights(self) -> StagedRows:
        """Returns the right side."""
        ...

    comptime HAS_MARKS: Bool
    """Whether rows may be marked: their elements of C are computed in float64."""

    def mark_of_token(self, row: UInt32) -> UInt8:
        """Returns the mark of a row of tokens: not zero if there is one."""
        ...

    def mark_of_weights(self, row: UInt32) -> UInt8:
        """Returns a lane's share of the marks of some rows of weights, of which one is given."""
        ...

    def begin(self, result: Result) -> Bool:
        """Returns what `end` wants to know; consumers call it while the first stages fill."""
        ...

    def end(self, found: Bool, a: Activations, result: Result):
        """Does what is left; all consumers of a group call it."""
        ...

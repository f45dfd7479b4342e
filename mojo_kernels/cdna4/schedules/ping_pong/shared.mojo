"""What a workgroup loads of an operand, whatever its order in memory: the interface.

    codes        plain rows of activations        activations.mojo
    weights      preshuffled                      stages.mojo
    columns      either, column by column         columns.mojo
"""

from ...instructions.lds import Lds
from ...instructions.matrix import WordTile


trait SharedOperand(TrivialRegisterPassable):
    """A workgroup's rows of an operand on their way to LDS."""

    comptime LOADS: Int
    """Loads of a wave for a part of a place."""

    @staticmethod
    def of(
        codes: ImmPointer[UInt8, _],
        rows: Int32,
        k_blocks: Int32,
        first_row: Int32,
        wave: Int32,
        lane: Int32,
    ) -> Self:
        """Describes the codes from row `first_row` of `rows` on."""
        ...

    def aim(mut self, place: Int32):
        """Turns to a place along K; one beyond K reads as zeros."""
        ...

    def fetch[part: Int](self, place: Lds):
        """Starts loading a part of the place; beyond K it reads as zeros."""
        ...


trait SharedRightSide(SharedOperand):
    """The same of weights, which know where K ends."""

    def keep_inside[count: Int, //](self, stage: Int32, words: WordTile[count]):
        """Removes what lies beyond K from the lane's words of scales of a stage, of any operand."""
        ...

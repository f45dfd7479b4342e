"""What the kernel wants to know of its operands: how the codes of a weight become bytes."""

from ...launch.queue import DevicePointer
from ..dense.operands import ProductOperands
from ..layout import GRANULE_BITS

comptime GRANULE_WORDS = 2
"""Words of a granule that a lane has: one of each of its two rows."""
comptime Words[bits: Int] = SIMD[DType.uint32, GRANULE_WORDS * bits // GRANULE_BITS]
"""What a lane has of the codes of an instruction: eight of both rows."""
comptime BlockFacts = SIMD[DType.uint32, 4]
"""What `fragment` wants to know of a block of a lane's two rows."""


trait DirectOperands(ProductOperands):
    """Tokens in stages of 128 bytes, weights as codes under scales."""

    comptime CODE_BITS: Int
    """Bits of a weight's code: 4 or 8."""
    comptime SCALES_STAGES: Bool
    """Whether sums of a stage are multiplied by factors of its tokens."""
    comptime Rows: TrivialRegisterPassable
    """What `block_of` wants to know of a lane's two rows."""

    def factors_of(self, token: UInt32, step: UInt32) -> DevicePointer[DType.float32]:
        """Returns where the factors of a stage's tokens are, from one on, if they have any."""
        ...

    def rows_at(self, first: UInt32, second: UInt32, place: UInt32) -> Self.Rows:
        """Returns that of two rows.

        The first one's scale is at a place of the words that have it, the second one's next to it.
        """
        ...

    @staticmethod
    def block_of(rows: Self.Rows, scales: UInt32) -> BlockFacts:
        """Returns that of a block of both rows; `scales` are some rows', of which two are meant."""
        ...

    @staticmethod
    def fragment(block: BlockFacts, words: Words[Self.CODE_BITS]) -> SIMD[DType.uint32, 4]:
        """Returns the bytes of an instruction: four of both rows, then the four others."""
        ...

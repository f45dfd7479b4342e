"""What the kernel wants to know of its operands: how the codes of a weight become bytes."""

from ...launch.queue import DevicePointer
from ..dense.operands import ProductOperands

comptime GRANULE_WORDS = 2
"""Words of a granule that a lane has: one of each of its two rows."""
comptime GRANULE_BITS = 4
"""Bits of codes of which a block is one granule."""
comptime Words[bits: Int] = SIMD[DType.uint32, GRANULE_WORDS * bits // GRANULE_BITS]
"""What a lane has of the codes of an instruction, which multiplies a block of each row."""


trait DirectOperands(ProductOperands):
    """Tokens in stages of 128 bytes, weights as codes under scales."""

    comptime CODE_BITS: Int
    """Bits of a weight's code: 4 or 8."""
    comptime SCALES_STAGES: Bool
    """Whether sums of a stage are multiplied by factors of its tokens."""
    comptime Rows: TrivialRegisterPassable
    """What `fragment` wants to know of a lane's two rows."""

    def factors_of(self, token: UInt32, step: UInt32) -> DevicePointer[DType.float32]:
        """Returns where the factors of a stage's tokens are, from one on, if they have any."""
        ...

    def rows_at(self, first: UInt32, second: UInt32, place: UInt32) -> Self.Rows:
        """Returns that of two rows.

        The first one's scale is at a place of the words that have it, the second one's next to it.
        """
        ...

    @staticmethod
    def fragment(
        rows: Self.Rows, words: Words[Self.CODE_BITS], scales: UInt32
    ) -> SIMD[DType.uint32, 4]:
        """Returns the bytes of an instruction: both rows, then those of the next 16 of K.

        `scales` are some rows', of which two are meant.
        """
        ...

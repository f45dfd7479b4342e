"""What the kernel wants to know of its operands: how the codes of a weight become bytes."""

from ..dense.operands import ProductOperands

comptime GRANULE_WORDS = 2
"""Words of a granule that a lane has: one of each of its two rows."""
comptime Words = SIMD[DType.uint32, GRANULE_WORDS]
"""What a lane has of the codes of an instruction, which multiplies a granule of each row."""


trait DirectOperands(ProductOperands):
    """Tokens in stages of 128 bytes, weights as codes of four bits under scales."""

    comptime Rows: TrivialRegisterPassable
    """What `fragment` wants to know of a lane's two rows."""

    def rows_at(self, row: UInt32) -> Self.Rows:
        """Returns that of the rows of a lane, of which the first one is given."""
        ...

    @staticmethod
    def fragment(rows: Self.Rows, words: Words, scales: UInt32) -> SIMD[DType.uint32, 4]:
        """Returns the bytes of an instruction: both rows, then those of the next 16 of K.

        `scales` are those of four rows, of which two are meant.
        """
        ...

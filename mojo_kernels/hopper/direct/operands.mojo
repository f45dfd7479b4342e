"""What the kernel wants to know of its operands: how the codes of a weight become bytes."""

from ..dense.operands import ProductOperands
from ..dense.result import RowPair

comptime GRANULE_WORDS = 2
"""Words of a granule that a lane has: one of each of its two rows."""


def granules_of(bits: Int) -> Int:
    """Returns the granules that an instruction multiplies, of codes of so many bits."""
    return bits // 4


comptime Words[bits: Int] = SIMD[DType.uint32, granules_of(bits) * GRANULE_WORDS]
"""What a lane has of the codes of an instruction: both rows' words of each granule."""


trait DirectOperands(ProductOperands):
    """Tokens in stages of 128 bytes, weights as codes under scales or without."""

    comptime CODE_BITS: Int
    """Bits of a code of the weights."""
    comptime HAS_BLOCK_SCALES: Bool
    """Whether each block of them has a scale byte."""
    comptime SUM_STAGES: Int
    """Stages that tensor cores add up, 1 or 2, before float32 registers do."""
    comptime Rows: TrivialRegisterPassable
    """What `fragment` wants to know of a lane's two rows."""
    comptime Factors: TrivialRegisterPassable
    """What `stage_factors` wants to know of them."""

    def rows_at(self, row: UInt32) -> Self.Rows:
        """Returns that of the rows of a lane, of which the first one is given."""
        ...

    @staticmethod
    def fragment(
        rows: Self.Rows,
        words: Words[Self.CODE_BITS],
        scales: UInt32,
    ) -> SIMD[DType.uint32, 4]:
        """Returns the bytes of an instruction: both rows, then those of the next 16 of K.

        `scales` are those of four rows, of which two are meant.
        """
        ...

    def factors_at(self, row: UInt32) -> Self.Factors:
        """Returns where the factors of those rows are, where stages have factors."""
        ...

    def stage_factors(self, rows: Self.Factors, step: UInt32) -> RowPair:
        """Returns the factors of a stage of both rows."""
        ...

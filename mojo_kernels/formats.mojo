"""Old names of the format table, until every room has moved to `numbers`."""

from .numbers.formats import Format
from .numbers.scales import E8M0_BIAS, E8M0_NAN


@fieldwise_init
struct _Mxfp4(TrivialRegisterPassable):
    var name: StaticString
    var element_bits: Int
    var mantissa_bits: Int
    var emax: Int
    var block_size: Int
    var scale_bias: Int
    var scale_nan: Int
    var cdna4_code: Int32

    def packed_bytes(self, count: Int) -> Int:
        """Returns the bytes that `count` densely packed codes occupy."""
        return count * self.element_bits // 8


comptime FORMAT = _Mxfp4("mxfp4", 4, 1, 2, 32, E8M0_BIAS, E8M0_NAN, 4)
comptime BLOCK = Format.MXFP4.block_k
comptime BLOCK_BYTES = Format.MXFP4.block_bytes()

"""Old names of the codec, until every room has moved to `numbers`."""

from .formats import BLOCK, BLOCK_BYTES
from .numbers.e2m1 import (
    DOUBLED_VALUES,
    MAGNITUDE_CODE,
    MAX_DOUBLED,
    MIDPOINTS_TIMES_4,
    NUM_CODES,
    SIGN_CODE,
    block_values,
    decode_codes,
    encode_magnitudes,
    f32_bits_of_quarters,
)
from .numbers.floats import (
    F32_EXPONENT_BIAS,
    F32_MANTISSA_BITS,
    FloatBits,
    round_to,
)
from .numbers.rounding import Rounding, scale_from_amax
from .numbers.scales import decode_scale


@always_inline
def decode_block(bytes: SIMD[DType.uint8, BLOCK_BYTES], scale: UInt8) -> SIMD[DType.float32, BLOCK]:
    """Returns the elements of a packed block under its scale."""
    var codes = rebind[SIMD[DType.uint8, BLOCK]]((bytes & 0xF).interleave(bytes >> 4))
    return decode_codes(codes, scale)

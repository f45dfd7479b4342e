"""E2M1 weights as unsigned bytes: twice the value plus `MAX_DOUBLED`.

A nibble becomes a byte by one shuffle. What the offset adds to a dot product, the activations'
corrections take away.
"""

from std.memory import bitcast

from ...numbers.e2m1 import DOUBLED_VALUES, MAX_DOUBLED
from ..vectors import STEP_BYTES, Words
from .dot import WeightBytes

comptime _OFFSET_VALUES = (DOUBLED_VALUES + MAX_DOUBLED).cast[DType.uint8]()


@always_inline
def low_nibbles(words: Words) -> WeightBytes:
    """Returns the even elements of a vector, as offset values."""
    return _OFFSET_VALUES._dynamic_shuffle(bitcast[DType.uint8, STEP_BYTES](words) & 0xF)


@always_inline
def high_nibbles(words: Words) -> WeightBytes:
    """Returns the odd elements of a vector, as offset values."""
    return _OFFSET_VALUES._dynamic_shuffle(bitcast[DType.uint8, STEP_BYTES](words >> 4) & 0xF)

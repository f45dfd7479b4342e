"""What a GPU thread's codec divides by; its bits are in `tests/numerics/mojo/test_codec.mojo`."""

from fractions import Fraction

import numpy as np

TIE_BITS, NUMBER_BITS = 5, 11
"""Bits of the middle of two codes, of E4M3, and of a number of float16."""
ERROR = Fraction(1, 2**46)
"""Of a quotient after one of Newton's steps, before it is rounded, relative."""


def float32_of(value):
    """Rounds a positive fraction to 24 bits, to nearest even."""
    unit = Fraction(2) ** (value.numerator.bit_length() - value.denominator.bit_length() - 24)
    while value / unit >= 2**24:
        unit *= 2
    return Fraction(round(value / unit)) * unit


def signed_float32_of(value):
    return 0 if not value else float32_of(abs(value)) * (1 if value > 0 else -1)


def test_one_step_divides_numbers_of_eleven_bits_as_a_division_does():
    """Where codes change at t, quotients do at the middles of float32 around it.

    Of number / scale = middle each odd number and each middle leave few scales that are near: all
    others are farther, and all but one quotient are a thousand times farther than the error.
    """
    numbers, near = np.arange(1, 2**NUMBER_BITS, 2, dtype=object), []
    for tie in range(1, 2**TIE_BITS, 2):
        units = tie << (25 - tie.bit_length())
        below = units - 1 if tie > 1 else 2 * units - 1
        for middle in (units + 1, below):
            for power in range(35, 52):
                shifted = numbers << power
                scales = (shifted + middle // 2) // middle
                fits = (scales >= 2**23) & (scales < 2**24)
                for number, scale in zip(shifted[fits], scales[fits], strict=True):
                    gap = Fraction(abs(number - scale * middle), scale * middle)
                    if gap < 1000 * ERROR:
                        near.append((number, scale))
    assert near == [(2**48, 2**24 - 1)]
    for number, scale in near:
        x, d = Fraction(number), Fraction(scale)
        inverse = float32_of(1 / d)
        found = float32_of(x * inverse)
        rest = signed_float32_of(found * d - x)
        assert float32_of(found - rest * inverse) == float32_of(x / d)

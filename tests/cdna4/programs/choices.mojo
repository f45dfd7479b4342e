"""Emits every decode kernel that the dispatch table names, for any K where the row is:
fused, or for activations that are already encoded where it is for those only.
"""

from named import emit_linear, emit_matmul

from mojo_kernels.cdna4.decode_shape import DecodeShape
from mojo_kernels.cdna4.dispatch import CHOICES, Choice, Kernel


def shape_of(choice: Choice) -> DecodeShape:
    """Returns the cut of a row."""
    var shape = choice.shape
    shape.k_tail = choice.any_k
    return shape


def is_first[row: Int]() -> Bool:
    """Says whether no row above has the same kernel."""
    comptime choice = CHOICES[row]
    comptime for i in range(row):
        comptime above = CHOICES[i]
        comptime if above.kernel == Kernel.DECODE and shape_of(above) == shape_of(choice):
            return False
    return True


def main() raises:
    """Emits them."""
    comptime for row in range(len(CHOICES)):
        comptime choice = CHOICES[row]
        comptime if choice.kernel == Kernel.DECODE and is_first[row]():
            comptime if choice.sources.floats:
                emit_linear[shape_of(choice)]()
            else:
                emit_matmul[shape_of(choice)]()

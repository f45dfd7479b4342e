"""Every decode kernel that the dispatch table names, for any K where the row is:
fused, or for activations that are already encoded where it is for those only.
"""

from std.os import abort
from std.python import PythonObject

from named import show_linear, show_matmul

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, Visitor
from mojo_kernels.cdna4.decode.shape import DecodeShape
from mojo_kernels.cdna4.host.choices import CHOICES, Choice, Family


def shape_of(choice: Choice) -> DecodeShape:
    """Returns the cut of a row."""
    return choice.shape_of(k_tail=choice.any_k)


def is_first[row: Int]() -> Bool:
    """Says whether no row above has the same kernel."""
    comptime choice = CHOICES[row]
    comptime for i in range(row):
        comptime above = CHOICES[i]
        comptime if above.family == Family.DECODE and shape_of(above) == shape_of(choice):
            return False
    return True


struct Choices(Catalogue):
    """The kernels of the table."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime for row in range(len(CHOICES)):
            comptime choice = CHOICES[row]
            comptime if choice.family == Family.DECODE and is_first[row]():
                comptime if choice.sources.floats:
                    show_linear[shape_of(choice)](visitor)
                else:
                    show_matmul[shape_of(choice)](visitor)


@export
def PyInit_choices() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Choices]("choices")
    except error:
        abort(String("cannot create choices: ", error))

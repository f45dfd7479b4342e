"""Every kernel that the CDNA4 dispatch can choose, for bfloat16, and the quantizer: a catalogue.

    linear_<cut>, matmul_<cut>      a cut as `Choice.name` spells it
    quantize
"""

from std.os import abort
from std.python import PythonObject

from products import BF16, CODES, EVEN, FLOATS, Product

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.host.catalogue import Catalogue, ListedQuantizer, Visitor
from mojo_kernels.cdna4.host.dispatch import CHOICES, Family
from mojo_kernels.numbers.formats import Format


def is_first[row: Int]() -> Bool:
    """Says whether no row above launches the same kernels."""
    comptime for i in range(row):
        comptime if CHOICES[i].name() == CHOICES[row].name():
            return False
    return True


struct Ours(Catalogue):
    """All of them."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime for i in range(len(CHOICES)):
            comptime if is_first[i]():
                comptime choice = CHOICES[i]
                comptime if choice.family != Family.MIDDLE:
                    visitor.kernel[Product[FLOATS, choice]](String("linear_", choice.name()))
                visitor.kernel[Product[CODES, choice]](String("matmul_", choice.name()))
        visitor.kernel[ListedQuantizer[Format.MXFP4, BF16, EVEN]]("quantize")


@export
def PyInit_ours() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Ours]("ours")
    except error:
        abort(String("cannot create ours: ", error))

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
from mojo_kernels.cdna4.types import ProductTypes
from mojo_kernels.numbers.formats import Format


def is_first[types: ProductTypes, row: Int]() -> Bool:
    """Says whether a row is for such products, and none above launches the same kernels."""
    comptime own = CHOICES[row]
    comptime for i in range(row):
        comptime choice = CHOICES[i]
        comptime if choice.sources.include(types) and choice.name() == own.name():
            return False
    return own.sources.include(types)


struct Ours(Catalogue):
    """All of them."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime for i in range(len(CHOICES)):
            comptime choice = CHOICES[i]
            comptime if is_first[FLOATS, i]() and choice.family != Family.MIDDLE:
                visitor.kernel[Product[FLOATS, choice]](String("linear_", choice.name()))
            comptime if is_first[CODES, i]():
                visitor.kernel[Product[CODES, choice]](String("matmul_", choice.name()))
        visitor.kernel[ListedQuantizer[Format.MXFP4, BF16, EVEN]]("quantize")


@export
def PyInit_ours() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Ours]("ours")
    except error:
        abort(String("cannot create ours: ", error))

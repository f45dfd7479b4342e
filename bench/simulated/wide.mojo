"""The kernels that the CDNA4 dispatch has for activations of more than four bits.

    linear_<activations>_<cut>      bfloat16 in, kept or rounded to eight bits; MXFP4 weights
"""

from std.os import abort
from std.python import PythonObject

from products import BF16, EVEN, Product
from table import is_first

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, Visitor
from mojo_kernels.cdna4.host.table import CHOICES
from mojo_kernels.cdna4.types import Formats, KEPT, ProductTypes, name_of
from mojo_kernels.numbers.formats import Format


struct Wide(Catalogue):
    """All of them."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime for left in [KEPT, Format.MXFP8]:
            comptime formats = Formats(left, Format.MXFP4)
            comptime types = ProductTypes(formats, Optional(BF16), EVEN, BF16, None)
            comptime for i in range(len(CHOICES)):
                comptime choice = CHOICES[i]
                comptime if is_first[types, i]() and choice.plan.fits(types):
                    visitor.kernel[Product[types, choice.plan]](
                        String("linear_", name_of(left), "_", choice.plan.name())
                    )


@export
def PyInit_wide() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Wide]("wide")
    except error:
        abort(String("cannot create wide: ", error))

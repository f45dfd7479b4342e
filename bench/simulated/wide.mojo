"""The kernels that the CDNA4 dispatch has for activations of more than four bits.

    linear_<activations>_<cut>      bfloat16 in, kept or rounded to eight bits; MXFP4 weights
    linear_nvfp4_<cut>              bfloat16 in, kept; NVFP4 weights
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

comptime PAIRS = [
    Formats(KEPT, Format.MXFP4),
    Formats(Format.MXFP8, Format.MXFP4),
    Formats(KEPT, Format.NVFP4),
]


struct Wide(Catalogue):
    """All of them."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime for i in range(len(PAIRS)):
            comptime formats = PAIRS[i]
            comptime right = formats.right
            comptime named = formats.left if right == Format.MXFP4 else right
            comptime types = ProductTypes(formats, Optional(BF16), EVEN, BF16, None)
            comptime for row in range(len(CHOICES)):
                comptime choice = CHOICES[row]
                comptime if is_first[types, row]() and choice.plan.fits(types):
                    visitor.kernel[Product[types, choice.plan]](
                        String("linear_", name_of(named), "_", choice.plan.name())
                    )


@export
def PyInit_wide() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Wide]("wide")
    except error:
        abort(String("cannot create wide: ", error))

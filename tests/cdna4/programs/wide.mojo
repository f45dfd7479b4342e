"""Emits decode kernels whose activations are wider than four bits: kept floats, codes of six bits
and of eight.

Each pair of formats in every cut that differs in what a lane feeds: alone, shared, split,
encoded already; any K.
"""

from std.os import abort
from std.python import PythonObject

from named import F16, F32, show_linear, show_matmul

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, Visitor
from mojo_kernels.cdna4.types import Formats, KEPT, PAIRS, name_of
from mojo_kernels.numbers.elements import Element
from mojo_kernels.numbers.formats import Format
from mojo_kernels.numbers.rounding import Rounding
from mojo_kernels.numbers.scales import Scale

comptime SMALL = "m1n2w2t"
comptime ALONE = "m2n2w2k2d2t"
comptime SPLIT = "m1n4w4s3t"
comptime SHARED = "m2n4w4s2k2d2h2t"
comptime AT_ONCE = "m2n6w6s2k2d2h3ut"


struct Wide(Catalogue):
    """Every kernel."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime for i in range(1, len(PAIRS)):
            comptime formats = PAIRS[i]
            comptime if formats.left.scale == Scale.E8M0:
                var prefix = String(name_of(formats.left), "-", name_of(formats.right), "/")
                show_linear[SHARED, formats=formats](visitor, prefix)
                comptime if formats.left != KEPT:
                    show_matmul[SHARED, formats=formats](visitor, prefix)
                comptime if formats.left.element not in [Element.E5M2, Element.E3M2]:
                    show_linear[ALONE, formats=formats](visitor, prefix)
                    comptime if formats.left != KEPT:
                        show_matmul[ALONE, formats=formats](visitor, prefix)

        # Inputs, results, biases, rules, and cuts that do not depend on formats.
        comptime w4a8 = Formats(Format.MXFP8, Format.MXFP4)
        comptime for formats in [
            Formats(KEPT, Format.MXFP4),
            Formats(KEPT, Format.NVFP4),
            Formats(Format.MXFP8, Format.MXFP4),
            Formats(Format.MXFP6, Format.MXFP4),
        ]:
            var prefix = String(name_of(formats.left), "-", name_of(formats.right), "/")
            show_linear[SPLIT, formats=formats](visitor, prefix)
            show_linear[AT_ONCE, formats=formats](visitor, prefix)
            show_linear[SMALL, x=F16, result=F16, bias=Optional(F16), formats=formats](
                visitor, prefix
            )
            show_linear[SMALL, x=F32, result=F32, bias=Optional(F32), formats=formats](
                visitor, prefix
            )
        show_linear[SMALL, rounding=Rounding.FLOOR, formats=w4a8](visitor, "mxfp8-mxfp4/")
        show_linear[SMALL, rounding=Rounding.RCEIL, formats=w4a8](visitor, "mxfp8-mxfp4/")


@export
def PyInit_wide() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Wide]("wide")
    except error:
        abort(String("cannot create wide: ", error))

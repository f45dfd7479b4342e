"""Decode kernels of MXFP4: one for every type, rule and source, and for every way of sharing.

Cuts are those of the dispatch table; the others are in `choices.mojo`. One has NVFP4 weights.
"""

from std.os import abort
from std.python import PythonObject

from named import BF16, F16, F32, show_linear, show_matmul

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, Visitor
from mojo_kernels.cdna4.types import Formats, KEPT
from mojo_kernels.numbers.formats import Format
from mojo_kernels.numbers.rounding import Rounding

comptime SMALL = "m1n1w2t"


struct Decode(Catalogue):
    """Every kernel."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        # Types, biases and rules.
        show_linear[SMALL, x=F16, result=F16, bias=Optional(F16)](visitor)
        show_linear[SMALL, x=F32, result=F32, bias=Optional(F32)](visitor)
        show_linear[SMALL, bias=Optional(BF16), rounding=Rounding.FLOOR](visitor)
        show_linear[SMALL, result=F32, rounding=Rounding.CEIL](visitor)
        show_linear[SMALL, rounding=Rounding.RCEIL](visitor)
        show_matmul[SMALL, result=F32, bias=Optional(F32)](visitor)

        # K of whole chunks, all of them at once; more tiles; workgroups, then waves that share.
        show_linear["m1n1w4u"](visitor)
        show_linear["m2n4w2t"](visitor)
        show_linear["m1n1w8s4t"](visitor)
        show_linear["m1n4w8s2t"](visitor)
        show_linear["m2n6w12d3h3u"](visitor)
        show_linear["m4n8w4d4h4t"](visitor)

        # Activations that are already encoded.
        show_matmul["m1n1w4u"](visitor)
        show_matmul["m1n1w16t"](visitor)
        show_matmul["m2n6w8s4t"](visitor)

        # Floats that are kept, by weights whose scales no matrix instruction knows.
        show_linear["m2n4w2t", formats=Formats(KEPT, Format.NVFP4)](visitor, "bf16-nvfp4/")


@export
def PyInit_decode() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Decode]("decode")
    except error:
        abort(String("cannot create decode: ", error))

"""What the CDNA4 dispatch chooses for one small shape, named as in bench/simulated/ours.mojo."""

from std.os import abort
from std.python import PythonObject

from products import BF16, CODES, EVEN, FLOATS, Product

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, ListedQuantizer, Visitor
from mojo_kernels.cdna4.streaming.shape import StreamingShape
from mojo_kernels.cdna4.host.plan import Plan
from mojo_kernels.numbers.formats import Format

comptime CUT = "m1n1w4u"
"""What the dispatch chooses for `SMALL` of tests/bench/test_gfx950.py."""


struct Small(Catalogue):
    """A linear, a matmul, and the quantizer."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime plan = Plan.of(StreamingShape.named(CUT))
        visitor.kernel[Product[FLOATS, plan]](String("linear_", CUT))
        visitor.kernel[Product[CODES, plan]](String("matmul_", CUT))
        visitor.kernel[ListedQuantizer[Format.MXFP4, BF16, EVEN]]("quantize")


@export
def PyInit_small() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Small]("small")
    except error:
        abort(String("cannot create small: ", error))

"""What the CDNA4 dispatch chooses for one small shape, named as in bench/simulated/ours.mojo."""

from std.os import abort
from std.python import PythonObject

from products import BF16, CODES, EVEN, FLOATS, Product

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, ListedQuantizer, Visitor
from mojo_kernels.cdna4.host.choices import CHOICES, choose
from mojo_kernels.numbers.formats import Format

comptime M = 3
comptime N = 256
comptime K = 512
"""The shape is `SMALL` of tests/bench/test_gfx950.py."""


struct Small(Catalogue):
    """A linear, a matmul, and the quantizer."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime linear = CHOICES[choose(M, N, K, FLOATS)].plan
        comptime matmul = CHOICES[choose(M, N, K, CODES)].plan
        visitor.kernel[Product[FLOATS, linear]](String("linear_", linear.name()))
        visitor.kernel[Product[CODES, matmul]](String("matmul_", matmul.name()))
        visitor.kernel[ListedQuantizer[Format.MXFP4, BF16, EVEN]]("quantize")


@export
def PyInit_small() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Small]("small")
    except error:
        abort(String("cannot create small: ", error))

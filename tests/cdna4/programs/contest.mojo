"""The decode kernels that the dispatch chooses for the contest shapes (M, N, K):

    <M>x<N>x<K>/<kernel>, fused and for activations that are already encoded
"""

from std.os import abort
from std.python import PythonObject

from named import BF16, show_linear, show_matmul

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, Visitor
from mojo_kernels.cdna4.host.choices import CHOICES, choose
from mojo_kernels.cdna4.types import Formats, ProductTypes
from mojo_kernels.numbers.rounding import Rounding

comptime CONTEST = [
    (4, 2880, 512),
    (16, 2112, 7168),
    (32, 4096, 512),
    (32, 2880, 512),
    (64, 7168, 2048),
    (256, 3072, 1536),
]
comptime TYPES = ProductTypes(Formats.MXFP4, Optional(BF16), Rounding.EVEN, BF16, None)


struct Contest(Catalogue):
    """The kernels of these shapes."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime for i in range(len(CONTEST)):
            comptime m, n, k = CONTEST[i]
            comptime choice = CHOICES[choose(m, n, k, TYPES)]
            comptime shape = choice.shape_of(k_tail=choice.has_tail(k))
            var prefix = String(m, "x", n, "x", k, "/")
            show_linear[shape](visitor, prefix)
            show_matmul[shape](visitor, prefix)


@export
def PyInit_contest() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Contest]("contest")
    except error:
        abort(String("cannot create contest: ", error))

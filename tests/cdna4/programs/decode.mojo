"""Emits decode kernels for awkward shapes, and one for every type, rule and source."""

from std.os import abort
from std.python import PythonObject

from named import BF16, F16, F32, shape_of, show_linear, show_matmul

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, Visitor
from mojo_kernels.numbers.rounding import Rounding


struct Decode(Catalogue):
    """Every kernel."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        # Tiles, depths and splits, for any K.
        show_linear[shape_of(1, 1, 1, 1, k_tail=True)](visitor)
        show_linear[shape_of(1, 1, 2, 4, depth=2, k_tail=True)](visitor)
        show_linear[shape_of(1, 2, 2, 1, depth=3, k_tail=True)](visitor)
        show_linear[shape_of(2, 2, 1, 4, k_tail=True)](visitor)
        show_linear[shape_of(2, 4, 2, 2, depth=2, splits=2, k_tail=True)](visitor)
        show_linear[shape_of(4, 4, 1, 4, splits=3, k_tail=True)](visitor)

        # Shared activations: in one chunk, in a pipeline, with tiles that nobody needs, in all at once.
        show_linear[shape_of(2, 4, 2, 8, sharers=2, k_tail=True)](visitor)
        show_linear[shape_of(1, 8, 2, 4, depth=2, sharers=4, k_tail=True)](visitor)
        show_linear[shape_of(2, 6, 1, 6, depth=3, splits=3, sharers=3, k_tail=True)](visitor)
        show_linear[shape_of(4, 4, 2, 2, sharers=2, k_tail=True), x=F16](visitor)
        comptime at_once = shape_of(
            2, 6, 2, 6, depth=2, splits=2, sharers=3, up_front=True, k_tail=True
        )
        show_linear[at_once](visitor)

        # Types, biases and rules.
        comptime small = shape_of(1, 2, 1, 2, k_tail=True)
        show_linear[small, x=F16, result=F16, bias=Optional(F16)](visitor)
        show_linear[small, x=F32, result=F32, bias=Optional(F32)](visitor)
        show_linear[small, bias=Optional(BF16), rounding=Rounding.FLOOR](visitor)
        show_linear[small, result=F32, rounding=Rounding.CEIL](visitor)
        show_linear[small, rounding=Rounding.RCEIL](visitor)

        # Activations that are already encoded.
        show_matmul[shape_of(1, 1, 1, 4, k_tail=True)](visitor)
        show_matmul[shape_of(2, 4, 2, 2, depth=2, splits=2, k_tail=True), result=F32](visitor)
        show_matmul[shape_of(1, 2, 2, 2, depth=3, k_tail=True), bias=Optional(F32)](visitor)
        show_matmul[shape_of(2, 4, 2, 4, depth=2, splits=2, sharers=2, k_tail=True)](visitor)


@export
def PyInit_decode() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Decode]("decode")
    except error:
        abort(String("cannot create decode: ", error))

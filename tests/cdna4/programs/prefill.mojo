"""The prefill kernels of MXFP4, one for each operation, tile and end of K with each other's values;
`named_prefill.mojo` says how they are named, `prefill_types.mojo` has the others.
"""

from std.os import abort
from std.python import PythonObject

from named_prefill import BF16, F32, show_linear, show_matmul

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, Visitor
from mojo_kernels.cdna4.epilogue.target import NO_BIAS


struct Prefill(Catalogue):
    """Every kernel."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        show_matmul[8, BF16, NO_BIAS, False](visitor)
        show_matmul[4, BF16, NO_BIAS, True](visitor)
        show_linear[8, BF16, F32, Optional(F32), True](visitor)
        show_linear[4, BF16, BF16, NO_BIAS, False](visitor)


@export
def PyInit_prefill() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Prefill]("prefill")
    except error:
        abort(String("cannot create prefill: ", error))

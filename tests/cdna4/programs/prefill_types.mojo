"""The prefill kernels of MXFP4 that `prefill.mojo` lacks: other types, the other ends of K."""

from std.os import abort
from std.python import PythonObject

from named_prefill import BF16, F16, F32, show_linear, show_matmul

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, Visitor
from mojo_kernels.cdna4.epilogue.target import NO_BIAS


struct PrefillTypes(Catalogue):
    """Every kernel."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        show_matmul[8, F32, Optional(F32), True](visitor)
        show_matmul[4, BF16, Optional(BF16), False](visitor)
        show_linear[8, BF16, BF16, NO_BIAS, False](visitor)
        show_linear[8, F32, BF16, NO_BIAS, False](visitor)
        show_linear[4, F16, BF16, Optional(BF16), True](visitor)


@export
def PyInit_prefill_types() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[PrefillTypes]("prefill_types")
    except error:
        abort(String("cannot create prefill_types: ", error))

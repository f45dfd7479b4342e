"""Emits the kernels of floats by floats; `named_prefill.mojo` names them.

Both sizes of tiles, with and without a tail of K, a bias of each type and all kinds of results.
"""

from std.os import abort
from std.python import PythonObject

from named_prefill import BF16, F16, F32, show_linear

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, Visitor
from mojo_kernels.cdna4.epilogue.target import NO_BIAS
from mojo_kernels.cdna4.types import Formats


struct Floats(Catalogue):
    """Every kernel."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        show_linear[8, BF16, BF16, NO_BIAS, False, Formats.BF16](visitor)
        show_linear[4, BF16, BF16, NO_BIAS, False, Formats.BF16](visitor)
        show_linear[8, F16, F16, NO_BIAS, False, Formats.F16](visitor)
        show_linear[8, BF16, F32, Optional(F32), True, Formats.BF16](visitor)
        show_linear[4, F16, F32, Optional(F16), True, Formats.F16](visitor)
        show_linear[8, F16, BF16, Optional(BF16), True, Formats.F16](visitor)


@export
def PyInit_floats() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Floats]("floats")
    except error:
        abort(String("cannot create floats: ", error))

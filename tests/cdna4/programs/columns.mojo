"""Emits the kernels of codes that lie column by column on both sides.

Both sizes of tiles, with and without a tail of K, a bias of either type and both kinds of results;
`named_prefill.mojo` names them.
"""

from std.os import abort
from std.python import PythonObject

from named_prefill import BF16, F32, show_matmul

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, Visitor
from mojo_kernels.cdna4.epilogue.target import NO_BIAS
from mojo_kernels.cdna4.types import COLUMN_PAIRS


struct Columns(Catalogue):
    """Every kernel."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime for i in range(len(COLUMN_PAIRS)):
            comptime formats = COLUMN_PAIRS[i]
            show_matmul[8, BF16, NO_BIAS, False, formats](visitor)
            show_matmul[4, BF16, NO_BIAS, False, formats](visitor)
            show_matmul[8, F32, Optional(F32), True, formats](visitor)
            show_matmul[4, BF16, Optional(BF16), True, formats](visitor)


@export
def PyInit_columns() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Columns]("columns")
    except error:
        abort(String("cannot create columns: ", error))

"""Every kernel that the CDNA4 dispatch can choose for K of whole steps, for bfloat16: a catalogue.

    linear_<cut>, matmul_<cut>      a cut as `Choice.name` spells it
    quantize
"""

from std.os import abort
from std.python import PythonObject

from table import Rows

from mojo_kernels.bindings.catalogue import catalogue_module


@export
def PyInit_ours() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Rows[k_tail=False]]("ours")
    except error:
        abort(String("cannot create ours: ", error))

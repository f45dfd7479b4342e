"""The same kernels for K that may end within a step: a catalogue. Names are those of ours.mojo."""

from std.os import abort
from std.python import PythonObject

from table import Rows

from mojo_kernels.bindings.catalogue import catalogue_module


@export
def PyInit_tails() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Rows[k_tail=True]]("tails")
    except error:
        abort(String("cannot create tails: ", error))

"""The products that gfx950 has kernels for, as facts for Python."""

from std.python import Python, PythonObject

from ..cdna4.instructions.matrix import name_of
from ..cdna4.types import PAIRS


def pairs_on_gfx950() raises -> PythonObject:
    """Returns the formats of activations and weights that there are kernels for."""
    var pairs = Python.list()
    comptime for i in range(len(PAIRS)):
        comptime pair = PAIRS[i]
        pairs.append(Python.tuple(name_of(pair.left), name_of(pair.right)))
    return pairs

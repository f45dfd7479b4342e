"""The products that gfx950 has kernels for, as facts for Python."""

from std.python import Python, PythonObject

from ..cdna4.types import COLUMN_PAIRS, PAIRS, has_expert_kernels, name_of


def pairs_on_gfx950() raises -> PythonObject:
    """Returns the formats of activations and weights that there are kernels for."""
    return _pairs[False]()


def column_pairs_on_gfx950() raises -> PythonObject:
    """Returns those of codes that lie column by column on both sides."""
    var pairs = Python.list()
    comptime for i in range(len(COLUMN_PAIRS)):
        comptime pair = COLUMN_PAIRS[i]
        pairs.append(Python.tuple(name_of(pair.left), name_of(pair.right)))
    return pairs


def expert_pairs_on_gfx950() raises -> PythonObject:
    """Returns those of products with one of several matrices for each row."""
    return _pairs[True]()


def _pairs[of_experts: Bool]() raises -> PythonObject:
    """Returns pairs by name."""
    var pairs = Python.list()
    comptime for i in range(len(PAIRS)):
        comptime pair = PAIRS[i]
        comptime if not of_experts or has_expert_kernels(pair):
            pairs.append(Python.tuple(name_of(pair.left), name_of(pair.right)))
    return pairs

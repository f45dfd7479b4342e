"""Names in a graph, as positions in the tables; an unknown one fails when the graph is compiled."""

from ..layouts import layout_position
from ..numbers.floats import float_code
from ..numbers.formats import FORMATS, NO_FORMAT
from ..numbers.gates import GATES
from ..numbers.rounding import Rounding

comptime KEPT = "bf16"
"""The name of activations that stay floats."""
comptime INTEGERS = "mxint16"
"""The name of activations that become 16-bit integers."""


def dtype_code[dtype: DType]() -> Int:
    """Returns the position of an element type in the table."""
    comptime code = float_code(dtype)
    comptime assert code >= 0, String("no kernels for element type ", dtype)
    return code


def layout_code[name: StaticString]() -> Int:
    """Returns the position of a layout in the table."""
    comptime code = layout_position(name)
    comptime assert code >= 0, String("unknown layout '", name, "'")
    return code


def format_code[name: StaticString]() -> Int:
    """Returns the position of a format in the table."""
    comptime code = _format_code_or_none[name]()
    comptime assert code >= 0, String("unknown format '", name, "'")
    return code


def _format_code_or_none[name: StaticString]() -> Int:
    """Returns the position of a format in the table, or -1."""
    comptime for i in range(len(FORMATS)):
        comptime if FORMATS[i].name() == name:
            return i
    return -1


def activations_code[name: StaticString]() -> Int:
    """Returns the position of the format of activations, or `NO_FORMAT` if they become none."""
    comptime if name == KEPT or name == INTEGERS:
        return NO_FORMAT
    else:
        return format_code[name]()


def rounding_of[name: StaticString]() -> Rounding:
    """Returns a rounding rule by its name."""
    comptime code = _rounding_code_or_none[name]()
    comptime assert code >= 0, String("unknown rounding '", name, "'")
    return Rounding(code)


def _rounding_code_or_none[name: StaticString]() -> Int:
    """Returns the position of a rounding rule in the table, or -1."""
    comptime for i in range(Rounding.COUNT):
        comptime if Rounding.NAMES[i] == name:
            return i
    return -1


def gate_code[name: StaticString]() -> Int:
    """Returns the position of an activation of experts in the table."""
    comptime code = _gate_code_or_none[name]()
    comptime assert code >= 0, String("unknown activation '", name, "'")
    return code


def _gate_code_or_none[name: StaticString]() -> Int:
    """Returns the position of an activation of experts in the table, or -1."""
    comptime for i in range(len(GATES)):
        comptime if GATES[i].name == name:
            return i
    return -1

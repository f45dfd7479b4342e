"""What extension modules take from Python: one tuple of integers for a call.

Addresses, sizes, and codes that index tables; the Python package validates. Element types
are numbered as in `DTYPES`, layouts as in `LAYOUTS`.
"""

from std.python import Python, PythonObject

comptime DTYPES = [DType.bfloat16, DType.float16, DType.float32]
"""The element types of floats, by code."""


struct Arguments:
    """Reads a tuple of integers from left to right."""

    var values: PythonObject
    """The tuple."""
    var position: Int
    """Integers read so far."""

    def __init__(out self, values: PythonObject):
        """Begins at the first integer."""
        self.values = values
        self.position = 0

    def next(mut self) raises -> Int:
        """Returns the next integer."""
        ref cpython = Python().cpython()
        var item = cpython.PyTuple_GetItem(self.values._obj_ptr, self.position)
        self.position += 1
        return Int(cpython.PyLong_AsSsize_t(item))


def unknown(what: StaticString, code: Int) -> Error:
    """Returns the error of a code that no table has."""
    return Error(String("unknown ", what, ", code ", code))

"""Facts for Python, by name, and lists of them.

Each method is compiled once, and raises nothing: what `Python.dict` makes of its arguments was a
quarter of the code that the extension module of the CPU gave the compiler, and what every caller
would do after an error, a tenth of what that of plans did. Python refuses only if memory ends.
"""

from std.os import abort
from std.python import Python, PythonObject


struct Record(Movable):
    """A dict that is filled field by field."""

    var fields: PythonObject

    def __init__(out self) raises:
        """Begins without a field."""
        self.fields = Python.dict()

    @no_inline
    def put(mut self, name: StaticString, value: PythonObject):
        """Adds anything."""
        try:
            self.fields[PythonObject(name)] = value
        except error:
            abort(String(error))

    @no_inline
    def put(mut self, name: StaticString, value: Int):
        """Adds a number."""
        self.put(name, PythonObject(value))

    @no_inline
    def put(mut self, name: StaticString, value: Bool):
        """Adds whether something is so."""
        self.put(name, PythonObject(value))

    @no_inline
    def put(mut self, name: StaticString, value: String):
        """Adds a text."""
        try:
            self.put(name, PythonObject(value))
        except error:
            abort(String(error))


struct Records(Movable):
    """A list that is filled item by item."""

    var items: PythonObject

    def __init__(out self) raises:
        """Begins without an item."""
        self.items = Python.list()

    @no_inline
    def add(mut self, item: PythonObject):
        """Adds anything."""
        try:
            self.items.append(item)
        except error:
            abort(String(error))

    @no_inline
    def add(mut self, item: String):
        """Adds a text."""
        try:
            self.add(PythonObject(item))
        except error:
            abort(String(error))


@no_inline
def numbers(x: Int, y: Int, z: Int) raises -> PythonObject:
    """Returns three numbers as a tuple."""
    return Python.tuple(x, y, z)

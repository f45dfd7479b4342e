"""Facts for Python, by name, and lists of them.

Each method is compiled once: what `Python.dict` makes of its arguments was a quarter of the code
that the extension module of the CPU gave the compiler.
"""

from std.python import Python, PythonObject


struct Record(Movable):
    """A dict that is filled field by field."""

    var fields: PythonObject

    def __init__(out self) raises:
        """Begins without a field."""
        self.fields = Python.dict()

    @no_inline
    def put(mut self, name: StaticString, value: PythonObject) raises:
        """Adds anything."""
        self.fields[PythonObject(name)] = value

    @no_inline
    def put(mut self, name: StaticString, value: Int) raises:
        """Adds a number."""
        self.put(name, PythonObject(value))

    @no_inline
    def put(mut self, name: StaticString, value: Bool) raises:
        """Adds whether something is so."""
        self.put(name, PythonObject(value))

    @no_inline
    def put(mut self, name: StaticString, value: String) raises:
        """Adds a text."""
        self.put(name, PythonObject(value))


struct Records(Movable):
    """A list that is filled item by item."""

    var items: PythonObject

    def __init__(out self) raises:
        """Begins without an item."""
        self.items = Python.list()

    @no_inline
    def add(mut self, item: PythonObject) raises:
        """Adds anything."""
        self.items.append(item)

    @no_inline
    def add(mut self, item: String) raises:
        """Adds a text."""
        self.items.append(PythonObject(item))


def numbers(x: Int, y: Int, z: Int) raises -> PythonObject:
    """Returns three numbers as a tuple."""
    return Python.tuple(x, y, z)

"""What extension modules take from Python: one tuple of integers for a call, read here alone.

Addresses, sizes, and positions in the tables. The Python package validates, and writes the same
tuples in one place, `mx_kernels._calls`:

    multiply      left: kind, values, scales, dtype, row stride, format, rounding
                  right: codes, scales, format, layout
                  result: values, dtype, bias, bias dtype
                  m, n, k
    quantize      values, dtype, row stride, rows, k, format, rounding, codes, scales
    dequantize    codes, scales, format, layout, rows, k, values, dtype
    relayout      codes, scales, layout, codes out, scales out, layout out, format, rows, k

What the device wants stands behind: a thread team and its threads; or a device, its stream, and more.
"""

from std.python import Python, PythonObject

from ..calls import DequantizeCall, QuantizeCall, RelayoutCall
from ..numbers.rounding import Rounding
from ..problem import Left, LeftKind, Problem, Result, Right


struct Arguments:
    """Reads a tuple of integers from left to right."""

    var values: PythonObject
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


def read_problem(mut args: Arguments) raises -> Problem:
    """Reads what `multiply` takes."""
    var left = Left(
        kind=LeftKind(args.next()),
        values=args.next(),
        scales=args.next(),
        dtype=args.next(),
        row_stride=args.next(),
        format=args.next(),
        rounding=Rounding(args.next()),
    )
    var right = Right(
        codes=args.next(),
        scales=args.next(),
        format=args.next(),
        layout=args.next(),
    )
    var result = Result(
        values=args.next(),
        dtype=args.next(),
        bias=args.next(),
        bias_dtype=args.next(),
    )
    return Problem(left, right, result, m=args.next(), n=args.next(), k=args.next())


def read_quantize(mut args: Arguments) raises -> QuantizeCall:
    """Reads what `quantize` takes."""
    return QuantizeCall(
        values=args.next(),
        dtype=args.next(),
        row_stride=args.next(),
        rows=args.next(),
        k=args.next(),
        format=args.next(),
        rounding=Rounding(args.next()),
        codes=args.next(),
        scales=args.next(),
    )


def read_dequantize(mut args: Arguments) raises -> DequantizeCall:
    """Reads what `dequantize` takes."""
    return DequantizeCall(
        codes=args.next(),
        scales=args.next(),
        format=args.next(),
        layout=args.next(),
        rows=args.next(),
        k=args.next(),
        values=args.next(),
        dtype=args.next(),
    )


def read_relayout(mut args: Arguments) raises -> RelayoutCall:
    """Reads what `relayout` takes."""
    return RelayoutCall(
        codes=args.next(),
        scales=args.next(),
        layout=args.next(),
        codes_out=args.next(),
        scales_out=args.next(),
        layout_out=args.next(),
        format=args.next(),
        rows=args.next(),
        k=args.next(),
    )

"""What extension modules take from Python: one tuple of integers for a call, read here alone.

Addresses, sizes, and positions in the tables. The Python package validates, and writes the fields
of `mx_kernels._core.protocol`: a test compares their names and order with what is read here.

What the device wants stands behind: a thread team and its threads; or a device, its stream, and more,
of which the plan of a product alone is a text.
"""

from std.memory import bitcast
from std.python import Python, PythonObject

from ..calls import DequantizeCall, QuantizeCall, RelayoutCall
from ..calls import GateQuantizeCall, HadamardQuantizeCall, Norm, NormQuantizeCall
from ..experts import Experts, ExpertsProblem, GroupedProblem, Routing
from ..numbers.gates import Gate
from ..numbers.norms import Rounds
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

    def next_text(mut self) raises -> String:
        """Returns the next item as a text; what is none, is written as one."""
        ref cpython = Python().cpython()
        var item = cpython.PyTuple_GetItem(self.values._obj_ptr, self.position)
        self.position += 1
        var text = cpython.PyObject_Str(item)
        var result = String(cpython.PyUnicode_AsUTF8AndSize(text).value())
        cpython.Py_DecRef(text)
        return result^


def unknown(what: StaticString, code: Int) -> Error:
    """Returns the error of a code that no table has."""
    return Error(String("unknown ", what, ", code ", code))


def _read_left(mut args: Arguments) raises -> Left:
    return Left(
        kind=LeftKind(args.next()),
        values=args.next(),
        scales=args.next(),
        dtype=args.next(),
        row_stride=args.next(),
        format=args.next(),
        rounding=Rounding(args.next()),
    )


def _read_right(mut args: Arguments) raises -> Right:
    return Right(
        codes=args.next(),
        scales=args.next(),
        format=args.next(),
        layout=args.next(),
    )


def read_problem(mut args: Arguments) raises -> Problem:
    """Reads what `multiply` takes."""
    var left = _read_left(args)
    var right = _read_right(args)
    var result = Result(
        values=args.next(),
        dtype=args.next(),
        bias=args.next(),
        bias_dtype=args.next(),
    )
    return Problem(left, right, result, m=args.next(), n=args.next(), k=args.next())


def _read_experts(mut args: Arguments) raises -> Experts:
    return Experts(
        right=_read_right(args),
        count=args.next(),
        codes_step=args.next(),
        scales_step=args.next(),
        bias=args.next(),
        bias_dtype=args.next(),
    )


def read_grouped(mut args: Arguments) raises -> GroupedProblem:
    """Reads what `multiply_grouped` takes."""
    return GroupedProblem(
        left=_read_left(args),
        experts=_read_experts(args),
        sizes=args.next(),
        values=args.next(),
        dtype=args.next(),
        m=args.next(),
        n=args.next(),
        k=args.next(),
    )


def _read_gate(mut args: Arguments) raises -> Gate:
    return Gate(
        code=args.next(),
        interleaved=args.next() != 0,
        limit=bitcast[DType.float32](UInt32(args.next())),
        alpha=bitcast[DType.float32](UInt32(args.next())),
    )


def read_experts(mut args: Arguments) raises -> ExpertsProblem:
    """Reads what `multiply_experts` takes."""
    return ExpertsProblem(
        left=_read_left(args),
        gate_up=_read_experts(args),
        down=_read_experts(args),
        routing=Routing(
            ids=args.next(),
            id_bytes=args.next(),
            weights=args.next(),
            weights_dtype=args.next(),
            tokens=args.next(),
            slots=args.next(),
        ),
        gate=_read_gate(args),
        values=args.next(),
        dtype=args.next(),
        width=args.next(),
        inner=args.next(),
    )


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
        tensor_scales=args.next(),
    )


def read_norm_quantize(mut args: Arguments) raises -> NormQuantizeCall:
    """Reads what `norm_quantize` takes."""
    return NormQuantizeCall(call=read_quantize(args), norm=_read_norm(args))


def _read_norm(mut args: Arguments) raises -> Norm:
    return Norm(
        is_centered=args.next() != 0,
        rounds=Rounds(args.next()),
        weight=args.next(),
        bias=args.next(),
        weights_are_float=args.next() != 0,
        offset=bitcast[DType.float32](UInt32(args.next())),
        eps=bitcast[DType.float64](Int64(args.next())),
        inv_k=bitcast[DType.float64](Int64(args.next())),
        residual=args.next(),
        residual_stride=args.next(),
        stream=args.next(),
    )


def read_gate_quantize(mut args: Arguments) raises -> GateQuantizeCall:
    """Reads what `gate_quantize` takes."""
    return GateQuantizeCall(
        call=read_quantize(args),
        gate=_read_gate(args),
        ups=args.next(),
        up_stride=args.next(),
    )


def read_hadamard_quantize(mut args: Arguments) raises -> HadamardQuantizeCall:
    """Reads what `hadamard_quantize` takes."""
    return HadamardQuantizeCall(call=read_quantize(args), block=args.next())


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

"""The Python extension module `_mx_kernels_gpu`: thin, no maths.

Each function takes one tuple of integers, like those of `python_module`, with
the handle of an open device and the caller's stream in front. Nothing waits
and nothing is allocated: results are memory that the caller hands in.
"""

from std.os import abort
from std.python import Python, PythonObject
from std.python.bindings import PythonModuleBuilder

from mojo_kernels.codec import FloatBits, Rounding
from mojo_kernels.hopper.dispatch import MAX_FEW_ROWS, Product, multiply, workspace_bytes
from mojo_kernels.layouts import LAYOUTS
from mojo_kernels.simt.launch import Device, Queue
from mojo_kernels.simt.problem import ENCODED
from mojo_kernels.hopper.quantize import quantize
from mojo_kernels.simt.quantize import dequantize, relayout

comptime DTYPES = [DType.bfloat16, DType.float16, DType.float32]
"""The element types of floats, by code."""


struct _Arguments:
    """Reads a tuple of integers from left to right."""

    var values: PythonObject
    var position: Int

    def __init__(out self, values: PythonObject):
        self.values = values
        self.position = 0

    def next(mut self) raises -> Int:
        self.position += 1
        return Int(py=self.values[self.position - 1])

    def queue(mut self) raises -> Queue:
        var device = self.next()
        return Queue(device, self.next())


def _unknown(what: StaticString, code: Int) -> Error:
    return Error(String("unknown ", what, ", code ", code))


def py_layouts() raises -> PythonObject:
    """Returns the layouts that have kernels here, as rows of the layout table."""
    var rows = Python.list()
    comptime for i in range(len(LAYOUTS)):
        comptime Layout = LAYOUTS[i]
        rows.append(
            Python.dict(
                name=PythonObject(String(Layout.NAME)),
                row_multiple=PythonObject(Layout.ROW_MULTIPLE),
            )
        )
    return rows


def py_max_few_rows() raises -> PythonObject:
    """Returns the rows of activations up to which a product needs no workspace."""
    return PythonObject(MAX_FEW_ROWS)


def py_workspace_bytes(arguments: PythonObject) raises -> PythonObject:
    """Takes (m, k); returns the bytes that `matmul` and a quantizing `linear` want."""
    return PythonObject(workspace_bytes(Int(py=arguments[0]), Int(py=arguments[1])))


def py_open(index: PythonObject) raises -> PythonObject:
    """Opens a device, for the life of the process; returns its handle."""
    return PythonObject(Device.open(Int(py=index)))


def py_quantize(arguments: PythonObject) raises:
    """Takes (device, stream, x, dtype, row stride, rows, k, rounding, codes, scales)."""
    var args = _Arguments(arguments)
    var queue = args.queue()
    var x = args.next()
    var dtype = args.next()
    var row_stride = args.next()
    var rows = args.next()
    var k = args.next()
    var rounding = Rounding(args.next())
    var codes = args.next()
    var scales = args.next()
    comptime for i in range(len(DTYPES)):
        if dtype == i:
            return quantize[DTYPES[i]](queue, x, row_stride, rows, k, rounding, codes, scales)
    raise _unknown("element type", dtype)


def py_dequantize(arguments: PythonObject) raises:
    """Takes (device, stream, codes, scales, layout, rows, k, out, dtype)."""
    var args = _Arguments(arguments)
    var queue = args.queue()
    var codes = args.next()
    var scales = args.next()
    var layout = args.next()
    var rows = args.next()
    var k = args.next()
    var output = args.next()
    var dtype = args.next()
    comptime for i in range(len(LAYOUTS)):
        comptime for j in range(len(DTYPES)):
            if layout == i and dtype == j:
                return dequantize[LAYOUTS[i], DTYPES[j]](queue, codes, scales, rows, k, output)
    raise _unknown("layout or element type", layout)


def py_relayout(arguments: PythonObject) raises:
    """Takes (device, stream, codes, scales, layout, codes out, scales out, layout out, rows, k)."""
    var args = _Arguments(arguments)
    var queue = args.queue()
    var codes = args.next()
    var scales = args.next()
    var layout = args.next()
    var codes_out = args.next()
    var scales_out = args.next()
    var layout_out = args.next()
    var rows = args.next()
    var k = args.next()
    comptime for i in range(len(LAYOUTS)):
        comptime for j in range(len(LAYOUTS)):
            if layout == i and layout_out == j:
                return relayout[LAYOUTS[i], LAYOUTS[j]](
                    queue, codes, scales, codes_out, scales_out, rows, k
                )
    raise _unknown("layout", layout)


def py_matmul(arguments: PythonObject) raises:
    """Takes (device, stream, a codes, a scales, b codes, b scales, b layout, m, n, k, *target).

    The target is (out, out dtype, bias, bias dtype, workspace, plan), the bias dtype negative
    for no bias and the plan zero to let the dispatch choose.
    """
    var args = _Arguments(arguments)
    var queue = args.queue()
    var product = Product(kind=ENCODED)
    product.x = args.next()
    product.x_scales = args.next()
    _read_weights(args, product, queue)


def py_linear(arguments: PythonObject) raises:
    """Takes (device, stream, x, dtype, row stride, kind, rounding, *the rest of `matmul`)."""
    var args = _Arguments(arguments)
    var queue = args.queue()
    var product = Product(kind=0)
    product.x = args.next()
    product.x_dtype = args.next()
    product.row_stride = args.next()
    product.kind = args.next()
    product.carry = Rounding(args.next()).carry[FloatBits[DType.float32].MANTISSA_BITS]()
    _read_weights(args, product, queue)


def _read_weights(mut args: _Arguments, mut product: Product, queue: Queue) raises:
    """Reads what `matmul` and `linear` share, and launches."""
    product.codes = args.next()
    product.scales = args.next()
    var layout = args.next()
    product.rows = args.next()
    product.columns = args.next()
    product.k = args.next()
    product.output = args.next()
    product.out_dtype = args.next()
    product.bias = args.next()
    product.bias_dtype = args.next()
    product.workspace = args.next()
    product.plan = args.next()
    comptime for i in range(len(LAYOUTS)):
        if layout == i:
            return multiply[LAYOUTS[i]](queue, product)
    raise _unknown("layout", layout)


@export
def PyInit__mx_kernels_gpu() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        var module = PythonModuleBuilder("_mx_kernels_gpu")
        module.def_function[py_layouts]("layouts")
        module.def_function[py_workspace_bytes]("workspace_bytes")
        module.def_function[py_max_few_rows]("max_few_rows")
        module.def_function[py_open]("open")
        module.def_function[py_quantize]("quantize")
        module.def_function[py_dequantize]("dequantize")
        module.def_function[py_relayout]("relayout")
        module.def_function[py_matmul]("matmul")
        module.def_function[py_linear]("linear")
        return module.finalize()
    except error:
        abort(String("cannot create _mx_kernels_gpu: ", error))

"""The Python extension module `_mx_kernels_gpu`: thin, no maths.

Each function takes one tuple of integers: the handle of an open device and the
caller's stream, then what the function of the same name in `python_module`
takes. In the team's place products take a workspace and a plan. Nothing waits
and nothing is allocated: results are memory that the caller hands in.
"""

from std.os import abort
from std.python import Python, PythonObject
from std.python.bindings import PythonModuleBuilder

from mojo_kernels.python_arguments import Arguments, DTYPES, unknown
from mojo_kernels.codec import FloatBits, Rounding
from mojo_kernels.hopper.dispatch import MAX_FEW_ROWS, Product, workspace_bytes
from mojo_kernels.layouts import LAYOUTS
from mojo_kernels.nvidia import multiply, quantize
from mojo_kernels.simt.launch import Device, Queue
from mojo_kernels.simt.problem import ENCODED, FLOATS, QUANTIZED
from mojo_kernels.simt.quantize import dequantize, relayout


def _queue(mut args: Arguments) raises -> Queue:
    """Reads a device and its stream."""
    var device = args.next()
    return Queue(device, args.next())


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
    var args = Arguments(arguments)
    var queue = _queue(args)
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
    raise unknown("element type", dtype)


def py_dequantize(arguments: PythonObject) raises:
    """Takes (device, stream, codes, scales, layout, rows, k, out, dtype)."""
    var args = Arguments(arguments)
    var queue = _queue(args)
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
    raise unknown("layout or element type", layout)


def py_relayout(arguments: PythonObject) raises:
    """Takes (device, stream, codes, scales, layout, codes out, scales out, layout out, rows, k)."""
    var args = Arguments(arguments)
    var queue = _queue(args)
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
    raise unknown("layout", layout)


def py_matmul(arguments: PythonObject) raises:
    """Takes (device, stream, a codes, a scales, a layout, b codes, b scales, b layout, *rest).

    The rest is (m, n, k, *target), the target (out, out dtype, bias, bias dtype, workspace,
    plan): bias 0 for none, plan 0 to let the dispatch choose.
    """
    var args = Arguments(arguments)
    var queue = _queue(args)
    var product = Product(kind=ENCODED)
    product.x = args.next()
    product.x_scales = args.next()
    var x_layout = args.next()
    if x_layout != 0:
        raise unknown("layout of the left operand", x_layout)
    var layout = _read_weights(args, product)
    _read_target(args, product)
    _multiply(queue, product, layout)


def py_linear(arguments: PythonObject) raises:
    """Takes (device, stream, x, dtype, row stride, b codes, b scales, b layout, *rest).

    The rest is (m, n, k, rounding, *target), the target as in `matmul`. A negative rounding
    keeps x, which is then bfloat16, as it is.
    """
    var args = Arguments(arguments)
    var queue = _queue(args)
    var product = Product(kind=QUANTIZED)
    product.x = args.next()
    product.x_dtype = args.next()
    product.row_stride = args.next()
    var layout = _read_weights(args, product)
    var rounding = args.next()
    if rounding < 0:
        product.kind = FLOATS
    else:
        product.carry = Rounding(rounding).carry[FloatBits[DType.float32].MANTISSA_BITS]()
    _read_target(args, product)
    _multiply(queue, product, layout)


def _read_weights(mut args: Arguments, mut product: Product) raises -> Int:
    """Reads the right operand and the sizes; returns the layout."""
    product.codes = args.next()
    product.scales = args.next()
    var layout = args.next()
    product.rows = args.next()
    product.columns = args.next()
    product.k = args.next()
    return layout


def _read_target(mut args: Arguments, mut product: Product) raises:
    """Reads where a product goes and what is added to it."""
    product.output = args.next()
    product.out_dtype = args.next()
    product.bias = args.next()
    product.bias_dtype = args.next()
    if product.bias == 0:
        product.bias_dtype = -1
    product.workspace = args.next()
    product.plan = args.next()


def _multiply(queue: Queue, product: Product, layout: Int) raises:
    """Picks the instance of `multiply` for a layout."""
    comptime for i in range(len(LAYOUTS)):
        if layout == i:
            return multiply[LAYOUTS[i]](queue, product)
    raise unknown("layout", layout)


@export
def PyInit__mx_kernels_gpu() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        var module = PythonModuleBuilder("_mx_kernels_gpu")
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

"""The Python extension module `_mx_kernels_native`: thin, no maths.

Each function takes one tuple of integers, see `python_arguments`. The Python package
validates; here a code only picks the compile-time instance of a host entry.
"""

from layout import Coord
from std.os import abort
from std.python import Python, PythonObject
from std.python._cpython import GILReleased
from std.python.bindings import PythonModuleBuilder

from mojo_kernels.cdna4.dispatch import (
    BF16_BYTES,
    CHOICES,
    CODE_BYTES,
    Choice,
    Kernel,
    choose,
)
from mojo_kernels.cdna4.mma import LANES
from mojo_kernels.python_arguments import Arguments, DTYPES, unknown
from mojo_kernels.codec import Rounding
from mojo_kernels.cpu.activations import (
    GROUP_ROWS,
    Prequantized,
    QuantizedOnTheFly,
)
from mojo_kernels.cpu.panel import PANEL_COLUMNS
from mojo_kernels.cpu.threads import OpenMPTeam
from mojo_kernels.cpu.weights import CPU_TILES
from mojo_kernels.formats import FORMAT
from mojo_kernels.layouts import LAYOUTS, OperandLayout, Plain
from mojo_kernels.matmul import Encoded, Kept, LeftOperand, matmul
from mojo_kernels.operands import Flat, Operand, allocate, flat, matrix
from mojo_kernels.quantize import dequantize, quantize, relayout


def _layout_row[Layout: OperandLayout]() raises -> PythonObject:
    return Python.dict(
        name=PythonObject(String(Layout.NAME)),
        device=PythonObject(String(Layout.DEVICE)),
        row_multiple=PythonObject(Layout.ROW_MULTIPLE),
        scale_row_multiple=PythonObject(Layout.SCALE_ROW_MULTIPLE),
        scale_k_multiple=PythonObject(Layout.SCALE_K_MULTIPLE),
    )


def tables() raises -> PythonObject:
    """Returns the format, rounding, element type and layout tables."""
    var roundings = Python.list()
    comptime for i in range(Rounding.COUNT):
        comptime name = Rounding.NAMES[i]
        roundings.append(materialize[name]())
    var dtypes = Python.list()
    comptime for i in range(len(DTYPES)):
        comptime dtype = DTYPES[i]
        dtypes.append(String(dtype))
    var mxfp4 = Python.dict(
        name=PythonObject(String(FORMAT.name)),
        element_bits=PythonObject(FORMAT.element_bits),
        block_size=PythonObject(FORMAT.block_size),
        emax=PythonObject(FORMAT.emax),
        scale_bias=PythonObject(FORMAT.scale_bias),
        scale_nan=PythonObject(FORMAT.scale_nan),
    )
    var layouts = Python.list()
    comptime for i in range(len(LAYOUTS)):
        layouts.append(_layout_row[LAYOUTS[i]]())
    return Python.dict(
        formats=Python.list(mxfp4),
        roundings=roundings,
        dtypes=dtypes,
        layouts=layouts,
    )


def explain_cpu(
    m: PythonObject, n: PythonObject, k: PythonObject
) raises -> PythonObject:
    """Returns what the CPU does for a product."""
    var few = Int(py=m) <= GROUP_ROWS
    var reason = (
        "one group of rows: weights are decoded in registers" if few else (
            "weights are decoded into the first-level cache for many groups of"
            " rows"
        )
    )
    return Python.dict(
        kernel=PythonObject("cpu/matmul.mojo"),
        reason=PythonObject(reason),
        tile_m=PythonObject(min(Int(py=m), GROUP_ROWS)),
        tile_n=PythonObject(PANEL_COLUMNS),
    )


def explain_gfx950(
    m: PythonObject, n: PythonObject, k: PythonObject, is_encoded: PythonObject
) raises -> PythonObject:
    """Returns the row of the CDNA4 dispatch table for a product, and its launch.
    """
    var x_bytes = CODE_BYTES if Bool(py=is_encoded) else BF16_BYTES
    var row = choose(Int(py=m), Int(py=n), Int(py=k), x_bytes)
    comptime for i in range(len(CHOICES)):
        if row == i:
            return _gfx950_row[CHOICES[i]](
                row, Int(py=m), Int(py=n), Int(py=k), x_bytes
            )
    raise unknown("row", row)


def _gfx950_row[
    choice: Choice
](row: Int, m: Int, n: Int, k: Int, x_bytes: Int) raises -> PythonObject:
    var launch = choice.launch(m, n, k, x_bytes)
    var tile_m, tile_n = choice.tile()
    comptime reason = choice.reason
    var kernel = "cdna4/matmul_decode.mojo"
    comptime if choice.kernel == Kernel.PREFILL:
        kernel = "cdna4/matmul_prefill.mojo"
        if x_bytes != CODE_BYTES:
            kernel = "cdna4/linear_prefill.mojo"
    return Python.dict(
        kernel=PythonObject(kernel),
        reason=PythonObject(String(materialize[reason]())),
        row=PythonObject(row),
        cut=PythonObject(choice.name()),
        tile_m=PythonObject(tile_m),
        tile_n=PythonObject(tile_n),
        chunk_k=PythonObject(choice.step_k()),
        waves=PythonObject(launch.threads // LANES),
        sharers=PythonObject(choice.shape.sharers),
        depth=PythonObject(choice.shape.depth),
        splits=PythonObject(launch.z),
        k_tail=PythonObject(choice.has_tail(k)),
        grid=Python.tuple(launch.x, launch.y, launch.z),
        threads=PythonObject(launch.threads),
        chunks_per_wave=PythonObject(launch.chunks_per_wave),
        counter_bytes=PythonObject(launch.counter_bytes),
        workspace_bytes=PythonObject(launch.workspace_bytes),
    )


def py_quantize(arguments: PythonObject) raises:
    """Takes (x, dtype, row stride, rows, k, rounding, codes, scales, team)."""
    var args = Arguments(arguments)
    var x = args.next()
    var dtype = args.next()
    var row_stride = args.next()
    var rows = args.next()
    var k = args.next()
    var rounding = Rounding(args.next())
    var codes = args.next()
    var scales = args.next()
    var team = OpenMPTeam(args.next())

    var out = Operand[Plain].at(codes, scales, rows, k)
    comptime for i in range(len(DTYPES)):
        if dtype == i:
            with GILReleased(Python()):
                quantize(
                    matrix[DTYPES[i]](x, rows, k, row_stride),
                    out,
                    rounding,
                    team,
                )
            return
    raise unknown("element type", dtype)


def py_dequantize(arguments: PythonObject) raises:
    """Takes (codes, scales, layout, rows, k, out, dtype, team)."""
    var args = Arguments(arguments)
    var codes = args.next()
    var scales = args.next()
    var layout = args.next()
    var rows = args.next()
    var k = args.next()
    var out = args.next()
    var dtype = args.next()
    var team = OpenMPTeam(args.next())

    comptime for i in range(len(LAYOUTS)):
        comptime Layout = LAYOUTS[i]
        comptime for j in range(len(DTYPES)):
            if layout == i and dtype == j:
                var operand = Operand[Layout].at(codes, scales, rows, k)
                with GILReleased(Python()):
                    dequantize(
                        operand, matrix[DTYPES[j]](out, rows, k, k), team
                    )
                return
    raise unknown("layout or element type", layout)


def py_relayout(arguments: PythonObject) raises:
    """Takes (codes, scales, layout, codes out, scales out, layout out, rows, k, team).
    """
    var args = Arguments(arguments)
    var codes = args.next()
    var scales = args.next()
    var layout = args.next()
    var codes_out = args.next()
    var scales_out = args.next()
    var layout_out = args.next()
    var rows = args.next()
    var k = args.next()
    var team = OpenMPTeam(args.next())

    comptime for i in range(len(LAYOUTS)):
        comptime Source = LAYOUTS[i]
        comptime for j in range(len(LAYOUTS)):
            comptime Target = LAYOUTS[j]
            if layout == i and layout_out == j:
                var source = Operand[Source].at(codes, scales, rows, k)
                var target = Operand[Target].at(codes_out, scales_out, rows, k)
                with GILReleased(Python()):
                    relayout(source, target, team)
                return
    raise unknown("layout", layout)


def py_matmul(arguments: PythonObject) raises:
    """Takes (a codes, a scales, a layout, b codes, b scales, b layout, m, n, k, *target).

    The target is (out, out dtype, bias, bias dtype, team).
    """
    var args = Arguments(arguments)
    var a_codes = args.next()
    var a_scales = args.next()
    var a_layout = args.next()
    var weights = _Weights(args)
    var m = args.next()
    weights.n = args.next()
    weights.k = args.next()
    var target = _Target(args)
    if a_layout != 0:
        raise unknown("layout of the left operand", a_layout)
    var a = Prequantized(Operand[Plain].at(a_codes, a_scales, m, weights.k))
    _multiply(Encoded(a), weights, target)


def py_linear(arguments: PythonObject) raises:
    """Takes (x, dtype, row stride, b codes, b scales, b layout, m, n, k, rounding, *target).

    The target is (out, out dtype, bias, bias dtype, team). A negative rounding
    keeps x a float.
    """
    var args = Arguments(arguments)
    var x = args.next()
    var dtype = args.next()
    var row_stride = args.next()
    var weights = _Weights(args)
    var m = args.next()
    weights.n = args.next()
    weights.k = args.next()
    var rounding = args.next()
    var target = _Target(args)
    comptime for i in range(len(DTYPES)):
        if dtype == i:
            var floats = matrix[DTYPES[i]](x, m, weights.k, row_stride)
            if rounding < 0:
                return _multiply(Kept(floats), weights, target)
            return _multiply(
                Encoded(QuantizedOnTheFly(floats, Rounding(rounding))),
                weights,
                target,
            )
    raise unknown("element type", dtype)


struct _Weights(TrivialRegisterPassable):
    """The right operand, its layout not yet a type."""

    var codes: Int
    var scales: Int
    var layout: Int
    var n: Int
    var k: Int

    def __init__(out self, mut args: Arguments) raises:
        self.codes = args.next()
        self.scales = args.next()
        self.layout = args.next()
        self.n = 0
        self.k = 0


struct _Target(TrivialRegisterPassable):
    """Where a product goes, what is added to it, and who computes it."""

    var out: Int
    var dtype: Int
    var bias: Int
    var bias_dtype: Int
    var team: OpenMPTeam

    def __init__(out self, mut args: Arguments) raises:
        self.out = args.next()
        self.dtype = args.next()
        self.bias = args.next()
        self.bias_dtype = args.next()
        self.team = OpenMPTeam(args.next())


def _multiply[
    Left: LeftOperand
](left: Left, weights: _Weights, target: _Target) raises:
    """Picks the instance of `matmul` for a layout and an output type."""
    comptime for i in range(len(CPU_TILES)):
        comptime Tiles = CPU_TILES[i]
        comptime for j in range(len(DTYPES)):
            if weights.layout == i and target.dtype == j:
                var tiles = Tiles.of(
                    Operand[Tiles.Layout].at(
                        weights.codes, weights.scales, weights.n, weights.k
                    )
                )
                var m = left.shape().rows
                with GILReleased(Python()):
                    var bias = _widened_bias(target, weights.n)
                    var out = matrix[DTYPES[j]](
                        target.out, m, weights.n, weights.n
                    )
                    matmul(left, tiles, bias, out, target.team)
                    bias.ptr.unsafe_free()
                return
    raise unknown("layout or element type", weights.layout)


def _widened_bias(target: _Target, n: Int) -> Flat[DType.float32]:
    """Copies the bias to float32; the caller frees it. Empty if there is none.
    """
    var count = n if target.bias != 0 else 0
    var wide = allocate[DType.float32](count)
    comptime for i in range(len(DTYPES)):
        if target.bias_dtype == i:
            var bias = flat[DTYPES[i]](target.bias, count)
            for column in range(count):
                var value = bias.load[width=1, alignment=1](Coord(column))
                wide.store(Coord(column), value.cast[DType.float32]())
    return wide


@export
def PyInit__mx_kernels_native() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        var module = PythonModuleBuilder("_mx_kernels_native")
        module.def_function[tables]("tables")
        module.def_function[explain_cpu]("explain_cpu")
        module.def_function[explain_gfx950]("explain_gfx950")
        module.def_function[py_quantize]("quantize")
        module.def_function[py_dequantize]("dequantize")
        module.def_function[py_relayout]("relayout")
        module.def_function[py_matmul]("matmul")
        module.def_function[py_linear]("linear")
        return module.finalize()
    except error:
        abort(String("cannot create _mx_kernels_native: ", error))

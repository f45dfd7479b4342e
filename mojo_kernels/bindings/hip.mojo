"""The Python extension module `_mx_kernels_hip` of gfx950 devices: thin, no maths.

It holds quantize, dequantize, relayout and a copy for operands with gaps; the
products are in `hip_product_module`. Each function takes one tuple of integers,
with the handle of an open device and the caller's stream in front. Nothing waits
and nothing is allocated: results are memory that the caller hands in. The code
for gfx950 is part of the module, whatever machine compiles it.
"""

from std.math import ceildiv
from std.os import abort
from std.python import Python, PythonObject
from std.python.bindings import PythonModuleBuilder
from std.sys import size_of

from mojo_kernels.cdna4.launch import Device, Grid, Hip, Queue, rows_at_once
from mojo_kernels.cdna4.mma import LANES
from mojo_kernels.cdna4.quantize import (
    QUANTIZE_BLOCKS,
    QUANTIZE_ROWS,
    QUANTIZE_WAVES,
)
from mojo_kernels.cdna4.quantize import quantize_rows
from mojo_kernels.codec import Rounding
from mojo_kernels.formats import BLOCK, FORMAT
from mojo_kernels.layouts import (
    LAYOUTS,
    OperandLayout,
    OperandShape,
    Plain,
    RUN_BYTES,
)
from mojo_kernels.layouts import code_rows, scale_blocks, scale_rows
from mojo_kernels.python_arguments import Arguments, DTYPES, unknown
from mojo_kernels.simt.codec import CHUNK
from mojo_kernels.simt.copy import copy_rows
from mojo_kernels.simt.quantize import THREADS, dequantize_chunks, relayout_runs

comptime COPIED = [DType.uint8, DType.uint16, DType.uint32]
"""What `copy_rows` moves, one for each size of an element."""


def _queue(mut args: Arguments) raises -> Queue:
    """Reads a device and its stream."""
    var device = args.next()
    return Queue(device, args.next())


def py_functions() raises -> PythonObject:
    """Returns the names of HIP's functions whose addresses `open` wants, in that order."""
    var names = Python.list()
    comptime for i in range(len(Hip.NAMES)):
        comptime name = Hip.NAMES[i]
        names.append(PythonObject(String(materialize[name]())))
    return names


def py_open(arguments: PythonObject) raises -> PythonObject:
    """Takes (device, *addresses); opens a device for the life of the process, returns its handle.

    The handle is good for all modules that were built from the same sources.
    """
    var args = Arguments(arguments)
    var index = args.next()
    return PythonObject(
        Device.open(
            index,
            Hip(
                get_device=args.next(),
                set_device=args.next(),
                get_last_error=args.next(),
                get_error_string=args.next(),
                module_load_data=args.next(),
                module_get_function=args.next(),
                module_launch_kernel=args.next(),
            ),
        )
    )


def py_quantize(arguments: PythonObject) raises:
    """Takes (device, stream, x, dtype, rows, k, rounding, codes, scales); x is contiguous."""
    var args = Arguments(arguments)
    var queue = _queue(args)
    var x = args.next()
    var dtype = args.next()
    var rows = args.next()
    var k = args.next()
    var rounding = args.next()
    var codes = args.next()
    var scales = args.next()
    comptime for i in range(len(DTYPES)):
        comptime for j in range(Rounding.COUNT):
            if dtype == i and rounding == j:
                return _quantize[DTYPES[i], Rounding(j)](queue, x, rows, k, codes, scales)
    raise unknown("element type or rounding", dtype)


def _quantize[
    dtype: DType, rounding: Rounding
](queue: Queue, x: Int, rows: Int, k: Int, codes: Int, scales: Int) raises:
    """Quantizes as many rows with a launch as it takes."""
    var stretch = rows_at_once(k * size_of[dtype]())
    for row in range(0, rows, stretch):
        var count = min(stretch, rows - row)
        queue.launch[quantize_rows[dtype, rounding, Plain]](
            Grid(
                x=ceildiv(k // BLOCK, QUANTIZE_BLOCKS),
                y=ceildiv(count, QUANTIZE_ROWS),
                z=1,
                threads=QUANTIZE_WAVES * LANES,
            ),
            [
                x + row * k * size_of[dtype](),
                codes + row * FORMAT.packed_bytes(k),
                scales + row * (k // BLOCK),
                count,
                k,
            ],
        )


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
                comptime kernel = dequantize_chunks[LAYOUTS[i], DTYPES[j]]
                return queue.launch[kernel](
                    _threads(rows * k // CHUNK),
                    [codes, scales, output, rows, k],
                )
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
                comptime kernel = relayout_runs[LAYOUTS[i], LAYOUTS[j]]
                return queue.launch[kernel](
                    _threads(_relayout_threads[LAYOUTS[j]](OperandShape(rows, k))),
                    [codes, scales, codes_out, scales_out, rows, k],
                )
    raise unknown("layout", layout)


def py_copy_rows(arguments: PythonObject) raises:
    """Takes (device, stream, source, row stride, rows, columns, target, bytes of an element)."""
    var args = Arguments(arguments)
    var queue = _queue(args)
    var source = args.next()
    var row_stride = args.next()
    var rows = args.next()
    var columns = args.next()
    var target = args.next()
    var element_bytes = args.next()
    comptime for i in range(len(COPIED)):
        if element_bytes == size_of[COPIED[i]]():
            return queue.launch[copy_rows[COPIED[i]]](
                _threads(rows * columns),
                [source, row_stride, rows, columns, target],
            )
    raise unknown("size of an element", element_bytes)


def _threads(count: Int) -> Grid:
    """Returns a grid of at least `count` threads."""
    return Grid(x=ceildiv(count, THREADS), y=1, z=1, threads=THREADS)


def _relayout_threads[Target: OperandLayout](shape: OperandShape) -> Int:
    """Returns the threads that write all codes and scales of an operand."""
    var num_runs = code_rows[Target](shape) * (shape.row_bytes() // RUN_BYTES)
    return max(num_runs, scale_rows[Target](shape) * scale_blocks[Target](shape))


@export
def PyInit__mx_kernels_hip() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        var module = PythonModuleBuilder("_mx_kernels_hip")
        module.def_function[py_functions]("functions")
        module.def_function[py_open]("open")
        module.def_function[py_quantize]("quantize")
        module.def_function[py_dequantize]("dequantize")
        module.def_function[py_relayout]("relayout")
        module.def_function[py_copy_rows]("copy_rows")
        return module.finalize()
    except error:
        abort(String("cannot create _mx_kernels_hip: ", error))

"""The Python extension module `_mx_kernels_hip` of gfx950 devices: thin, no maths.

It holds quantize, dequantize, relayout and a copy for operands with gaps; with -D FUSED=1 quantize
behind norms, gates and rotations, and nothing else, which takes longer to compile. Products are in
`hip_product`. Each function takes one tuple of integers, see
`protocol`; behind what all devices take stand the handle of an open device and the
caller's stream. Nothing waits and nothing is allocated: results are memory that the
caller hands in. The code for gfx950 is part of the module, whatever machine compiles it.
"""

from std.math import ceildiv
from std.os import abort
from std.python import Python, PythonObject
from std.python.bindings import PythonModuleBuilder
from std.sys import is_defined, size_of

from mojo_kernels.bindings.pairs import (
    column_pairs_on_gfx950,
    expert_pairs_on_gfx950,
    pairs_on_gfx950,
)
from mojo_kernels.bindings.protocol import (
    Arguments,
    read_dequantize,
    read_gate_quantize,
    read_hadamard_quantize,
    read_norm_quantize,
    read_quantize,
    read_relayout,
    unknown,
)
from mojo_kernels.cdna4.prepare.gates import quantize_gate, quantize_rotated
from mojo_kernels.cdna4.prepare.norms import quantize_norm
from mojo_kernels.cdna4.prepare.quantize import QuantizeKernel, quantizes_to
from mojo_kernels.launch.hip_queue import Hip, HipDevice, HipQueue
from mojo_kernels.launch.queue import device_pointer
from mojo_kernels.numbers.floats import FLOAT_TYPES
from mojo_kernels.numbers.formats import FORMATS
from mojo_kernels.numbers.rounding import Rounding
from mojo_kernels.simt.copy import copy_rows
from mojo_kernels.simt.prologue import gate_quantize, hadamard_quantize, norm_quantize
from mojo_kernels.simt.quantize import THREADS, dequantize, relayout
from mojo_kernels.launch.grid import Grid

comptime COPIED = [DType.uint8, DType.uint16, DType.uint32]
"""What `copy_rows` moves, one for each size of an element."""


def hip_queue(mut args: Arguments) raises -> HipQueue:
    """Reads a device and its stream."""
    var device = args.next()
    return HipQueue(device, args.next())


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
        HipDevice.open(
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
    """Takes the call and (device, stream); rows are contiguous."""
    var args = Arguments(arguments)
    var call = read_quantize(args)
    var queue = hip_queue(args)
    comptime for f in range(len(FORMATS)):
        comptime format = FORMATS[f]
        comptime for i in range(len(FLOAT_TYPES)):
            comptime for j in range(Rounding.COUNT):
                comptime if quantizes_to(format, Rounding(j)):
                    comptime Kernel = QuantizeKernel[format, FLOAT_TYPES[i], Rounding(j)]
                    if call.format == f and call.dtype == i and call.rounding == Rounding(j):
                        return Kernel.launch(
                            call.values, call.codes, call.scales, call.rows, call.k, queue
                        )
    raise unknown("format, element type or rounding to quantize on gfx950", call.format)


def py_norm_quantize(arguments: PythonObject) raises:
    """Takes the call and (device, stream)."""
    var args = Arguments(arguments)
    var call = read_norm_quantize(args)
    var queue = hip_queue(args)
    if not quantize_norm(call, queue):
        norm_quantize[is_nvidia=False](call, queue)


def py_gate_quantize(arguments: PythonObject) raises:
    """Takes the call and (device, stream)."""
    var args = Arguments(arguments)
    var call = read_gate_quantize(args)
    var queue = hip_queue(args)
    if not quantize_gate(call, queue):
        gate_quantize[is_nvidia=False](call, queue)


def py_hadamard_quantize(arguments: PythonObject) raises:
    """Takes the call and (device, stream)."""
    var args = Arguments(arguments)
    var call = read_hadamard_quantize(args)
    var queue = hip_queue(args)
    if not quantize_rotated(call, queue):
        hadamard_quantize(call, queue)


def py_dequantize(arguments: PythonObject) raises:
    """Takes the call and (device, stream)."""
    var args = Arguments(arguments)
    var call = read_dequantize(args)
    var queue = hip_queue(args)
    dequantize(call, queue)


def py_relayout(arguments: PythonObject) raises:
    """Takes the call and (device, stream)."""
    var args = Arguments(arguments)
    var call = read_relayout(args)
    var queue = hip_queue(args)
    relayout(call, queue)


def py_copy_rows(arguments: PythonObject) raises:
    """Takes (source, row stride, rows, columns, target, bytes of an element, device, stream)."""
    var args = Arguments(arguments)
    var source = args.next()
    var row_stride = args.next()
    var rows = args.next()
    var columns = args.next()
    var target = args.next()
    var element_bytes = args.next()
    var queue = hip_queue(args)
    comptime for i in range(len(COPIED)):
        comptime dtype = COPIED[i]
        if element_bytes == size_of[dtype]():
            return queue.launch[copy_rows[dtype]](
                Grid(ceildiv(rows * columns, THREADS), threads=THREADS),
                device_pointer[dtype](source),
                Int64(row_stride),
                Int64(rows),
                Int64(columns),
                device_pointer[dtype](target),
            )
    raise unknown("size of an element", element_bytes)


@export
def PyInit__mx_kernels_hip() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        var module = PythonModuleBuilder("_mx_kernels_hip")
        comptime if is_defined["FUSED"]():
            module.def_function[py_norm_quantize]("norm_quantize")
            module.def_function[py_gate_quantize]("gate_quantize")
            module.def_function[py_hadamard_quantize]("hadamard_quantize")
            return module.finalize()
        module.def_function[py_functions]("functions")
        module.def_function[pairs_on_gfx950]("pairs")
        module.def_function[expert_pairs_on_gfx950]("expert_pairs")
        module.def_function[column_pairs_on_gfx950]("column_pairs")
        module.def_function[py_open]("open")
        module.def_function[py_quantize]("quantize")
        module.def_function[py_dequantize]("dequantize")
        module.def_function[py_relayout]("relayout")
        module.def_function[py_copy_rows]("copy_rows")
        return module.finalize()
    except error:
        abort(String("cannot create _mx_kernels_hip: ", error))

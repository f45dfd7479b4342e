"""The Python extension module `_mx_kernels_ptx`: that of a CUDA device, and what one would be told.

It has all of `cuda`, and beside each function that launches one of the name `tell_...`, for which no
device need be there: calls are the same without a device and a stream; behind what all devices
take stand, where a workspace may be wanted, its address and its bytes, for a product also a plan's
handle.
Nothing runs. Each returns the launches of the call, in their order:

    (ptx, entry, (x, y, z), threads, cluster, shared_bytes, [bytes of each argument])

A kernel is compiled once for both: its text is what the device loads. The accelerator that the
module is compiled for decides which kernels there are.
"""

from std.os import abort
from std.python import Python, PythonObject
from std.python.bindings import PythonModuleBuilder

from mojo_kernels.bindings.cuda import add_functions
from mojo_kernels.bindings.nvidia import (
    multiply,
    multiply_experts,
    multiply_grouped,
)
from mojo_kernels.bindings.nvidia_facts import plan_at
from mojo_kernels.bindings.protocol import (
    Arguments,
    read_dequantize,
    read_experts,
    read_gate_quantize,
    read_grouped,
    read_hadamard_quantize,
    read_norm_quantize,
    read_problem,
    read_quantize,
    read_relayout,
)
from mojo_kernels.bindings.record import numbers
from mojo_kernels.launch.ptx_queue import PtxQueue
from mojo_kernels.problem import Known
from mojo_kernels.simt.prologue import gate_quantize, hadamard_quantize, norm_quantize
from mojo_kernels.simt.quantize import dequantize, quantize, relayout


def _queue(mut args: Arguments) raises -> PtxQueue:
    """Reads a workspace and its bytes."""
    var workspace = args.next()
    return PtxQueue(workspace, args.next())


def _launches(queue: PtxQueue) raises -> PythonObject:
    """Returns what a queue has kept."""
    var to_bytes = Python.import_module("builtins").bytes
    var result = Python.list()
    for ref launch in queue.launches:
        var arguments = Python.list()
        for ref argument in launch.arguments:
            var values = Python.list()
            for byte in argument:
                values.append(PythonObject(Int(byte)))
            arguments.append(to_bytes(values))
        result.append(
            Python.tuple(
                PythonObject(String(launch.ptx)),
                PythonObject(String(launch.entry)),
                numbers(launch.grid.x, launch.grid.y, launch.grid.z),
                PythonObject(launch.grid.threads),
                PythonObject(launch.grid.cluster),
                PythonObject(launch.grid.shared_bytes),
                arguments,
            )
        )
    return result


def py_tell_multiply(arguments: PythonObject) raises -> PythonObject:
    """Takes the problem and (workspace or 0, its bytes, handle of a plan or 0)."""
    var args = Arguments(arguments)
    var problem = read_problem(args)
    var workspace = args.next()
    var queue = PtxQueue(workspace, args.next())
    multiply[Known.NOTHING](problem, plan_at(args.next()), queue, is_lent=workspace != 0)
    return _launches(queue)


def py_tell_multiply_grouped(arguments: PythonObject) raises -> PythonObject:
    """Takes the problem and (workspace, its bytes)."""
    var args = Arguments(arguments)
    var problem = read_grouped(args)
    var queue = _queue(args)
    multiply_grouped[Known.NOTHING](problem, queue)
    return _launches(queue)


def py_tell_multiply_experts(arguments: PythonObject) raises -> PythonObject:
    """Takes the problem and (workspace, its bytes)."""
    var args = Arguments(arguments)
    var problem = read_experts(args)
    var queue = _queue(args)
    multiply_experts[Known.NOTHING, Known.NOTHING](problem, queue)
    return _launches(queue)


def py_tell_quantize(arguments: PythonObject) raises -> PythonObject:
    """Takes the call."""
    var args = Arguments(arguments)
    var queue = PtxQueue()
    quantize(read_quantize(args), queue)
    return _launches(queue)


def py_tell_norm_quantize(arguments: PythonObject) raises -> PythonObject:
    """Takes the call."""
    var args = Arguments(arguments)
    var queue = PtxQueue()
    norm_quantize(read_norm_quantize(args), queue)
    return _launches(queue)


def py_tell_gate_quantize(arguments: PythonObject) raises -> PythonObject:
    """Takes the call."""
    var args = Arguments(arguments)
    var queue = PtxQueue()
    gate_quantize(read_gate_quantize(args), queue)
    return _launches(queue)


def py_tell_hadamard_quantize(arguments: PythonObject) raises -> PythonObject:
    """Takes the call."""
    var args = Arguments(arguments)
    var queue = PtxQueue()
    hadamard_quantize(read_hadamard_quantize(args), queue)
    return _launches(queue)


def py_tell_dequantize(arguments: PythonObject) raises -> PythonObject:
    """Takes the call."""
    var args = Arguments(arguments)
    var queue = PtxQueue()
    dequantize(read_dequantize(args), queue)
    return _launches(queue)


def py_tell_relayout(arguments: PythonObject) raises -> PythonObject:
    """Takes the call."""
    var args = Arguments(arguments)
    var queue = PtxQueue()
    relayout(read_relayout(args), queue)
    return _launches(queue)


@export
def PyInit__mx_kernels_ptx() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        var module = PythonModuleBuilder("_mx_kernels_ptx")
        add_functions(module)
        module.def_function[py_tell_multiply]("tell_multiply")
        module.def_function[py_tell_multiply_grouped]("tell_multiply_grouped")
        module.def_function[py_tell_multiply_experts]("tell_multiply_experts")
        module.def_function[py_tell_quantize]("tell_quantize")
        module.def_function[py_tell_norm_quantize]("tell_norm_quantize")
        module.def_function[py_tell_gate_quantize]("tell_gate_quantize")
        module.def_function[py_tell_hadamard_quantize]("tell_hadamard_quantize")
        module.def_function[py_tell_dequantize]("tell_dequantize")
        module.def_function[py_tell_relayout]("tell_relayout")
        return module.finalize()
    except error:
        abort(String("cannot create _mx_kernels_ptx: ", error))

"""The Python extension module `_mx_kernels_gpu` of CUDA devices: thin, no maths.

Each function takes one tuple of integers, see `protocol`; behind what all devices take stand the
handle of an open device and the caller's stream, for a product also a workspace and a plan's handle.
Nothing waits and nothing is allocated: results are memory that the caller hands in.
"""

from std.os import abort
from std.python import PythonObject
from std.python.bindings import PythonModuleBuilder

from mojo_kernels.bindings.nvidia import (
    multiply,
    multiply_experts,
    multiply_grouped,
)
from mojo_kernels.bindings.nvidia_facts import add_facts, plan_at
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
from mojo_kernels.launch.cuda_queue import CudaDevice, CudaQueue
from mojo_kernels.problem import Known
from mojo_kernels.simt.prologue import gate_quantize, hadamard_quantize, norm_quantize
from mojo_kernels.simt.quantize import dequantize, quantize, relayout


def py_open(index: PythonObject) raises -> PythonObject:
    """Opens a device, for the life of the process; returns its handle."""
    return PythonObject(CudaDevice.open(Int(py=index)))


def _queue(mut args: Arguments) raises -> CudaQueue:
    """Reads a device and its stream."""
    var device = args.next()
    return CudaQueue(device, args.next())


def py_multiply(arguments: PythonObject) raises:
    """Takes the problem and (device, stream, workspace or 0, handle of a plan or 0)."""
    var args = Arguments(arguments)
    var problem = read_problem(args)
    var device = args.next()
    var stream = args.next()
    var workspace = args.next()
    var queue = CudaQueue(device, stream, workspace)
    multiply[Known.NOTHING](problem, plan_at(args.next()), queue, is_lent=workspace != 0)


def py_multiply_grouped(arguments: PythonObject) raises:
    """Takes the problem and (device, stream, workspace)."""
    var args = Arguments(arguments)
    var problem = read_grouped(args)
    var device = args.next()
    var stream = args.next()
    var queue = CudaQueue(device, stream, args.next())
    multiply_grouped[Known.NOTHING](problem, queue)


def py_multiply_experts(arguments: PythonObject) raises:
    """Takes the problem and (device, stream, workspace)."""
    var args = Arguments(arguments)
    var problem = read_experts(args)
    var device = args.next()
    var stream = args.next()
    var queue = CudaQueue(device, stream, args.next())
    multiply_experts[Known.NOTHING, Known.NOTHING](problem, queue)


def py_quantize(arguments: PythonObject) raises:
    """Takes the call and (device, stream)."""
    var args = Arguments(arguments)
    var call = read_quantize(args)
    var queue = _queue(args)
    quantize(call, queue)


def py_norm_quantize(arguments: PythonObject) raises:
    """Takes the call and (device, stream)."""
    var args = Arguments(arguments)
    var call = read_norm_quantize(args)
    var queue = _queue(args)
    norm_quantize(call, queue)


def py_gate_quantize(arguments: PythonObject) raises:
    """Takes the call and (device, stream)."""
    var args = Arguments(arguments)
    var call = read_gate_quantize(args)
    var queue = _queue(args)
    gate_quantize(call, queue)


def py_hadamard_quantize(arguments: PythonObject) raises:
    """Takes the call and (device, stream)."""
    var args = Arguments(arguments)
    var call = read_hadamard_quantize(args)
    var queue = _queue(args)
    hadamard_quantize(call, queue)


def py_dequantize(arguments: PythonObject) raises:
    """Takes the call and (device, stream)."""
    var args = Arguments(arguments)
    var call = read_dequantize(args)
    var queue = _queue(args)
    dequantize(call, queue)


def py_relayout(arguments: PythonObject) raises:
    """Takes the call and (device, stream)."""
    var args = Arguments(arguments)
    var call = read_relayout(args)
    var queue = _queue(args)
    relayout(call, queue)


def add_functions(mut module: PythonModuleBuilder) raises:
    """Adds all of them to a module, and the facts that go with them."""
    add_facts(module)
    module.def_function[py_open]("open")
    module.def_function[py_multiply]("multiply")
    module.def_function[py_multiply_grouped]("multiply_grouped")
    module.def_function[py_multiply_experts]("multiply_experts")
    module.def_function[py_quantize]("quantize")
    module.def_function[py_norm_quantize]("norm_quantize")
    module.def_function[py_gate_quantize]("gate_quantize")
    module.def_function[py_hadamard_quantize]("hadamard_quantize")
    module.def_function[py_dequantize]("dequantize")
    module.def_function[py_relayout]("relayout")


@export
def PyInit__mx_kernels_gpu() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        var module = PythonModuleBuilder("_mx_kernels_gpu")
        add_functions(module)
        return module.finalize()
    except error:
        abort(String("cannot create _mx_kernels_gpu: ", error))

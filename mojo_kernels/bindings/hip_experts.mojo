"""The Python extension module `_mx_kernels_hip_experts`: experts of one kind on gfx950.

A kind is set like one of products, see `hip_product`; a layer's says more:

    -D LEFT, RIGHT, X, ROUNDING, OUT, BIAS    a grouped product, or the first of a layer
    -D DOWN=...                               it is a layer, and its second weights have this format
    -D DOWN_BIAS=...                          what is added behind them; without it, nothing

OUT is the type of what comes out of the whole. Nothing waits and nothing is allocated, as in `hip`.
"""

from std.os import abort
from std.python import Python, PythonObject
from std.python.bindings import PythonModuleBuilder
from std.sys import is_defined

from mojo_kernels.bindings.hip import hip_queue
from mojo_kernels.bindings.pairs import defined_types
from mojo_kernels.bindings.protocol import Arguments, read_experts, read_grouped
from mojo_kernels.cdna4.experts.dispatch import multiply_experts, multiply_grouped, workspace_of
from mojo_kernels.cdna4.host.experts import LayerShapes, LayerTypes
from mojo_kernels.problem import ANY

comptime IS_LAYER = is_defined["DOWN"]()
comptime FIRST = defined_types()
comptime LAYER = LayerTypes.of(FIRST, defined_types["DOWN", "DOWN_BIAS"](), FIRST.out, ANY)


def py_multiply_grouped(arguments: PythonObject) raises:
    """Takes what `multiply_grouped` of every module takes, then (device, stream)."""
    var args = Arguments(arguments)
    var problem = read_grouped(args)
    var queue = hip_queue(args)
    multiply_grouped[FIRST](problem, queue)


def py_experts_workspace_bytes(arguments: PythonObject) raises -> PythonObject:
    """Takes the problem of `multiply_experts`; returns the bytes of its workspace."""
    var args = Arguments(arguments)
    return PythonObject(workspace_of[LAYER](read_experts(args)).num_bytes())


def py_plan(text: PythonObject) raises -> PythonObject:
    """Takes a plan of `plan_experts_gfx950`; returns its handle, the last integers of a call."""
    var cuts = LayerShapes.parse(String(py=text), LAYER.left)
    return Python.tuple(cuts.gate_up, cuts.down)


def py_multiply_experts(arguments: PythonObject) raises:
    """Takes what `multiply_experts` of every module takes, then (device, stream, workspace, *handle
    of a plan)."""
    var args = Arguments(arguments)
    var problem = read_experts(args)
    var queue = hip_queue(args)
    queue.lent = args.next()
    var gate_up = args.next()
    multiply_experts[LAYER](problem, LayerShapes(gate_up, args.next()), queue)


@export
def PyInit__mx_kernels_hip_experts() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        var module = PythonModuleBuilder("_mx_kernels_hip_experts")
        comptime if not IS_LAYER:
            module.def_function[py_multiply_grouped]("multiply_grouped")
        else:
            module.def_function[py_plan]("plan")
            module.def_function[py_experts_workspace_bytes]("experts_workspace_bytes")
            module.def_function[py_multiply_experts]("multiply_experts")
        return module.finalize()
    except error:
        abort(String("cannot create _mx_kernels_hip_experts: ", error))

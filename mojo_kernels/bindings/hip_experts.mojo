"""The Python extension module `_mx_kernels_hip_experts`: experts of one kind on gfx950.

A kind is set like one of products, see `hip_product`; a layer's says more:

    -D LEFT, RIGHT, X, ROUNDING, OUT, BIAS    a grouped product, or the first of a layer
    -D DOWN=...                               it is a layer, and its second weights have this format
    -D DOWN_BIAS=...                          what is added behind them; without it, nothing

OUT is the type of what comes out of the whole. Nothing waits and nothing is allocated, as in `hip`.
"""

from std.os import abort
from std.python import PythonObject
from std.python.bindings import PythonModuleBuilder
from std.sys import get_defined_int

from mojo_kernels.bindings.hip import hip_queue
from mojo_kernels.bindings.protocol import Arguments, read_experts, read_grouped
from mojo_kernels.cdna4.experts.dispatch import multiply_experts, multiply_grouped, workspace_of
from mojo_kernels.cdna4.host.experts import LayerTypes
from mojo_kernels.cdna4.types import ProductTypes
from mojo_kernels.numbers.floats import FLOAT_TYPES
from mojo_kernels.numbers.formats import NO_FORMAT
from mojo_kernels.numbers.rounding import Rounding
from mojo_kernels.problem import ANY, Known, LeftKind, NO_BIAS

comptime NONE = -1
"""No code."""
comptime LEFT = get_defined_int["LEFT", NO_FORMAT]()
comptime DOWN = get_defined_int["DOWN", NONE]()
comptime OUT = get_defined_int["OUT"]()


def known(right: Int, bias: Int) -> Known:
    """Returns what is known of a product with weights of a format."""
    return Known(
        kind=(LeftKind.KEPT if LEFT == NO_FORMAT else LeftKind.QUANTIZED).code,
        dtype=get_defined_int["X"](),
        left_format=LEFT,
        rounding=get_defined_int["ROUNDING", Rounding.EVEN.code](),
        right_format=right,
        layout=ANY,
        result_dtype=OUT,
        bias_dtype=bias,
    )


comptime FIRST = known(get_defined_int["RIGHT"](), get_defined_int["BIAS", NO_BIAS]())
comptime SECOND = known(DOWN, get_defined_int["DOWN_BIAS", NO_BIAS]())


def py_multiply_grouped(arguments: PythonObject) raises:
    """Takes what `multiply_grouped` of every module takes, then (device, stream)."""
    var args = Arguments(arguments)
    var problem = read_grouped(args)
    var queue = hip_queue(args)
    multiply_grouped[ProductTypes.of(FIRST)](problem, queue)


def py_experts_workspace_bytes(arguments: PythonObject) raises -> PythonObject:
    """Takes the problem of `multiply_experts`; returns the bytes of its workspace."""
    var args = Arguments(arguments)
    comptime types = LayerTypes.of(FIRST, SECOND, FLOAT_TYPES[OUT], ANY)
    return PythonObject(workspace_of[types](read_experts(args)).num_bytes())


def py_multiply_experts(arguments: PythonObject) raises:
    """Takes what `multiply_experts` of every module takes, then (device, stream, workspace)."""
    var args = Arguments(arguments)
    var problem = read_experts(args)
    var queue = hip_queue(args)
    queue.lent = args.next()
    comptime types = LayerTypes.of(FIRST, SECOND, FLOAT_TYPES[OUT], ANY)
    multiply_experts[types](problem, queue)


@export
def PyInit__mx_kernels_hip_experts() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        var module = PythonModuleBuilder("_mx_kernels_hip_experts")
        comptime if DOWN == NONE:
            module.def_function[py_multiply_grouped]("multiply_grouped")
        else:
            module.def_function[py_experts_workspace_bytes]("experts_workspace_bytes")
            module.def_function[py_multiply_experts]("multiply_experts")
        return module.finalize()
    except error:
        abort(String("cannot create _mx_kernels_hip_experts: ", error))

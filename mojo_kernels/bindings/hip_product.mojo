"""The Python extension module `_mx_kernels_hip_product`: products of one kind on gfx950.

There are too many kinds to compile them all, so each becomes a module of its own,
when it is first asked for. A kind is set when the module is compiled, by positions in
the tables of formats, element types and rounding rules:

    -D LEFT=...        what activations are encoded in; without it, floats are kept
    -D RIGHT=...       the format of the weights
    -D X=...           activations are floats, quantized on the way; without it, codes
    -D ROUNDING=...    how they are quantized
    -D OUT=...         the result
    -D BIAS=...        what is added to it; without it, nothing
    -D COLUMNS=1       codes of both sides lie column by column

A module holds every kernel that the dispatch can choose for its kind, whatever the
shape. Nothing waits and nothing is allocated, as in `hip`.
"""

from std.os import abort
from std.python import Python, PythonObject
from std.python.bindings import PythonModuleBuilder
from std.sys import get_defined_int

from mojo_kernels.bindings.hip import hip_queue
from mojo_kernels.bindings.protocol import Arguments, read_problem
from mojo_kernels.cdna4.dispatch import launch
from mojo_kernels.cdna4.types import ProductTypes, WORKSPACE
from mojo_kernels.launch.recorder import Recorder
from mojo_kernels.numbers.formats import NO_FORMAT
from mojo_kernels.numbers.rounding import Rounding
from mojo_kernels.problem import ANY, Known, LeftKind, NO_BIAS

comptime NONE = -1
"""No code."""
comptime X = get_defined_int["X", NONE]()
comptime LEFT = get_defined_int["LEFT", NO_FORMAT]()
comptime FLOATS = LeftKind.KEPT if LEFT == NO_FORMAT else LeftKind.QUANTIZED
comptime KIND = LeftKind.ENCODED if X == NONE else FLOATS
comptime ARE_COLUMNS = get_defined_int["COLUMNS", 0]() == 1


def types_of_module() -> ProductTypes:
    """Returns what the module is compiled for."""
    var types = ProductTypes.of(
        Known(
            kind=KIND.code,
            dtype=X,
            left_format=LEFT,
            rounding=get_defined_int["ROUNDING", Rounding.EVEN.code](),
            right_format=get_defined_int["RIGHT", 0](),
            layout=ANY,
            result_dtype=get_defined_int["OUT"](),
            bias_dtype=get_defined_int["BIAS", NO_BIAS](),
        )
    )
    types.formats.are_columns = ARE_COLUMNS
    return types


comptime TYPES = types_of_module()
"""The kind."""


def py_workspace(arguments: PythonObject) raises -> PythonObject:
    """Takes (m, n, k); returns the bytes of counters, and those that workgroups hand over."""
    var args = Arguments(arguments)
    var recorder = Recorder(WORKSPACE)
    launch[TYPES](TYPES.problem(args.next(), args.next(), args.next()), recorder)
    var cleared_bytes, handed_over_bytes = 0, 0
    for recorded in recorder.launches:
        cleared_bytes = max(cleared_bytes, recorded.workspace.cleared_bytes)
        handed_over_bytes = max(handed_over_bytes, recorded.workspace.handed_over_bytes)
    return Python.tuple(cleared_bytes, handed_over_bytes)


def py_multiply(arguments: PythonObject) raises:
    """Takes what `multiply` of every module takes, then (device, stream, workspace).

    Activations are contiguous floats, or plain codes; weights are preshuffled for CDNA4. Codes that
    lie column by column are plain on both sides, and their strides are known. The workspace is where counters end and what is handed over begins.
    """
    var args = Arguments(arguments)
    var problem = read_problem(args)
    var queue = hip_queue(args)
    queue.lent = args.next()
    launch[TYPES](problem, queue)


@export
def PyInit__mx_kernels_hip_product() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        var module = PythonModuleBuilder("_mx_kernels_hip_product")
        module.def_function[py_workspace]("workspace")
        module.def_function[py_multiply]("multiply")
        return module.finalize()
    except error:
        abort(String("cannot create _mx_kernels_hip_product: ", error))

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

A module holds every kernel that can be chosen for its kind, whatever the shape; which one
it launches, `plan_gfx950` of `plans` says. Nothing waits and nothing is allocated, as in `hip`.
"""

from std.os import abort
from std.python import Python, PythonObject
from std.python.bindings import PythonModuleBuilder

from mojo_kernels.bindings.hip import hip_queue
from mojo_kernels.bindings.pairs import defined_types
from mojo_kernels.bindings.protocol import Arguments, read_problem
from mojo_kernels.cdna4.dispatch import launch
from mojo_kernels.cdna4.host.table import Chosen

comptime TYPES = defined_types()
"""The kind."""


def py_plan(text: PythonObject) raises -> PythonObject:
    """Takes a plan of `plan_gfx950`; returns its handle, the last integers of a call."""
    var chosen = Chosen.parse(String(py=text), materialize[TYPES]().of_launch())
    return Python.tuple(chosen.most, chosen.last)


def py_multiply(arguments: PythonObject) raises:
    """Takes what `multiply` of every module takes, then (device, stream, workspace, *handle of a plan).

    Activations are contiguous floats, or plain codes; weights are preshuffled for CDNA4. Codes that
    lie column by column are plain on both sides, and their strides are known. The workspace is where
    counters end and what is handed over begins.
    """
    var args = Arguments(arguments)
    var problem = read_problem(args)
    var queue = hip_queue(args)
    queue.lent = args.next()
    var most = args.next()
    launch[TYPES](problem, Chosen(most, args.next()), queue)


@export
def PyInit__mx_kernels_hip_product() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        var module = PythonModuleBuilder("_mx_kernels_hip_product")
        module.def_function[py_plan]("plan")
        module.def_function[py_multiply]("multiply")
        return module.finalize()
    except error:
        abort(String("cannot create _mx_kernels_hip_product: ", error))

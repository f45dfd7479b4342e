"""Launches of experts: machine code, grids and arguments, as the dispatch has them.

    grouped(types, m, n, k, experts)    the launches of a grouped product

Types are named <left>_<x>_<out>_<bias>. A launch is {text, grid, threads, arguments}; an argument
is an integer, the name of what an address stands for, or a place in the workspace, (offset,).
"""

from std.os import abort
from std.python import Python, PythonObject
from std.python.bindings import PythonModuleBuilder

from mojo_kernels.bindings.protocol import Arguments
from mojo_kernels.cdna4.experts.dispatch import multiply_grouped
from mojo_kernels.cdna4.instructions.matrix import name_of
from mojo_kernels.cdna4.operands.target import NO_BIAS
from mojo_kernels.cdna4.types import Formats, ProductTypes
from mojo_kernels.experts import Experts, GroupedProblem
from mojo_kernels.launch.assembler import Assembler
from mojo_kernels.launch.recorder import Recorder
from mojo_kernels.layouts import OperandShape, PreshuffledCdna4, code_rows, scale_blocks, scale_rows
from mojo_kernels.numbers.floats import float_code
from mojo_kernels.numbers.rounding import Rounding

comptime BF16 = DType.bfloat16
comptime F16 = DType.float16
comptime F32 = DType.float32
comptime GROUPED = [
    ProductTypes(Formats.MXFP4, Optional(BF16), Rounding.EVEN, BF16, NO_BIAS),
    ProductTypes(Formats.MXFP4, Optional(F32), Rounding.EVEN, F32, Optional(F32)),
]
"""What grouped products are compiled for."""

comptime NAMES = ["none", "x", "w_codes", "w_scales", "c", "bias", "sizes"]
"""What small addresses stand for."""
comptime X = 1
comptime W_CODES = 2
comptime W_SCALES = 3
comptime C = 4
comptime BIAS = 5
comptime SIZES = 6
comptime WORKSPACE = 1 << 40
"""The address of the workspace."""


def types_name(types: ProductTypes) -> String:
    """Returns how types are called."""
    var bias = String(types.bias.value()) if types.bias else "none"
    return String(name_of(types.formats.left), "_", types.floats(), "_", types.out, "_", bias)


def experts_of(types: ProductTypes, n: Int, k: Int, count: Int, first: Int) -> Experts:
    """Returns experts [count, n, k]; their addresses begin at `first`."""
    var shape = OperandShape(n, k)
    var problem = types.problem(1, n, k)
    problem.right.codes = first
    problem.right.scales = first + 1
    var row_bytes = types.formats.right.packed_bytes(k)
    var blocks = k // types.formats.right.block_k
    var padded_blocks = (blocks + 7) // 8 * 8
    return Experts(
        right=problem.right,
        count=count,
        codes_step=code_rows[PreshuffledCdna4](shape) * row_bytes,
        scales_step=scale_rows[PreshuffledCdna4](shape) * padded_blocks,
        bias=first + 3,
        bias_dtype=problem.result.bias_dtype,
    )


def described(assembler: Assembler, recorder: Recorder) raises -> PythonObject:
    """Returns launches for Python."""
    var launches = Python.list()
    for i in range(len(recorder.launches)):
        ref launch = recorder.launches[i]
        var arguments = Python.list()
        for j in range(len(launch.arguments)):
            var value = launch.arguments[j]
            if not launch.is_address[j]:
                arguments.append(PythonObject(value))
            elif value >= WORKSPACE:
                arguments.append(Python.tuple(value - WORKSPACE))
            else:
                var names = materialize[NAMES]()
                arguments.append(PythonObject(String(names[value])))
        launches.append(
            Python.dict(
                text=PythonObject(assembler.texts[i]),
                grid=Python.tuple(launch.grid.x, launch.grid.y, launch.grid.z),
                threads=PythonObject(launch.grid.threads),
                arguments=arguments,
            )
        )
    return launches


def py_grouped(name: PythonObject, sizes: PythonObject) raises -> PythonObject:
    """Takes (types, (m, n, k, experts)); returns the launches."""
    var args = Arguments(sizes)
    var m, n, k, count = args.next(), args.next(), args.next(), args.next()
    comptime for i in range(len(GROUPED)):
        comptime types = GROUPED[i]
        if types_name(types) == String(py=name):
            var left = types.problem(m, n, k).left
            left.values = X
            var experts = experts_of(types, n, k, count, W_CODES)
            var problem = GroupedProblem(left, experts, SIZES, C, float_code(types.out), m, n, k)
            var assembler = Assembler()
            var recorder = Recorder(WORKSPACE)
            multiply_grouped[types](problem, assembler)
            multiply_grouped[types](problem, recorder)
            return described(assembler, recorder)
    raise Error(String("nothing is compiled for ", String(py=name)))


@export
def PyInit_experts() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        var module = PythonModuleBuilder("experts")
        module.def_function[py_grouped]("grouped")
        return module.finalize()
    except error:
        abort(String("cannot create experts: ", error))

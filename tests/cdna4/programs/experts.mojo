"""Launches of experts: machine code, grids and arguments, as the dispatch has them.

    grouped(types, (m, n, k, experts))    the launches of a grouped product
                                         (also of the sums of a layer: its types, out float32)
    layer(types, (tokens, slots, width, inner, experts, bytes of an id, type of the weights, gate, whether its
                                         rows are neighbours, its numbers' bits), plan)

Types are named <left>[.<right>]_<x>_<out>_<bias>, for a layer those of both products; without a
name weights are MXFP4. A launch is {text, grid, threads, arguments}; an argument is an integer, the
name of what an address stands for, or a place in the workspace, (offset,).
"""

from std.memory import bitcast
from std.os import abort
from std.python import Python, PythonObject
from std.python.bindings import PythonModuleBuilder

from mojo_kernels.bindings.protocol import Arguments
from mojo_kernels.cdna4.chip import BLOCK
from mojo_kernels.cdna4.experts.dispatch import multiply_experts, multiply_grouped, workspace_of
from mojo_kernels.cdna4.host.experts import LayerShapes, LayerTypes
from mojo_kernels.cdna4.epilogue.target import NO_BIAS
from mojo_kernels.cdna4.types import Formats, KEPT, ProductTypes, name_of
from mojo_kernels.experts import Experts, ExpertsProblem, GroupedProblem, Routing
from mojo_kernels.launch.assembler import Assembler
from mojo_kernels.launch.recorder import Recorder
from mojo_kernels.layouts import OperandShape, PreshuffledCdna4
from mojo_kernels.layouts import code_rows, e4m3_bytes_of, scale_rows
from mojo_kernels.numbers.floats import float_code
from mojo_kernels.numbers.formats import Format
from mojo_kernels.numbers.gates import Gate
from mojo_kernels.numbers.rounding import Rounding
from mojo_kernels.numbers.scales import Scale
from mojo_kernels.problem import ANY

comptime BF16 = DType.bfloat16
comptime F16 = DType.float16
comptime F32 = DType.float32


def _layer(
    left: Format,
    x: DType,
    result: DType,
    bias: Optional[DType],
    right: Format = Format.MXFP4,
) -> LayerTypes:
    """Returns the types of a layer."""
    return LayerTypes(left, x, Rounding.EVEN, right, bias, right, bias, result, ANY)


comptime GROUPED = [
    ProductTypes(Formats.MXFP4, Optional(BF16), Rounding.EVEN, BF16, NO_BIAS),
    ProductTypes(Formats.MXFP4, Optional(F32), Rounding.EVEN, F32, Optional(F32)),
]
"""What grouped products are compiled for."""

comptime LAYERS = [
    _layer(Format.MXFP4, BF16, BF16, NO_BIAS),
    _layer(Format.MXFP4, BF16, BF16, Optional(F32)),
    _layer(Format.MXFP4, F32, F32, Optional(BF16)),
    _layer(Format.MXFP8, BF16, BF16, Optional(F32)),
    _layer(KEPT, BF16, BF16, NO_BIAS),
    _layer(KEPT, F32, F32, Optional(F32)),
    _layer(Format.MXFP8_E5M2, BF16, BF16, Optional(F32)),
    _layer(Format.MXFP8_E5M2, BF16, BF16, NO_BIAS, Format.MXFP8_E5M2),
    _layer(Format.MXFP6, BF16, BF16, Optional(F32)),
    _layer(Format.MXFP6_E3M2, BF16, BF16, NO_BIAS, Format.MXFP6_E3M2),
    _layer(KEPT, BF16, BF16, Optional(F32), Format.NVFP4),
]
"""What layers are compiled for."""

comptime NAMES = [
    "none",
    "x",
    "w_codes",
    "w_scales",
    "c",
    "bias",
    "sizes",
    "down_codes",
    "down_scales",
    "down_bias",
    "ids",
    "weights",
]
"""What small addresses stand for."""
comptime X = 1
comptime W_CODES = 2
comptime W_SCALES = 3
comptime C = 4
comptime BIAS = 5
comptime SIZES = 6
comptime DOWN_CODES = 7
comptime DOWN_SCALES = 8
comptime DOWN_BIAS = 9
comptime IDS = 10
comptime WEIGHTS = 11
comptime WORKSPACE = 1 << 40
"""The address of the workspace."""


def types_name(types: ProductTypes) -> String:
    """Returns how types are called."""
    var bias = String(types.bias.value()) if types.bias else "none"
    var formats = String(name_of(types.formats.left))
    if types.formats.right != Format.MXFP4:
        formats += String(".", name_of(types.formats.right))
    return String(formats, "_", types.floats(), "_", types.out, "_", bias)


def experts_of(
    types: ProductTypes, n: Int, k: Int, count: Int, codes: Int, scales: Int, bias: Int
) -> Experts:
    """Returns experts [count, n, k] at some addresses."""
    var shape = OperandShape(n, k)
    var problem = types.problem(1, n, k)
    problem.right.codes = codes
    problem.right.scales = scales
    var row_bytes = types.formats.right.packed_bytes(k)
    var scale_bytes = scale_rows[PreshuffledCdna4](shape) * ((k // BLOCK + 7) // 8 * 8)
    if types.formats.right.scale == Scale.E4M3:
        scale_bytes = e4m3_bytes_of[PreshuffledCdna4](n, k)
    return Experts(
        right=problem.right,
        count=count,
        codes_step=code_rows[PreshuffledCdna4](shape) * row_bytes,
        scales_step=scale_bytes,
        bias=bias,
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
    comptime for i in range(len(GROUPED)):
        comptime types = GROUPED[i]
        if types_name(types) == String(py=name):
            return _grouped[types](sizes)
    comptime for i in range(len(LAYERS)):
        comptime types = LAYERS[i].first(F32)
        if types_name(types) == String(py=name):
            return _grouped[types](sizes)
    raise Error(String("nothing is compiled for ", String(py=name)))


def _grouped[types: ProductTypes](sizes: PythonObject) raises -> PythonObject:
    """Returns the launches of a grouped product."""
    var args = Arguments(sizes)
    var m, n, k, count = args.next(), args.next(), args.next(), args.next()
    var left = types.problem(m, n, k).left
    left.values = X
    var experts = experts_of(types, n, k, count, W_CODES, W_SCALES, BIAS)
    var problem = GroupedProblem(left, experts, SIZES, C, float_code(types.out), m, n, k)
    var assembler = Assembler()
    var recorder = Recorder(WORKSPACE)
    multiply_grouped[types](problem, assembler)
    multiply_grouped[types](problem, recorder)
    return described(assembler, recorder)


def py_layer(name: PythonObject, sizes: PythonObject, plan: PythonObject) raises -> PythonObject:
    """Takes (types, (tokens, ..), a plan of `plan_experts_gfx950`); returns the launches."""
    var args = Arguments(sizes)
    var tokens, slots, width, inner = args.next(), args.next(), args.next(), args.next()
    var count, id_bytes, weights_dtype = args.next(), args.next(), args.next()
    var gate = Gate(
        code=args.next(),
        interleaved=args.next() != 0,
        limit=bitcast[DType.float32](UInt32(args.next())),
        alpha=bitcast[DType.float32](UInt32(args.next())),
    )
    comptime for i in range(len(LAYERS)):
        comptime types = LAYERS[i]
        comptime first, second = types.first(types.x), types.second()
        if types_name(first) == String(py=name):
            var left = first.problem(tokens, 1, width).left
            left.values = X
            var problem = ExpertsProblem(
                left,
                experts_of(first, gate.sums(inner), width, count, W_CODES, W_SCALES, BIAS),
                experts_of(second, width, inner, count, DOWN_CODES, DOWN_SCALES, DOWN_BIAS),
                Routing(IDS, id_bytes, WEIGHTS, weights_dtype, tokens, slots),
                gate,
                C,
                float_code(types.out),
                width,
                inner,
            )
            var cuts = LayerShapes.parse(String(py=plan), types.left)
            var assembler = Assembler()
            var recorder = Recorder(WORKSPACE)
            multiply_experts[types](problem, cuts, assembler)
            multiply_experts[types](problem, cuts, recorder)
            return Python.tuple(
                described(assembler, recorder), workspace_of[types](problem).num_bytes()
            )
    raise Error(String("nothing is compiled for ", String(py=name)))


@export
def PyInit_experts() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        var module = PythonModuleBuilder("experts")
        module.def_function[py_grouped]("grouped")
        module.def_function[py_layer]("layer")
        return module.finalize()
    except error:
        abort(String("cannot create experts: ", error))

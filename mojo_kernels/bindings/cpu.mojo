"""The Python extension module `_mx_kernels_native`: thin, no maths.

Each function takes one tuple of integers, see `protocol`. The Python package validates; here a
code only picks the compile-time instance of a kernel's launch. The tables that Python reads are
those that the kernels read.
"""

from std.os import abort
from std.python import Python, PythonObject
from std.python._cpython import GILReleased
from std.python.bindings import PythonModuleBuilder

from mojo_kernels.bindings.protocol import (
    Arguments,
    read_dequantize,
    read_experts,
    read_grouped,
    read_problem,
    read_quantize,
    read_relayout,
    unknown,
)
from mojo_kernels.cdna4.host.explain import explain
from mojo_kernels.cdna4.instructions.matrix import LANES
from mojo_kernels.cpu import dispatch as cpu
from mojo_kernels.cpu.panel import PANEL_COLUMNS
from mojo_kernels.cpu.experts import multiply_experts, multiply_grouped
from mojo_kernels.cpu.quantize import dequantize, relayout, run_quantize
from mojo_kernels.cpu.rows import FloatRows, StoredBytes
from mojo_kernels.cpu.threads import OpenMPTeam
from mojo_kernels.hopper.host.explain import explain as explain_hopper
from mojo_kernels.layouts import LAYOUTS, OperandLayout, Plain
from mojo_kernels.numbers.floats import FLOAT_TYPES
from mojo_kernels.numbers.formats import FORMATS, Format
from mojo_kernels.numbers.gates import GATES
from mojo_kernels.numbers.rounding import Rounding
from mojo_kernels.numbers.scales import E8M0_BIAS, E8M0_NAN
from mojo_kernels.operands import Operand
from mojo_kernels.problem import Known


def _format_row[format: Format]() raises -> PythonObject:
    comptime element = format.element
    return Python.dict(
        name=PythonObject(String(format.name)),
        element=PythonObject(String(element.name)),
        element_bits=PythonObject(element.bits),
        mantissa_bits=PythonObject(element.mantissa_bits),
        emax=PythonObject(element.emax),
        largest_code=PythonObject(element.largest_code),
        has_non_finite=PythonObject(element.has_non_finite()),
        scale=PythonObject(String(format.scale.name)),
        scale_bytes=PythonObject(format.scale.bytes),
        scale_bias=PythonObject(E8M0_BIAS),
        scale_nan=PythonObject(E8M0_NAN),
        block_rows=PythonObject(format.block_rows),
        block_k=PythonObject(format.block_k),
    )


def _layout_row[Layout: OperandLayout]() raises -> PythonObject:
    return Python.dict(
        name=PythonObject(String(Layout.NAME)),
        device=PythonObject(String(Layout.DEVICE)),
        row_multiple=PythonObject(Layout.ROW_MULTIPLE),
        scale_row_multiple=PythonObject(Layout.SCALE_ROW_MULTIPLE),
        scale_k_multiple=PythonObject(Layout.SCALE_K_MULTIPLE),
    )


def tables() raises -> PythonObject:
    """Returns the tables: formats, roundings, element types of floats, gates, layouts."""
    var formats = Python.list()
    comptime for i in range(len(FORMATS)):
        formats.append(_format_row[FORMATS[i]]())
    var roundings = Python.list()
    comptime for i in range(Rounding.COUNT):
        comptime name = Rounding.NAMES[i]
        roundings.append(materialize[name]())
    var dtypes = Python.list()
    comptime for i in range(len(FLOAT_TYPES)):
        comptime dtype = FLOAT_TYPES[i]
        dtypes.append(String(dtype))
    var gates = Python.list()
    comptime for i in range(len(GATES)):
        comptime name = GATES[i]
        gates.append(materialize[name]())
    var layouts = Python.list()
    comptime for i in range(len(LAYOUTS)):
        layouts.append(_layout_row[LAYOUTS[i]]())
    return Python.dict(
        formats=formats, roundings=roundings, dtypes=dtypes, gates=gates, layouts=layouts
    )


def explain_cpu(arguments: PythonObject) raises -> PythonObject:
    """Takes what `multiply` takes; returns what the CPU does for such a product."""
    var args = Arguments(arguments)
    var problem = read_problem(args)
    var choice = cpu.Choice.of(problem)
    return Python.dict(
        kernel=PythonObject(String(choice.name)),
        reason=PythonObject(String(choice.reason)),
        tile_m=PythonObject(min(problem.m, choice.group_rows)),
        tile_n=PythonObject(PANEL_COLUMNS),
    )


def explain_gfx950(
    m: PythonObject, n: PythonObject, k: PythonObject, is_encoded: PythonObject
) raises -> PythonObject:
    """Returns the row of the CDNA4 dispatch table for a product, and its launch."""
    var found = explain(Int(py=m), Int(py=n), Int(py=k), is_encoded=Bool(py=is_encoded))
    var choice, grid, workspace = found.choice, found.grid, found.workspace
    var tile_m, tile_n = choice.tile()
    return Python.dict(
        kernel=PythonObject(found.kernel()),
        reason=PythonObject(String(choice.reason)),
        row=PythonObject(found.row),
        cut=PythonObject(choice.name()),
        tile_m=PythonObject(tile_m),
        tile_n=PythonObject(tile_n),
        chunk_k=PythonObject(choice.step_k()),
        waves=PythonObject(grid.threads // LANES),
        sharers=PythonObject(choice.shape.sharers),
        depth=PythonObject(choice.shape.depth),
        splits=PythonObject(grid.z),
        k_tail=PythonObject(found.k_tail),
        grid=Python.tuple(grid.x, grid.y, grid.z),
        threads=PythonObject(grid.threads),
        chunks_per_wave=PythonObject(found.chunks_per_wave),
        counter_bytes=PythonObject(workspace.cleared_bytes),
        workspace_bytes=PythonObject(workspace.num_bytes()),
    )


def explain_cuda(arguments: PythonObject) raises -> PythonObject:
    """Takes (m, n, k, left format, right format); returns the row of Hopper's table, -1 for none.

    Weights are preshuffled for CUDA; activations of no format stay bfloat16.
    """
    var args = Arguments(arguments)
    var m, n, k = args.next(), args.next(), args.next()
    var left_format = args.next()
    var found = explain_hopper(m, n, k, left_format, args.next())
    var plan = found.choice.plan
    return Python.dict(
        kernel=PythonObject(String(plan.kernel.file())),
        reason=PythonObject(String(found.choice.reason)),
        row=PythonObject(found.row),
        cut=PythonObject(plan.name()),
        tile_m=PythonObject(plan.tokens),
        tile_n=PythonObject(plan.columns),
        splits=PythonObject(plan.ranks),
        grid=Python.tuple(found.grid.x, found.grid.y, found.grid.z),
        threads=PythonObject(found.grid.threads),
        workspace_bytes=PythonObject(found.workspace.num_bytes()),
    )


def read_team(mut args: Arguments) raises -> OpenMPTeam:
    """Reads the team, which every call ends with."""
    return OpenMPTeam(args.next(), num_threads=args.next())


def py_quantize(arguments: PythonObject) raises:
    """Quantizes on a team."""
    var args = Arguments(arguments)
    var call = read_quantize(args)
    var team = read_team(args)
    var is_known: Bool
    with GILReleased(Python()):
        is_known = run_quantize(call, team)
    if not is_known:
        raise unknown("element type or format", call.format)


def py_dequantize(arguments: PythonObject) raises:
    """Decodes on a team."""
    var args = Arguments(arguments)
    var call = read_dequantize(args)
    var team = read_team(args)
    comptime for i in range(len(LAYOUTS)):
        comptime for j in range(len(FORMATS)):
            if call.layout == i and call.format == j:
                var operand = Operand[LAYOUTS[i], FORMATS[j]].at(
                    call.codes, call.scales, call.rows, call.k
                )
                var out = FloatRows(call.values, call.dtype, call.rows, call.k)
                with GILReleased(Python()):
                    dequantize(operand, out, team)
                return
    raise unknown("layout or format", call.format)


def py_relayout(arguments: PythonObject) raises:
    """Moves an operand to another layout on a team."""
    var args = Arguments(arguments)
    var call = read_relayout(args)
    var team = read_team(args)
    var row_bytes, k_blocks = 0, 0
    comptime for i in range(len(FORMATS)):
        comptime format = FORMATS[i]
        if call.format == i:
            row_bytes, k_blocks = format.packed_bytes(call.k), call.k // format.block_k
    comptime for i in range(len(LAYOUTS)):
        comptime for j in range(len(LAYOUTS)):
            if call.layout == i and call.layout_out == j:
                var source = StoredBytes[LAYOUTS[i]].at(
                    call.codes, call.scales, call.rows, row_bytes, k_blocks
                )
                var target = StoredBytes[LAYOUTS[j]].at(
                    call.codes_out, call.scales_out, call.rows, row_bytes, k_blocks
                )
                with GILReleased(Python()):
                    relayout(source, target, team)
                return
    raise unknown("layout", call.layout)


def py_multiply(arguments: PythonObject) raises:
    """Computes a product on a team."""
    var args = Arguments(arguments)
    var problem = read_problem(args)
    var team = read_team(args)
    with GILReleased(Python()):
        cpu.multiply[Known.NOTHING](problem, team)


def py_multiply_grouped(arguments: PythonObject) raises -> PythonObject:
    """Computes a grouped product on a team; returns whether the sizes fit."""
    var args = Arguments(arguments)
    var problem = read_grouped(args)
    var team = read_team(args)
    var fits: Bool
    with GILReleased(Python()):
        fits = multiply_grouped(problem, team)
    return PythonObject(fits)


def py_multiply_experts(arguments: PythonObject) raises -> PythonObject:
    """Computes a layer of experts on a team; returns whether the ids fit."""
    var args = Arguments(arguments)
    var problem = read_experts(args)
    var team = read_team(args)
    var fits: Bool
    with GILReleased(Python()):
        fits = multiply_experts(problem, team)
    return PythonObject(fits)


@export
def PyInit__mx_kernels_native() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        var module = PythonModuleBuilder("_mx_kernels_native")
        module.def_function[tables]("tables")
        module.def_function[explain_cpu]("explain_cpu")
        module.def_function[explain_gfx950]("explain_gfx950")
        module.def_function[explain_cuda]("explain_cuda")
        module.def_function[py_quantize]("quantize")
        module.def_function[py_dequantize]("dequantize")
        module.def_function[py_relayout]("relayout")
        module.def_function[py_multiply]("multiply")
        module.def_function[py_multiply_grouped]("multiply_grouped")
        module.def_function[py_multiply_experts]("multiply_experts")
        return module.finalize()
    except error:
        abort(String("cannot create _mx_kernels_native: ", error))

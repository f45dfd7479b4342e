"""The Python extension module `_mx_kernels_native`: thin, no maths.

A module has everything, or a part, which is compiled sooner:

                        tables, explain_cpu, quantizers, dequantize, relayout and the products
    -D KERNEL=0         all of that but products
    -D KERNEL=k         products alone, of kernel k in `cpu.dispatch`, with weights of
    -D RIGHT=f          format f; of all formats without it

Each function takes one tuple of integers, see `protocol`. The Python package validates; here a
code only picks the compile-time instance of a kernel's launch. The tables that Python reads are
those that the kernels read.
"""

from std.os import abort
from std.python import Python, PythonObject
from std.python._cpython import GILReleased
from std.python.bindings import PythonModuleBuilder
from std.sys import get_defined_int

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
    unknown,
)
from mojo_kernels.bindings.record import Record, Records
from mojo_kernels.cpu import dispatch as cpu
from mojo_kernels.cpu.bytes.integers import has_integers
from mojo_kernels.cpu.block_order import GroupLimits
from mojo_kernels.cpu.limits import BYTES, FLOATS, GUESS, are_measured, limits_of, set_limits
from mojo_kernels.cpu.panel import PANEL_COLUMNS
from mojo_kernels.cpu.experts import multiply_experts, multiply_grouped
from mojo_kernels.cpu.prologue import (
    run_gate_quantize,
    run_hadamard_quantize,
    run_norm_quantize,
)
from mojo_kernels.cpu.quantize import run_dequantize, run_quantize, run_relayout
from mojo_kernels.cpu.threads import OpenMPTeam
from mojo_kernels.layouts import LAYOUTS, OperandLayout
from mojo_kernels.numbers.floats import FLOAT_TYPES
from mojo_kernels.numbers.formats import FORMATS, Format, K_MULTIPLE
from mojo_kernels.numbers.gates import GATES, GateRow
from mojo_kernels.numbers.rounding import Rounding
from mojo_kernels.numbers.scales import E8M0_BIAS, E8M0_NAN
from mojo_kernels.problem import ANY, Known, Left, LeftKind, Right

comptime HAS_PRODUCTS = cpu.KERNEL != cpu.NO_KERNEL
comptime HAS_THE_REST = cpu.KERNEL == ANY or cpu.KERNEL == cpu.NO_KERNEL
comptime KNOWN = Known(ANY, ANY, ANY, ANY, get_defined_int["RIGHT", ANY](), ANY, ANY, ANY)
"""Of the products."""


def _format_row[format: Format]() raises -> PythonObject:
    comptime element = format.element
    var row = Record()
    row.put("name", format.name())
    row.put("element", element.name())
    row.put("element_bits", element.bits)
    row.put("mantissa_bits", element.mantissa_bits)
    row.put("emax", element.emax)
    row.put("largest_code", element.largest_code)
    row.put("has_non_finite", element.has_non_finite())
    row.put("has_integers", has_integers(format))
    row.put("scale", format.scale.name())
    row.put("scale_bytes", format.scale.bytes)
    row.put("scale_row_bytes", format.scale.row_bytes)
    row.put("scale_bias", E8M0_BIAS)
    row.put("scale_nan", E8M0_NAN)
    row.put("block_rows", format.block_rows)
    row.put("block_k", format.block_k)
    row.put("k_multiple", K_MULTIPLE)
    var roundings = Records()
    comptime for i in range(Rounding.COUNT):
        comptime name = Rounding.NAMES[i]
        if Rounding(i).fits(format.scale):
            roundings.add(String(materialize[name]()))
    row.put("roundings", roundings.items)
    return row.fields


def _layout_row[Layout: OperandLayout]() raises -> PythonObject:
    var row = Record()
    row.put("name", String(Layout.NAME))
    row.put("device", String(Layout.DEVICE))
    row.put("row_multiple", Layout.ROW_MULTIPLE)
    row.put("byte_multiple", Layout.BYTE_MULTIPLE)
    row.put("scale_row_multiple", Layout.SCALE_ROW_MULTIPLE)
    row.put("scale_k_multiple", Layout.SCALE_K_MULTIPLE)
    row.put("has_float_scales", 1 if Layout.HAS_FLOAT_SCALES else 0)
    row.put("e4m3_run", Layout.E4M3_RUN)
    return row.fields


def _gate_row[gate: GateRow]() raises -> PythonObject:
    var row = Record()
    row.put("name", String(gate.name))
    row.put("is_gated", 1 if gate.is_gated else 0)
    row.put("is_interleaved", 1 if gate.is_interleaved else 0)
    row.put("limit_name", String(gate.limit_name))
    row.put("limit", PythonObject(gate.limit))
    row.put("alpha_name", String(gate.alpha_name))
    row.put("alpha", PythonObject(gate.alpha))
    row.put("most", PythonObject(gate.most))
    return row.fields


def tables() raises -> PythonObject:
    """Returns the tables: formats, roundings, element types of floats, gates, layouts."""
    var formats = Records()
    var roundings = Records()
    var dtypes = Records()
    comptime for i in range(len(FORMATS)):
        formats.add(_format_row[FORMATS[i]]())
    comptime for i in range(Rounding.COUNT):
        comptime name = Rounding.NAMES[i]
        roundings.add(String(materialize[name]()))
    comptime for i in range(len(FLOAT_TYPES)):
        comptime dtype = FLOAT_TYPES[i]
        dtypes.add(String(dtype))
    var gates = Records()
    var layouts = Records()
    comptime for i in range(len(GATES)):
        gates.add(_gate_row[GATES[i]]())
    comptime for i in range(len(LAYOUTS)):
        layouts.add(_layout_row[LAYOUTS[i]]())
    var all = Record()
    all.put("formats", formats.items)
    all.put("roundings", roundings.items)
    all.put("dtypes", dtypes.items)
    all.put("gates", gates.items)
    all.put("layouts", layouts.items)
    return all.fields


def explain_cpu(arguments: PythonObject) raises -> PythonObject:
    """Takes what `multiply` takes; returns what the CPU does for such a product."""
    var args = Arguments(arguments)
    var problem = read_problem(args)
    var choice = cpu.KernelChoice.of(problem)
    var row = Record()
    row.put("kernel", String(choice.name))
    row.put("reason", String(choice.reason))
    row.put("tile_m", min(problem.m, choice.group_rows))
    row.put("tile_n", PANEL_COLUMNS)
    return row.fields


def limits(arguments: PythonObject) raises -> PythonObject:
    """Takes (kernel, of `cpu.limits`), and its limits to use from now on, or none; returns them."""
    comptime ALONE = 1
    var count = len(arguments)
    var args = Arguments(arguments)
    var kernel = args.next()
    if count != ALONE:
        var new = GroupLimits(args.next(), args.next(), args.next(), args.next())
        if kernel == BYTES:
            set_limits[BYTES](new)
        else:
            set_limits[FLOATS](new)
    var found = limits_of[BYTES]() if kernel == BYTES else limits_of[FLOATS]()
    var most = materialize[GUESS]().of(kernel)
    var row = Record()
    row.put("in_registers", found.in_registers)
    row.put("rows_of_nibbles", found.rows_of_nibbles)
    row.put("rows_of_bytes", found.rows_of_bytes)
    row.put("decoded", found.decoded)
    row.put("most_in_registers", most.in_registers)
    row.put("most_decoded", most.decoded)
    row.put("level", String(GUESS.level))
    row.put("are_measured", are_measured())
    return row.fields


def kernel_of(arguments: PythonObject) raises -> PythonObject:
    """Takes (kind, left format, right format); returns the number of the kernel for it."""
    var args = Arguments(arguments)
    var left = Left.encoded(0, 0, 0)
    left.kind = LeftKind(args.next())
    left.format = args.next()
    return PythonObject(cpu.kernel_of(left, Right(0, 0, args.next(), 0)))


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


def py_norm_quantize(arguments: PythonObject) raises:
    """Quantizes rows behind a norm on a team."""
    var args = Arguments(arguments)
    var call = read_norm_quantize(args)
    var team = read_team(args)
    var is_known: Bool
    with GILReleased(Python()):
        is_known = run_norm_quantize(call, team)
    if not is_known:
        raise unknown("element type or format", call.call.format)


def py_gate_quantize(arguments: PythonObject) raises:
    """Quantizes hidden numbers of gates and ups on a team."""
    var args = Arguments(arguments)
    var call = read_gate_quantize(args)
    var team = read_team(args)
    var is_known: Bool
    with GILReleased(Python()):
        is_known = run_gate_quantize(call, team)
    if not is_known:
        raise unknown("element type or format", call.call.format)


def py_hadamard_quantize(arguments: PythonObject) raises:
    """Quantizes rotated rows on a team."""
    var args = Arguments(arguments)
    var call = read_hadamard_quantize(args)
    var team = read_team(args)
    var is_known: Bool
    with GILReleased(Python()):
        is_known = run_hadamard_quantize(call, team)
    if not is_known:
        raise unknown("element type or format", call.call.format)


def py_dequantize(arguments: PythonObject) raises:
    """Decodes on a team."""
    var args = Arguments(arguments)
    var call = read_dequantize(args)
    var team = read_team(args)
    var is_known: Bool
    with GILReleased(Python()):
        is_known = run_dequantize(call, team)
    if not is_known:
        raise unknown("layout or format", call.format)


def py_relayout(arguments: PythonObject) raises:
    """Moves an operand to another layout on a team."""
    var args = Arguments(arguments)
    var call = read_relayout(args)
    var team = read_team(args)
    var is_known: Bool
    with GILReleased(Python()):
        is_known = run_relayout(call, team)
    if not is_known:
        raise unknown("layout", call.layout)


def py_multiply(arguments: PythonObject) raises:
    """Computes a product on a team."""
    var args = Arguments(arguments)
    var problem = read_problem(args)
    var team = read_team(args)
    with GILReleased(Python()):
        cpu.multiply[KNOWN](problem, team)


def py_multiply_grouped(arguments: PythonObject) raises -> PythonObject:
    """Computes a grouped product on a team; returns whether the sizes fit."""
    var args = Arguments(arguments)
    var problem = read_grouped(args)
    var team = read_team(args)
    var fits: Bool
    with GILReleased(Python()):
        fits = multiply_grouped[KNOWN](problem, team)
    return PythonObject(fits)


def py_multiply_experts(arguments: PythonObject) raises -> PythonObject:
    """Computes a layer of experts on a team; returns whether the ids fit."""
    var args = Arguments(arguments)
    var problem = read_experts(args)
    var team = read_team(args)
    var fits: Bool
    with GILReleased(Python()):
        fits = multiply_experts[KNOWN, KNOWN](problem, team)
    return PythonObject(fits)


@export
def PyInit__mx_kernels_native() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        var module = PythonModuleBuilder("_mx_kernels_native")
        comptime if HAS_THE_REST:
            module.def_function[tables]("tables")
            module.def_function[kernel_of]("kernel_of")
            module.def_function[limits]("limits")
            module.def_function[explain_cpu]("explain_cpu")
            module.def_function[py_quantize]("quantize")
            module.def_function[py_norm_quantize]("norm_quantize")
            module.def_function[py_gate_quantize]("gate_quantize")
            module.def_function[py_hadamard_quantize]("hadamard_quantize")
            module.def_function[py_dequantize]("dequantize")
            module.def_function[py_relayout]("relayout")
        comptime if HAS_PRODUCTS:
            module.def_function[py_multiply]("multiply")
            module.def_function[py_multiply_grouped]("multiply_grouped")
            module.def_function[py_multiply_experts]("multiply_experts")
        return module.finalize()
    except error:
        abort(String("cannot create _mx_kernels_native: ", error))

"""The Python extension module `_mx_kernels_plans`: what GPUs would do, said by any host.

    explain_gfx950, explain_experts_gfx950    rows of the CDNA4 dispatch table, and launches
    table_gfx950                              all of its rows
    plan_gfx950, plan_experts_gfx950          CDNA4's plans for a call, and a product's workspace
    costs_gfx950, cycles_gfx950               constants of what they are expected to take, and that
    explain_norm_gfx950, explain_gate_gfx950  CDNA4's kernel of a norm or a gate to codes
    explain_cuda, explain_experts_cuda        Hopper's plan of the least cost, and launches
    plan_cuda                                 Hopper's plan for a call, and its workspace
    plans_cuda                                all of Hopper's plans, and what they are expected to take
    pairs_on_gfx950 and the like              formats that CDNA4 has kernels for

Functions take one tuple of integers, see `protocol`. They ask what the code that launches asks, so a
row here is what a device gets. Neither this module nor that of the CPU changes with a kernel.
"""

from std.builtin.globals import global_constant
from std.os import abort
from std.python import Python, PythonObject
from std.python.bindings import PythonModuleBuilder
from std.reflection import reflect

from mojo_kernels.bindings.pairs import (
    column_pairs_on_gfx950,
    expert_pairs_on_gfx950,
    pairs_on_gfx950,
    product_types,
)
from mojo_kernels.bindings.protocol import Arguments, read_gate_quantize, read_norm_quantize
from mojo_kernels.bindings.record import Record, Records, numbers
from mojo_kernels.cdna4.chip import LANES
from mojo_kernels.cdna4.host.choices import choose, shapes_of_layer, workspace_of
from mojo_kernels.cdna4.host.costs import Costs
from mojo_kernels.cdna4.host.explain import (
    LayerSizes,
    explain,
    explain_grouped,
    explain_layer,
    workspace_bytes,
)
from mojo_kernels.cdna4.host.experts import LayerTypes
from mojo_kernels.cdna4.host.table import CHOICES, plan_named
from mojo_kernels.cdna4.prepare.shape import takes
from mojo_kernels.cdna4.types import Formats, ProductTypes, has_kernels, unsupported
from mojo_kernels.hopper.host.choices import candidates, forced_plan, lent, plan_of
from mojo_kernels.hopper.host.explain import ExpertsQuestion, explain as explain_hopper
from mojo_kernels.hopper.host.explain import explain_experts
from mojo_kernels.hopper.host.gemm import Pair
from mojo_kernels.launch.grid import Explained
from mojo_kernels.numbers.gates import Gate
from mojo_kernels.numbers.rounding import Rounding
from mojo_kernels.problem import ANY, Left, LeftKind, NO_BIAS, Problem, Result, Right


def explain_gfx950(arguments: PythonObject) raises -> PythonObject:
    """Takes (m, n, k, left format, right format, whether the left side is encoded, whether codes of
    both lie column by column); two formats of -1 are floats by floats.

    Returns the row of the CDNA4 dispatch table for a product, and its launch.
    """
    var args = Arguments(arguments)
    var m, n, k = args.next(), args.next(), args.next()
    var left_format = args.next()
    var formats = Formats.of(left_format, args.next())
    var is_encoded = args.next() != 0
    formats.are_columns = args.next() != 0
    var found = explain(m, n, k, formats, is_encoded=is_encoded)
    var plan, grid, workspace = found.choice.plan, found.grid, found.workspace
    var row = Record()
    row.put("kernel", plan.family.kernel())
    row.put("reason", String(found.choice.reason))
    row.put("cut", plan.name())
    row.put("tile_m", plan.rows)
    row.put("tile_n", plan.columns)
    row.put("chunk_k", plan.step_of(formats))
    row.put("waves", grid.threads // LANES)
    row.put("sharers", plan.sharers)
    row.put("depth", plan.depth)
    row.put("splits", grid.z)
    row.put("k_tail", plan.has_tail(k, formats))
    row.put("quantizes_first", found.quantizes_first)
    row.put("grid", numbers(grid.x, grid.y, grid.z))
    row.put("threads", grid.threads)
    row.put("chunks_per_wave", plan.steps_per_wave(k))
    row.put("counter_bytes", workspace.cleared_bytes)
    row.put("workspace_bytes", workspace.num_bytes())
    return row.fields


def _product_types(mut args: Arguments) raises -> ProductTypes:
    """Reads what a module of products is compiled for, see `hip_product`: left and right format, x,
    rounding, result, bias, columns; -1 for none."""
    var left, right, x, rounding = args.next(), args.next(), args.next(), args.next()
    var result, bias = args.next(), args.next()
    var types = product_types(left, right, x, rounding, result, bias, args.next() == 1)
    if not has_kernels(types.formats):
        raise Error(unsupported(types.formats))
    return types


def plan_gfx950(arguments: PythonObject) raises -> PythonObject:
    """Takes (m, n, k, *what a module of products is compiled for).

    Returns the text of CDNA4's plan for such a product, the bytes of its counters, and those that
    workgroups hand over.
    """
    var args = Arguments(arguments)
    var m, n, k = args.next(), args.next(), args.next()
    var types = _product_types(args)
    var chosen = choose(m, n, k, types)
    var space = workspace_of(chosen, m, n, k, types)
    return Python.tuple(chosen.text(), space.cleared_bytes, space.handed_over_bytes)


def plan_experts_gfx950(arguments: PythonObject) raises -> PythonObject:
    """Takes (tokens, slots, experts, width, inner, code of the gate, whether its rows are neighbours,
    *what a module of the first products is compiled for).

    Returns the text of the cuts of a layer's products, for rows that are encoded before.
    """
    var args = Arguments(arguments)
    var tokens, slots, experts = args.next(), args.next(), args.next()
    var width, inner, gate = args.next(), args.next(), _gate(args)
    var first = _product_types(args)
    var types = LayerTypes.of(first, first, first.out, ANY)
    var sizes = LayerSizes(tokens, slots, experts, width, inner, gate)
    return Python.tuple(shapes_of_layer(types, sizes.problem()).text(types.left))


def table_gfx950(arguments: PythonObject) raises -> PythonObject:
    """Takes nothing; returns the rows of the CDNA4 dispatch table, as `explain_gfx950` names them.

    `linear` and `matmul` say whether a row is for four-bit activations that come as floats, as codes.
    """
    var rows = Records()
    for choice in global_constant[CHOICES]():
        var row = Record()
        row.put("cut", choice.plan.name())
        row.put("reason", String(choice.reason))
        row.put("kernel", choice.plan.family.kernel())
        row.put("any_k", choice.any_k)
        row.put("linear", choice.sources.floats)
        row.put("matmul", choice.sources.codes)
        rows.add(row.fields)
    return rows.items


def costs_gfx950(arguments: PythonObject) raises -> PythonObject:
    """Takes nothing; returns the constants of what CDNA4's plans are expected to take, by name."""
    comptime Fields = reflect[Costs]
    comptime names = Fields.field_names()
    var costs = materialize[Costs.TABLE]()
    var found = Record()
    comptime for i in range(Fields.field_count()):
        comptime name = names[i]
        found.put(name, rebind[Int](Fields.field_ref[i](costs)))
    return found.fields


def cycles_gfx950(plan: PythonObject, arguments: PythonObject) raises -> PythonObject:
    """Takes the name of a plan, then (m, n, k, whether the left side is codes, *constants).

    Returns the cycles that it is expected to take of bfloat16 or codes, under these constants.
    """
    comptime Fields = reflect[Costs]
    var args = Arguments(arguments)
    var m, n, k = args.next(), args.next(), args.next()
    var x = Optional[DType](None) if args.next() != 0 else Optional(DType.bfloat16)
    var types = ProductTypes(Formats.MXFP4, x, Rounding.EVEN, DType.bfloat16, None)
    var costs = materialize[Costs.TABLE]()
    comptime for i in range(Fields.field_count()):
        ref field = Fields.field_ref[i](costs)
        field = rebind[type_of(field)](args.next())
    return PythonObject(costs.of(plan_named(String(py=plan), types), m, n, k, types))


def explain_experts_gfx950(arguments: PythonObject) raises -> PythonObject:
    """Takes (m, n, k, experts, slots, code of the gate, whether its rows are neighbours, left format,
    right format).

    A layer has m tokens of k numbers and n hidden ones; without slots it is a grouped product.
    Returns the launches, and the bytes of their workspace.
    """
    var args = Arguments(arguments)
    var m, n, k = args.next(), args.next(), args.next()
    var experts, slots, gate = args.next(), args.next(), _gate(args)
    var left_format = args.next()
    var formats = Formats.of(left_format, args.next())
    if slots == 0:
        return Python.tuple(_launches(explain_grouped(m, n, k, experts, formats)), 0)
    var sizes = LayerSizes(m, slots, experts, k, n, gate)
    var launches = _launches(explain_layer(sizes, formats))
    return Python.tuple(launches, workspace_bytes(sizes, formats))


def _gate(mut args: Arguments) raises -> Gate:
    """Reads the code of a gate, and whether its rows are neighbours; its numbers decide nothing."""
    var code = args.next()
    return Gate(code, args.next() != 0, 1, 1)


def _launches(launches: List[Explained]) raises -> PythonObject:
    """Returns launches for Python."""
    var rows = Records()
    for launch in launches:
        var row = Record()
        row.put("name", String(launch.name))
        row.put("kernel", String(launch.file))
        row.put("reason", String(launch.reason))
        row.put("cut", launch.cut)
        row.put("tile", Python.tuple(launch.tile_m, launch.tile_n))
        row.put("grid", numbers(launch.grid.x, launch.grid.y, launch.grid.z))
        row.put("threads", launch.grid.threads)
        rows.add(row.fields)
    return rows.items


def explain_norm_gfx950(arguments: PythonObject) raises -> PythonObject:
    """Takes what `norm_quantize` takes; returns the file of the kernel that it gets on CDNA4."""
    var args = Arguments(arguments)
    var is_own = takes(read_norm_quantize(args))
    return PythonObject("cdna4/prepare/norms.mojo" if is_own else "simt/prologue.mojo")


def explain_gate_gfx950(arguments: PythonObject) raises -> PythonObject:
    """Takes what `gate_quantize` takes; returns the same."""
    var args = Arguments(arguments)
    var is_own = takes(read_gate_quantize(args))
    return PythonObject("cdna4/prepare/gates.mojo" if is_own else "simt/prologue.mojo")


def explain_cuda(arguments: PythonObject) raises -> PythonObject:
    """Takes (m, n, k, left format, right format); returns what Hopper does with such a product.

    Weights are preshuffled for CUDA; activations of no format stay bfloat16.
    """
    var args = Arguments(arguments)
    var m, n, k = args.next(), args.next(), args.next()
    var left_format = args.next()
    var found = explain_hopper(m, n, k, left_format, args.next())
    var plan = found.choice.plan
    var row = Record()
    row.put("kernel", String(plan.file()))
    row.put("reason", found.choice.reason())
    row.put("cut", String(plan))
    row.put("tile_m", plan.rows)
    row.put("tile_n", plan.columns)
    row.put("splits", plan.ranks)
    row.put("grid", numbers(found.grid.x, found.grid.y, found.grid.z))
    row.put("threads", found.grid.threads)
    row.put("workspace_bytes", found.workspace.num_bytes())
    return row.fields


def plan_cuda(arguments: PythonObject) raises -> PythonObject:
    """Takes (m, n, k, kind of the left side, its dtype, row stride and format, right format and layout,
    dtype of the result, text of a forced plan or an empty one).

    Returns the text of Hopper's plan for such a product at addresses that fast kernels take, and the
    bytes of the workspace that it is lent.
    """
    var args = Arguments(arguments)
    var m, n, k = args.next(), args.next(), args.next()
    var kind, dtype, row_stride, left_format = args.next(), args.next(), args.next(), args.next()
    var left = Left(LeftKind(kind), 0, 0, dtype, row_stride, left_format, Rounding.EVEN)
    var right_format = args.next()
    var right = Right(0, 0, right_format, args.next())
    var problem = Problem(left, right, Result(0, args.next(), 0, NO_BIAS), m=m, n=n, k=k)
    var forced = forced_plan(args.next_text())
    var space = lent(m, n, k, left_format, right_format, right.layout, forced)
    return Python.tuple(String(plan_of(problem, forced)), space.num_bytes())


def explain_experts_cuda(arguments: PythonObject) raises -> PythonObject:
    """Takes what `explain_experts_gfx950` takes; returns the same of Hopper.

    Weights are preshuffled for CUDA; activations of no format stay bfloat16.
    """
    var args = Arguments(arguments)
    var found = explain_experts(
        ExpertsQuestion(
            args.next(), args.next(), args.next(), args.next(), args.next(), _gate(args),
            args.next(), args.next(),
        )
    )  # fmt: skip
    return Python.tuple(_launches(found.launches), found.workspace.num_bytes())


def plans_cuda(arguments: PythonObject) raises -> PythonObject:
    """Takes what `explain_cuda` takes, of formats that have fast kernels.

    Returns (family, plan, expected us, terms) of the plans that Hopper has for it.
    """
    var args = Arguments(arguments)
    var m, n, k = args.next(), args.next(), args.next()
    var left_format = args.next()
    var plans = Records()
    for plan in candidates(m, n, k, Pair.of(left_format, args.next(), k)):
        var terms = Records()
        for term in plan.terms:
            terms.add(PythonObject(term))
        plans.add(Python.tuple(plan.family, String(plan.plan), plan.us, terms.items))
    return plans.items


@export
def PyInit__mx_kernels_plans() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        var module = PythonModuleBuilder("_mx_kernels_plans")
        module.def_function[pairs_on_gfx950]("pairs_on_gfx950")
        module.def_function[column_pairs_on_gfx950]("column_pairs_on_gfx950")
        module.def_function[expert_pairs_on_gfx950]("expert_pairs_on_gfx950")
        module.def_function[explain_gfx950]("explain_gfx950")
        module.def_function[plan_gfx950]("plan_gfx950")
        module.def_function[plan_experts_gfx950]("plan_experts_gfx950")
        module.def_function[table_gfx950]("table_gfx950")
        module.def_function[costs_gfx950]("costs_gfx950")
        module.def_function[cycles_gfx950]("cycles_gfx950")
        module.def_function[explain_experts_gfx950]("explain_experts_gfx950")
        module.def_function[explain_norm_gfx950]("explain_norm_gfx950")
        module.def_function[explain_gate_gfx950]("explain_gate_gfx950")
        module.def_function[explain_cuda]("explain_cuda")
        module.def_function[plan_cuda]("plan_cuda")
        module.def_function[explain_experts_cuda]("explain_experts_cuda")
        module.def_function[plans_cuda]("plans_cuda")
        return module.finalize()
    except error:
        abort(String("cannot create _mx_kernels_plans: ", error))

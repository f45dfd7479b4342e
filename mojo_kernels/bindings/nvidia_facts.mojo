"""What Python asks about products on NVIDIA GPUs before it calls one: memory, handles of plans."""

from std.memory.alloc import unsafe_alloc
from std.python import PythonObject
from std.python.bindings import PythonModuleBuilder

from ..backend import has_hopper
from ..hopper.plan import Plan
from .nvidia import workspace_of
from .protocol import Arguments, read_experts, read_grouped


def py_plan(text: PythonObject) raises -> PythonObject:
    """Keeps the plan of a text for the life of the process; returns its handle."""
    var kept = unsafe_alloc[Plan](1)
    kept.unsafe_write(Plan.parse(String(py=text)))
    return PythonObject(Int(kept))


def plan_at(handle: Int) -> Plan:
    """Returns the plan of a handle; 0 is that of the portable kernels."""
    if handle == 0:
        return Plan.PORTABLE
    return ImmPointer[Plan, ImmutAnyOrigin](unsafe_from_address=handle)[]


def py_workspace_bytes(arguments: PythonObject) raises -> PythonObject:
    """Takes (m, n, k); returns the bytes that the portable kernels may want for a product."""
    var args = Arguments(arguments)
    var m, n = args.next(), args.next()
    return PythonObject(workspace_of(m, n, args.next()).num_bytes())


def py_grouped_workspace_bytes(arguments: PythonObject) raises -> PythonObject:
    """Takes the problem of `multiply_grouped`; returns the bytes of its workspace."""
    var args = Arguments(arguments)
    return PythonObject(workspace_of(read_grouped(args)).num_bytes())


def py_experts_workspace_bytes(arguments: PythonObject) raises -> PythonObject:
    """Takes the problem of `multiply_experts`; returns the bytes of its workspace."""
    var args = Arguments(arguments)
    return PythonObject(workspace_of(read_experts(args)).num_bytes())


def add_facts(mut module: PythonModuleBuilder) raises:
    """Adds all of them to a module."""
    comptime if has_hopper():
        module.def_function[py_plan]("plan")
    module.def_function[py_workspace_bytes]("workspace_bytes")
    module.def_function[py_grouped_workspace_bytes]("multiply_grouped_workspace_bytes")
    module.def_function[py_experts_workspace_bytes]("multiply_experts_workspace_bytes")

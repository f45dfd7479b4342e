"""What Python asks about products on NVIDIA GPUs before it calls one: memory that they want."""

from std.python import PythonObject
from std.python.bindings import PythonModuleBuilder

from .nvidia import forced_plan, workspace_of
from .protocol import Arguments, read_experts, read_grouped


def py_workspace_bytes(arguments: PythonObject) raises -> PythonObject:
    """Takes (m, n, k, left format, right format, layout of the right side, plan or no text).

    Returns the bytes that `multiply` may want.
    """
    var args = Arguments(arguments)
    var m, n, k = args.next(), args.next(), args.next()
    var left_format, right_format = args.next(), args.next()
    var layout = args.next()
    var plan = forced_plan(args.next_text())
    var space = workspace_of(m, n, k, left_format, right_format, layout, plan)
    return PythonObject(space.num_bytes())


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
    module.def_function[py_workspace_bytes]("workspace_bytes")
    module.def_function[py_grouped_workspace_bytes]("multiply_grouped_workspace_bytes")
    module.def_function[py_experts_workspace_bytes]("multiply_experts_workspace_bytes")

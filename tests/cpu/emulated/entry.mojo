"""The kernels of the CPU as plain C functions, for a program without Python.

Each takes the address of a call: the structs of `calls.mojo` and `problem.mojo` as they lie in
memory, which are the integers of `bindings/protocol.mojo` in the same order. It runs on one
thread and returns 0, 1 for a position that a table does not have, or 2 for want of memory.
"""

from mojo_kernels.calls import DequantizeCall, QuantizeCall, RelayoutCall
from mojo_kernels.cpu import dispatch
from mojo_kernels.cpu.quantize import run_dequantize, run_quantize, run_relayout
from mojo_kernels.cpu.threads import OpenMPTeam
from mojo_kernels.problem import Known, Problem

comptime DONE = 0
comptime UNKNOWN = 1
comptime OUT_OF_MEMORY = 2
comptime NO_TEAM = OpenMPTeam.alone()


def _at[Call: TrivialRegisterPassable](address: Int) -> Call:
    """Returns the call at an address."""
    return MutPointer[Call, MutUntrackedOrigin](unsafe_from_address=address)[]


@export
def mx_quantize(address: Int) abi("C") -> Int:
    """Quantizes floats."""
    return DONE if run_quantize(_at[QuantizeCall](address), NO_TEAM) else UNKNOWN


@export
def mx_dequantize(address: Int) abi("C") -> Int:
    """Decodes an operand."""
    return DONE if run_dequantize(_at[DequantizeCall](address), NO_TEAM) else UNKNOWN


@export
def mx_relayout(address: Int) abi("C") -> Int:
    """Moves an operand to another layout."""
    return DONE if run_relayout(_at[RelayoutCall](address), NO_TEAM) else UNKNOWN


@export
def mx_multiply(address: Int) abi("C") -> Int:
    """Computes a product."""
    try:
        dispatch.multiply[Known.NOTHING](_at[Problem](address), NO_TEAM)
        return DONE
    except:
        return OUT_OF_MEMORY

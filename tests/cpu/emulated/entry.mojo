"""The kernels of the CPU as plain C functions, for a program without Python.

Each takes the address of a call: the structs of `calls.mojo` and `problem.mojo` as they lie in
memory, which are the integers of `bindings/protocol.mojo` in the same order. It runs on one
thread and returns 0, or 1 for a position that a table does not have.
"""

from mojo_kernels.calls import DequantizeCall, QuantizeCall, RelayoutCall
from mojo_kernels.cpu import dispatch
from mojo_kernels.cpu.quantize import dequantize, quantize, relayout
from mojo_kernels.cpu.rows import FloatRows, StoredBytes
from mojo_kernels.cpu.threads import OpenMPTeam
from mojo_kernels.layouts import LAYOUTS, Plain
from mojo_kernels.numbers.floats import FLOAT_TYPES
from mojo_kernels.numbers.formats import FORMATS
from mojo_kernels.operands import Operand, matrix
from mojo_kernels.problem import Known, Problem

comptime DONE = 0
comptime UNKNOWN = 1
comptime NO_TEAM = OpenMPTeam.alone()


def _at[Call: TrivialRegisterPassable](address: Int) -> Call:
    """Returns the call at an address."""
    return MutPointer[Call, MutUntrackedOrigin](unsafe_from_address=address)[]


@export
def mx_quantize(address: Int) abi("C") -> Int:
    """Quantizes floats."""
    var call = _at[QuantizeCall](address)
    comptime for i in range(len(FLOAT_TYPES)):
        comptime for j in range(len(FORMATS)):
            if call.dtype == i and call.format == j:
                var x = matrix[FLOAT_TYPES[i]](call.values, call.rows, call.k, call.row_stride)
                var out = Operand[Plain, FORMATS[j]].at(call.codes, call.scales, call.rows, call.k)
                quantize(x, out, call.rounding, NO_TEAM)
                return DONE
    return UNKNOWN


@export
def mx_dequantize(address: Int) abi("C") -> Int:
    """Decodes an operand."""
    var call = _at[DequantizeCall](address)
    comptime for i in range(len(LAYOUTS)):
        comptime for j in range(len(FORMATS)):
            if call.layout == i and call.format == j:
                var operand = Operand[LAYOUTS[i], FORMATS[j]].at(
                    call.codes, call.scales, call.rows, call.k
                )
                dequantize(operand, FloatRows(call.values, call.dtype, call.rows, call.k), NO_TEAM)
                return DONE
    return UNKNOWN


@export
def mx_relayout(address: Int) abi("C") -> Int:
    """Moves an operand to another layout."""
    var call = _at[RelayoutCall](address)
    var row_bytes, k_blocks = 0, 0
    comptime for i in range(len(FORMATS)):
        comptime format = FORMATS[i]
        if call.format == i:
            row_bytes, k_blocks = format.packed_bytes(call.k), call.k // format.block_k
    if row_bytes == 0:
        return UNKNOWN
    comptime for i in range(len(LAYOUTS)):
        comptime for j in range(len(LAYOUTS)):
            if call.layout == i and call.layout_out == j:
                var source = StoredBytes[LAYOUTS[i]].at(
                    call.codes, call.scales, call.rows, row_bytes, k_blocks
                )
                var target = StoredBytes[LAYOUTS[j]].at(
                    call.codes_out, call.scales_out, call.rows, row_bytes, k_blocks
                )
                relayout(source, target, NO_TEAM)
                return DONE
    return UNKNOWN


@export
def mx_multiply(address: Int) abi("C") -> Int:
    """Computes a product."""
    dispatch.multiply[Known.NOTHING](_at[Problem](address), NO_TEAM)
    return DONE

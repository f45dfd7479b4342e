"""Launches of a Hopper GPU: the kernel that a plan names, or the portable one.

A problem is valid by contract: addresses on the device of the queue, checked sizes, positions in
the tables.
"""

from ..calls import QuantizeCall
from ..launch.queue import Queue
from ..problem import ANY, Known, Problem
from ..simt import dispatch as portable
from ..simt.quantize import quantize as quantize_portably
from . import gemm_rs_bf16 as rs_bf16, quantize as fast
from .host.gemm import aligned_may_take, mapped_may_take
from .plan import Kernel, OperandType, Plan, may_take_operands
from .prepare.launch import launch_bf16, launch_e4m3, launch_e5m2, launch_float_scaled
from .streaming import kernel as streaming


def launch[
    known: Known
](problem: Problem, plan: Plan, mut queue: Some[Queue], is_lent: Bool) raises:
    """Computes left @ right.T + bias as planned.

    The portable kernels may have no workspace; plans for others say what they want.
    """
    if plan.kernel == Kernel.PORTABLE:
        return portable.launch[known](problem, queue, is_lent)
    comptime if may_take_operands[known]():
        if plan.kernel == Kernel.STREAM:
            return streaming.launch(problem, plan, queue)
        if plan.kernel == Kernel.RS_BF16:
            return rs_bf16.launch(problem, plan, queue)
        if plan.kernel.operand == OperandType.E5M2:
            return launch_e5m2(problem, plan, queue)
        if plan.kernel == Kernel.SS_BF16:
            return launch_bf16(problem, plan, queue)
    comptime if aligned_may_take[known]():
        if plan.kernel in (Kernel.RS_E4M3, Kernel.SS_E4M3_PREPARED):
            return launch_e4m3(problem, plan, queue)
    comptime if mapped_may_take[known]():
        if plan.kernel == Kernel.SS_E4M3:
            return launch_float_scaled(problem, plan, queue)
    portable.launch[known](problem, queue, is_lent)


def quantize[
    known_dtype: Int = ANY, known_format: Int = ANY
](call: QuantizeCall, mut queue: Some[Queue]) raises:
    """Quantizes [rows, k] floats into a plain operand."""
    comptime if fast.may_support(known_dtype, known_format):
        if fast.supports(call):
            return fast.quantize(call, queue)
    quantize_portably[known_dtype, known_format](call, queue)

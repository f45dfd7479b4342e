"""Launches of a Hopper GPU: the kernel that a plan names, or the portable one.

A problem is valid by contract: addresses on the device of the queue, checked sizes, positions in
the tables.
"""

from ..launch.grid import Workspace
from ..launch.queue import Queue
from ..problem import Known, Problem
from ..simt import dispatch as portable
from . import gemm_rs_bf16 as rs_bf16
from .host.gemm import takes_float_scales, takes_mxfp4_weights, takes_mxfp8, takes_nvfp4_weights
from .host.gemm import takes_six_bits
from .host.workspace import RoundedPlaces
from .layout import NVFP4, OPERANDS
from .plan import Kernel, OperandType, Plan
from .gemm_prepared import launch_float_scaled, launch_nvfp4, launch_prepared
from .prepare.kept import round_rows
from .streaming import kernel as streaming


def launch[
    known: Known
](problem: Problem, plan: Plan, mut queue: Some[Queue], is_lent: Bool) raises:
    """Computes left @ right.T + bias as planned.

    The portable kernels may have no workspace; plans for others say what they want.
    """
    if plan.kernel == Kernel.PORTABLE:
        return portable.launch[known](problem, queue, is_lent)
    comptime LEFT = known.left_format
    comptime RIGHT = known.right_format
    comptime if takes_nvfp4_weights(LEFT, RIGHT, known.layout):
        if problem.right.format == NVFP4.code():
            if plan.kernel == Kernel.STREAM:
                return streaming.launch[NVFP4.scale](_rounded(problem, plan, queue), plan, queue)
            comptime for has_factors in [False, True]:
                var is_right = (problem.left.format == NVFP4.code()) == has_factors
                if plan.kernel == Kernel.RS_BF16 and is_right:
                    return rs_bf16.launch[NVFP4.scale, has_factors](problem, plan, queue)
            if plan.kernel == Kernel.SS_BF16:
                return launch_nvfp4(problem, plan, queue)
            raise Error(
                "plan: NVFP4 weights are for bfloat16 tensor cores: stream, rs_bf16, ss_bf16"
            )
    comptime if takes_mxfp4_weights(LEFT, RIGHT, known.layout):
        if plan.kernel == Kernel.STREAM:
            return streaming.launch[OPERANDS.scale](problem, plan, queue)
        if plan.maps_rows():
            return rs_bf16.launch_mapped(problem, plan, queue)
        if plan.kernel == Kernel.RS_BF16:
            return rs_bf16.launch[OPERANDS.scale](problem, plan, queue)
        if plan.kernel.operand == OperandType.E5M2:
            return launch_prepared[OperandType.E5M2](problem, plan, queue)
    comptime if takes_mxfp4_weights(LEFT, RIGHT, known.layout) or takes_six_bits(
        LEFT, RIGHT, known.layout
    ):
        if plan.kernel == Kernel.SS_BF16:
            return launch_prepared[OperandType.BF16](problem, plan, queue)
    comptime if takes_mxfp8(LEFT, RIGHT, known.layout):
        if plan.kernel in (Kernel.RS_E4M3, Kernel.SS_E4M3_PREPARED):
            return launch_prepared[OperandType.E4M3](problem, plan, queue)
    comptime if takes_float_scales(LEFT, RIGHT, known.layout):
        if plan.kernel == Kernel.SS_E4M3:
            return launch_float_scaled(problem, plan, queue)
    portable.launch[known](problem, queue, is_lent)


def _rounded(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises -> Problem:
    """Launches the rounding of NVFP4 activations; returns the problem with what comes of it."""
    var found, m, k = problem, problem.m, problem.k
    if problem.left.format == NVFP4.code():
        var places = RoundedPlaces.of(m, problem.n, k, plan)
        var base = queue.workspace(Workspace(0, places.num_bytes))
        found.left = round_rows(problem.left, m, k, places, base, queue)
    return found

"""Norms and gates to codes as MAX custom ops: thin, no maths.

    mx_norm_quantize  x, residual, weight, bias, eps, offset -> codes, scales, x + residual
                                                    is_centered, rounds, format, rounding
    mx_gate_quantize  x, ups, limit, alpha -> codes, scales
                                                    activation, interleaved, format, rounding

A residual and ups are [M, K], or [0, 0] for none, and so is what comes back of no residual; a
weight and a bias are [K], or [0]. What else holds, see `max_ops`; gfx950 has kernels of its own, and
the portable ones for what these do not take.
"""

import extensibility
from extensibility import InputTensor, ManagedTensorSlice, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_cpu
from std.sys import size_of

from ..backend import has_cdna4, is_nvidia
from ..calls import GateQuantizeCall, Norm, NormQuantizeCall, QuantizeCall
from ..cdna4.prepare.gates import quantize_gate
from ..cdna4.prepare.norms import quantize_norm
from ..cpu.max_runtime import RuntimeTeam
from ..cpu.prologue import run_gate_quantize, run_norm_quantize
from ..launch.context_queue import ContextQueue
from ..layouts import Plain
from ..numbers.formats import FORMATS
from ..numbers.gates import Gate
from ..numbers.norms import NO_ADDEND, Rounds
from ..simt import prologue as portable
from .max_tensors import address_of, check_shape, floats_of, operand_of
from .names import dtype_code, format_code, gate_code, rounding_of


@extensibility.register("mx_norm_quantize")
struct MXNormQuantize:
    """Quantizes [M, K] floats behind a norm."""

    @staticmethod
    def execute[
        dtype: DType,
        weights: DType,
        //,
        target: StaticString,
        is_centered: Bool,
        rounds: Int,
        format: StaticString,
        rounding: StaticString,
    ](
        codes: OutputTensor[dtype=DType.uint8, rank=2, ...],
        scales: OutputTensor[rank=2, ...],
        stream: OutputTensor[dtype=dtype, rank=2, ...],
        x: InputTensor[dtype=dtype, rank=2, ...],
        residual: InputTensor[dtype=dtype, rank=2, ...],
        weight: InputTensor[dtype=weights, rank=1, ...],
        bias: InputTensor[dtype=weights, rank=1, ...],
        eps: Float64,
        offset: Float32,
        context: DeviceContext,
    ) raises:
        """Checks and launches."""
        comptime assert weights == dtype or weights == DType.float32, "weight: expected float32"
        var rows, k = x.dim_size(0), x.dim_size(1)
        var has_residual = residual.dim_size(1) != 0
        if has_residual:
            check_shape("residual", residual, rows, k)
            check_shape("stream", stream, rows, k)
        var has_weight = _is_there("weight", weight, k)
        var has_bias = _is_there("bias", bias, k)
        var norm = Norm(
            is_centered=is_centered,
            rounds=Rounds(rounds),
            weight=address_of(weight) if has_weight else 0,
            bias=address_of(bias) if has_bias else 0,
            weights_are_float=weights == DType.float32,
            offset=offset if offset != 0 else NO_ADDEND,
            eps=eps,
            inv_k=1 / Float64(k),
            residual=address_of(residual) if has_residual else 0,
            residual_stride=k,
            stream=address_of(stream) if has_residual else 0,
        )
        var call = NormQuantizeCall(_call[format, rounding](x, codes, scales, k), norm)
        comptime if is_cpu[target]():
            _ = run_norm_quantize[known=format_code[format]()](call, RuntimeTeam(context))
        else:
            comptime assert is_nvidia() or has_cdna4(), "no kernels for this GPU"
            check_shape("x", x, rows, k)
            var queue = ContextQueue(context)
            if rows != 0:
                comptime if has_cdna4():
                    if quantize_norm[format_code[format](), dtype_code[dtype]()](call, queue):
                        return
                portable.norm_quantize[is_nvidia(), format_code[format]()](call, queue)


@extensibility.register("mx_gate_quantize")
struct MXGateQuantize:
    """Quantizes hidden numbers of gates and ups."""

    @staticmethod
    def execute[
        dtype: DType,
        //,
        target: StaticString,
        activation: StaticString,
        interleaved: Bool,
        format: StaticString,
        rounding: StaticString,
    ](
        codes: OutputTensor[dtype=DType.uint8, rank=2, ...],
        scales: OutputTensor[rank=2, ...],
        x: InputTensor[dtype=dtype, rank=2, ...],
        ups: InputTensor[dtype=dtype, rank=2, ...],
        limit: Float32,
        alpha: Float32,
        context: DeviceContext,
    ) raises:
        """Checks and launches."""
        var rows, k = x.dim_size(0), x.dim_size(1)
        var has_ups = ups.dim_size(1) != 0
        var gate = Gate(gate_code[activation](), interleaved and not has_ups, limit, alpha)
        var holds_both = gate.is_there() and not has_ups
        if holds_both:
            k //= 2
        var call = GateQuantizeCall(
            call=_call[format, rounding](x, codes, scales, k),
            gate=gate,
            ups=0,
            up_stride=0,
        )
        if has_ups:
            check_shape("ups", ups, rows, k)
            call.ups, call.up_stride = address_of(ups), k
        elif holds_both and not gate.interleaved:
            call.ups = call.call.values + k * size_of[dtype]()
            call.up_stride = call.call.row_stride
        comptime if is_cpu[target]():
            _ = run_gate_quantize[known=format_code[format]()](call, RuntimeTeam(context))
        else:
            comptime assert is_nvidia() or has_cdna4(), "no kernels for this GPU"
            check_shape("x", x, rows, x.dim_size(1))
            var queue = ContextQueue(context)
            if rows != 0:
                comptime if has_cdna4():
                    if quantize_gate[format_code[format](), dtype_code[dtype]()](call, queue):
                        return
                portable.gate_quantize[is_nvidia(), format_code[format]()](call, queue)


def _call[
    format: StaticString, rounding: StaticString, dtype: DType
](
    x: InputTensor[dtype=dtype, rank=2, ...],
    codes: OutputTensor[dtype=DType.uint8, rank=2, ...],
    scales: OutputTensor[rank=2, ...],
    k: Int,
) raises -> QuantizeCall:
    """Returns a call that quantizes rows of `k` numbers made of those of x."""
    comptime FORMAT_CODE = format_code[format]()
    var rows = x.dim_size(0)
    _ = floats_of("x", x)
    _ = operand_of[Plain, FORMATS[FORMAT_CODE]]("x", codes, scales, rows, k)
    return QuantizeCall(
        values=address_of(x),
        dtype=dtype_code[dtype](),
        row_stride=x.strides()[0],
        rows=rows,
        k=k,
        format=FORMAT_CODE,
        rounding=rounding_of[rounding](),
        codes=address_of(codes),
        scales=address_of(scales),
        tensor_scales=0,
    )


def _is_there(name: StaticString, tensor: ManagedTensorSlice[rank=1, ...], k: Int) raises -> Bool:
    """Says whether there are numbers for each of k elements."""
    var size = tensor.dim_size(0)
    if size != 0 and size != k:
        raise Error(String(name, ": got [", size, "], expected [", k, "] or [0]"))
    return size != 0

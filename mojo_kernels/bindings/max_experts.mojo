"""Experts as MAX custom ops: thin, no maths.

    mx_grouped_linear  x, w codes, w scales, rows, group sizes, bias -> floats
                                             activations, format, layout, rounding
    mx_grouped_matmul  the same of codes and scales for x
                                             left_format, right_format, layout
    mx_moe             x, gate-up codes, scales, down codes, scales, ids, weights, gate-up bias,
                       down bias, limit, alpha -> floats
                                             activation, interleaved, activations, rounding,
                                             gate_up_format, gate_up_layout, down_format, down_layout

Codes and scales have three dimensions, the first one counts experts; a bias is float32, of two, or
[0, 0] for none. What else holds, see `max_ops`. On the CPU sizes and ids that do not fit raise; a
GPU computes what `simt.experts` says, gfx950 with its own kernels, which want its own layout.
"""

import extensibility
from extensibility import InputTensor, OutputTensor, Tensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_cpu
from std.sys import size_of
from std.utils.index import IndexList

from ..backend import has_cdna4, is_nvidia
from ..cdna4.experts import dispatch as cdna4
from ..cdna4.host.choices import shapes_of_layer
from ..cdna4.host.experts import LayerTypes
from ..cdna4.moe_shape import is_fused
from ..cdna4.types import ProductTypes
from ..cpu import experts as cpu
from ..cpu.max_runtime import RuntimeTeam
from ..experts import Experts, ExpertsProblem, GroupedProblem, Routing
from ..launch.context_queue import ContextQueue
from ..layouts import LAYOUTS, Plain
from ..numbers.formats import FORMATS
from ..numbers.gates import Gate
from ..numbers.rounding import Rounding
from ..problem import Known, Left, LeftKind, NO_BIAS, Right
from ..simt import experts as portable
from .max_tensors import (
    StoredSizes,
    address_of,
    check_scale_dtype,
    check_shape,
    check_sizes,
    dim_of,
    known_floats,
    known_product,
    left_of,
    operand_of,
    with_bias,
)
from .names import dtype_code, format_code, gate_code


@extensibility.register("mx_grouped_linear")
struct MXGroupedLinear:
    """Multiplies rows that are sorted by expert."""

    @staticmethod
    def execute[
        x_dtype: DType,
        dtype: DType,
        //,
        target: StaticString,
        activations: StaticString,
        format: StaticString,
        layout: StaticString,
        rounding: StaticString,
    ](
        result: OutputTensor[dtype=dtype, rank=2, ...],
        x: InputTensor[dtype=x_dtype, rank=2, ...],
        w_codes: InputTensor[dtype=DType.uint8, rank=3, ...],
        w_scales: InputTensor[rank=3, ...],
        w_rows: Int64,
        group_sizes: InputTensor[dtype=DType.int32, rank=1, ...],
        bias: InputTensor[dtype=DType.float32, rank=2, ...],
        context: DeviceContext,
    ) raises:
        """Checks and launches."""
        comptime known = known_floats[layout, format, dtype, x_dtype, activations, rounding]()
        var m, n, k = x.dim_size(0), Int(w_rows), x.dim_size(1)
        var experts = _experts[known]("w", w_codes, w_scales, n, k, "bias", bias)
        check_sizes("group_sizes", group_sizes, IndexList[1](experts.count))
        check_shape("result", result, m, n)
        var problem = GroupedProblem(
            left=left_of[known](x),
            experts=experts,
            sizes=address_of(group_sizes),
            values=address_of(result),
            dtype=known.result_dtype,
            m=m,
            n=n,
            k=k,
        )
        comptime if is_cpu[target]():
            if not cpu.multiply_grouped[known](problem, RuntimeTeam(context)):
                raise Error(
                    String(
                        "group_sizes: got numbers that do not fit ",
                        m,
                        " rows of x, expected none negative and ",
                        m,
                        " or fewer together",
                    )
                )
        elif has_cdna4():
            check_shape("x", x, m, k)
            var queue = ContextQueue(context)
            comptime has_bias = Int(bias.static_spec.shape_tuple[1]) != 0
            comptime types = ProductTypes.of(with_bias(known, has_bias))
            cdna4.multiply_grouped[types](problem, queue)
        else:
            _require_nvidia["mx_grouped_linear", target]()
            var queue = ContextQueue(context)
            portable.multiply_grouped[known](problem, queue)


@extensibility.register("mx_grouped_matmul")
struct MXGroupedMatmul:
    """Multiplies rows of codes that are sorted by matrix."""

    @staticmethod
    def execute[
        dtype: DType,
        //,
        target: StaticString,
        left_format: StaticString,
        right_format: StaticString,
        layout: StaticString,
    ](
        result: OutputTensor[dtype=dtype, rank=2, ...],
        a_codes: InputTensor[dtype=DType.uint8, rank=2, ...],
        a_scales: InputTensor[rank=2, ...],
        b_codes: InputTensor[dtype=DType.uint8, rank=3, ...],
        b_scales: InputTensor[rank=3, ...],
        b_rows: Int64,
        group_sizes: InputTensor[dtype=DType.int32, rank=1, ...],
        bias: InputTensor[dtype=DType.float32, rank=2, ...],
        context: DeviceContext,
    ) raises:
        """Checks and launches."""
        comptime LEFT_CODE = format_code[left_format]()
        comptime Encoding = FORMATS[LEFT_CODE]
        comptime known = known_product[layout, right_format, dtype](
            LeftKind.ENCODED, 0, LEFT_CODE, Rounding.EVEN
        )
        var m, n, k = a_codes.dim_size(0), Int(b_rows), Encoding.elements(a_codes.dim_size(1))
        _ = operand_of[Plain, Encoding]("a", a_codes, a_scales, m, k)
        var experts = _experts[known]("b", b_codes, b_scales, n, k, "bias", bias)
        check_sizes("group_sizes", group_sizes, IndexList[1](experts.count))
        check_shape("result", result, m, n)
        var problem = GroupedProblem(
            left=Left.encoded(address_of(a_codes), address_of(a_scales), LEFT_CODE),
            experts=experts,
            sizes=address_of(group_sizes),
            values=address_of(result),
            dtype=known.result_dtype,
            m=m,
            n=n,
            k=k,
        )
        comptime if is_cpu[target]():
            if not cpu.multiply_grouped[known](problem, RuntimeTeam(context)):
                raise Error(String("a: got ", m, " rows, expected as many of each matrix of b"))
        else:
            _require_nvidia["mx_grouped_matmul", target]()
            var queue = ContextQueue(context)
            portable.multiply_grouped[known](problem, queue)


@extensibility.register("mx_moe")
struct MXMoe:
    """Computes a layer of experts."""

    @staticmethod
    def execute[
        x_dtype: DType,
        id_dtype: DType,
        weights_dtype: DType,
        dtype: DType,
        //,
        target: StaticString,
        activation: StaticString,
        interleaved: Bool,
        activations: StaticString,
        rounding: StaticString,
        gate_up_format: StaticString,
        gate_up_layout: StaticString,
        down_format: StaticString,
        down_layout: StaticString,
    ](
        result: OutputTensor[dtype=dtype, rank=2, ...],
        x: InputTensor[dtype=x_dtype, rank=2, ...],
        gate_up_codes: InputTensor[dtype=DType.uint8, rank=3, ...],
        gate_up_scales: InputTensor[rank=3, ...],
        down_codes: InputTensor[dtype=DType.uint8, rank=3, ...],
        down_scales: InputTensor[rank=3, ...],
        expert_ids: InputTensor[dtype=id_dtype, rank=2, ...],
        expert_weights: InputTensor[dtype=weights_dtype, rank=2, ...],
        bias_gate_up: InputTensor[dtype=DType.float32, rank=2, ...],
        bias_down: InputTensor[dtype=DType.float32, rank=2, ...],
        limit: Float32,
        alpha: Float32,
        context: DeviceContext,
    ) raises:
        """Checks and launches."""
        comptime assert (
            id_dtype == DType.int32 or id_dtype == DType.int64
        ), "expert_ids: expected int32 or int64"
        comptime known_up = known_floats[
            gate_up_layout, gate_up_format, x_dtype, x_dtype, activations, rounding
        ]()
        # What the first product leaves has the type of x.
        comptime known_down = known_floats[
            down_layout, down_format, DType.float32, x_dtype, activations, rounding
        ]()
        comptime DownFormat = FORMATS[known_down.right_format]
        var tokens, width = x.dim_size(0), x.dim_size(1)
        var slots = expert_ids.dim_size(1)
        var inner = DownFormat.elements(down_codes.dim_size(2))
        comptime code = gate_code[activation]()
        var gate = Gate(code, interleaved, limit, alpha)
        var gate_up = _experts[known_up](
            "w_gate_up",
            gate_up_codes,
            gate_up_scales,
            gate.sums(inner),
            width,
            "bias_gate_up",
            bias_gate_up,
        )
        var down = _experts[known_down](
            "w_down", down_codes, down_scales, width, inner, "bias_down", bias_down
        )
        if gate_up.count != down.count:
            raise Error(
                String(
                    "w_gate_up and w_down: got ",
                    gate_up.count,
                    " and ",
                    down.count,
                    " experts, expected as many",
                )
            )
        check_shape("expert_ids", expert_ids, tokens, slots)
        check_shape("expert_weights", expert_weights, tokens, slots)
        check_shape("result", result, tokens, width)
        var problem = ExpertsProblem(
            left=left_of[known_up](x),
            gate_up=gate_up,
            down=down,
            routing=Routing(
                ids=address_of(expert_ids),
                id_bytes=size_of[id_dtype](),
                weights=address_of(expert_weights),
                weights_dtype=dtype_code[weights_dtype](),
                tokens=tokens,
                slots=slots,
            ),
            gate=gate,
            values=address_of(result),
            dtype=dtype_code[dtype](),
            width=width,
            inner=inner,
        )
        comptime if is_cpu[target]():
            if not cpu.multiply_experts[known_up, known_down](problem, RuntimeTeam(context)):
                raise Error(
                    String(
                        "expert_ids: got an id beyond ",
                        gate_up.count - 1,
                        ", the last of ",
                        gate_up.count,
                        " experts; a negative id stands for none",
                    )
                )
        elif has_cdna4():
            check_shape("x", x, tokens, width)
            comptime has_bias_up = Int(bias_gate_up.static_spec.shape_tuple[1]) != 0
            comptime has_bias_down = Int(bias_down.static_spec.shape_tuple[1]) != 0
            comptime types = LayerTypes.of(
                ProductTypes.of(with_bias(known_up, has_bias_up)),
                ProductTypes.of(with_bias(known_down, has_bias_down)),
                dtype,
                1 if is_fused(Gate(code, interleaved, 1, 1)) else 0,
            )
            var queue = ContextQueue(context)
            cdna4.multiply_experts[types](problem, shapes_of_layer(types, problem), queue)
        else:
            _require_nvidia["mx_moe", target]()
            # Freed in the order of the stream.
            var num_bytes = portable.workspace_of(problem).num_bytes()
            var workspace = context.enqueue_create_buffer[DType.uint8](max(1, num_bytes))
            var queue = ContextQueue(context)
            queue.lent = Int(workspace.unsafe_ptr())
            portable.multiply_experts[known_up, known_down](problem, queue)
            _ = workspace^


@extensibility.register_shape_function("mx_grouped_linear")
def mx_grouped_linear_shape(
    x: Some[Tensor],
    w_codes: Some[Tensor],
    w_scales: Some[Tensor],
    w_rows: Int64,
    group_sizes: Some[Tensor],
    bias: Some[Tensor],
) -> IndexList[2]:
    """Returns [T, rows of w]."""
    return IndexList[2](dim_of(x, 0), Int(w_rows))


@extensibility.register_shape_function("mx_moe")
def mx_moe_shape(
    x: Some[Tensor],
    gate_up_codes: Some[Tensor],
    gate_up_scales: Some[Tensor],
    down_codes: Some[Tensor],
    down_scales: Some[Tensor],
    expert_ids: Some[Tensor],
    expert_weights: Some[Tensor],
    bias_gate_up: Some[Tensor],
    bias_down: Some[Tensor],
    limit: Float32,
    alpha: Float32,
) -> IndexList[2]:
    """Returns [T, H]."""
    return IndexList[2](dim_of(x, 0), dim_of(x, 1))


def _require_nvidia[operation: StaticString, target: StaticString]():
    """Stops the compilation of an op for a device that has no kernels."""
    comptime assert is_nvidia(), String(
        operation,
        " has no kernels for target '",
        target,
        "', only for CPUs, gfx950 and NVIDIA GPUs",
    )


def _experts[
    known: Known
](
    name: StaticString,
    codes: InputTensor[dtype=DType.uint8, rank=3, ...],
    scales: InputTensor[rank=3, ...],
    rows: Int,
    k: Int,
    bias_name: StaticString,
    bias: InputTensor[dtype=DType.float32, rank=2, ...],
) raises -> Experts:
    """Views codes and scales as matrices [rows, k], which they must have room for."""
    comptime Layout = LAYOUTS[known.layout]
    comptime Encoding = FORMATS[known.right_format]
    check_scale_dtype[Encoding, scales.dtype]()
    var sizes, count = StoredSizes.of[Layout, Encoding](rows, k), codes.dim_size(0)
    check_sizes(name, codes, IndexList[3](count, sizes.codes[0], sizes.codes[1]))
    check_sizes(name, scales, IndexList[3](count, sizes.scales[0], sizes.scales[1]))
    var bias_dtype = NO_BIAS
    if bias.dim_size(0) != 0 or bias.dim_size(1) != 0:
        check_shape(bias_name, bias, count, rows)
        bias_dtype = dtype_code[DType.float32]()
    return Experts(
        right=Right(address_of(codes), address_of(scales), known.right_format, known.layout),
        count=count,
        codes_step=sizes.codes[0] * sizes.codes[1],
        scales_step=sizes.scales[0] * sizes.scales[1] * Encoding.scale.bytes,
        bias=address_of(bias),
        bias_dtype=bias_dtype,
    )

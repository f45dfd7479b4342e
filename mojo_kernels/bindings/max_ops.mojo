"""The operations as MAX custom ops: thin, no maths.

    mx_quantize    x -> codes, scales                                        format, rounding
    mx_dequantize  codes, scales, rows -> floats                             format, layout
    mx_matmul      a codes, a scales, b codes, b scales, rows, bias -> floats
                                                      left_format, right_format, layout
    mx_linear      x, w codes, w scales, rows, bias -> floats
                                                activations, format, layout, rounding
    mx_matmul_floats  a, b, bias -> floats

All tensors have two dimensions, the last one along K. `rows` is the logical
number of rows of an operand, which padded layouts do not show. The bias is
float32 [N], or empty for none. Formats, layouts and roundings are compile-time names
from the tables; M may be symbolic. Shapes are compared again at run time,
before anything is written, because a graph may not know them earlier. Experts are in `max_experts`.

On a gfx950 GPU the products want preshuffled weights of known size, and the
kernel is `cdna4.dispatch`'s choice; a bias is there or not at compile time. On
an NVIDIA GPU weights have any layout, and `nvidia` picks.
"""

import extensibility
from extensibility import InputTensor, OutputTensor, Tensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_cpu
from std.utils.index import IndexList

from . import nvidia
from ..backend import has_hopper, is_nvidia
from ..cdna4 import dispatch as cdna4
from ..cdna4.host.choices import choose
from ..cdna4.host.table import KnownWeights
from ..cdna4.prepare.quantize import QuantizeKernel
from ..cdna4.types import ProductTypes, has_kernels, unsupported
from ..cpu import dispatch as cpu
from ..cpu.max_runtime import RuntimeTeam
from ..cpu.quantize import dequantize, quantize
from ..cpu.rows import FloatRows
from ..calls import DequantizeCall, QuantizeCall
from ..hopper.host import choices
from ..hopper.plan import Plan
from ..launch.context_queue import ContextQueue
from ..layouts import LAYOUTS, Plain, PreshuffledCdna4
from ..numbers.floats import FLOAT_TYPES
from ..numbers.formats import FORMATS, NO_FORMAT
from ..numbers.rounding import Rounding
from ..problem import Known, Left, LeftKind, NO_BIAS, Problem, Result, Right
from ..simt.quantize import dequantize as dequantize_portably, quantize as quantize_portably
from .max_tensors import (
    address_of,
    check_shape,
    dim_of,
    floats_of,
    known_floats,
    known_product,
    left_of,
    operand_of,
    with_bias,
)
from .names import dtype_code, format_code, layout_code, rounding_of


@extensibility.register("mx_quantize")
struct MXQuantize:
    """Quantizes [M, K] floats along K into a plain operand: codes and scales."""

    @staticmethod
    def execute[
        dtype: DType, //, target: StaticString, format: StaticString, rounding: StaticString
    ](
        codes: OutputTensor[dtype=DType.uint8, rank=2, ...],
        scales: OutputTensor[rank=2, ...],
        x: InputTensor[dtype=dtype, rank=2, ...],
        context: DeviceContext,
    ) raises:
        """Checks and launches."""
        var rows, k = x.dim_size(0), x.dim_size(1)
        comptime FORMAT_CODE = format_code[format]()
        var operand = operand_of[Plain, FORMATS[FORMAT_CODE]]("x", codes, scales, rows, k)
        comptime if is_cpu[target]():
            quantize(
                floats_of("x", x),
                operand,
                rounding_of[rounding](),
                RuntimeTeam(context),
            )
        elif is_nvidia():
            check_shape("x", x, rows, k)
            var call = QuantizeCall(
                values=address_of(x),
                dtype=dtype_code[dtype](),
                row_stride=k,
                rows=rows,
                k=k,
                format=FORMAT_CODE,
                rounding=rounding_of[rounding](),
                codes=address_of(codes),
                scales=address_of(scales),
                tensor_scales=0,
            )
            var queue = ContextQueue(context)
            quantize_portably[dtype_code[dtype](), FORMAT_CODE](call, queue)
        else:
            _require_gfx950["mx_quantize", target]()
            check_shape("x", x, rows, k)
            comptime Kernel = QuantizeKernel[FORMATS[FORMAT_CODE], dtype, rounding_of[rounding]()]
            var queue = ContextQueue(context)
            Kernel.launch(address_of(x), address_of(codes), address_of(scales), rows, k, queue)


@extensibility.register("mx_dequantize")
struct MXDequantize:
    """Decodes an operand in any layout to [rows, K] floats."""

    @staticmethod
    def execute[
        dtype: DType, //, target: StaticString, format: StaticString, layout: StaticString
    ](
        result: OutputTensor[dtype=dtype, rank=2, ...],
        codes: InputTensor[dtype=DType.uint8, rank=2, ...],
        scales: InputTensor[rank=2, ...],
        rows: Int64,
        context: DeviceContext,
    ) raises:
        """Checks and launches."""
        comptime Layout = LAYOUTS[layout_code[layout]()]
        comptime Encoding = FORMATS[format_code[format]()]
        var k = Encoding.elements(codes.dim_size(1))
        var operand = operand_of[Layout, Encoding]("q", codes, scales, Int(rows), k)
        check_shape("result", result, Int(rows), k)
        comptime if is_cpu[target]():
            var out = FloatRows(address_of(result), dtype_code[dtype](), Int(rows), k)
            dequantize(operand, out, RuntimeTeam(context))
        else:
            comptime assert is_nvidia(), String(
                "mx_dequantize has no kernels for target '",
                target,
                "', only for CPUs and NVIDIA GPUs",
            )
            var call = DequantizeCall(
                codes=address_of(codes),
                scales=address_of(scales),
                format=format_code[format](),
                layout=layout_code[layout](),
                rows=Int(rows),
                k=k,
                values=address_of(result),
                dtype=dtype_code[dtype](),
            )
            var queue = ContextQueue(context)
            dequantize_portably[layout_code[layout](), dtype_code[dtype](), format_code[format]()](
                call, queue
            )


@extensibility.register("mx_matmul")
struct MXMatmul:
    """Multiplies two operands: a @ b.T + bias as [M, rows of b]."""

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
        b_codes: InputTensor[dtype=DType.uint8, rank=2, ...],
        b_scales: InputTensor[rank=2, ...],
        b_rows: Int64,
        bias: InputTensor[dtype=DType.float32, rank=1, ...],
        context: DeviceContext,
    ) raises:
        """Checks and launches."""
        comptime LEFT_CODE = format_code[left_format]()
        comptime Encoding = FORMATS[LEFT_CODE]
        comptime known = known_product[layout, right_format, dtype](
            LeftKind.ENCODED, 0, LEFT_CODE, Rounding.EVEN
        )
        var rows, k = a_codes.dim_size(0), Encoding.elements(a_codes.dim_size(1))
        _ = operand_of[Plain, Encoding]("a", a_codes, a_scales, rows, k)
        var left = Left.encoded(address_of(a_codes), address_of(a_scales), LEFT_CODE)
        _multiply[known, target](
            left, rows, k, b_codes, b_scales, Int(b_rows), bias, result, context
        )


@extensibility.register("mx_linear")
struct MXLinear:
    """Multiplies floats by weights: x @ w.T + bias as [M, rows of w].

    Activations are a format, which the rounding rule quantizes to, or "bf16".
    """

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
        w_codes: InputTensor[dtype=DType.uint8, rank=2, ...],
        w_scales: InputTensor[rank=2, ...],
        w_rows: Int64,
        bias: InputTensor[dtype=DType.float32, rank=1, ...],
        context: DeviceContext,
    ) raises:
        """Checks and launches."""
        comptime known = known_floats[layout, format, dtype, x_dtype, activations, rounding]()
        var left = left_of[known](x)
        var rows, k = x.dim_size(0), x.dim_size(1)
        comptime if not is_cpu[target]():
            check_shape("x", x, rows, k)
        _multiply[known, target](
            left, rows, k, w_codes, w_scales, Int(w_rows), bias, result, context
        )


@extensibility.register("mx_matmul_floats")
struct MXMatmulFloats:
    """Multiplies floats by floats of their type on gfx950: a @ b.T as [M, N]."""

    @staticmethod
    def execute[
        x_dtype: DType, dtype: DType, //, target: StaticString
    ](
        result: OutputTensor[dtype=dtype, rank=2, ...],
        a: InputTensor[dtype=x_dtype, rank=2, ...],
        b: InputTensor[dtype=x_dtype, rank=2, ...],
        bias: InputTensor[dtype=DType.float32, rank=1, ...],
        context: DeviceContext,
    ) raises:
        """Checks and launches."""
        _require_gfx950["mx_matmul_floats", target]()
        comptime X = dtype_code[x_dtype]()
        comptime PLAIN = layout_code[Plain.NAME]()
        comptime has_bias = Int(bias.static_spec.shape_tuple[0]) != 0
        comptime rows = max(Int(b.static_spec.shape_tuple[0]), 0)
        comptime RESULT = dtype_code[dtype]()
        comptime BIAS = dtype_code[DType.float32]() if has_bias else NO_BIAS
        comptime types = ProductTypes.of(
            Known(
                kind=LeftKind.KEPT.code,
                dtype=X,
                left_format=NO_FORMAT,
                rounding=Rounding.EVEN.code,
                right_format=NO_FORMAT,
                layout=PLAIN,
                result_dtype=RESULT,
                bias_dtype=BIAS,
            )
        )
        var m, n, k = a.dim_size(0), b.dim_size(0), b.dim_size(1)
        check_shape("a", a, m, k)
        check_shape("b", b, n, k)
        _check_bias(bias, n)
        check_shape("result", result, m, n)
        if n == 0:
            return
        var problem = Problem(
            Left.kept(address_of(a), X, k),
            Right(address_of(b), 0, NO_FORMAT, PLAIN),
            Result(address_of(result), RESULT, address_of(bias), BIAS),
            m,
            n,
            k,
        )
        comptime weights = KnownWeights(rows, Int(b.static_spec.shape_tuple[1]) if rows > 0 else 0)
        var queue = ContextQueue(context)
        cdna4.launch[types, weights](problem, choose(m, n, k, types), queue)


@extensibility.register_shape_function("mx_dequantize")
def mx_dequantize_shape[
    format: StaticString
](codes: Some[Tensor], scales: Some[Tensor], rows: Int64) -> IndexList[2]:
    """Returns [rows, K]."""
    comptime Encoding = FORMATS[format_code[format]()]
    return IndexList[2](Int(rows), Encoding.elements(dim_of(codes, 1)))


@extensibility.register_shape_function("mx_matmul")
def mx_matmul_shape(
    a_codes: Some[Tensor],
    a_scales: Some[Tensor],
    b_codes: Some[Tensor],
    b_scales: Some[Tensor],
    b_rows: Int64,
    bias: Some[Tensor],
) -> IndexList[2]:
    """Returns [M, rows of b]."""
    return IndexList[2](dim_of(a_codes, 0), Int(b_rows))


@extensibility.register_shape_function("mx_matmul_floats")
def mx_matmul_floats_shape(a: Some[Tensor], b: Some[Tensor], bias: Some[Tensor]) -> IndexList[2]:
    """Returns [M, N]."""
    return IndexList[2](dim_of(a, 0), dim_of(b, 0))


@extensibility.register_shape_function("mx_linear")
def mx_linear_shape(
    x: Some[Tensor],
    w_codes: Some[Tensor],
    w_scales: Some[Tensor],
    w_rows: Int64,
    bias: Some[Tensor],
) -> IndexList[2]:
    """Returns [M, rows of w]."""
    return IndexList[2](dim_of(x, 0), Int(w_rows))


def _require_gfx950[operation: StaticString, target: StaticString]():
    """Stops the compilation of an op for a device that has no kernels."""
    comptime device = DeviceContext.default_device_info
    comptime assert device.arch_name == PreshuffledCdna4.DEVICE, String(
        operation,
        " has no kernels for target '",
        target,
        "' on ",
        device.name,
        ", only for CPUs, gfx950 and NVIDIA GPUs",
    )


def _multiply[
    known: Known, target: StaticString, dtype: DType
](
    left: Left,
    m: Int,
    k: Int,
    codes: InputTensor[dtype=DType.uint8, rank=2, ...],
    scales: InputTensor[rank=2, ...],
    n: Int,
    bias: InputTensor[dtype=DType.float32, rank=1, ...],
    result: OutputTensor[dtype=dtype, rank=2, ...],
    context: DeviceContext,
) raises:
    """Checks what `mx_matmul` and `mx_linear` share, and launches."""
    comptime Layout = LAYOUTS[known.layout]
    comptime Encoding = FORMATS[known.right_format]
    _ = operand_of[Layout, Encoding]("weights", codes, scales, n, k)
    _check_bias(bias, n)
    check_shape("result", result, m, n)
    var bias_dtype = dtype_code[DType.float32]() if bias.dim_size(0) != 0 else NO_BIAS
    var problem = Problem(
        left,
        Right(address_of(codes), address_of(scales), known.right_format, known.layout),
        Result(address_of(result), known.result_dtype, address_of(bias), bias_dtype),
        m,
        n,
        k,
    )
    comptime if is_cpu[target]():
        cpu.multiply[known](problem, RuntimeTeam(context))
    elif is_nvidia():
        _multiply_on_nvidia[known](problem, context)
    else:
        _require_gfx950["a product", target]()
        comptime num_biases = Int(bias.static_spec.shape_tuple[0])
        comptime stored_rows = Int(codes.static_spec.shape_tuple[0])
        comptime row_bytes = Int(codes.static_spec.shape_tuple[1])
        _multiply_on_gfx950[known, num_biases != 0, stored_rows, row_bytes](problem, context)


def _multiply_on_gfx950[
    known: Known, has_bias: Bool, stored_rows: Int, row_bytes: Int
](problem: Problem, context: DeviceContext) raises:
    """Launches on gfx950, where the sizes of the weights are known to a graph."""
    comptime Layout = LAYOUTS[known.layout]
    comptime assert Layout.NAME == PreshuffledCdna4.NAME, String(
        "weights: got layout '", Layout.NAME, "', on gfx950 expected '", PreshuffledCdna4.NAME, "'"
    )
    comptime types = ProductTypes.of(with_bias(known, has_bias))
    comptime assert has_kernels(types.formats), unsupported(types.formats)
    comptime k = types.formats.right.elements(row_bytes)
    comptime assert stored_rows > 0 and k > 0, "weights: expected [N, K] of known size on gfx950"
    var queue = ContextQueue(context)
    var chosen = choose(problem.m, problem.n, problem.k, types)
    cdna4.launch[types, KnownWeights(stored_rows, k)](problem, chosen, queue)


def _multiply_on_nvidia[known: Known](problem: Problem, context: DeviceContext) raises:
    """Launches on an NVIDIA GPU."""
    comptime is_kept = known.kind == LeftKind.KEPT.code
    comptime assert (
        not is_kept or FLOAT_TYPES[known.dtype] == DType.bfloat16
    ), "x: kept floats are bfloat16"
    if problem.m == 0:
        return
    # Freed in the order of the stream.
    var left, right = problem.left, problem.right
    var plan = Plan.PORTABLE
    var space = nvidia.workspace_of(problem.m, problem.n, problem.k)
    comptime if has_hopper():
        plan = choices.plan_of(problem, None)
        space = choices.lent(
            problem.m, problem.n, problem.k, left.format, right.format, right.layout
        )
    var workspace = context.enqueue_create_buffer[DType.uint8](max(1, space.num_bytes()))
    var queue = ContextQueue(context)
    queue.lent = Int(workspace.unsafe_ptr())
    nvidia.multiply[known](problem, plan, queue, is_lent=space.num_bytes() > 0)
    _ = workspace^


def _check_bias(bias: InputTensor[dtype=DType.float32, rank=1, ...], n: Int) raises:
    """Raises unless there is a number for each row of the weights, or none."""
    if bias.dim_size(0) not in (0, n):
        raise Error(String("bias: got [", bias.dim_size(0), "], expected [", n, "] or [0]"))

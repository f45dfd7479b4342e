"""The operations as MAX custom ops: thin, no maths.

    mx_quantize    x -> codes, scales
    mx_dequantize  codes, scales, rows -> floats
    mx_matmul      a codes, a scales, b codes, b scales, rows, bias -> floats
    mx_linear      x, w codes, w scales, rows, bias -> floats

All tensors have two dimensions, the last one along K. `rows` is the logical
number of rows of an operand, which padded layouts do not show. The bias is
float32 [N], or empty for none. Layouts and roundings are compile-time names
from the tables; M may be symbolic. Shapes are compared again at run time,
before anything is written, because a graph may not know them earlier.

On a gfx950 GPU the products want preshuffled weights of known size, and the
kernel is `cdna4.dispatch`'s choice; a bias is there or not at compile time. On
an NVIDIA GPU weights have any layout, and `nvidia` picks.
"""

import extensibility
from extensibility import InputTensor, ManagedTensorSlice, OutputTensor, Tensor
from layout.coord import coord_to_index_list
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_cpu
from std.utils.index import IndexList

from . import nvidia
from .backend import is_nvidia
from .cdna4 import multiply as cdna4
from .codec import FloatBits, Rounding
from .cpu.activations import Prequantized, QuantizedOnTheFly
from .cpu.max_runtime import RuntimeTeam
from .cpu.weights import CPU_TILES
from .formats import BLOCK, FORMAT
from .hopper.dispatch import Product, workspace_bytes
from .layouts import (
    LAYOUTS,
    OperandLayout,
    OperandShape,
    Plain,
    PreshuffledCdna4,
    code_rows,
    scale_blocks,
    scale_rows,
)
from .matmul import Encoded, Kept, LeftOperand, matmul
from .operands import Matrix, Operand, flat, matrix
from .python_arguments import DTYPES
from .quantize import dequantize, quantize
from .simt.launch import Queue
from .simt.problem import ENCODED, FLOATS, QUANTIZED
from .simt.quantize import dequantize as dequantize_portably


@extensibility.register("mx_quantize")
struct MXQuantize:
    """Quantizes [M, K] floats along K into codes [M, K / 2] and scales [M, K / 32].
    """

    @staticmethod
    def execute[
        dtype: DType, //, target: StaticString, rounding: StaticString
    ](
        codes: OutputTensor[dtype=DType.uint8, rank=2, ...],
        scales: OutputTensor[dtype=DType.uint8, rank=2, ...],
        x: InputTensor[dtype=dtype, rank=2, ...],
        context: DeviceContext,
    ) raises:
        """Checks and launches."""
        var rows, k = x.dim_size(0), x.dim_size(1)
        var operand = _operand[Plain]("x", codes, scales, rows, k)
        comptime if is_cpu[target]():
            quantize(
                _floats("x", x),
                operand,
                _rounding[rounding](),
                RuntimeTeam(context),
            )
        elif is_nvidia():
            _check_shape("x", x, rows, k)
            nvidia.quantize[dtype](
                Queue(context),
                _address(x),
                k,
                rows,
                k,
                _rounding[rounding](),
                _address(codes),
                _address(scales),
            )
        else:
            _require_gfx950["mx_quantize", target]()
            _check_shape("x", x, rows, k)
            cdna4.quantize[dtype, _rounding[rounding]()](
                context, _address(x), _address(codes), _address(scales), rows, k
            )


@extensibility.register("mx_dequantize")
struct MXDequantize:
    """Decodes an operand in any layout to [rows, K] floats."""

    @staticmethod
    def execute[
        dtype: DType, //, target: StaticString, layout: StaticString
    ](
        result: OutputTensor[dtype=dtype, rank=2, ...],
        codes: InputTensor[dtype=DType.uint8, rank=2, ...],
        scales: InputTensor[dtype=DType.uint8, rank=2, ...],
        rows: Int64,
        context: DeviceContext,
    ) raises:
        """Checks and launches."""
        comptime Layout = LAYOUTS[_layout_code[layout]()]
        var k = _k_of(codes.dim_size(1))
        var operand = _operand[Layout]("q", codes, scales, Int(rows), k)
        _check_shape("result", result, Int(rows), k)
        comptime if is_cpu[target]():
            dequantize(operand, _floats("result", result), RuntimeTeam(context))
        else:
            comptime assert is_nvidia(), String(
                "mx_dequantize has no kernels for target '",
                target,
                "', only for CPUs and NVIDIA GPUs",
            )
            dequantize_portably[Layout, dtype](
                Queue(context),
                _address(codes),
                _address(scales),
                Int(rows),
                k,
                _address(result),
            )


@extensibility.register("mx_matmul")
struct MXMatmul:
    """Multiplies two operands: a @ b.T + bias as [M, rows of b]."""

    @staticmethod
    def execute[
        dtype: DType, //, target: StaticString, layout: StaticString
    ](
        result: OutputTensor[dtype=dtype, rank=2, ...],
        a_codes: InputTensor[dtype=DType.uint8, rank=2, ...],
        a_scales: InputTensor[dtype=DType.uint8, rank=2, ...],
        b_codes: InputTensor[dtype=DType.uint8, rank=2, ...],
        b_scales: InputTensor[dtype=DType.uint8, rank=2, ...],
        b_rows: Int64,
        bias: InputTensor[dtype=DType.float32, rank=1, ...],
        context: DeviceContext,
    ) raises:
        """Checks and launches."""
        var k = _k_of(a_codes.dim_size(1))
        var a = _operand[Plain]("a", a_codes, a_scales, a_codes.dim_size(0), k)
        comptime if is_cpu[target]():
            var team = RuntimeTeam(context)
            var left = Encoded(Prequantized(a))
            _multiply[layout](
                left, b_codes, b_scales, Int(b_rows), bias, result, team
            )
        elif is_nvidia():
            var product = Product(kind=ENCODED)
            product.x = _address(a_codes)
            product.x_scales = _address(a_scales)
            _multiply_on_nvidia[layout](
                product,
                a.shape,
                b_codes,
                b_scales,
                Int(b_rows),
                bias,
                result,
                context,
            )
        else:
            _require_gfx950["mx_matmul", target]()
            _multiply_on_gfx950[layout, None, Rounding.EVEN](
                _address(a_codes),
                _address(a_scales),
                a.shape,
                b_codes,
                b_scales,
                Int(b_rows),
                bias,
                result,
                context,
            )


@extensibility.register("mx_linear")
struct MXLinear:
    """Multiplies floats by weights: x @ w.T + bias as [M, rows of w].

    Activations are "mxfp4", quantized by the rounding rule, or "bf16", which the rule leaves alone.
    """

    @staticmethod
    def execute[
        x_dtype: DType,
        dtype: DType,
        //,
        target: StaticString,
        layout: StaticString,
        rounding: StaticString,
        activations: StaticString,
    ](
        result: OutputTensor[dtype=dtype, rank=2, ...],
        x: InputTensor[dtype=x_dtype, rank=2, ...],
        w_codes: InputTensor[dtype=DType.uint8, rank=2, ...],
        w_scales: InputTensor[dtype=DType.uint8, rank=2, ...],
        w_rows: Int64,
        bias: InputTensor[dtype=DType.float32, rank=1, ...],
        context: DeviceContext,
    ) raises:
        """Checks and launches."""
        comptime is_kept = activations == "bf16"
        comptime assert (
            is_kept or activations == "mxfp4"
        ), "activations: got another name"
        comptime if is_cpu[target]():
            var team = RuntimeTeam(context)
            comptime if is_kept:
                var left = Kept(_floats("x", x))
                _multiply[layout](
                    left, w_codes, w_scales, Int(w_rows), bias, result, team
                )
            else:
                var left = Encoded(
                    QuantizedOnTheFly(_floats("x", x), _rounding[rounding]())
                )
                _multiply[layout](
                    left, w_codes, w_scales, Int(w_rows), bias, result, team
                )
        elif is_nvidia():
            comptime assert (
                x_dtype == DType.bfloat16 or not is_kept
            ), "x: kept floats are bfloat16"
            var shape = OperandShape(x.dim_size(0), x.dim_size(1))
            _check_shape("x", x, shape.rows, shape.k)
            var product = Product(kind=FLOATS if is_kept else QUANTIZED)
            product.x = _address(x)
            product.x_dtype = _dtype_code[x_dtype]()
            product.row_stride = shape.k
            product.carry = _rounding[rounding]().carry[
                FloatBits[DType.float32].MANTISSA_BITS
            ]()
            _multiply_on_nvidia[layout](
                product,
                shape,
                w_codes,
                w_scales,
                Int(w_rows),
                bias,
                result,
                context,
            )
        else:
            _require_gfx950["mx_linear", target]()
            comptime assert (
                not is_kept
            ), "activations: bf16 has no kernels for gfx950"
            var shape = OperandShape(x.dim_size(0), x.dim_size(1))
            _check_shape("x", x, shape.rows, shape.k)
            _multiply_on_gfx950[
                layout, Optional(x_dtype), _rounding[rounding]()
            ](
                _address(x),
                0,
                shape,
                w_codes,
                w_scales,
                Int(w_rows),
                bias,
                result,
                context,
            )


@extensibility.register_shape_function("mx_dequantize")
def mx_dequantize_shape(
    codes: Some[Tensor], scales: Some[Tensor], rows: Int64
) -> IndexList[2]:
    """Returns [rows, K]."""
    return IndexList[2](Int(rows), _k_of(_dim(codes, 1)))


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
    return IndexList[2](_dim(a_codes, 0), Int(b_rows))


@extensibility.register_shape_function("mx_linear")
def mx_linear_shape(
    x: Some[Tensor],
    w_codes: Some[Tensor],
    w_scales: Some[Tensor],
    w_rows: Int64,
    bias: Some[Tensor],
) -> IndexList[2]:
    """Returns [M, rows of w]."""
    return IndexList[2](_dim(x, 0), Int(w_rows))


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
    layout: StaticString, Left: LeftOperand, dtype: DType
](
    left: Left,
    codes: InputTensor[dtype=DType.uint8, rank=2, ...],
    scales: InputTensor[dtype=DType.uint8, rank=2, ...],
    n: Int,
    bias: InputTensor[dtype=DType.float32, rank=1, ...],
    result: OutputTensor[dtype=dtype, rank=2, ...],
    team: RuntimeTeam,
) raises:
    """Checks what `mx_matmul` and `mx_linear` share, and launches."""
    comptime Tiles = CPU_TILES[_layout_code[layout]()]
    var shape = left.shape()
    var weights = _operand[Tiles.Layout]("weights", codes, scales, n, shape.k)
    _check_bias(bias, n)
    _check_shape("result", result, shape.rows, n)
    var addend = flat[DType.float32](Int(bias.unsafe_ptr()), bias.dim_size(0))
    matmul(left, Tiles.of(weights), addend, _floats("result", result), team)


def _multiply_on_gfx950[
    layout: StaticString,
    x_dtype: Optional[DType],
    rounding: Rounding,
    dtype: DType,
](
    a: Int,
    a_scales: Int,
    shape: OperandShape,
    codes: InputTensor[dtype=DType.uint8, rank=2, ...],
    scales: InputTensor[dtype=DType.uint8, rank=2, ...],
    n: Int,
    bias: InputTensor[dtype=DType.float32, rank=1, ...],
    result: OutputTensor[dtype=dtype, rank=2, ...],
    context: DeviceContext,
) raises:
    """Checks what `mx_matmul` and `mx_linear` share, and launches."""
    comptime assert layout == PreshuffledCdna4.NAME, String(
        "weights: got layout '",
        layout,
        "', on gfx950 expected '",
        PreshuffledCdna4.NAME,
        "'",
    )
    _ = _operand[PreshuffledCdna4]("weights", codes, scales, n, shape.k)
    _check_bias(bias, n)
    _check_shape("result", result, shape.rows, n)
    comptime num_biases = Int(bias.static_spec.shape_tuple[0])
    comptime bias_dtype = Optional(
        DType.float32
    ) if num_biases != 0 else Optional[DType](None)
    comptime stored_rows = Int(codes.static_spec.shape_tuple[0])
    comptime k = _k_of(Int(codes.static_spec.shape_tuple[1]))
    comptime assert (
        stored_rows > 0 and k > 0
    ), "weights: expected [N, K] of known size on gfx950"
    cdna4.multiply[x_dtype, dtype, bias_dtype, rounding, stored_rows, k](
        context,
        cdna4.Product(
            a=a,
            a_scales=a_scales,
            w_codes=_address(codes),
            w_scales=_address(scales),
            result=_address(result),
            bias=_address(bias),
            m=shape.rows,
            n=n,
            k=shape.k,
        ),
    )


def _multiply_on_nvidia[
    layout: StaticString, dtype: DType
](
    activations: Product,
    shape: OperandShape,
    codes: InputTensor[dtype=DType.uint8, rank=2, ...],
    scales: InputTensor[dtype=DType.uint8, rank=2, ...],
    n: Int,
    bias: InputTensor[dtype=DType.float32, rank=1, ...],
    result: OutputTensor[dtype=dtype, rank=2, ...],
    context: DeviceContext,
) raises:
    """Checks what `mx_matmul` and `mx_linear` share, and launches."""
    comptime Layout = LAYOUTS[_layout_code[layout]()]
    _ = _operand[Layout]("weights", codes, scales, n, shape.k)
    _check_bias(bias, n)
    _check_shape("result", result, shape.rows, n)
    if shape.rows == 0:
        return

    # Freed in the order of the stream.
    var workspace = context.enqueue_create_buffer[DType.uint8](
        max(1, workspace_bytes(shape.rows, shape.k))
    )
    var product = activations
    product.codes = _address(codes)
    product.scales = _address(scales)
    product.rows = shape.rows
    product.columns = n
    product.k = shape.k
    product.output = _address(result)
    product.out_dtype = _dtype_code[dtype]()
    product.bias = _address(bias)
    product.bias_dtype = (
        _dtype_code[DType.float32]() if bias.dim_size(0) != 0 else -1
    )
    product.workspace = Int(workspace.unsafe_ptr())
    nvidia.multiply[Layout](Queue(context), product)
    _ = workspace^


def _dtype_code[dtype: DType]() -> Int:
    """Returns the position of an element type in the table."""
    comptime code = _dtype_code_or_none[dtype]()
    comptime assert code >= 0, String("no kernels for element type ", dtype)
    return code


def _dtype_code_or_none[dtype: DType]() -> Int:
    """Returns the position of an element type in the table, or -1."""
    comptime for i in range(len(DTYPES)):
        comptime if DTYPES[i] == dtype:
            return i
    return -1


def _check_bias(
    bias: InputTensor[dtype=DType.float32, rank=1, ...], n: Int
) raises:
    """Raises unless there is a number for each row of the weights, or none."""
    if bias.dim_size(0) not in (0, n):
        raise Error(
            String(
                "bias: got [", bias.dim_size(0), "], expected [", n, "] or [0]"
            )
        )


def _layout_code[name: StaticString]() -> Int:
    """Returns the position of a layout in the table."""
    comptime code = _layout_code_or_none[name]()
    comptime assert code >= 0, String("unknown layout '", name, "'")
    return code


def _layout_code_or_none[name: StaticString]() -> Int:
    """Returns the position of a layout in the table, or -1."""
    comptime for i in range(len(LAYOUTS)):
        comptime if LAYOUTS[i].NAME == name:
            return i
    return -1


def _rounding[name: StaticString]() -> Rounding:
    """Returns a rounding rule by its name."""
    comptime code = _rounding_code_or_none[name]()
    comptime assert code >= 0, String("unknown rounding '", name, "'")
    return Rounding(code)


def _rounding_code_or_none[name: StaticString]() -> Int:
    """Returns the position of a rounding rule in the table, or -1."""
    comptime for i in range(Rounding.COUNT):
        comptime if Rounding.NAMES[i] == name:
            return i
    return -1


def _dim(tensor: Some[Tensor], axis: Int) -> Int:
    """Returns a dimension of an argument of a shape function."""
    return coord_to_index_list(tensor.shape().tuple())[axis]


def _k_of(row_bytes: Int) -> Int:
    """Returns the number of elements whose codes fill `row_bytes`."""
    return row_bytes * 8 // FORMAT.element_bits


def _address(tensor: ManagedTensorSlice) -> Int:
    """Returns the address of the first element."""
    return Int(tensor.unsafe_ptr())


def _floats[
    dtype: DType
](
    name: StaticString, tensor: ManagedTensorSlice[dtype=dtype, rank=2, ...]
) raises -> Matrix[dtype]:
    """Views a tensor as rows of floats; neighbours of a row must be adjacent.
    """
    var strides = tensor.strides()
    if strides[1] != 1:
        raise Error(
            String(
                name, ": got strides ", strides, ", expected adjacent columns"
            )
        )
    return matrix[dtype](
        Int(tensor.unsafe_ptr()),
        tensor.dim_size(0),
        tensor.dim_size(1),
        strides[0],
    )


def _operand[
    Layout: OperandLayout
](
    name: StaticString,
    codes: ManagedTensorSlice[dtype=DType.uint8, rank=2, ...],
    scales: ManagedTensorSlice[dtype=DType.uint8, rank=2, ...],
    rows: Int,
    k: Int,
) raises -> Operand[Layout]:
    """Views codes and scales as an operand of shape [rows, k], which they must have room for.
    """
    if k <= 0 or k % BLOCK != 0:
        raise Error(
            String("got K = ", k, ", expected a positive multiple of ", BLOCK)
        )
    var shape = OperandShape(rows, k)
    _check_shape(name, codes, code_rows[Layout](shape), shape.row_bytes())
    _check_shape(
        name, scales, scale_rows[Layout](shape), scale_blocks[Layout](shape)
    )
    return Operand[Layout].at(
        Int(codes.unsafe_ptr()), Int(scales.unsafe_ptr()), rows, k
    )


def _check_shape(
    name: StaticString,
    tensor: ManagedTensorSlice[rank=2, ...],
    rows: Int,
    columns: Int,
) raises:
    """Raises unless a tensor is [rows, columns] and contiguous."""
    var expected = IndexList[2](rows, columns)
    if tensor.shape() != expected:
        raise Error(
            String(name, ": got ", tensor.shape(), ", expected ", expected)
        )
    if tensor.strides() != IndexList[2](columns, 1):
        raise Error(
            String(
                name,
                ": got strides ",
                tensor.strides(),
                ", expected contiguous",
            )
        )

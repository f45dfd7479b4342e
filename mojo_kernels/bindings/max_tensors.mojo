"""What MAX custom ops share: tensors of a graph as operands, and what a graph knows of them."""

from extensibility import ManagedTensorSlice, Tensor
from layout.coord import coord_to_index_list
from std.utils.index import IndexList

from ..layouts import OperandLayout, OperandShape, code_rows, e4m3_bytes_of, e4m3_row_bytes
from ..layouts import scale_blocks, scale_rows
from ..numbers.formats import Format, K_MULTIPLE
from ..numbers.rounding import Rounding
from ..numbers.scales import Scale
from ..operands import Matrix, Operand, matrix
from ..problem import ANY, Known, Left, LeftKind, NO_BIAS
from .names import (
    INTEGERS,
    KEPT,
    activations_code,
    dtype_code,
    format_code,
    layout_code,
    rounding_of,
)


def known_product[
    layout: StaticString, right_format: StaticString, dtype: DType
](kind: LeftKind, x_dtype: Int, left_format: Int, rounding: Rounding) -> Known:
    """Returns what a graph knows of a product when it is compiled."""
    return Known(
        kind=kind.code,
        dtype=x_dtype,
        left_format=left_format,
        rounding=rounding.code,
        right_format=format_code[right_format](),
        layout=layout_code[layout](),
        result_dtype=dtype_code[dtype](),
        bias_dtype=ANY,
    )


def known_floats[
    layout: StaticString,
    right_format: StaticString,
    dtype: DType,
    x_dtype: DType,
    activations: StaticString,
    rounding: StaticString,
]() -> Known:
    """Returns the same of a product of floats, by the names of what becomes of them."""
    comptime OTHER = LeftKind.INTEGERS if activations == INTEGERS else LeftKind.QUANTIZED
    comptime KIND = LeftKind.KEPT if activations == KEPT else OTHER
    return known_product[layout, right_format, dtype](
        KIND, dtype_code[x_dtype](), activations_code[activations](), rounding_of[rounding]()
    )


def with_bias(known: Known, has_bias: Bool) -> Known:
    """Returns what is known where the bias is known too."""
    var result = known
    result.bias_dtype = dtype_code[DType.float32]() if has_bias else NO_BIAS
    return result


def left_of[
    dtype: DType, //, known: Known
](x: ManagedTensorSlice[dtype=dtype, rank=2, ...]) raises -> Left:
    """Takes floats as a left side, quantized or not."""
    _ = floats_of("x", x)
    var row_stride = x.strides()[0]
    comptime if known.kind == LeftKind.KEPT.code:
        return Left.kept(address_of(x), known.dtype, row_stride)
    elif known.kind == LeftKind.INTEGERS.code:
        return Left.integers(address_of(x), known.dtype, row_stride)
    else:
        return Left.quantized(
            address_of(x), known.dtype, row_stride, known.left_format, Rounding(known.rounding)
        )


def dim_of(tensor: Some[Tensor], axis: Int) -> Int:
    """Returns a dimension of an argument of a shape function."""
    return coord_to_index_list(tensor.shape().tuple())[axis]


def address_of(tensor: ManagedTensorSlice) -> Int:
    """Returns the address of the first element."""
    return Int(tensor.unsafe_ptr())


def floats_of[
    dtype: DType
](name: StaticString, tensor: ManagedTensorSlice[dtype=dtype, rank=2, ...]) raises -> Matrix[dtype]:
    """Views a tensor as rows of floats; neighbours of a row must be adjacent."""
    var strides = tensor.strides()
    if strides[1] != 1:
        raise Error(String(name, ": got strides ", strides, ", expected adjacent columns"))
    return matrix[dtype](
        Int(tensor.unsafe_ptr()),
        tensor.dim_size(0),
        tensor.dim_size(1),
        strides[0],
    )


@fieldwise_init
struct StoredSizes(TrivialRegisterPassable):
    """The sizes of codes and scales that hold a matrix."""

    var codes: IndexList[2]
    var scales: IndexList[2]

    @staticmethod
    def of[Layout: OperandLayout, format: Format](rows: Int, k: Int) raises -> Self:
        """Returns those of [rows, k], a shape that there are kernels for."""
        if k <= 0 or k % K_MULTIPLE != 0:
            raise Error(String("got K = ", k, ", expected a positive multiple of ", K_MULTIPLE))
        var shape = OperandShape(rows, k)
        var row_bytes = shape.row_bytes[format]()
        if row_bytes % Layout.BYTE_MULTIPLE != 0:
            raise Error(
                String(
                    t"got {row_bytes} bytes of codes a row, expected a multiple of "
                    t"{Layout.BYTE_MULTIPLE} for layout {Layout.NAME}"
                )
            )
        var scales = IndexList[2](scale_rows[Layout](shape), scale_blocks[Layout, format](shape))
        comptime if format.scale == Scale.FLOAT32:
            comptime BLOCK = format.block()
            scales = IndexList[2](BLOCK.row_blocks(rows), BLOCK.k_blocks(k))
        elif format.scale == Scale.E4M3:
            var row_bytes = e4m3_row_bytes[Layout](k)
            scales = IndexList[2](e4m3_bytes_of[Layout](rows, k) // row_bytes, row_bytes)
        return Self(IndexList[2](code_rows[Layout](shape), row_bytes), scales)


def check_scale_dtype[format: Format, dtype: DType]():
    """Stops the compilation of an op for scales of another type than the format's."""
    comptime expected = DType.float32 if format.scale == Scale.FLOAT32 else DType.uint8
    comptime assert dtype == expected, String("scales: got ", dtype, ", expected ", expected)


def operand_of[
    Layout: OperandLayout, format: Format
](
    name: StaticString,
    codes: ManagedTensorSlice[dtype=DType.uint8, rank=2, ...],
    scales: ManagedTensorSlice[rank=2, ...],
    rows: Int,
    k: Int,
) raises -> Operand[Layout, format.kin()]:
    """Views codes and scales as an operand of shape [rows, k], which they must have room for."""
    check_scale_dtype[format, scales.dtype]()
    var sizes = StoredSizes.of[Layout, format](rows, k)
    check_sizes(name, codes, sizes.codes)
    check_sizes(name, scales, sizes.scales)
    return Operand[Layout, format.kin()].at(
        address_of(codes), address_of(scales), rows, k, format.block()
    )


def check_shape(
    name: StaticString,
    tensor: ManagedTensorSlice[rank=2, ...],
    rows: Int,
    columns: Int,
) raises:
    """Raises unless a tensor is [rows, columns] and contiguous."""
    check_sizes(name, tensor, IndexList[2](rows, columns))


def check_sizes[
    rank: Int, //
](name: StaticString, tensor: ManagedTensorSlice[rank=rank, ...], expected: IndexList[rank]) raises:
    """Raises unless a tensor has the sizes that are expected and is contiguous."""
    if tensor.shape() != expected:
        raise Error(String(name, ": got ", tensor.shape(), ", expected ", expected))
    var stride = 1
    comptime for i in range(rank):
        comptime axis = rank - 1 - i
        if tensor.strides()[axis] != stride:
            raise Error(String(name, ": got strides ", tensor.strides(), ", expected contiguous"))
        stride *= expected[axis]

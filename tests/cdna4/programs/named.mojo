"""The decode kernels that tests launch, by name:

    <op>_<input>_<rounding>_<output>_<bias>_m<tiles>n<tiles>k<tiles>w<waves>d<depth>s<splits>a<sharers>[u][t]

Before it may stand a shape, or the formats of both sides, <left>-<right>/, unless they are MXFP4.
`u` marks a kernel that fetches all chunks up front, `t` one for a K that ends within a chunk;
matmul has no input and no rounding.
"""

from mojo_kernels.cdna4.catalogue import ListedProduct, Visitor
from mojo_kernels.cdna4.decode.kernel import DecodeKernel
from mojo_kernels.cdna4.decode.shape import DecodeShape
from mojo_kernels.cdna4.operands.target import NO_BIAS
from mojo_kernels.cdna4.types import Formats, ProductTypes
from mojo_kernels.numbers.rounding import Rounding

comptime BF16 = DType.bfloat16
comptime F16 = DType.float16
comptime F32 = DType.float32


def name_of(op: String, types: ProductTypes, shape: DecodeShape) -> String:
    """Returns the name of a kernel."""
    var bias_name = String(types.bias.value()) if types.bias else "none"
    var tail = "t" if shape.k_tail else ""
    return String(
        op, "_", types.out, "_", bias_name, "_m", shape.m_tiles, "n", shape.n_tiles, "k", shape.k_tiles,
        "w", shape.waves, "d", shape.depth, "s", shape.splits, "a", shape.sharers, "u" if shape.up_front else "", tail,
    )  # fmt: skip


def show_linear[
    shape: DecodeShape,
    x: DType = BF16,
    result: DType = BF16,
    bias: Optional[DType] = NO_BIAS,
    rounding: Rounding = Rounding.EVEN,
    formats: Formats = Formats.MXFP4,
](mut visitor: Some[Visitor], prefix: String = "") raises:
    """Shows a linear kernel."""
    comptime types = ProductTypes(formats, Optional(x), rounding, result, bias)
    comptime rule = Rounding.NAMES[rounding.code]
    visitor.kernel[ListedProduct[types, DecodeKernel[types, shape]]](
        name_of(String(prefix, "linear_", x, "_", rule), types, shape)
    )


def show_matmul[
    shape: DecodeShape,
    result: DType = BF16,
    bias: Optional[DType] = NO_BIAS,
    formats: Formats = Formats.MXFP4,
](mut visitor: Some[Visitor], prefix: String = "") raises:
    """Shows a matmul kernel."""
    comptime types = ProductTypes(formats, None, Rounding.EVEN, result, bias)
    visitor.kernel[ListedProduct[types, DecodeKernel[types, shape]]](
        name_of(String(prefix, "matmul"), types, shape)
    )


def shape_of(
    m_tiles: Int,
    n_tiles: Int,
    k_tiles: Int,
    waves: Int,
    depth: Int = 1,
    splits: Int = 1,
    sharers: Int = 1,
    up_front: Bool = False,
    k_tail: Bool = False,
) -> DecodeShape:
    """Returns a shape."""
    return DecodeShape(m_tiles, n_tiles, k_tiles, waves, depth, k_tail, splits, sharers, up_front)

"""The prefill kernels that tests launch, by name:

    matmul_m<tiles of rows of a wave>_<output>_<bias>[t]
    linear_m<tiles>_<input>_<output>_<bias>[t]

Before it may stand the formats of both sides, <left>-<right>/, unless they are MXFP4, and that
codes lie column by column, <left>-<right>-columns/. `t` marks a
kernel for a K that ends within a stage.
"""

from mojo_kernels.cdna4.catalogue import ListedProduct, Visitor
from mojo_kernels.cdna4.ping_pong.kernel import PingPongKernel
from mojo_kernels.cdna4.types import Formats, ProductTypes, name_of
from mojo_kernels.numbers.rounding import Rounding

comptime BF16 = DType.bfloat16
comptime F16 = DType.float16
comptime F32 = DType.float32


def prefix_of(formats: Formats) -> String:
    """Returns what stands before the name of a kernel."""
    if formats == Formats.MXFP4:
        return ""
    var order = "-columns" if formats.are_columns else ""
    return String(name_of(formats.left), "-", name_of(formats.right), order, "/")


def suffix_of(types: ProductTypes, k_tail: Bool) -> String:
    """Returns what stands behind."""
    var bias = String(types.bias.value()) if types.bias else "none"
    return String("_", types.out, "_", bias, "t" if k_tail else "")


def show_matmul[
    m_tiles: Int,
    result: DType,
    bias: Optional[DType],
    k_tail: Bool,
    formats: Formats = Formats.MXFP4,
](mut visitor: Some[Visitor]) raises:
    """Shows a matmul kernel."""
    comptime types = ProductTypes(formats, None, Rounding.EVEN, result, bias)
    visitor.kernel[ListedProduct[types, PingPongKernel[types, m_tiles, k_tail]]](
        String(prefix_of(formats), "matmul_m", m_tiles, suffix_of(types, k_tail))
    )


def show_linear[
    m_tiles: Int,
    x: DType,
    result: DType,
    bias: Optional[DType],
    k_tail: Bool,
    formats: Formats = Formats.MXFP4,
](mut visitor: Some[Visitor]) raises:
    """Shows a linear kernel."""
    comptime types = ProductTypes(formats, Optional(x), Rounding.EVEN, result, bias)
    visitor.kernel[ListedProduct[types, PingPongKernel[types, m_tiles, k_tail]]](
        String(prefix_of(formats), "linear_m", m_tiles, "_", x, suffix_of(types, k_tail))
    )

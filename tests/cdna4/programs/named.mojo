"""The decode kernels that tests launch, by name:

    <op>_<input>_<rounding>_<output>_<bias>_<cut>[t]

Before it may stand the formats of both sides, <left>-<right>/, unless they are MXFP4. The cut is as
`StreamingShape.name` writes it; `t` marks a kernel for a K that ends within a chunk. matmul has no
input and no rounding.
"""

from mojo_kernels.cdna4.catalogue import ListedProduct, Visitor
from mojo_kernels.cdna4.streaming.kernel import StreamingKernel
from mojo_kernels.cdna4.streaming.shape import StreamingShape
from mojo_kernels.cdna4.epilogue.target import NO_BIAS
from mojo_kernels.cdna4.types import Formats, ProductTypes
from mojo_kernels.numbers.rounding import Rounding

comptime BF16 = DType.bfloat16
comptime F16 = DType.float16
comptime F32 = DType.float32


def shape_of(cut: StaticString) -> StreamingShape:
    """Returns the cut of a name, with its mark."""
    return StreamingShape.named(String(cut), k_tail=cut.endswith("t"))


def name_of(op: String, types: ProductTypes, cut: StaticString) -> String:
    """Returns the name of a kernel."""
    var bias_name = String(types.bias.value()) if types.bias else "none"
    return String(op, "_", types.out, "_", bias_name, "_", cut)


def show_linear[
    cut: StaticString,
    x: DType = BF16,
    result: DType = BF16,
    bias: Optional[DType] = NO_BIAS,
    rounding: Rounding = Rounding.EVEN,
    formats: Formats = Formats.MXFP4,
](mut visitor: Some[Visitor], prefix: String = "") raises:
    """Shows a linear kernel."""
    comptime types = ProductTypes(formats, Optional(x), rounding, result, bias)
    comptime rule = Rounding.NAMES[rounding.code]
    visitor.kernel[ListedProduct[types, StreamingKernel[types, shape_of(cut)]]](
        name_of(String(prefix, "linear_", x, "_", rule), types, cut)
    )


def show_matmul[
    cut: StaticString,
    result: DType = BF16,
    bias: Optional[DType] = NO_BIAS,
    formats: Formats = Formats.MXFP4,
](mut visitor: Some[Visitor], prefix: String = "") raises:
    """Shows a matmul kernel."""
    comptime types = ProductTypes(formats, None, Rounding.EVEN, result, bias)
    visitor.kernel[ListedProduct[types, StreamingKernel[types, shape_of(cut)]]](
        name_of(String(prefix, "matmul"), types, cut)
    )

"""The prefill kernels, by name:

    matmul_m<tiles of rows of a wave>_<output>_<bias>[t]
    linear_m<tiles>_<input>_<output>_<bias>[t]

`t` marks a kernel for a K that ends within a stage.
"""

from std.os import abort
from std.python import PythonObject

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.host.catalogue import Catalogue, ListedProduct, Visitor
from mojo_kernels.cdna4.operands.target import NO_BIAS
from mojo_kernels.cdna4.prefill.kernel import PrefillKernel
from mojo_kernels.cdna4.types import Formats, ProductTypes
from mojo_kernels.numbers.rounding import Rounding

comptime BF16 = DType.bfloat16
comptime F16 = DType.float16
comptime F32 = DType.float32


def name_of(op: String, types: ProductTypes, k_tail: Bool) -> String:
    """Returns the name of a kernel."""
    var bias = String(types.bias.value()) if types.bias else "none"
    return String(op, "_", types.out, "_", bias, "t" if k_tail else "")


def show_matmul[
    m_tiles: Int, result: DType, bias: Optional[DType], k_tail: Bool
](mut visitor: Some[Visitor]) raises:
    """Shows a matmul kernel."""
    comptime types = ProductTypes(Formats.MXFP4, None, Rounding.EVEN, result, bias)
    visitor.kernel[ListedProduct[types, PrefillKernel[types, m_tiles, k_tail]]](
        name_of(String("matmul_m", m_tiles), types, k_tail)
    )


def show_linear[
    m_tiles: Int, x: DType, result: DType, bias: Optional[DType], k_tail: Bool
](mut visitor: Some[Visitor]) raises:
    """Shows a linear kernel."""
    comptime types = ProductTypes(Formats.MXFP4, Optional(x), Rounding.EVEN, result, bias)
    visitor.kernel[ListedProduct[types, PrefillKernel[types, m_tiles, k_tail]]](
        name_of(String("linear_m", m_tiles, "_", x), types, k_tail)
    )


struct Prefill(Catalogue):
    """Every kernel."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        show_matmul[8, BF16, NO_BIAS, False](visitor)
        show_matmul[8, F32, Optional(F32), True](visitor)
        show_matmul[4, BF16, Optional(BF16), False](visitor)
        show_matmul[4, BF16, NO_BIAS, True](visitor)
        show_linear[8, BF16, BF16, NO_BIAS, False](visitor)
        show_linear[8, BF16, F32, Optional(F32), True](visitor)
        show_linear[8, F32, BF16, NO_BIAS, False](visitor)
        show_linear[4, BF16, BF16, NO_BIAS, False](visitor)
        show_linear[4, F16, BF16, Optional(BF16), True](visitor)


@export
def PyInit_prefill() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Prefill]("prefill")
    except error:
        abort(String("cannot create prefill: ", error))

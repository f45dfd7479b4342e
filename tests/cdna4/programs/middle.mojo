"""The middle kernels that tests launch, by name:

    m<tiles of rows>n<tiles of columns of a wave>d<depth>s<splits>w<waves>_<output>_<bias>[t]

t: K may end within a stage.
"""

from std.os import abort
from std.python import PythonObject

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, ListedProduct, Visitor
from mojo_kernels.cdna4.middle.kernel import MiddleKernel
from mojo_kernels.cdna4.middle.shape import MiddleShape
from mojo_kernels.cdna4.operands.target import NO_BIAS
from mojo_kernels.cdna4.types import Formats, ProductTypes
from mojo_kernels.numbers.rounding import Rounding

comptime BF16 = DType.bfloat16
comptime F32 = DType.float32


def show[
    shape: MiddleShape, result: DType, bias: Optional[DType], k_tail: Bool = False
](mut visitor: Some[Visitor]) raises:
    """Shows a kernel."""
    comptime types = ProductTypes(Formats.MXFP4, None, Rounding.EVEN, result, bias)
    var cut = String("m", shape.m_tiles, "n", shape.n_tiles, "d", shape.depth, "s", shape.splits)
    cut += String("w", shape.waves)
    var bias_name = String(types.bias.value()) if types.bias else "none"
    visitor.kernel[ListedProduct[types, MiddleKernel[types, shape, k_tail]]](
        String(cut, "_", result, "_", bias_name, "t" if k_tail else "")
    )


struct Middle(Catalogue):
    """Narrow and wide cuts of every depth, with and without a split of K."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        show[MiddleShape(4, 2, 4, 1), BF16, NO_BIAS](visitor)
        show[MiddleShape(4, 2, 4, 2), BF16, Optional(BF16)](visitor)
        show[MiddleShape(4, 4, 3, 2), F32, Optional(F32)](visitor)
        show[MiddleShape(4, 2, 4, 4), BF16, NO_BIAS](visitor)
        show[MiddleShape(8, 2, 3, 3), BF16, Optional(BF16)](visitor)
        show[MiddleShape(12, 4, 3, 1), BF16, NO_BIAS](visitor)
        show[MiddleShape(8, 3, 3, 1), BF16, Optional(BF16)](visitor)
        show[MiddleShape(14, 2, 3, 1), BF16, Optional(F32)](visitor)
        show[MiddleShape(8, 6, 2, 1), BF16, Optional(BF16)](visitor)
        show[MiddleShape(8, 4, 2, 2), BF16, Optional(BF16)](visitor)
        show[MiddleShape(16, 2, 2, 1, waves=8), BF16, Optional(F32)](visitor)
        show[MiddleShape(8, 4, 2, 1, waves=8), BF16, NO_BIAS](visitor)
        show[MiddleShape(4, 2, 4, 1), BF16, NO_BIAS, True](visitor)
        show[MiddleShape(6, 2, 3, 2), BF16, Optional(BF16), True](visitor)
        show[MiddleShape(14, 3, 2, 1), F32, Optional(F32), True](visitor)
        show[MiddleShape(12, 4, 2, 1), BF16, NO_BIAS, True](visitor)
        show[MiddleShape(16, 2, 2, 1, waves=8), BF16, Optional(F32), True](visitor)


@export
def PyInit_middle() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Middle]("middle")
    except error:
        abort(String("cannot create middle: ", error))

"""The middle kernels that tests launch, by name:

    <cut>d<depth>[w<waves>]_<output>_<bias>[t]

The cut is as `InterleavedShape.name` writes it. t: K may end within a stage.
"""

from std.os import abort
from std.python import PythonObject

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, ListedProduct, Visitor
from mojo_kernels.cdna4.interleaved.kernel import InterleavedKernel
from mojo_kernels.cdna4.interleaved.shape import InterleavedShape
from mojo_kernels.cdna4.epilogue.target import NO_BIAS
from mojo_kernels.cdna4.types import Formats, ProductTypes
from mojo_kernels.numbers.rounding import Rounding

comptime BF16 = DType.bfloat16
comptime F32 = DType.float32


def show[
    cut: StaticString, result: DType, bias: Optional[DType], k_tail: Bool = False
](mut visitor: Some[Visitor]) raises:
    """Shows a kernel."""
    comptime types = ProductTypes(Formats.MXFP4, None, Rounding.EVEN, result, bias)
    comptime shape = InterleavedShape.named(String(cut))
    var bias_name = String(types.bias.value()) if types.bias else "none"
    visitor.kernel[ListedProduct[types, InterleavedKernel[types, shape, k_tail]]](
        String(cut, "_", result, "_", bias_name, "t" if k_tail else "")
    )


struct Middle(Catalogue):
    """Narrow and wide cuts of every depth, with and without a split of K."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        show["middle64x128d4", BF16, NO_BIAS](visitor)
        show["middle64x128s2d4", BF16, Optional(BF16)](visitor)
        show["middle96x256s2d3", F32, Optional(F32)](visitor)
        show["middle96x128s4d4", BF16, NO_BIAS](visitor)
        show["middle128x128s3d3", BF16, Optional(BF16)](visitor)
        show["middle192x256d2", BF16, NO_BIAS](visitor)
        show["middle128x192d3", BF16, Optional(BF16)](visitor)
        show["middle224x128d3", BF16, Optional(F32)](visitor)
        show["middle128x384d2", BF16, Optional(BF16)](visitor)
        show["middle128x256s2d2", BF16, Optional(BF16)](visitor)
        show["middle256x256d2w8", BF16, Optional(F32)](visitor)
        show["middle128x512d2w8", BF16, NO_BIAS](visitor)
        show["middle224x256d2", BF16, Optional(F32)](visitor)
        show["middle64x128d4", BF16, NO_BIAS, True](visitor)
        show["middle96x128s2d3", BF16, Optional(BF16), True](visitor)
        show["middle224x192d2", F32, Optional(F32), True](visitor)
        show["middle192x256d2", BF16, NO_BIAS, True](visitor)
        show["middle256x256d2w8", BF16, Optional(F32), True](visitor)


@export
def PyInit_middle() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Middle]("middle")
    except error:
        abort(String("cannot create middle: ", error))

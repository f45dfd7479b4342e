"""The middle kernels for activations of six and eight bits that tests launch, by name:

    <left>-<right>/<cut>d<depth>_<output>_<bias>[t]

The cut is as `InterleavedShape.name` writes it; `t` marks a kernel for a K that ends within a stage.
"""

from std.os import abort
from std.python import PythonObject

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, ListedProduct, Visitor
from mojo_kernels.cdna4.interleaved.kernel import InterleavedKernel
from mojo_kernels.cdna4.interleaved.shape import InterleavedShape
from mojo_kernels.cdna4.epilogue.target import NO_BIAS
from mojo_kernels.cdna4.types import Formats, ProductTypes, name_of
from mojo_kernels.numbers.formats import Format
from mojo_kernels.numbers.rounding import Rounding

comptime BF16 = DType.bfloat16
comptime F32 = DType.float32
comptime PAIRS = [
    Formats(Format.FP8_BLOCK, Format.FP8_BLOCK_2D),
    Formats(Format.FP8, Format.FP8),
    Formats(Format.MXFP8, Format.MXFP8),
    Formats(Format.MXFP8, Format.MXFP4),
    Formats(Format.MXFP6, Format.MXFP4),
]
"""Scales of blocks, of rows, and of MX on weights of eight and of four bits; six-bit codes."""


def show[
    formats: Formats,
    cut: StaticString,
    result: DType = BF16,
    bias: Optional[DType] = NO_BIAS,
    k_tail: Bool = False,
](mut visitor: Some[Visitor]) raises:
    """Shows a kernel."""
    comptime types = ProductTypes(formats, None, Rounding.EVEN, result, bias)
    comptime shape = InterleavedShape.named(String(cut), bits=formats.left.element.bits)
    var pair = String(name_of(formats.left), "-", name_of(formats.right))
    var bias_name = String(types.bias.value()) if types.bias else "none"
    visitor.kernel[ListedProduct[types, InterleavedKernel[types, shape, k_tail]]](
        String(pair, "/", cut, "_", result, "_", bias_name, "t" if k_tail else "")
    )


struct MiddleWide(Catalogue):
    """The smallest cut of each pair, split, and a large one; more for block scales and six bits."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime for formats in PAIRS:
            show[formats, "middle64x64s3d4", F32, Optional(F32)](visitor)
            show[formats, "middle128x256d3"](visitor)
        comptime BLOCKS = PAIRS[0]
        show[BLOCKS, "middle64x64d4"](visitor)
        show[BLOCKS, "middle64x128s2d4", BF16, Optional(BF16)](visitor)
        show[BLOCKS, "middle192x128d4"](visitor)
        show[BLOCKS, "middle160x256d3"](visitor)
        comptime W4A6, W6A6 = PAIRS[4], Formats(Format.MXFP6, Format.MXFP6)
        show[W4A6, "middle96x192d3", BF16, NO_BIAS, True](visitor)
        show[W6A6, "middle128x128d3", BF16, NO_BIAS, True](visitor)
        show[W6A6, "middle192x256d2"](visitor)


@export
def PyInit_middle_wide() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[MiddleWide]("middle_wide")
    except error:
        abort(String("cannot create middle_wide: ", error))

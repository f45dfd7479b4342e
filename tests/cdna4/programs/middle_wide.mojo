"""The middle kernels for eight-bit activations that tests launch, by name:

    <left>-<right>/<cut>d<depth>_<output>_<bias>

The cut is as `InterleavedShape.name` writes it.
"""

from std.os import abort
from std.python import PythonObject

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, ListedProduct, Visitor
from mojo_kernels.cdna4.interleaved.kernel import InterleavedKernel
from mojo_kernels.cdna4.interleaved.shape import InterleavedShape, slices_of
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
]
"""Scales of blocks, of rows, and of MX on weights of eight and of four bits."""


def show[
    formats: Formats,
    cut: StaticString,
    result: DType = BF16,
    bias: Optional[DType] = NO_BIAS,
](mut visitor: Some[Visitor]) raises:
    """Shows a kernel."""
    comptime types = ProductTypes(formats, None, Rounding.EVEN, result, bias)
    comptime shape = InterleavedShape.named(String(cut), slices=slices_of(formats.left))
    var pair = String(name_of(formats.left), "-", name_of(formats.right))
    var bias_name = String(types.bias.value()) if types.bias else "none"
    visitor.kernel[ListedProduct[types, InterleavedKernel[types, shape, False]]](
        String(pair, "/", cut, "_", result, "_", bias_name)
    )


struct MiddleWide(Catalogue):
    """The smallest cut, split, for each pair, a large one, and more for scales of blocks."""

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


@export
def PyInit_middle_wide() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[MiddleWide]("middle_wide")
    except error:
        abort(String("cannot create middle_wide: ", error))

"""The quantize kernel for codes of more than four bits: `<format>_<input type>_<rounding>`."""

from std.os import abort
from std.python import PythonObject

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, ListedQuantizer, Visitor
from mojo_kernels.numbers.formats import Format
from mojo_kernels.numbers.rounding import Rounding


struct QuantizeWide(Catalogue):
    """Every rule of every format for bfloat16; the other input types once an element's bits."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime E3M2 = Format.MXFP6_E3M2
        comptime for format in [Format.MXFP8, Format.MXFP8_E5M2, Format.MXFP6, E3M2]:
            comptime for code in range(Rounding.COUNT):
                comptime rule = Rounding.NAMES[code]
                visitor.kernel[ListedQuantizer[format, DType.bfloat16, Rounding(code)]](
                    String(format.name(), "_bfloat16_", rule)
                )
        comptime for dtype in [DType.float16, DType.float32]:
            comptime for format in [Format.MXFP8, Format.MXFP6, E3M2]:
                visitor.kernel[ListedQuantizer[format, dtype, Rounding.EVEN]](
                    String(format.name(), "_", dtype, "_even")
                )


@export
def PyInit_quantize_wide() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[QuantizeWide]("quantize_wide")
    except error:
        abort(String("cannot create quantize_wide: ", error))

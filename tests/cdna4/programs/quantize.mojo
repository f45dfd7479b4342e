"""The quantize kernel: `<input type>_<rounding>`."""

from std.os import abort
from std.python import PythonObject

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, ListedQuantizer, Visitor
from mojo_kernels.numbers.formats import Format
from mojo_kernels.numbers.rounding import Rounding


struct Quantize(Catalogue):
    """Every rounding of every input type."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime for dtype in [DType.bfloat16, DType.float16, DType.float32]:
            comptime for code in range(Rounding.COUNT):
                comptime rule = Rounding.NAMES[code]
                visitor.kernel[ListedQuantizer[Format.MXFP4, dtype, Rounding(code)]](
                    String(dtype, "_", rule)
                )


@export
def PyInit_quantize() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Quantize]("quantize")
    except error:
        abort(String("cannot create quantize: ", error))

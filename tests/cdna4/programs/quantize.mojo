"""The quantize kernel: `<input type>_<rounding>_<scale layout>`."""

from std.os import abort
from std.python import PythonObject

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, ListedQuantizer, Visitor
from mojo_kernels.layouts import Plain, PreshuffledCdna4
from mojo_kernels.numbers.formats import Format
from mojo_kernels.numbers.rounding import Rounding

comptime MXFP4 = Format.MXFP4


struct Quantize(Catalogue):
    """Every rounding of every input type, and the preshuffled layout once a type."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime for dtype in [DType.bfloat16, DType.float16, DType.float32]:
            comptime for code in range(Rounding.COUNT):
                comptime rule = Rounding.NAMES[code]
                visitor.kernel[ListedQuantizer[MXFP4, dtype, Rounding(code), Plain]](
                    String(dtype, "_", rule, "_plain")
                )
            visitor.kernel[ListedQuantizer[MXFP4, dtype, Rounding.EVEN, PreshuffledCdna4]](
                String(dtype, "_even_preshuffled_cdna4")
            )


@export
def PyInit_quantize() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Quantize]("quantize")
    except error:
        abort(String("cannot create quantize: ", error))

"""The prefill kernels of activations of more than four bits; `named_prefill.mojo` names them.

Each pair of formats of six and of eight bits with a large and a small tile, from codes and from
floats; and floats that are kept.
"""

from std.os import abort
from std.python import PythonObject

from named_prefill import BF16, F16, F32, show_linear, show_matmul

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, Visitor
from mojo_kernels.cdna4.epilogue.target import NO_BIAS
from mojo_kernels.cdna4.types import Formats, KEPT
from mojo_kernels.numbers.formats import Format

comptime FP8 = Formats(Format.MXFP8, Format.MXFP8)
comptime W4A8 = Formats(Format.MXFP8, Format.MXFP4)
comptime BF8 = Formats(Format.MXFP8_E5M2, Format.MXFP8_E5M2)
comptime W4A16 = Formats(KEPT, Format.MXFP4)
comptime NVFP4 = Formats(KEPT, Format.NVFP4)
comptime W4A6 = Formats(Format.MXFP6, Format.MXFP4)
comptime W6A6 = Formats(Format.MXFP6, Format.MXFP6)
comptime W4_BF6 = Formats(Format.MXFP6_E3M2, Format.MXFP4)
comptime W4_BF8 = Formats(Format.MXFP8_E5M2, Format.MXFP4)


struct PrefillWide(Catalogue):
    """Every kernel."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        show_matmul[8, BF16, NO_BIAS, False, FP8](visitor)
        show_matmul[8, BF16, NO_BIAS, False, W4A8](visitor)
        show_matmul[8, F32, Optional(F32), True, FP8](visitor)
        show_matmul[8, F32, Optional(F32), True, W4A8](visitor)
        show_matmul[8, BF16, Optional(BF16), False, BF8](visitor)
        show_matmul[4, BF16, NO_BIAS, False, FP8](visitor)
        show_matmul[4, BF16, NO_BIAS, True, FP8](visitor)
        show_matmul[4, BF16, NO_BIAS, False, W4A8](visitor)
        show_linear[8, BF16, BF16, NO_BIAS, False, FP8](visitor)
        show_linear[8, BF16, BF16, NO_BIAS, True, W4_BF8](visitor)
        show_linear[8, F16, F16, Optional(F16), True, W4A8](visitor)
        show_linear[4, BF16, BF16, NO_BIAS, False, FP8](visitor)
        show_linear[4, BF16, BF16, NO_BIAS, False, W4A8](visitor)
        show_linear[4, F32, F32, Optional(F32), True, BF8](visitor)
        show_matmul[8, BF16, NO_BIAS, False, W4A6](visitor)
        show_matmul[4, F32, Optional(F32), True, W4A6](visitor)
        show_linear[8, BF16, BF16, NO_BIAS, False, W4A6](visitor)
        show_linear[4, BF16, BF16, NO_BIAS, False, W4A6](visitor)
        show_linear[8, F16, F16, Optional(F16), True, W4_BF6](visitor)
        show_matmul[8, BF16, NO_BIAS, False, W6A6](visitor)
        show_matmul[8, BF16, NO_BIAS, True, W6A6](visitor)
        show_linear[4, BF16, BF16, NO_BIAS, False, W6A6](visitor)
        show_linear[4, BF16, BF16, NO_BIAS, False, W4A16](visitor)
        show_linear[4, BF16, F32, Optional(F32), True, W4A16](visitor)
        show_linear[4, BF16, BF16, NO_BIAS, False, NVFP4](visitor)
        show_linear[4, BF16, F32, Optional(F32), True, NVFP4](visitor)


@export
def PyInit_prefill_wide() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[PrefillWide]("prefill_wide")
    except error:
        abort(String("cannot create prefill_wide: ", error))

"""The kernels that the CDNA4 dispatch has for codes of eight bits on both sides: a catalogue.

    matmul_<left format>_<cut>      codes in, bfloat16 out; the right side as `RIGHT` pairs them
"""

from std.os import abort
from std.python import PythonObject

from products import BF16, EVEN, Product
from table import is_first

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, Visitor
from mojo_kernels.cdna4.host.table import CHOICES
from mojo_kernels.cdna4.types import Formats, ProductTypes, name_of
from mojo_kernels.numbers.formats import Format

comptime PAIRS = [
    Formats(Format.MXFP8, Format.MXFP8),
    Formats(Format.FP8, Format.FP8),
    Formats(Format.FP8_BLOCK, Format.FP8_BLOCK_2D),
]
"""A pair for each kind of scales: of blocks of 32, of rows, and of blocks of 128."""


struct EightBits(Catalogue):
    """All of them."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime for formats in PAIRS:
            comptime types = ProductTypes(formats, None, EVEN, BF16, None)
            comptime for i in range(len(CHOICES)):
                comptime choice = CHOICES[i]
                comptime if is_first[types, i]():
                    visitor.kernel[Product[types, choice.plan]](
                        String("matmul_", name_of(formats.left), "_", choice.plan.name())
                    )


@export
def PyInit_eight_bits() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[EightBits]("eight_bits")
    except error:
        abort(String("cannot create eight_bits: ", error))

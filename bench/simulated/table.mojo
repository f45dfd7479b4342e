"""What rows of the CDNA4 dispatch table launch, for bfloat16 and for codes."""

from products import BF16, CODES, EVEN, FLOATS, Product

from mojo_kernels.cdna4.catalogue import Catalogue, ListedQuantizer, Visitor
from mojo_kernels.cdna4.host.table import CHOICES
from mojo_kernels.cdna4.host.plan import Family
from mojo_kernels.cdna4.types import ProductTypes
from mojo_kernels.numbers.formats import Format


def is_first[types: ProductTypes, row: Int]() -> Bool:
    """Says whether a row is for such products, and none above launches the same kernels."""
    comptime own = CHOICES[row]
    comptime for i in range(row):
        comptime choice = CHOICES[i]
        comptime if choice.sources.include(types) and choice.plan.name() == own.plan.name():
            return False
    return own.sources.include(types)


struct Rows[k_tail: Bool](Catalogue):
    """The kernels of all rows, and the quantizer."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime for i in range(len(CHOICES)):
            comptime choice = CHOICES[i]
            comptime if choice.any_k or not Self.k_tail:
                comptime if is_first[FLOATS, i]() and choice.plan.family != Family.INTERLEAVED:
                    visitor.kernel[Product[FLOATS, choice.plan, Self.k_tail]](
                        String("linear_", choice.plan.name())
                    )
                comptime if is_first[CODES, i]():
                    visitor.kernel[Product[CODES, choice.plan, Self.k_tail]](
                        String("matmul_", choice.plan.name())
                    )
        visitor.kernel[ListedQuantizer[Format.MXFP4, BF16, EVEN]]("quantize")

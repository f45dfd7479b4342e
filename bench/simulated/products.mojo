"""What a row of the CDNA4 dispatch table launches, for bfloat16 and for codes."""

from mojo_kernels.cdna4.decode.kernel import DecodeKernel
from mojo_kernels.cdna4.host.catalogue import Listed
from mojo_kernels.cdna4.host.dispatch import Choice, Family
from mojo_kernels.cdna4.middle.kernel import MiddleKernel
from mojo_kernels.cdna4.prefill.kernel import PrefillKernel
from mojo_kernels.cdna4.types import Formats, ProductTypes
from mojo_kernels.launch.queue import Queue
from mojo_kernels.numbers.rounding import Rounding

comptime BF16 = DType.bfloat16
comptime EVEN = Rounding.EVEN
comptime FLOATS = ProductTypes(Formats.MXFP4, Optional(BF16), EVEN, BF16, None)
comptime CODES = ProductTypes(Formats.MXFP4, None, EVEN, BF16, None)


struct Product[types: ProductTypes, choice: Choice](Listed):
    """The kernel of a row, K being whole steps."""

    @staticmethod
    def supports(m: Int, n: Int, k: Int) -> Bool:
        return not Self.choice.has_tail(k)

    @staticmethod
    def launch[Q: Queue](m: Int, n: Int, k: Int, mut queue: Q) raises:
        var problem = Self.types.problem(m, n, k)
        comptime if Self.choice.family == Family.DECODE:
            DecodeKernel[Self.types, Self.choice.shape].launch(problem, queue)
        elif Self.choice.family == Family.MIDDLE:
            comptime shape = Self.choice.middle()
            MiddleKernel[Self.types, shape].launch(problem, queue)
        else:
            PrefillKernel[Self.types, Self.choice.m_tiles, False].launch(problem, queue)

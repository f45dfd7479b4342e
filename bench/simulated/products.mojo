"""The kernel of a plan, for bfloat16 and for codes."""

from mojo_kernels.cdna4.catalogue import Listed
from mojo_kernels.cdna4.streaming.kernel import StreamingKernel
from mojo_kernels.cdna4.host.plan import Family, Plan
from mojo_kernels.cdna4.interleaved.kernel import InterleavedKernel
from mojo_kernels.cdna4.ping_pong.kernel import PingPongKernel
from mojo_kernels.cdna4.types import Formats, ProductTypes
from mojo_kernels.launch.queue import Queue
from mojo_kernels.numbers.rounding import Rounding

comptime BF16 = DType.bfloat16
comptime EVEN = Rounding.EVEN
comptime FLOATS = ProductTypes(Formats.MXFP4, Optional(BF16), EVEN, BF16, None)
comptime CODES = ProductTypes(Formats.MXFP4, None, EVEN, BF16, None)


struct Product[types: ProductTypes, plan: Plan, k_tail: Bool = False](Listed):
    """The kernel of a plan; without `k_tail`, K is whole steps."""

    @staticmethod
    def supports(m: Int, n: Int, k: Int) -> Bool:
        if Self.plan.family == Family.INTERLEAVED and not Self.plan.interleaved.supports(k):
            return False
        return Self.k_tail or not Self.plan.has_tail(k)

    @staticmethod
    def launch[Q: Queue](m: Int, n: Int, k: Int, mut queue: Q) raises:
        var problem = Self.types.problem(m, n, k)
        comptime if Self.plan.family == Family.STREAMING:
            comptime shape = Self.plan.streaming_of(Self.k_tail)
            StreamingKernel[Self.types, shape].launch(problem, queue)
        elif Self.plan.family == Family.INTERLEAVED:
            comptime shape = Self.plan.interleaved_of(Self.types)
            InterleavedKernel[Self.types, shape, Self.k_tail].launch(problem, queue)
        else:
            PingPongKernel[Self.types, Self.plan.m_tiles, Self.k_tail].launch(problem, queue)

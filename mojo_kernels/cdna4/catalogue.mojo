"""Kernels by name, for those who look at them without a GPU: tests, benchmarks, tuning.

A catalogue is a list that a visitor walks through. What it says of a kernel comes from
the kernel's own `launch`: the machine code and, for a shape, the grid, the workspace and
the arguments in their order.
"""

from ..launch.assembler import Assembler
from ..launch.kernel import ProductKernel
from ..launch.queue import Queue
from ..launch.recorder import Recorder
from ..numbers.formats import Format, K_MULTIPLE
from ..numbers.rounding import Rounding
from .prepare.quantize import QuantizeKernel
from .types import A, CODES, ProductTypes, SCALES, WORKSPACE


trait Listed:
    """A kernel that a catalogue can list."""

    @staticmethod
    def supports(m: Int, n: Int, k: Int) -> Bool:
        """Says whether the kernel computes a shape."""
        ...

    @staticmethod
    def launch[Q: Queue](m: Int, n: Int, k: Int, mut queue: Q) raises:
        """Launches the kernel for a shape; addresses are the numbers of `types`."""
        ...


struct ListedProduct[types: ProductTypes, Kernel: ProductKernel](Listed):
    """A kernel of products."""

    @staticmethod
    def supports(m: Int, n: Int, k: Int) -> Bool:
        return Self.Kernel.supports(Self.types.problem(m, n, k))

    @staticmethod
    def launch[Q: Queue](m: Int, n: Int, k: Int, mut queue: Q) raises:
        Self.Kernel.launch(Self.types.problem(m, n, k), queue)


struct ListedQuantizer[format: Format, dtype: DType, rounding: Rounding](Listed):
    """A kernel that quantizes [m, k] floats; there is no n."""

    @staticmethod
    def supports(m: Int, n: Int, k: Int) -> Bool:
        return k % K_MULTIPLE == 0

    @staticmethod
    def launch[Q: Queue](m: Int, n: Int, k: Int, mut queue: Q) raises:
        comptime Kernel = QuantizeKernel[Self.format, Self.dtype, Self.rounding]
        Kernel.launch(A, CODES, SCALES, m, k, queue)


trait Visitor:
    """Whoever walks through a catalogue."""

    def kernel[Kernel: Listed](mut self, name: String) raises:
        """Looks at one kernel."""
        ...


trait Catalogue:
    """Some kernels with names of their own."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        """Shows each kernel to a visitor."""
        ...


struct Texts(Visitor):
    """Collects the assembly of every kernel."""

    var names: List[String]
    var assembler: Assembler

    def __init__(out self):
        self.names = []
        self.assembler = Assembler()

    def kernel[Kernel: Listed](mut self, name: String) raises:
        # Any shape: the code does not depend on it.
        comptime SIZE = 1 << 10
        self.names.append(name)
        Kernel.launch(SIZE, SIZE, SIZE, self.assembler)


struct Question(Visitor):
    """Asks the kernel of one name about a shape."""

    var name: String
    var m: Int
    var n: Int
    var k: Int
    var is_known: Bool
    var supports: Bool
    var recorder: Recorder

    def __init__(out self, name: String, m: Int, n: Int, k: Int):
        self.name = name
        self.m = m
        self.n = n
        self.k = k
        self.is_known = False
        self.supports = False
        self.recorder = Recorder(WORKSPACE)

    def kernel[Kernel: Listed](mut self, name: String) raises:
        if name == self.name:
            self.is_known = True
            self.supports = Kernel.supports(self.m, self.n, self.k)
            if self.supports:
                Kernel.launch(self.m, self.n, self.k, self.recorder)

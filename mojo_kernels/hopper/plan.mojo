"""How the groups of a kernel share a product: a plan, and the code that tests pass for one.

    kernel      rows of a group   columns      ranks     code
    few         8, 16, 32, 64     32 .. 256    1 .. 8    32 * rows + columns / 2 + ranks
    middle      64, 128           128          1 .. 8    2**20 + 256 * rows + ranks
    many        256               128          1         2**20
    many_even   64, 128, 256      128          1         2**20 + 256 * rows
    fp8         64, 128           128          1         2**21 + rows
    fp8_few     64, 128           128          1 .. 8    2**23 + 256 * rows + ranks
                256               128          1
    fp8_even    64, 128, 256      128          1         2**24 + rows
    numbers     128               128          1 .. 8    2**26 + 256 * rows + ranks
                64                256          1 .. 8
    mapped      128               128          1 .. 8    2**25 + 256 * rows + ranks
                64                256          1 .. 8
    aligned_few 64, 128           128          1 .. 8    none
    aligned     128               128          1 .. 8    2**27 + 256 * rows + ranks
                64                256          1 .. 8
    tiles       64, 128           64, 128      1 .. 16   none
    portable    1                 32           1         2**22, which tiles have too

Ranks are the groups of a cluster, which split K; those of `tiles` are no cluster. Even shares are split
wherever they end. Kernels for few rows make what tensor cores take of weights as they multiply; the
others find it in the workspace.
"""

from std.math import ceildiv

from ..layouts import PreshuffledCuda, layout_position
from ..numbers.formats import NO_FORMAT
from ..problem import Known, Problem, may_be
from ..schedule.clusters import GridTiles
from ..simt.host import COLUMNS, Tile, WARPS, is_aligned
from .layout import OPERANDS, TILE_ROWS

comptime MORE_ROWS = 1 << 20
"""Codes of the kernels that want their activations expanded begin here."""
comptime BYTE_ROWS = 1 << 21
"""Codes of the kernel that multiplies bytes begin here."""
comptime FEW_BYTE_ROWS = 1 << 23
"""Codes of the kernel that makes bytes as it multiplies begin here."""
comptime EVEN_BYTE_ROWS = 1 << 24
"""Codes of the same kernel with even shares begin here."""
comptime MAPPED_ROWS = 1 << 25
"""Codes of the kernel whose operands tensor maps bring begin here."""
comptime NUMBER_ROWS = 1 << 26
"""Codes of the same kernel with bfloat16 numbers in the workspace begin here."""
comptime ALIGNED_ROWS = 1 << 27
"""Codes of the same kernel with MXFP8 bytes in the workspace begin here."""
comptime PORTABLE = 1 << 22
"""The code of the portable kernels."""
comptime MAPPED_ELEMENTS = 128 * 128
"""Elements of C of a tile of `mapped`."""
comptime MULTIPROCESSORS = 132
"""Of an H100 or H200: groups that keep the device busy, one on each."""
comptime MAX_RANKS = 8
"""The largest portable cluster."""
comptime PRESHUFFLED = layout_position(PreshuffledCuda.NAME)
"""The position in `LAYOUTS` of Hopper's weights."""


@fieldwise_init
struct Kernel(Equatable, TrivialRegisterPassable):
    """A family of kernels."""

    var code: Int

    comptime FEW = Self(0)
    comptime MIDDLE = Self(1)
    comptime MANY = Self(2)
    comptime PORTABLE = Self(3)
    comptime FP8 = Self(4)
    comptime NUMBERS = Self(5)
    comptime FP8_FEW = Self(6)
    comptime ALIGNED_FEW = Self(7)
    comptime TILES = Self(8)
    comptime FP8_EVEN = Self(9)
    comptime MAPPED = Self(10)
    comptime ALIGNED = Self(11)
    comptime MANY_EVEN = Self(12)

    def is_even(self) -> Bool:
        """Says whether groups have even shares of all stages, whatever the number of tiles."""
        return self == Self.FP8_EVEN or self == Self.MANY_EVEN

    def wants_bytes(self) -> Bool:
        """Says whether it multiplies MXFP4 on both sides, on FP8 tensor cores."""
        return self == Self.FP8 or self == Self.FP8_FEW or self == Self.FP8_EVEN

    def file(self) -> StaticString:
        """Returns where the kernel is, within the package."""
        if self == Self.FEW:
            return "hopper/few/kernel.mojo"
        if self == Self.MIDDLE:
            return "hopper/middle/kernel.mojo"
        if self.wants_bytes():
            return "hopper/fp8/kernel.mojo"
        if self == Self.NUMBERS:
            return "hopper/numbers/kernel.mojo"
        if self == Self.MAPPED:
            return "hopper/mapped/kernel.mojo"
        if self == Self.ALIGNED or self == Self.ALIGNED_FEW:
            return "hopper/aligned/kernel.mojo"
        if self == Self.TILES:
            return "simt/tiles/kernel.mojo"
        if self == Self.MANY or self == Self.MANY_EVEN:
            return "hopper/many/kernel.mojo"
        return "simt/matmul.mojo"


@fieldwise_init
struct Plan(Equatable, TrivialRegisterPassable):
    """A kernel and how its groups share C and K."""

    var kernel: Kernel
    var tokens: Int
    """Rows of C of a group."""
    var columns: Int
    """Columns of C of a group."""
    var ranks: Int
    """Groups of a cluster, which split K."""

    comptime MANY = Self(Kernel.MANY, 256, 128, 1)
    comptime PORTABLE = Self(Kernel.PORTABLE, 1, WARPS * COLUMNS, 1)

    @staticmethod
    def few(tokens: Int, columns: Int, ranks: Int) -> Self:
        """Returns a plan of `few.matmul`."""
        return Self(Kernel.FEW, tokens, columns, ranks)

    @staticmethod
    def middle(tokens: Int, ranks: Int) -> Self:
        """Returns a plan of `middle.matmul`."""
        return Self(Kernel.MIDDLE, tokens, Self.MANY.columns, ranks)

    @staticmethod
    def many_even(tokens: Int) -> Self:
        """Returns a plan of `many.matmul` whose groups have even shares."""
        return Self(Kernel.MANY_EVEN, tokens, Self.MANY.columns, 1)

    @staticmethod
    def fp8(tokens: Int) -> Self:
        """Returns a plan of `fp8`."""
        return Self(Kernel.FP8, tokens, Self.MANY.columns, 1)

    @staticmethod
    def fp8_few(tokens: Int, ranks: Int) -> Self:
        """Returns a plan of `fp8` that makes bytes as it multiplies."""
        return Self(Kernel.FP8_FEW, tokens, Self.MANY.columns, ranks)

    @staticmethod
    def fp8_even(tokens: Int) -> Self:
        """Returns a plan like that, whose groups have even shares."""
        return Self(Kernel.FP8_EVEN, tokens, Self.MANY.columns, 1)

    @staticmethod
    def numbers(tokens: Int, ranks: Int) -> Self:
        """Returns a plan of `numbers` that has weights in the workspace."""
        return Self(Kernel.NUMBERS, tokens, MAPPED_ELEMENTS // tokens, ranks)

    @staticmethod
    def aligned_few(tokens: Int, ranks: Int) -> Self:
        """Returns a plan of `aligned` that puts weights into stages as it multiplies."""
        return Self(Kernel.ALIGNED_FEW, tokens, Self.MANY.columns, ranks)

    @staticmethod
    def mapped(tokens: Int, ranks: Int) -> Self:
        """Returns a plan of `mapped`: tiles are as large, whatever their rows."""
        return Self(Kernel.MAPPED, tokens, MAPPED_ELEMENTS // tokens, ranks)

    @staticmethod
    def aligned(tokens: Int, ranks: Int) -> Self:
        """Returns a plan of `aligned`: tiles as `mapped` has them."""
        return Self(Kernel.ALIGNED, tokens, MAPPED_ELEMENTS // tokens, ranks)

    @staticmethod
    def portable_tiles(tile: Tile, parts: Int) -> Self:
        """Returns a plan of `simt.tiles`; parts of K are no cluster's there."""
        return Self(Kernel.TILES, tile.rows, tile.columns, parts)

    @staticmethod
    def from_code(code: Int) -> Self:
        """Returns the plan that a positive code stands for; it need not exist."""
        if code < MORE_ROWS:
            return Self.few(8 * (code // 256), TILE_ROWS * (code // 16 % 16), code % 16)
        if code == MORE_ROWS:
            return Self.MANY
        if code >= ALIGNED_ROWS:
            return Self.aligned((code - ALIGNED_ROWS) // 256, code % 256)
        if code >= NUMBER_ROWS:
            return Self.numbers((code - NUMBER_ROWS) // 256, code % 256)
        if code >= MAPPED_ROWS:
            return Self.mapped((code - MAPPED_ROWS) // 256, code % 256)
        if code >= EVEN_BYTE_ROWS:
            return Self.fp8_even(code - EVEN_BYTE_ROWS)
        if code >= FEW_BYTE_ROWS:
            return Self.fp8_few((code - FEW_BYTE_ROWS) // 256, code % 256)
        if code == PORTABLE:
            return Self.PORTABLE
        if code >= BYTE_ROWS:
            return Self.fp8(code - BYTE_ROWS)
        if code % 256 == 0:
            return Self.many_even((code - MORE_ROWS) // 256)
        return Self.middle((code - MORE_ROWS) // 256, code % 256)

    def of_mxfp8(self) -> Self:
        """Returns the plan for MXFP8 activations that is like this one of `fp8`."""
        if self.kernel == Kernel.FP8_FEW or self.kernel == Kernel.FP8_EVEN:
            return Self.aligned_few(self.tokens, self.ranks)
        return Self.aligned(self.tokens, 1)

    def with_ranks(self, ranks: Int) -> Self:
        """Returns the plan that splits K so many ways."""
        return Self(self.kernel, self.tokens, self.columns, ranks)

    def within(self, num_steps: Int) -> Self:
        """Returns the plan with as many ranks as have a step of K each, which groups rely on.

        Shares differ by a step at most; but all ranks of `few` have as many, and the last one what is
        left, which may be nothing: of nine blocks, four ranks would have three, three, three and none.
        """
        var ranks = self.ranks
        while ranks > 1:
            var share = ceildiv(num_steps, ranks) if self.kernel == Kernel.FEW else 1
            if share * (ranks - 1) < num_steps:
                break
            ranks //= 2
        return self.with_ranks(ranks)

    def code(self) -> Int:
        """Returns the code that stands for the plan; 0 for one that has none."""
        if self.kernel == Kernel.PORTABLE:
            return PORTABLE
        if self.kernel == Kernel.FEW:
            return 32 * self.tokens + self.columns // 2 + self.ranks
        if self.kernel == Kernel.MIDDLE:
            return MORE_ROWS + 256 * self.tokens + self.ranks
        if self.kernel == Kernel.MANY:
            return MORE_ROWS
        if self.kernel == Kernel.MANY_EVEN:
            return MORE_ROWS + 256 * self.tokens
        if self.kernel == Kernel.FP8_FEW:
            return FEW_BYTE_ROWS + 256 * self.tokens + self.ranks
        if self.kernel == Kernel.FP8_EVEN:
            return EVEN_BYTE_ROWS + self.tokens
        if self.kernel == Kernel.MAPPED:
            return MAPPED_ROWS + 256 * self.tokens + self.ranks
        if self.kernel == Kernel.NUMBERS:
            return NUMBER_ROWS + 256 * self.tokens + self.ranks
        if self.kernel == Kernel.ALIGNED:
            return ALIGNED_ROWS + 256 * self.tokens + self.ranks
        return BYTE_ROWS + self.tokens if self.kernel == Kernel.FP8 else 0

    def name(self) -> String:
        """Returns the cut in short: rows x columns of a group, and the ranks that split K.

        Also whether groups have even shares, or find the stages of weights in the workspace.
        """
        var name = String(self.tokens, "x", self.columns)
        if self.kernel.is_even():
            return name + " even"
        if self.ranks > 1:
            name += String("r", self.ranks)
        var is_staged = self.kernel in (Kernel.FP8, Kernel.NUMBERS, Kernel.ALIGNED)
        return name + " staged" if is_staged else name

    def tiles(self, m: Int, n: Int) -> GridTiles:
        """Returns the tiles of C of [m, n]."""
        return GridTiles(ceildiv(m, self.tokens), ceildiv(n, self.columns))

    def groups(self, m: Int, n: Int) -> Int:
        """Returns the groups of a launch that has one for each tile and rank."""
        return self.tiles(m, n).num_tiles() * self.ranks


@always_inline
def log_of_ranks(ranks: UInt32) -> UInt32:
    """Returns the binary logarithm of the ranks of a cluster, without a loop."""
    comptime assert MAX_RANKS == 8, "ranks are 1, 2, 4 or 8"
    return ranks // 4 + min(ranks // 2, 1)


def takes_formats(left: Int, right: Int) -> Bool:
    """Says whether fast kernels take a pair of formats: MXFP4 weights; floats kept, or MXFP4."""
    comptime MXFP4 = OPERANDS.code()
    return right == MXFP4 and left in (MXFP4, NO_FORMAT)


def may_take_operands[known: Known]() -> Bool:
    """Says whether what is known of a problem leaves it possible that fast kernels take it."""
    comptime MXFP4 = OPERANDS.code()
    comptime is_left = may_be(known.left_format, MXFP4) or may_be(known.left_format, NO_FORMAT)
    comptime is_right = may_be(known.right_format, MXFP4)
    return is_left and is_right and may_be(known.layout, PRESHUFFLED)


def takes_operands(problem: Problem) -> Bool:
    """Says whether fast kernels can read the operands of a problem, and write C."""
    return (
        takes_formats(problem.left.format, problem.right.format)
        and problem.right.layout == PRESHUFFLED
        and is_aligned(problem)
    )

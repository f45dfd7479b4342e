"""How a product is computed: a plan, a record with names and one text.

    KERNEL ROWSxCOLUMNS [splitK2, splitK4, splitK8 or streamK] [prepared]

    kernel     tensor cores            weights                     rows x columns           K
    stream     mma.sync of bfloat16    decoded in registers        8 .. 32 x 32 .. 256      splitK
                                                                   64 x 64, 128
    rs_bf16    wgmma of bfloat16       decoded in registers        64, 128 x 128            splitK, streamK
                                                                   256 x 128                streamK
    rs_bf16    the same, A is mapped   decoded in registers        64, 128, 256 x 64        splitK2, splitK4
    rs_e5m2    wgmma of FP8            decoded in registers        as of rs_bf16
    rs_e4m3    wgmma of FP8            decoded in registers        64, 128 x 128            splitK
    ss_bf16    wgmma of bfloat16       prepared in the workspace   128 x 128                splitK
    ss_e5m2    wgmma of FP8            prepared in the workspace   128 x 128
    ss_e4m3    wgmma of FP8            prepared                    128 x 128, 64 x 256      splitK
    ss_e4m3    wgmma of FP8            as they lie                 128 x 128, 64 x 64, 128  splitK
    portable   the kernels of any GPU, which choose their tiles themselves

Rows and columns are those of the tile of C of a CTA. RS main loops have weights in registers, SS main
loops have both operands in shared memory. With splitK, the CTAs of a cluster split the K of a tile;
with streamK, all CTAs have equal shares of the K of all tiles. Rows of A that are mapped are bfloat16,
and copied from where they are by a tensor map: no kernel prepares them. The E5M2 of MXFP4 and the
E4M3 of MXFP8 are elements under a scale that many blocks share.
"""

from std.math import ceildiv

from ..layouts import PreshuffledCuda, layout_position
from ..schedule.tiles import RowMajor
from ..simt.host import COLUMNS, TileShape, WARPS

comptime SS_TILE_ELEMENTS = 128 * 128
"""Elements of C of a tile of an SS main loop."""
comptime RS_COLUMNS = 128
"""Columns of C of a tile of an RS main loop."""
comptime NARROW_COLUMNS = 64
"""The same where rows of A are mapped: more tiles, each with half as much to decode."""
comptime MULTIPROCESSORS = 132
"""Of an H100 or H200: CTAs that keep the device busy, one on each."""
comptime MAX_RANKS = 8
"""The largest portable cluster."""
comptime PRESHUFFLED = layout_position(PreshuffledCuda.NAME)
"""The position in `LAYOUTS` of Hopper's weights."""


@fieldwise_init
struct MainLoop(Equatable, TrivialRegisterPassable):
    """Where the operands of tensor cores are."""

    var code: Int

    comptime STREAM = Self(0)
    """Both in registers: mma.sync, for few rows."""
    comptime RS = Self(1)
    """Weights in registers, activations in shared memory: wgmma."""
    comptime SS = Self(2)
    """Both in shared memory: wgmma."""
    comptime TILES = Self(3)
    """Those of `simt.tiles`."""
    comptime PORTABLE = Self(4)
    """Those of `simt`, whichever it is."""


@fieldwise_init
struct OperandType(Equatable, TrivialRegisterPassable):
    """What tensor cores multiply."""

    var code: Int

    comptime BF16 = Self(0)
    comptime E5M2 = Self(1)
    comptime E4M3 = Self(2)


@fieldwise_init
struct Kernel(Equatable, TrivialRegisterPassable):
    """A main loop, what it multiplies, and where it finds weights."""

    var main_loop: MainLoop
    var operand: OperandType
    var is_prepared: Bool
    """Whether weights are in the workspace, as tensor cores take them."""

    comptime STREAM = Self(MainLoop.STREAM, OperandType.BF16, False)
    comptime RS_BF16 = Self(MainLoop.RS, OperandType.BF16, False)
    comptime RS_E5M2 = Self(MainLoop.RS, OperandType.E5M2, False)
    comptime RS_E4M3 = Self(MainLoop.RS, OperandType.E4M3, False)
    comptime SS_BF16 = Self(MainLoop.SS, OperandType.BF16, True)
    comptime SS_E5M2 = Self(MainLoop.SS, OperandType.E5M2, True)
    comptime SS_E4M3 = Self(MainLoop.SS, OperandType.E4M3, False)
    comptime SS_E4M3_PREPARED = Self(MainLoop.SS, OperandType.E4M3, True)
    comptime TILES = Self(MainLoop.TILES, OperandType.BF16, False)
    comptime PORTABLE = Self(MainLoop.PORTABLE, OperandType.BF16, False)

    @staticmethod
    def named(name: StringSlice, is_prepared: Bool, has_tile: Bool) -> Optional[Self]:
        """Returns the kernel of a name, if there is one: portable ones may have a tile, or none."""
        for kernel in [
            Self.STREAM, Self.RS_BF16, Self.RS_E5M2, Self.RS_E4M3, Self.SS_BF16, Self.SS_E5M2,
            Self.SS_E4M3, Self.SS_E4M3_PREPARED, Self.TILES, Self.PORTABLE,
        ]:  # fmt: skip
            var is_whole = kernel.is_prepared == is_prepared
            if kernel.name() == name and is_whole and has_tile == (kernel != Self.PORTABLE):
                return kernel
        return None

    def name(self) -> StaticString:
        """Returns the first word of a plan."""
        if self.main_loop == MainLoop.STREAM:
            return "stream"
        if self.main_loop in (MainLoop.TILES, MainLoop.PORTABLE):
            return "portable"
        if self.main_loop == MainLoop.RS:
            if self.operand == OperandType.BF16:
                return "rs_bf16"
            return "rs_e5m2" if self.operand == OperandType.E5M2 else "rs_e4m3"
        if self.operand == OperandType.BF16:
            return "ss_bf16"
        return "ss_e5m2" if self.operand == OperandType.E5M2 else "ss_e4m3"


@fieldwise_init
struct Scheduler(Equatable, TrivialRegisterPassable):
    """Which tiles, and what of their K, a CTA has."""

    var code: Int

    comptime TILES = Self(0)
    """Whole tiles; the CTAs of a cluster split the K of each."""
    comptime STREAM_K = Self(1)
    """An equal share of the K of all tiles, with a fix-up where a tile has several CTAs."""


@fieldwise_init
struct Plan(Equatable, TrivialRegisterPassable, Writable):
    """A kernel, and how its CTAs share C and K."""

    var kernel: Kernel
    var rows: Int
    """Rows of C of a tile."""
    var columns: Int
    """Columns of C of a tile."""
    var ranks: Int
    """CTAs of a cluster, which split K; of `TILES` they are no cluster."""
    var scheduler: Scheduler

    comptime PERSISTENT_RS_BF16 = Self(Kernel.RS_BF16, 256, RS_COLUMNS, 1, Scheduler.TILES)
    comptime PORTABLE = Self(Kernel.PORTABLE, 1, WARPS * COLUMNS, 1, Scheduler.TILES)

    @staticmethod
    def stream(rows: Int, columns: Int, ranks: Int = 1) -> Self:
        """Returns a plan of `streaming`."""
        return Self(Kernel.STREAM, rows, columns, ranks, Scheduler.TILES)

    @staticmethod
    def rs(operand: OperandType, rows: Int, ranks: Int = 1) -> Self:
        """Returns a plan of an RS main loop whose clusters have whole tiles."""
        var kernel = Kernel(MainLoop.RS, operand, False)
        return Self(kernel, rows, RS_COLUMNS, ranks, Scheduler.TILES)

    @staticmethod
    def stream_k(operand: OperandType, rows: Int) -> Self:
        """Returns a plan of an RS main loop with stream-K."""
        var kernel = Kernel(MainLoop.RS, operand, False)
        return Self(kernel, rows, RS_COLUMNS, 1, Scheduler.STREAM_K)

    @staticmethod
    def ss(kernel: Kernel, rows: Int, columns: Int) -> Self:
        """Returns a plan of `gemm_ss`."""
        return Self(kernel, rows, columns, 1, Scheduler.TILES)

    @staticmethod
    def portable_tiles(tile: TileShape, parts: Int) -> Self:
        """Returns a plan of `simt.tiles`; parts of K are no cluster's there."""
        return Self(Kernel.TILES, tile.rows, tile.columns, parts, Scheduler.TILES)

    @staticmethod
    def parse(text: StringSlice) raises -> Self:
        """Returns the plan that is written so.

        Raises:
            Error: if no plan is.
        """
        var found = Self._read(text)
        if found and found.value().exists() and String(found.value()) == text:
            return found.value()
        raise Error(
            String(
                "plan: got '", text, "', expected 'portable' or KERNEL ROWSxCOLUMNS, then splitK2,"
                " splitK4, splitK8 or streamK if K is split, and prepared if weights are, such as"
                " 'stream 16x64 splitK4', 'rs_e5m2 128x128 streamK' or 'ss_e4m3 64x256 prepared';"
                " hopper/plan.mojo has those that exist"
            )
        )  # fmt: skip

    @staticmethod
    def _read(text: StringSlice) -> Optional[Self]:
        """Returns what a text may be the plan of: words that nobody writes are passed over."""
        comptime SPLIT = "splitK"
        var words = text.split(" ")
        var rows, columns, ranks = Self.PORTABLE.rows, Self.PORTABLE.columns, 1
        var scheduler, is_prepared = Scheduler.TILES, False
        try:
            for i in range(1, len(words)):
                var word = words[i]
                if i == 1:
                    var sizes = word.split("x")
                    rows, columns = Int(sizes[0]), Int(sizes[len(sizes) - 1])
                elif word.startswith(SPLIT):
                    ranks = Int(word[byte = SPLIT.byte_length() :])
                elif word == "streamK":
                    scheduler = Scheduler.STREAM_K
                is_prepared = is_prepared or word == "prepared"
        except:
            return None
        var kernel = Kernel.named(words[0], is_prepared, len(words) > 1)
        if not kernel:
            return None
        return Self(kernel.value(), rows, columns, ranks, scheduler)

    def write_to(self, mut writer: Some[Writer]):
        """Writes the plan's text, as `parse` reads it."""
        writer.write(self.kernel.name())
        if self.kernel == Kernel.PORTABLE:
            return
        writer.write(" ", self.rows, "x", self.columns)
        if self.is_stream_k():
            writer.write(" streamK")
        if self.ranks > 1:
            writer.write(" splitK", self.ranks)
        if self.kernel.is_prepared:
            writer.write(" prepared")

    def exists(self) -> Bool:
        """Says whether there is a kernel for it: see the table."""
        if self.kernel == Kernel.PORTABLE:
            return self == Self.PORTABLE
        if self.kernel == Kernel.TILES:
            return self.ranks >= 1 and not self.is_stream_k()
        if self.ranks not in (1, 2, 4, MAX_RANKS) or (self.ranks > 1 and self.is_stream_k()):
            return False
        if self.kernel.main_loop == MainLoop.STREAM:
            var is_there = self.rows in (8, 16, 32, 64) and self.columns in (32, 64, 128, 256)
            # Of so many rows, few columns do not fit shared memory, and the others never pay.
            var fits = self.rows < 64 or self.columns in (64, 128)
            return is_there and fits and not self.is_stream_k()
        if self.kernel.main_loop == MainLoop.SS:
            if self.is_stream_k() or (self.kernel == Kernel.SS_E5M2 and self.ranks > 1):
                return False
            if self.kernel != Kernel.SS_E4M3:
                var is_few = self.rows == 64 and self.kernel == Kernel.SS_E4M3_PREPARED
                var is_there = self.rows == 128 or is_few
                return is_there and self.columns * self.rows == SS_TILE_ELEMENTS
            var is_there = self.rows == 64 and self.columns in (64, 128)
            is_there = is_there or self.rows == 128 and self.columns == 128
            return is_there and self.ranks <= self.most_ranks()
        if self.rows not in (64, 128, 256):
            return False
        if self.maps_rows():
            var is_never = self.is_stream_k() or self.ranks == MAX_RANKS
            return self.columns == NARROW_COLUMNS and not is_never
        if self.columns != RS_COLUMNS:
            return False
        if self.kernel == Kernel.RS_E4M3:
            return self.rows < 256 and not self.is_stream_k()
        return self.rows < 256 or self.ranks == 1

    def most_ranks(self) -> Int:
        """Returns the most CTAs that split K: each has 16 columns or more to add up."""
        return min(MAX_RANKS, self.columns // 16)

    def is_stream_k(self) -> Bool:
        """Says whether CTAs have equal shares of K, whatever the number of tiles."""
        return self.scheduler == Scheduler.STREAM_K

    def has_split_k_consumers(self) -> Bool:
        """Says whether consumers split K of bfloat16 stages, too: CTAs with a tile of few rows."""
        var is_rs_bf16 = self.kernel == Kernel.RS_BF16 and not self.is_stream_k()
        return is_rs_bf16 and (self.rows < 256 or self.maps_rows())

    def maps_rows(self) -> Bool:
        """Says whether rows of A are multiplied where they are: bfloat16 that is kept."""
        return self.kernel == Kernel.RS_BF16 and self.columns < RS_COLUMNS

    def file(self) -> StaticString:
        """Returns where its kernel is, within the package."""
        if self.kernel == Kernel.STREAM:
            return "hopper/streaming/kernel.mojo"
        if self.kernel == Kernel.RS_BF16:
            return "hopper/gemm_rs_bf16.mojo"
        if self.kernel.main_loop == MainLoop.RS:
            return "hopper/gemm_rs_fp8.mojo"
        if self.kernel.main_loop == MainLoop.SS:
            return "hopper/gemm_ss.mojo"
        return "simt/tiles/kernel.mojo" if self.kernel == Kernel.TILES else "simt/matmul.mojo"

    def with_ranks(self, ranks: Int) -> Self:
        """Returns the plan that splits K so many ways."""
        return Self(self.kernel, self.rows, self.columns, ranks, self.scheduler)

    def within(self, num_steps: Int) -> Self:
        """Returns the plan with as many ranks as have a step of K each, which CTAs rely on.

        Shares differ by a step at most; but all ranks of `stream` have as many, and the last one what
        is left, which may be nothing: of nine blocks, four ranks would have three, three, three and none.
        """
        var ranks = self.ranks
        while ranks > 1:
            var share = ceildiv(num_steps, ranks) if self.kernel == Kernel.STREAM else 1
            if share * (ranks - 1) < num_steps:
                break
            ranks //= 2
        return self.with_ranks(ranks)

    def tiles(self, m: Int, n: Int) -> RowMajor:
        """Returns the tiles of C of [m, n]."""
        return RowMajor(ceildiv(m, self.rows), ceildiv(n, self.columns))

    def ctas(self, m: Int, n: Int) -> Int:
        """Returns the CTAs of a launch that has one for each tile and rank."""
        return self.tiles(m, n).num_tiles() * self.ranks


@always_inline
def log_of_ranks(ranks: UInt32) -> UInt32:
    """Returns the binary logarithm of the ranks of a cluster, without a loop."""
    comptime assert MAX_RANKS == 8, "ranks are 1, 2, 4 or 8"
    return ranks // 4 + min(ranks // 2, 1)

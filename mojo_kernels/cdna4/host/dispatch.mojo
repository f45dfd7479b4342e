"""Which kernel computes a product on CDNA4, why, and how it is launched.

`CHOICES` is the whole policy: the first row that covers (M, N, K) is taken, and
the last row covers every shape. A row names a kernel, how its workgroups cut
the work, and the reason; `Launch` derives grid, workspace and the rest. The
benchmark, `mx_kernels.explain`, the MAX ops and the torch launcher all read it.

    decode     tiles of C for each workgroup, its waves share K
    prefill    large tiles of C, two groups of waves take turns at the matrix pipes

Rows are ordered by K, then by tile: as large a tile as it takes to have no more
workgroups than compute units. `python -m bench.simulated.tune --table` measures
every row against other cuts; bench/results/gfx950_tune.csv holds what it found.
"""

from std.math import align_up, ceildiv
from std.utils.numerics import max_finite

from .decode_shape import DecodeLds, DecodeShape
from .matmul_prefill import NUM_XCDS, THREADS
from .prefill_tiles import COLUMNS, STAGE_BLOCKS, WAVES_M
from .team import TeamWorkspace
from .tiles import TILE, TILE_BLOCKS, TILE_K
from .workspace import CLEARED_BYTES

comptime CUS = 256
"""Compute units."""
comptime MAX_TENSOR_BYTES = 1 << 31
"""Kernels count bytes in 32 bits."""
comptime LDS_BYTES = 160 * 1024
"""Of a compute unit."""
comptime CODE_BYTES = 1
"""Of an element of activations that come encoded: of the type of codes, which holds two."""
comptime BF16_BYTES = 2
"""Of the float that activations usually are."""
comptime MAX_X_BYTES = 4
"""Of the widest float."""
comptime ANY = Int(max_finite[DType.int32]())
"""No bound."""


@fieldwise_init
struct Kernel(Equatable, TrivialRegisterPassable):
    """A family of kernels."""

    var code: Int
    """Which."""

    comptime DECODE = Self(0)
    """Of `matmul_decode.mojo`."""
    comptime PREFILL = Self(1)
    """Of `linear_prefill.mojo` for floats, of `matmul_prefill.mojo` for codes."""


@fieldwise_init
struct Sources(Equatable, TrivialRegisterPassable):
    """The kinds of activations that a row is for."""

    var floats: Bool
    """Of `linear`."""
    var codes: Bool
    """Of `matmul`."""

    comptime FLOATS = Self(True, False)
    """Of `linear` only."""
    comptime CODES = Self(False, True)
    """Of `matmul` only."""
    comptime BOTH = Self(True, True)
    """Any."""

    def include(self, x_bytes: Int) -> Bool:
        """Says whether elements of `x_bytes` are among them."""
        return self.codes if x_bytes == CODE_BYTES else self.floats


@fieldwise_init
struct Choice(TrivialRegisterPassable):
    """A row of the table: the shapes it covers, the kernel for them, and why."""

    var sources: Sources
    """The activations it is for."""
    var max_m: Int
    """Rows of activations, at most: a multiple of a tile, or `ANY`."""
    var max_k: Int
    """Elements along K, at most."""
    var max_tiles: Int
    """Tiles of C that workgroups compute, at most."""
    var any_k: Bool
    """Whether K may end within a chunk."""
    var kernel: Kernel
    """The family."""
    var shape: DecodeShape
    """How a decode kernel cuts its work; `k_tail` is settled by K."""
    var m_tiles: Int
    """Tiles of rows of a wave of a prefill kernel."""
    var reason: StaticString
    """Why this kernel is for these shapes."""

    def name(self) -> String:
        """Returns the name of the cut: prefill<rows>, or m<tiles>n<tiles>w<waves> and more."""
        if self.kernel == Kernel.PREFILL:
            return String("prefill", self.tile()[0])
        var shape = self.shape
        var name = String("m", shape.m_tiles, "n", shape.n_tiles, "w", shape.waves)
        for letter, count in [
            ("s", shape.splits),
            ("k", shape.k_tiles),
            ("d", shape.depth),
            ("h", shape.sharers),
        ]:
            if count > 1:
                name += String(letter, count)
        return name + ("u" if shape.up_front else "")

    def tile(self) -> Tuple[Int, Int]:
        """Returns the rows and columns of C of a workgroup."""
        if self.kernel == Kernel.PREFILL:
            return (WAVES_M * self.m_tiles * TILE, COLUMNS)
        return (self.shape.m_tiles * TILE, self.shape.n_tiles * TILE)

    def step_k(self) -> Int:
        """Returns the elements along K of a step of the loop."""
        var tiles = self.shape.k_tiles
        if self.kernel == Kernel.PREFILL:
            tiles = STAGE_BLOCKS // TILE_BLOCKS
        return tiles * TILE_K

    def has_tail(self, k: Int) -> Bool:
        """Says whether K ends within a step, which takes the `k_tail` instance."""
        return k % self.step_k() != 0

    def shape_for(self, k: Int) -> DecodeShape:
        """Returns the decode kernel, able to end within a chunk where K does."""
        var shape = self.shape
        shape.k_tail = self.has_tail(k)
        return shape

    def fits(self, x_bytes: Int) -> Bool:
        """Says whether LDS has room for elements of `x_bytes`."""
        if self.kernel == Kernel.PREFILL:
            return True
        var float_bytes = 0 if x_bytes == CODE_BYTES else TILE * TILE_K * x_bytes
        return DecodeLds(self.shape, float_bytes).num_bytes() <= LDS_BYTES

    def max_rows(self, n: Int, k: Int, x_bytes: Int) -> Int:
        """Returns the largest M that the row covers for weights [n, k]; it covers all below."""
        var is_possible = (
            self.sources.include(x_bytes)
            and k <= self.max_k
            and (self.any_k or not self.has_tail(k))
            and self.fits(x_bytes)
        )
        if not is_possible:
            return 0
        var rows, columns = self.tile()
        var max_rows = self.max_m
        if self.max_tiles != ANY:
            max_rows = min(max_rows, self.max_tiles // ceildiv(n, columns) * rows)
        if self.kernel == Kernel.PREFILL:
            max_rows = min(max_rows, CLEARED_BYTES // TeamWorkspace.TEAM_BYTES * rows)
        return max_rows

    def launch(self, m: Int, n: Int, k: Int, x_bytes: Int) -> Launch:
        """Returns the launch for a shape."""
        if self.kernel == Kernel.DECODE:
            return Launch.of(self.shape, m, n, k)
        var rows, columns = self.tile()
        var tiles_m = ceildiv(m, rows)
        var workspace = TeamWorkspace.of(tiles_m, m, k)
        return Launch(
            x=align_up(tiles_m * ceildiv(n, columns), NUM_XCDS),
            y=1,
            z=1,
            threads=THREADS,
            chunks_per_wave=0,
            counter_bytes=workspace.counter_bytes,
            workspace_bytes=workspace.codes if x_bytes == CODE_BYTES else workspace.num_bytes,
        )


def _decode(
    max_k: Int,
    max_tiles: Int,
    m_tiles: Int,
    n_tiles: Int,
    waves: Int,
    reason: StaticString,
    *,
    sources: Sources = Sources.BOTH,
    max_m: Int = ANY,
    any_k: Bool = True,
    k_tiles: Int = 1,
    depth: Int = 1,
    splits: Int = 1,
    sharers: Int = 1,
    up_front: Bool = False,
) -> Choice:
    """Returns a row with a decode kernel; without more words its waves share only K."""
    var shape = DecodeShape(
        m_tiles, n_tiles, k_tiles, waves, depth, False, splits, sharers, up_front
    )
    return Choice(sources, max_m, max_k, max_tiles, any_k, Kernel.DECODE, shape, 0, reason)


def _prefill(max_k: Int, max_tiles: Int, m_tiles: Int, reason: StaticString) -> Choice:
    """Returns a row with the prefill kernels; their counters bound M."""
    comptime BOTH = Sources.BOTH
    var unused = DecodeShape(1, 1, 1, 1, 1, False, 1)
    return Choice(BOTH, ANY, max_k, max_tiles, True, Kernel.PREFILL, unused, m_tiles, reason)


comptime CHOICES = [
    # K up to 512: four chunks.
    _decode(512, CUS, 1, 1, 4, "K at once, a tile for each CU", max_m=16, up_front=True),
    _decode(512, ANY, 1, 2, 4, "K at once, scales feed two tiles", max_m=64, up_front=True),
    _decode(256, 4 * CUS, 2, 4, 2, "two chunks, many tiles: two waves share K"),
    _decode(512, CUS, 2, 6, 4, "four chunks, a large tile for each CU"),
    _decode(512, 4 * CUS, 2, 6, 2, "four chunks, many tiles: two waves share K"),
    # One tile of rows.
    _decode(2048, CUS, 1, 1, 16, "K at once, a tile for each CU", max_m=16, up_front=True),
    _decode(ANY, 32, 1, 1, 8, "very few tiles: K is split", max_m=16, splits=4),
    _decode(
        7168,
        CUS // 7,
        1,
        4,
        8,
        "few tiles: K is split until each part fits at once",
        max_m=16,
        splits=7,
        up_front=True,
    ),
    _decode(4096, CUS, 1, 1, 16, "sixteen waves share K", sources=Sources.CODES, max_m=16),
    _decode(4096, CUS, 1, 2, 16, "sixteen waves share K", max_m=8),
    _decode(ANY, 64, 1, 4, 8, "few tiles: K is split to occupy the CUs", max_m=16, splits=4),
    _decode(ANY, CUS, 1, 4, 8, "eight waves share K, a wide tile for each CU", max_m=16),
    _decode(ANY, ANY, 1, 1, 2, "many tiles for each CU, which small workgroups fill", max_m=16),
    # More rows, until the tiles are more than the CUs.
    _decode(1536, CUS, 1, 4, 12, "twelve waves share K, a tile for each CU"),
    _decode(
        1536,
        CUS,
        2,
        6,
        12,
        "K at once, a tile for each CU, activations encoded by three",
        any_k=False,
        depth=3,
        sharers=3,
        up_front=True,
    ),
    _decode(ANY, 64, 1, 2, 8, "few tiles: K is split to occupy the CUs", splits=4),
    _decode(ANY, 64, 2, 4, 8, "few larger tiles: K is split to occupy the CUs", splits=4),
    _decode(ANY, CUS, 1, 2, 8, "eight waves share K, a tile for each CU"),
    _decode(ANY, CUS, 1, 4, 8, "eight waves share K, a wide tile for each CU"),
    _decode(2048, CUS, 2, 4, 16, "sixteen waves share K", sources=Sources.CODES),
    _decode(
        2048,
        CUS // 2,
        2,
        8,
        16,
        "K at once, in halves: fewer bytes for each CU",
        sources=Sources.FLOATS,
        max_m=64,
        any_k=False,
        k_tiles=2,
        splits=2,
        sharers=4,
        up_front=True,
    ),
    _decode(ANY, CUS, 2, 4, 8, "eight waves share K, a larger tile for each CU"),
    _decode(ANY, CUS, 2, 8, 8, "eight waves share K, a wide tile for each CU"),
    _decode(ANY, CUS, 4, 8, 4, "four waves share a large tile for each CU", depth=4, sharers=4),
    # Many rows.
    _prefill(ANY, CUS, 4, "a low tile for each CU, shared by eight waves"),
    _prefill(ANY, ANY, 8, "many tiles, shared by eight waves"),
    _decode(ANY, ANY, 2, 4, 8, "more rows than prefill kernels can count"),
]
"""In order of preference."""


def choose(m: Int, n: Int, k: Int, x_bytes: Int = BF16_BYTES) -> Int:
    """Returns the row of `CHOICES` for a shape and activations of `x_bytes` an element."""
    comptime last = len(CHOICES) - 1
    comptime assert (
        CHOICES[last].max_rows(ANY, ANY, MAX_X_BYTES) == ANY
        and CHOICES[last].max_rows(ANY, ANY, CODE_BYTES) == ANY
    ), "the last row covers every shape"
    comptime for i in range(last):
        comptime choice = CHOICES[i]
        if m <= choice.max_rows(n, k, x_bytes):
            return i
    return last


def is_chosen[row: Int](n: Int, k: Int, x_bytes: Int) -> Bool:
    """Says whether `choose` returns `row` for some M: one whose result is less than 2 GiB."""
    comptime LEAST_BYTES = 2
    var covered = 0
    comptime for i in range(row):
        comptime choice = CHOICES[i]
        covered = max(covered, choice.max_rows(n, k, x_bytes))
    comptime choice = CHOICES[row]
    return choice.max_rows(n, k, x_bytes) > covered < MAX_TENSOR_BYTES // (LEAST_BYTES * n)


@fieldwise_init
struct Launch(TrivialRegisterPassable):
    """The grid of a kernel and what else depends on the sizes."""

    var x: Int
    """Workgroups along N; all of them for a prefill kernel."""
    var y: Int
    """Workgroups along M."""
    var z: Int
    """Workgroups along K."""
    var threads: Int
    """Threads of a workgroup."""
    var chunks_per_wave: Int
    """Chunks along K of each wave of a decode kernel."""
    var counter_bytes: Int
    """Bytes at the beginning of the workspace that are zero before and after."""
    var workspace_bytes: Int
    """Bytes of the workspace."""

    @staticmethod
    def of(shape: DecodeShape, m: Int, n: Int, k: Int) -> Self:
        """Returns the launch of a decode kernel for a shape."""
        var x, y = ceildiv(n, shape.n_tiles * TILE), ceildiv(m, shape.m_tiles * TILE)
        var handover_bytes = shape.handover_bytes(x * y)
        return Self(
            x=align_up(x, NUM_XCDS) if y > 1 else x,
            y=y,
            z=shape.splits,
            threads=shape.threads(),
            chunks_per_wave=shape.chunks_per_wave(k),
            counter_bytes=handover_bytes,
            workspace_bytes=handover_bytes,
        )


@fieldwise_init
struct Product(TrivialRegisterPassable):
    """Addresses and sizes of C = A @ W.T (+ bias); everything is contiguous."""

    var a: Int
    """Floats [M, K], or plain codes."""
    var a_scales: Int
    """Plain scales of codes; unused for floats."""
    var w_codes: Int
    """Preshuffled codes of [N, K]."""
    var w_scales: Int
    """Preshuffled scales."""
    var result: Int
    """[M, N]."""
    var bias: Int
    """[N]; unused without a bias."""
    var m: Int
    """Rows of A."""
    var n: Int
    """Rows of W."""
    var k: Int
    """Elements of a row."""

    def check[out_bytes: Int](self, a_bytes: Int) raises:
        """Raises if a tensor is too large for 32-bit offsets."""
        var sizes = [a_bytes, self.n * self.k // 2, self.m * self.n * out_bytes]
        for i in range(len(sizes)):
            if sizes[i] >= MAX_TENSOR_BYTES:
                raise Error(
                    String(
                        "got a tensor of ", sizes[i], " bytes for (M, N, K) = (", self.m, ", ",
                        self.n, ", ", self.k, "), expected less than 2 GiB",
                    )
                )  # fmt: skip

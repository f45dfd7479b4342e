"""The table of plans on CDNA4: for which products each is, and why.

Rows are ordered by K, then by tile: as large a tile as it takes to have no more workgroups than
compute units; the last row covers every shape. `choices.mojo` says which row a product gets, and
kernels are compiled for those of their types.

    streaming      tiles of C for each workgroup, its waves share K
    interleaved    tiles of C for each workgroup, waves with columns of their own: from codes, or
                   from floats that were encoded before
    ping_pong      large tiles of C, two groups of waves take turns at the matrix pipes

`python -m bench.simulated.tune --table` measures every row against other shapes;
bench/results/gfx950_tune.csv holds what it found.
"""

from std.builtin.globals import global_constant
from std.math import align_up, ceildiv
from std.utils.numerics import max_finite

from ...launch.grid import CLEARED_BYTES, Workspace
from ...numbers.formats import Format
from ..chip import CUS, MAX_ROWS
from ..streaming.shape import StreamingShape
from ..interleaved.shape import InterleavedShape, WAVES
from ..prologue.shape import COUNTER_BYTES
from ..types import ProductTypes
from .plan import Family, Plan

comptime ANY = Int(max_finite[DType.int32]())
"""No bound."""


@fieldwise_init
struct Sources(Equatable, TrivialRegisterPassable):
    """The kinds of activations that a row is for."""

    var floats: Bool
    """Of `linear`, rounded to four bits or six."""
    var codes: Bool
    """Of `matmul`, of four bits or six, beside weights of four."""
    var wide_floats: Bool
    """Of `linear`, kept or rounded to eight bits."""
    var wide_codes: Bool
    """Of `matmul`, of eight bits."""

    comptime FLOATS = Self(True, False, False, False)
    """Of `linear` only."""
    comptime CODES = Self(False, True, False, False)
    """Of `matmul` only."""
    comptime BOTH = Self(True, True, False, False)
    """Of four bits, or six."""
    comptime WIDE = Self(False, False, True, True)
    """Of more bits, whose products take twice as long at least."""
    comptime WIDE_FLOATS = Self(False, False, True, False)
    """Of those, of `linear` only."""
    comptime WIDE_CODES = Self(False, False, False, True)
    """Of those, of `matmul` only."""
    comptime ALL = Self(True, True, True, True)
    """Any."""

    def include(self, types: ProductTypes) -> Bool:
        if not types.formats.multiply_at_once():
            return self.wide_floats if types.x else self.wide_codes
        return self.floats if types.x else self.codes


@fieldwise_init
struct Choice(TrivialRegisterPassable):
    """A row of the table: the shapes it covers, the plan for them, and why."""

    var sources: Sources
    var max_m: Int
    """Rows of activations, at most: a multiple of a tile, or `ANY`."""
    var max_k: Int
    var max_tiles: Int
    """Tiles of C that workgroups compute, at most."""
    var any_k: Bool
    """Whether K may end within a chunk."""
    var plan: Plan
    var reason: StaticString
    """Why this plan is for these shapes."""

    def quantizes_first(self, types: ProductTypes) -> Bool:
        """Says whether a launch of its own makes codes of floats before."""
        return self.plan.family == Family.INTERLEAVED and Bool(types.x)

    def has_cost(self, types: ProductTypes) -> Bool:
        """Says whether the row competes by its cost; the last one is for what no other covers."""
        if not types.formats.multiply_at_once():
            return self.sources.include(types) and self.sources != Sources.ALL
        if types.x:
            return self.quantizes_first(types)
        if self.plan.family == Family.STREAMING:
            return self.sources == CODES and self.plan.splits > 1
        return self.sources.codes

    def max_rows(self, n: Int, k: Int, types: ProductTypes) -> Int:
        """Returns the largest M that the row covers for weights [n, k]; it covers all below."""
        var is_possible = (
            self.sources.include(types)
            and k <= self.max_k
            and (self.any_k or not self.plan.has_tail(k, types.formats))
            and self.plan.fits(types)
            and (self.plan.family != Family.INTERLEAVED or self.plan.interleaved.supports(k))
        )
        if not is_possible:
            return 0
        var max_rows = self.max_m
        if self.max_tiles != ANY:
            max_rows = min(
                max_rows, self.max_tiles // ceildiv(n, self.plan.columns) * self.plan.rows
            )
        if self.plan.family == Family.PING_PONG:
            max_rows = min(max_rows, CLEARED_BYTES // COUNTER_BYTES * self.plan.rows)
        return max_rows


comptime FLOATS, CODES, BOTH = Sources.FLOATS, Sources.CODES, Sources.BOTH
comptime WIDE, WIDE_FLOATS = Sources.WIDE, Sources.WIDE_FLOATS
comptime WIDE_CODES = Sources.WIDE_CODES


def _streaming(
    max_k: Int,
    max_tiles: Int,
    m_tiles: Int,
    n_tiles: Int,
    waves: Int,
    reason: StaticString,
    *,
    sources: Sources = BOTH,
    max_m: Int = ANY,
    any_k: Bool = True,
    k_tiles: Int = 1,
    depth: Int = 1,
    splits: Int = 1,
    sharers: Int = 1,
    up_front: Bool = False,
) -> Choice:
    """Returns a row with a streaming kernel; without more words its waves share only K."""
    var shape = StreamingShape(
        m_tiles, n_tiles, k_tiles, waves, depth, False, splits, sharers, up_front
    )
    return Choice(sources, max_m, max_k, max_tiles, any_k, Plan.of(shape), reason)


def _ping_pong(
    max_k: Int, max_tiles: Int, m_tiles: Int, reason: StaticString, *, sources: Sources = BOTH
) -> Choice:
    """Returns a row with the ping-pong kernels; their counters bound M."""
    return Choice(sources, ANY, max_k, max_tiles, True, Plan.of(m_tiles=m_tiles), reason)


def _interleaved(
    m_tiles: Int,
    n_tiles: Int,
    depth: Int,
    reason: StaticString,
    *,
    sources: Sources = BOTH,
    any_k: Bool = True,
    splits: Int = 1,
    waves: Int = WAVES,
) -> Choice:
    """Returns a row with an interleaved kernel; `n_tiles` are those of a wave. With parts of K, it
    is for no more tiles than compute units."""
    var is_wide = sources == WIDE_CODES
    var max_tiles = CUS // splits if splits > 1 else ANY
    var bits = 8 if is_wide else 4
    var plan = Plan.of(InterleavedShape(m_tiles, n_tiles, depth, splits, bits, waves))
    return Choice(sources, ANY, ANY, max_tiles, any_k and not is_wide, plan, reason)


# fmt: off
comptime CHOICES = [
    # K up to 512: four chunks.
    _streaming(512, CUS, 1, 1, 4, "K at once, a tile for each CU", max_m=16, up_front=True),
    _streaming(512, ANY, 1, 2, 4, "K at once, scales feed two tiles", max_m=64, up_front=True),
    _streaming(256, 4 * CUS, 2, 4, 2, "two chunks, many tiles: two waves share K"),
    _streaming(512, CUS, 2, 6, 4, "four chunks, a large tile for each CU"),
    _streaming(512, 4 * CUS, 2, 6, 2, "four chunks, many tiles: two waves share K", sources=FLOATS),
    # One tile of rows.
    _streaming(2048, CUS, 1, 1, 16, "K at once, a tile for each CU", max_m=16, up_front=True),
    _streaming(ANY, 32, 1, 1, 8, "very few tiles: K is split", max_m=16, splits=4),
    _streaming(7168, CUS // 7, 1, 4, 8, "few tiles: K is split until each part fits at once",
        max_m=16, splits=7, up_front=True),
    _streaming(4096, CUS, 1, 1, 16, "sixteen waves share K", sources=CODES, max_m=16),
    _streaming(4096, CUS, 1, 2, 16, "sixteen waves share K", max_m=8),
    _streaming(ANY, 64, 1, 4, 8, "few tiles: K is split to occupy the CUs", max_m=16, splits=4),
    _streaming(4096, CUS, 1, 4, 8, "eight waves share K, which is not long", max_m=16),
    _streaming(ANY, CUS // 2, 1, 4, 8, "two CUs share K", max_m=16, splits=2),
    _streaming(ANY, CUS, 1, 4, 8, "eight waves share K, a wide tile for each CU", max_m=16),
    _streaming(1536, CUS, 2, 6, 12,
        "K at once, a large tile for each CU, activations shared by three", sources=CODES,
        max_m=16, any_k=False, depth=3, sharers=3, up_front=True),
    _streaming(ANY, CUS, 2, 8, 8, "eight waves share K, a large tile", sources=CODES, max_m=16),
    _streaming(ANY, 8 * CUS, 1, 1, 2, "many tiles for each CU, which small workgroups fill",
        sources=FLOATS, max_m=16),
    _streaming(ANY, ANY, 1, 1, 2, "many tiles for each CU, which small workgroups fill", max_m=6),
    # More rows, until the tiles are more than the CUs.
    _streaming(1536, CUS, 1, 4, 12, "twelve waves share K, a tile for each CU"),
    _streaming(1536, CUS, 2, 6, 12, "K at once, a tile for each CU, activations encoded by three",
        any_k=False, depth=3, sharers=3, up_front=True),
    _streaming(ANY, 64, 1, 2, 8, "few tiles: K is split to occupy the CUs", splits=4),
    _streaming(ANY, 64, 2, 4, 8, "few larger tiles: K is split to occupy the CUs", splits=4),
    _streaming(ANY, CUS, 1, 2, 8, "eight waves share K, a tile for each CU", sources=FLOATS),
    _streaming(ANY, CUS, 1, 4, 8, "eight waves share K, a wide tile for each CU", sources=FLOATS),
    _streaming(ANY, CUS, 1, 2, 8, "eight waves share K, few rows", sources=CODES, max_m=64),
    _streaming(ANY, CUS, 1, 4, 8, "eight waves share K, rather few rows", sources=CODES, max_m=128),
    _streaming(2048, CUS, 2, 4, 16, "sixteen waves share K", sources=CODES),
    _streaming(8192, CUS, 2, 4, 8, "eight waves share K, which is not long", sources=CODES),
    _streaming(480, 4 * CUS, 2, 6, 2, "K is short and no multiple of 256", sources=CODES),
    # Weights straight to registers. The cheapest is taken, of floats if it is cheaper than what
    # encodes them on the way.
    _interleaved(4, 2, 4, "a low tile"),
    _interleaved(4, 3, 3, "a low and wider tile"),
    _interleaved(4, 4, 3, "a low and wide tile"),
    _interleaved(6, 2, 3, "a low tile of more rows"),
    _interleaved(6, 3, 3, "a low and wider tile of more rows"),
    _interleaved(6, 4, 3, "a low and wide tile of more rows"),
    _interleaved(8, 2, 3, "a square tile"),
    _interleaved(8, 3, 3, "a square tile, but wider"),
    _interleaved(8, 4, 2, "a wide tile"),
    _interleaved(8, 5, 2, "a wider tile"),
    _interleaved(8, 6, 2, "as wide a tile as four waves have registers for"),
    _interleaved(8, 4, 2,
        "as wide a tile as eight waves have registers for, but not for a tail of K", waves=8,
        any_k=False),
    _interleaved(10, 2, 3, "a high tile"),
    _interleaved(10, 3, 3, "a high tile, but wider"),
    _interleaved(10, 4, 2, "a high and wide tile"),
    _interleaved(12, 2, 3, "a higher tile"),
    _interleaved(12, 3, 3, "a large square tile", any_k=False),
    _interleaved(12, 4, 2, "as large a tile whose sums leave registers to share"),
    _interleaved(14, 2, 3, "as high a tile as LDS has room for"),
    _interleaved(14, 3, 2, "as high a tile, but wider"),
    _interleaved(14, 4, 2, "as high and wide a tile, whose sums have registers of their own",
        any_k=False),
    _interleaved(16, 2, 2, "as large a square tile as eight waves have registers for", waves=8),
    _interleaved(4, 2, 4, "a low tile, two CUs share K", splits=2),
    _interleaved(4, 2, 4, "a low tile, three CUs share K", splits=3, any_k=False),
    _interleaved(4, 2, 4, "a low tile, four CUs share K", splits=4),
    _interleaved(6, 2, 3, "a low tile of more rows, two CUs share K", splits=2),
    _interleaved(6, 2, 3, "a low tile of more rows, four CUs share K", splits=4, any_k=False),
    _interleaved(4, 3, 3, "a low and wider tile, two CUs share K", splits=2, any_k=False),
    _interleaved(4, 3, 3, "a low and wider tile, four CUs share K", splits=4, any_k=False),
    _interleaved(6, 4, 3, "a low and wide tile of more rows, two CUs share K", splits=2,
        any_k=False),
    _interleaved(8, 2, 3, "a square tile, two CUs share K", splits=2, any_k=False),
    _interleaved(8, 2, 3, "a square tile, three CUs share K", splits=3, any_k=False),
    _interleaved(8, 4, 2, "a wide tile, two CUs share K", splits=2, any_k=False),
    _interleaved(10, 2, 3, "a high tile, two CUs share K", splits=2, any_k=False),
    _streaming(ANY, 64, 2, 6, 8, "few tiles and long K: it is split", sources=CODES, splits=4),
    _streaming(ANY, CUS, 2, 4, 8, "eight waves share K, a larger tile for each CU"),
    _streaming(ANY, CUS, 2, 8, 8, "eight waves share K, a wide tile for each CU"),
    _streaming(ANY, CUS, 4, 8, 4, "four waves share a large tile for each CU", depth=4, sharers=4),
    # Many rows.
    _ping_pong(ANY, CUS, 4, "a low tile for each CU, shared by eight waves"),
    _ping_pong(ANY, CUS, 8, "a tile for each CU, shared by eight waves"),
    _ping_pong(ANY, ANY, 8, "many tiles, shared by eight waves"),
    # Eight bits and more, whose tiles take more registers and LDS: the cheapest is taken.
    _streaming(ANY, 32, 1, 1, 8, "very few tiles: K is split", sources=WIDE_FLOATS, max_m=16,
        splits=4),
    _streaming(ANY, 64, 1, 4, 8, "few tiles: K is split", sources=WIDE_FLOATS, splits=4),
    _streaming(ANY, 64, 2, 4, 8, "few larger tiles: K is split", sources=WIDE_FLOATS, splits=4),
    _streaming(ANY, ANY, 1, 4, 8, "eight waves share K", sources=WIDE_FLOATS),
    _streaming(ANY, ANY, 2, 4, 8, "eight waves share K, a larger tile", sources=WIDE_FLOATS),
    _streaming(ANY, ANY, 4, 8, 4, "four waves share a large tile", sources=WIDE_FLOATS, depth=2,
        sharers=4),
    _streaming(ANY, ANY, 1, 4, 8, "eight waves share K", sources=WIDE_CODES, max_m=16),
    _streaming(ANY, CUS, 2, 4, 8, "eight waves share K, a larger tile for each CU",
        sources=WIDE_CODES),
    # Of codes with weights straight to registers or not; K is split until each CU has one workgroup
    # or two.
    _streaming(ANY, ANY, 1, 1, 16, "sixteen waves share K", sources=WIDE_CODES, max_m=16),
    _streaming(ANY, ANY, 1, 2, 8, "eight waves share K", sources=WIDE_CODES, max_m=16),
    _streaming(ANY, 64, 1, 1, 8, "very few tiles, eight CUs share K", sources=WIDE_CODES, splits=8),
    _streaming(ANY, 64, 1, 4, 8, "a wide tile, eight CUs share K", sources=WIDE_CODES, splits=8),
    _streaming(ANY, ANY, 2, 2, 8, "eight waves share K", sources=WIDE_CODES),
    _streaming(ANY, 128, 2, 2, 8, "four CUs share K", sources=WIDE_CODES, splits=4),
    _streaming(ANY, 64, 2, 2, 8, "eight CUs share K", sources=WIDE_CODES, splits=8),
    _streaming(ANY, 128, 2, 4, 8, "a larger tile, four CUs share K", sources=WIDE_CODES, splits=4),
    _streaming(ANY, 64, 2, 4, 8, "a larger tile, eight CUs share K", sources=WIDE_CODES, splits=8),
    _interleaved(4, 1, 4, "a small tile", sources=WIDE_CODES),
    _interleaved(4, 1, 4, "a small tile, two CUs share K", sources=WIDE_CODES, splits=2),
    _interleaved(4, 1, 4, "a small tile, three CUs share K", sources=WIDE_CODES, splits=3),
    _interleaved(4, 1, 4, "a small tile, four CUs share K", sources=WIDE_CODES, splits=4),
    _interleaved(4, 2, 4, "a low tile", sources=WIDE_CODES),
    _interleaved(4, 2, 4, "a low tile, two CUs share K", sources=WIDE_CODES, splits=2),
    _interleaved(4, 2, 4, "a low tile, three CUs share K", sources=WIDE_CODES, splits=3),
    _interleaved(6, 2, 4, "a low tile of more rows", sources=WIDE_CODES),
    _interleaved(6, 2, 4, "a low tile of more rows, two CUs share K", sources=WIDE_CODES, splits=2),
    _interleaved(6, 2, 4, "a low tile of more rows, three CUs share K", sources=WIDE_CODES,
        splits=3),
    _interleaved(6, 2, 4, "a low tile of more rows, four CUs share K", sources=WIDE_CODES,
        splits=4),
    _interleaved(8, 2, 4, "a square tile", sources=WIDE_CODES),
    _interleaved(8, 2, 4, "a square tile, two CUs share K", sources=WIDE_CODES, splits=2),
    _interleaved(12, 2, 4, "a high tile", sources=WIDE_CODES),
    _interleaved(8, 4, 3, "a wide tile", sources=WIDE_CODES),
    _interleaved(10, 4, 3, "a wide and higher tile", sources=WIDE_CODES),
    _ping_pong(ANY, CUS, 4, "a low tile for each CU, shared by eight waves", sources=WIDE),
    _ping_pong(ANY, ANY, 8, "many tiles, shared by eight waves", sources=WIDE),
    _ping_pong(ANY, ANY, 4, "many low tiles, of floats", sources=WIDE_FLOATS),
    _streaming(ANY, ANY, 4, 8, 4, "more rows or wider floats than ping-pong kernels take",
        sources=Sources.ALL, depth=2, sharers=4)
]
# fmt: on
"""In order of preference."""


@fieldwise_init
struct Chosen(Equatable, TrivialRegisterPassable):
    """The rows of the table for a product, which may take several launches."""

    var most: Int
    """Of launches with as many rows of activations as one takes."""
    var last: Int
    """Of the last launch, with those that are left."""

    @staticmethod
    def parse(text: String, types: ProductTypes) raises -> Self:
        """Returns the rows of a text: the name of a plan, or of two."""
        var names = text.split(" ")
        var most = row_named(names[0], types)
        var last = row_named(names[len(names) - 1], types)
        if not most or not last:
            raise Error(String("got the plan '", text, "', which kernels were not compiled for"))
        return Self(most.value(), last.value())

    def text(self) -> String:
        """Returns what `parse` reads: of rows with the same plan, that is the first."""
        ref table = global_constant[CHOICES]()
        var most, last = table[self.most].plan.name(), table[self.last].plan.name()
        return most if self.most == self.last else String(most, " ", last)


def row_named(name: StringSlice, types: ProductTypes) -> Optional[Int]:
    """Returns the first row for `types` whose plan has a name."""
    ref table = global_constant[CHOICES]()
    for i in range(len(table)):
        if table[i].sources.include(types) and table[i].plan.fits(types):
            if table[i].plan.name() == name:
                return i
    return None


def plan_named(name: String, types: ProductTypes) raises -> Plan:
    """Returns the plan of a name: a row's, or any streaming kernel's."""
    var row = row_named(name, types)
    if row:
        return global_constant[CHOICES]()[row.value()].plan
    var shape = StreamingShape.named(name)
    if shape.name() != name:
        raise Error(
            String("got the plan ", name, ", expected a row of the table or m<..>n<..>w<..>")
        )
    return Plan.of(shape)


@fieldwise_init
struct KnownWeights(TrivialRegisterPassable):
    """What is known of the weights [n, k] when a launch is compiled."""

    var n: Int
    """Rows, rounded up to whole tiles or not; 0 if unknown."""
    var k: Int
    """Elements of a row; 0 if unknown."""

    comptime NOTHING = Self(0, 0)

    def allows(self, row: Int, types: ProductTypes) -> Bool:
        """Says whether `choose` may return `row` for some M that one launch takes."""
        var n = self.n if self.n > 0 else ANY
        var covered, competes = 0, False
        comptime for i in range(len(CHOICES)):
            comptime choice = CHOICES[i]
            if i == row:
                competes = choice.has_cost(types)
        comptime for i in range(len(CHOICES)):
            comptime choice = CHOICES[i]
            var is_unknown = self.k == 0
            if i == row:
                if is_unknown:
                    return choice.sources.include(types) and choice.plan.fits(types)
                if competes:
                    return choice.max_rows(n, self.k, types) > 0
                return (
                    choice.max_rows(n, self.k, types) > covered < types.rows_at_once(self.n, self.k)
                )
            if not competes and not choice.quantizes_first(types):
                if is_unknown and choice.max_rows(ANY, ANY, types) >= MAX_ROWS:
                    return False
                if not is_unknown:
                    covered = max(covered, choice.max_rows(n, self.k, types))
        return False


def quantized_workspace(format: Format, m: Int, k: Int) -> Workspace:
    """Returns the memory of scales and, behind them, codes of a quantized left side."""
    comptime ALIGNMENT = 256
    var scale_bytes = align_up(format.scale_bytes(m, k), ALIGNMENT)
    return Workspace(0, scale_bytes + format.packed_bytes(m * k))

"""The table of cuts on CDNA4: for which products each is, and why.

`CHOICES` is the whole policy: the first row that covers (M, N, K) is taken, and the last row covers
every shape. Rows are ordered by K, then by tile: as large a tile as it takes to have no more
workgroups than compute units. Of MXFP4 that row competes with all that have costs (costs.mojo), and
the cheapest is taken. Floats become codes in a launch of its own where that and a middle kernel are
expected to take less than the row of floats.

    decode     tiles of C for each workgroup, its waves share K
    middle     tiles of C for each workgroup, waves with columns of their own: from codes, or from
               floats that were encoded before
    prefill    large tiles of C, two groups of waves take turns at the matrix pipes

`python -m bench.simulated.tune --table` measures every row against other cuts;
bench/results/gfx950_tune.csv holds what it found.
"""

from std.math import align_up, ceildiv
from std.utils.numerics import max_finite

from ...launch.grid import CLEARED_BYTES, Workspace
from ...numbers.formats import Format
from ..chip import CUS, MAX_ROWS, TILE, rows_at_once
from ..decode.shape import DecodeShape
from ..middle.shape import MiddleShape, WAVES, slices_of
from ..prefill.shape import CREW_BYTES
from ..types import Formats, ProductTypes, float_bytes
from .costs import Costs
from .plan import Family, Plan

comptime ANY = Int(max_finite[DType.int32]())
"""No bound."""


@fieldwise_init
struct Sources(Equatable, TrivialRegisterPassable):
    """The kinds of activations that a row is for."""

    var floats: Bool
    """Of `linear`, rounded to four bits."""
    var codes: Bool
    """Of `matmul`, of four bits."""
    var wide_floats: Bool
    """Of `linear`, kept or rounded to eight bits."""
    var wide_codes: Bool
    """Of `matmul`, of eight bits."""

    comptime FLOATS = Self(True, False, False, False)
    """Of `linear` only."""
    comptime CODES = Self(False, True, False, False)
    """Of `matmul` only."""
    comptime BOTH = Self(True, True, False, False)
    """Of four bits."""
    comptime WIDE = Self(False, False, True, True)
    """Of more bits."""
    comptime WIDE_CODES = Self(False, False, False, True)
    """Of more bits, of `matmul` only."""
    comptime ALL = Self(True, True, True, True)
    """Any."""

    def include(self, types: ProductTypes) -> Bool:
        """Says whether the activations of `types` are among them."""
        if types.formats != Formats.MXFP4:
            return self.wide_floats if types.x else self.wide_codes
        return self.floats if types.x else self.codes


@fieldwise_init
struct Choice(TrivialRegisterPassable):
    """A row of the table: the shapes it covers, the plan for them, and why."""

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
    var plan: Plan
    var reason: StaticString
    """Why this plan is for these shapes."""

    def quantizes_first(self, types: ProductTypes) -> Bool:
        """Says whether a launch of its own makes codes of floats before."""
        return self.plan.family == Family.MIDDLE and Bool(types.x)

    def has_cost(self, types: ProductTypes) -> Bool:
        """Says whether the row competes by its cost for products of four-bit codes or floats."""
        if types.x:
            return self.quantizes_first(types)
        if self.plan.family == Family.DECODE:
            return self.sources == CODES and self.plan.splits() > 1
        return self.sources.codes

    def max_rows(self, n: Int, k: Int, types: ProductTypes) -> Int:
        """Returns the largest M that the row covers for weights [n, k]; it covers all below."""
        var is_possible = (
            self.sources.include(types)
            and k <= self.max_k
            and (self.any_k or not self.plan.has_tail(k))
            and self.plan.fits(types)
            and (self.plan.family != Family.MIDDLE or self.plan.middle.supports(k))
        )
        if not is_possible:
            return 0
        var rows, columns = self.plan.tile()
        var max_rows = self.max_m
        if self.max_tiles != ANY:
            max_rows = min(max_rows, self.max_tiles // ceildiv(n, columns) * rows)
        if self.plan.family == Family.PREFILL:
            max_rows = min(max_rows, CLEARED_BYTES // CREW_BYTES * rows)
        return max_rows


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
    return Choice(sources, max_m, max_k, max_tiles, any_k, Plan.of(shape), reason)


def _prefill(
    max_k: Int,
    max_tiles: Int,
    m_tiles: Int,
    reason: StaticString,
    *,
    sources: Sources = Sources.BOTH,
) -> Choice:
    """Returns a row with the prefill kernels; their counters bound M."""
    return Choice(sources, ANY, max_k, max_tiles, True, Plan.of(m_tiles=m_tiles), reason)


def _tile(
    m_tiles: Int,
    n_tiles: Int,
    depth: Int,
    reason: StaticString,
    *,
    splits: Int = 1,
    waves: Int = WAVES,
    any_k: Bool = True,
) -> Choice:
    """Returns a row with a middle kernel for four bits; `n_tiles` are those of a wave."""
    var max_tiles = CUS // splits if splits > 1 else ANY
    var plan = Plan.of(MiddleShape(m_tiles, n_tiles, depth, splits, waves=waves))
    return Choice(Sources.BOTH, ANY, ANY, max_tiles, any_k, plan, reason)


def _middle(
    max_k: Int,
    max_tiles: Int,
    m_tiles: Int,
    n_tiles: Int,
    depth: Int,
    reason: StaticString,
    *,
    splits: Int = 1,
) -> Choice:
    """Returns a row with a middle kernel for eight-bit codes."""
    var plan = Plan.of(MiddleShape(m_tiles, n_tiles, depth, splits, slices_of(Format.MXFP8)))
    return Choice(WIDE_CODES, ANY, max_k, max_tiles, False, plan, reason)


comptime FLOATS = Sources.FLOATS
comptime CODES = Sources.CODES
comptime WIDE = Sources.WIDE
comptime WIDE_CODES = Sources.WIDE_CODES
comptime CHOICES = [
    # K up to 512: four chunks.
    _decode(512, CUS, 1, 1, 4, "K at once, a tile for each CU", max_m=16, up_front=True),
    _decode(512, ANY, 1, 2, 4, "K at once, scales feed two tiles", max_m=64, up_front=True),
    _decode(256, 4 * CUS, 2, 4, 2, "two chunks, many tiles: two waves share K"),
    _decode(512, CUS, 2, 6, 4, "four chunks, a large tile for each CU"),
    _decode(512, 4 * CUS, 2, 6, 2, "four chunks, many tiles: two waves share K", sources=FLOATS),
    # One tile of rows.
    _decode(2048, CUS, 1, 1, 16, "K at once, a tile for each CU", max_m=16, up_front=True),
    _decode(1024, ANY, 1, 4, 8, "K is short, eight waves share it", sources=WIDE, max_m=16),
    _decode(1024, CUS, 2, 4, 8, "K is short, eight waves share it", sources=WIDE),
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
    _decode(4096, CUS, 1, 1, 16, "sixteen waves share K", sources=CODES, max_m=16),
    _decode(4096, CUS, 1, 2, 16, "sixteen waves share K", max_m=8),
    _decode(ANY, 64, 1, 4, 8, "few tiles: K is split to occupy the CUs", max_m=16, splits=4),
    _decode(4096, CUS, 1, 4, 8, "eight waves share K, which is not long", max_m=16),
    _decode(ANY, CUS // 2, 1, 4, 8, "two CUs share K", max_m=16, splits=2),
    _decode(ANY, CUS, 1, 4, 8, "eight waves share K, a wide tile for each CU", max_m=16),
    _decode(
        1536,
        CUS,
        2,
        6,
        12,
        "K at once, a large tile for each CU, activations shared by three",
        sources=CODES,
        max_m=16,
        any_k=False,
        depth=3,
        sharers=3,
        up_front=True,
    ),
    _decode(ANY, CUS, 2, 8, 8, "eight waves share K, a large tile", sources=CODES, max_m=16),
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
    _decode(ANY, CUS, 1, 2, 8, "eight waves share K, a tile for each CU", sources=FLOATS),
    _decode(ANY, CUS, 1, 4, 8, "eight waves share K, a wide tile for each CU", sources=FLOATS),
    _decode(ANY, CUS, 1, 2, 8, "eight waves share K, few rows", sources=CODES, max_m=64),
    _decode(ANY, CUS, 1, 4, 8, "eight waves share K, rather few rows", sources=CODES, max_m=128),
    _decode(2048, CUS, 2, 4, 16, "sixteen waves share K", sources=CODES),
    _decode(8192, CUS, 2, 4, 8, "eight waves share K, which is not long", sources=CODES),
    _decode(480, 4 * CUS, 2, 6, 2, "K is short and no multiple of 256", sources=CODES),
    # Weights straight to registers. The cheapest is taken, of floats if it is cheaper than what
    # encodes them on the way.
    _tile(4, 2, 4, "a low tile"),
    _tile(4, 3, 3, "a low and wider tile"),
    _tile(4, 4, 3, "a low and wide tile"),
    _tile(6, 2, 3, "a low tile of more rows"),
    _tile(6, 3, 3, "a low and wider tile of more rows"),
    _tile(6, 4, 3, "a low and wide tile of more rows"),
    _tile(8, 2, 3, "a square tile"),
    _tile(8, 3, 3, "a square tile, but wider"),
    _tile(8, 4, 2, "a wide tile"),
    _tile(8, 5, 2, "a wider tile"),
    _tile(8, 6, 2, "as wide a tile as four waves have registers for"),
    _tile(
        8,
        4,
        2,
        "as wide a tile as eight waves have registers for, but not for a tail of K",
        waves=8,
        any_k=False,
    ),
    _tile(10, 2, 3, "a high tile"),
    _tile(10, 3, 3, "a high tile, but wider"),
    _tile(10, 4, 2, "a high and wide tile"),
    _tile(12, 2, 3, "a higher tile"),
    _tile(12, 3, 3, "a large square tile", any_k=False),
    _tile(12, 4, 2, "as large a tile as four waves have registers for"),
    _tile(14, 2, 3, "as high a tile as LDS has room for"),
    _tile(14, 3, 2, "as high a tile, but wider"),
    _tile(16, 2, 2, "as large a square tile as eight waves have registers for", waves=8),
    _tile(4, 2, 4, "a low tile, two CUs share K", splits=2),
    _tile(4, 2, 4, "a low tile, three CUs share K", splits=3, any_k=False),
    _tile(4, 2, 4, "a low tile, four CUs share K", splits=4),
    _tile(6, 2, 3, "a low tile of more rows, two CUs share K", splits=2),
    _tile(6, 2, 3, "a low tile of more rows, four CUs share K", splits=4, any_k=False),
    _tile(4, 3, 3, "a low and wider tile, two CUs share K", splits=2, any_k=False),
    _tile(4, 3, 3, "a low and wider tile, four CUs share K", splits=4, any_k=False),
    _tile(6, 4, 3, "a low and wide tile of more rows, two CUs share K", splits=2, any_k=False),
    _tile(8, 2, 3, "a square tile, two CUs share K", splits=2, any_k=False),
    _tile(8, 2, 3, "a square tile, three CUs share K", splits=3, any_k=False),
    _tile(8, 4, 2, "a wide tile, two CUs share K", splits=2, any_k=False),
    _tile(10, 2, 3, "a high tile, two CUs share K", splits=2, any_k=False),
    _decode(ANY, 64, 2, 6, 8, "few tiles and long K: it is split", sources=CODES, splits=4),
    _decode(ANY, CUS, 2, 4, 8, "eight waves share K, a larger tile for each CU"),
    _decode(ANY, CUS, 2, 8, 8, "eight waves share K, a wide tile for each CU"),
    _decode(ANY, CUS, 4, 8, 4, "four waves share a large tile for each CU", depth=4, sharers=4),
    # Many rows.
    _prefill(ANY, CUS, 4, "a low tile for each CU, shared by eight waves"),
    _prefill(ANY, CUS, 8, "a tile for each CU, shared by eight waves"),
    _prefill(ANY, ANY, 8, "many tiles, shared by eight waves"),
    # More than four bits: their tiles take more registers and LDS.
    _decode(ANY, 32, 1, 1, 8, "very few tiles: K is split", sources=WIDE, max_m=16, splits=4),
    _decode(ANY, CUS, 1, 1, 16, "sixteen waves share K", sources=WIDE_CODES, max_m=16),
    _decode(ANY, CUS, 1, 2, 8, "eight waves share K", sources=WIDE_CODES, max_m=16),
    _decode(ANY, 64, 1, 4, 8, "few tiles: K is split", sources=WIDE, max_m=16, splits=4),
    _decode(ANY, ANY, 1, 4, 8, "eight waves share K", sources=WIDE, max_m=16),
    _decode(ANY, CUS, 2, 2, 8, "eight waves share K, a tile for each CU", sources=WIDE_CODES),
    _decode(ANY, 64, 2, 4, 8, "few larger tiles: K is split", sources=WIDE, splits=4),
    _decode(4096, CUS, 2, 4, 8, "eight waves share K, which is not long", sources=WIDE_CODES),
    # Of those, codes: weights straight to registers.
    _middle(4096, CUS, 4, 1, 4, "a small tile for each CU, K is not long"),
    _middle(ANY, CUS // 3, 4, 1, 4, "three CUs share K", splits=3),
    _middle(ANY, CUS // 2, 4, 1, 4, "two CUs share K", splits=2),
    _middle(ANY, CUS // 3, 4, 2, 4, "three CUs share K", splits=3),
    _middle(ANY, CUS // 2, 4, 2, 4, "two CUs share K", splits=2),
    _middle(ANY, CUS, 4, 2, 4, "a tile for each CU"),
    _middle(ANY, CUS, 6, 2, 4, "a larger tile for each CU"),
    _middle(ANY, CUS, 8, 2, 4, "a square tile for each CU"),
    _middle(ANY, CUS, 12, 2, 4, "a high tile for each CU"),
    _middle(ANY, CUS, 8, 4, 3, "a wide tile for each CU"),
    _middle(ANY, CUS, 10, 4, 3, "a wide and higher tile for each CU"),
    _decode(ANY, CUS, 2, 4, 8, "eight waves share K, a larger tile for each CU", sources=WIDE),
    _decode(2048, 2 * CUS, 4, 8, 4, "K is short, large tiles", sources=WIDE, depth=2, sharers=4),
    _decode(ANY, CUS, 4, 8, 4, "a large tile for each CU", sources=WIDE, depth=2, sharers=4),
    _prefill(ANY, CUS, 4, "a low tile for each CU, shared by eight waves", sources=WIDE),
    _prefill(ANY, ANY, 8, "many tiles, shared by eight waves", sources=WIDE),
    _prefill(ANY, ANY, 4, "many low tiles, of floats that are kept", sources=WIDE),
    _decode(
        ANY,
        ANY,
        4,
        8,
        4,
        "more rows or wider floats than prefill kernels take",
        sources=Sources.ALL,
        depth=2,
        sharers=4,
    ),
]
"""In order of preference."""


def plan_named(name: String, types: ProductTypes) raises -> Plan:
    """Returns the plan of a name: a row's, or any decode kernel's."""
    comptime for i in range(len(CHOICES)):
        comptime plan = CHOICES[i].plan
        if plan.fits(types) and plan.name() == name:
            return plan
    var shape = DecodeShape.named(name)
    if shape.name() != name:
        raise Error(
            String("got the plan ", name, ", expected a row of the table or m<..>n<..>w<..>")
        )
    return Plan.of(shape)


comptime SHORT_K = 2048
"""Up to which decode kernels are not compared with others for more than a tile of rows."""


def choose(m: Int, n: Int, k: Int, types: ProductTypes) -> Int:
    """Returns the row of `CHOICES` for a shape."""
    var first = _first(m, n, k, types)
    if types.formats != Formats.MXFP4:
        return first
    var result, least = first, ANY
    comptime for i in range(len(CHOICES)):
        comptime choice = CHOICES[i]
        comptime if choice.plan.family == Family.DECODE:
            var is_short = k <= SHORT_K and not types.x
            if i == first and (m <= TILE or is_short):
                return first
        if (i == first or choice.has_cost(types)) and m <= choice.max_rows(n, k, types):
            var cycles = materialize[Costs.TABLE]().of(choice.plan, m, n, k, types)
            if cycles < least:
                result, least = i, cycles
    return result


def _first(m: Int, n: Int, k: Int, types: ProductTypes) -> Int:
    """Returns the first row that covers a shape."""
    comptime last = len(CHOICES) - 1
    comptime for i in range(last):
        comptime choice = CHOICES[i]
        if not choice.quantizes_first(types) and m <= choice.max_rows(n, k, types):
            return i
    return last


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
        var covered = 0
        comptime for i in range(len(CHOICES)):
            comptime choice = CHOICES[i]
            var is_unknown = self.k == 0
            if i == row:
                if is_unknown:
                    return choice.sources.include(types) and choice.plan.fits(types)
                if choice.has_cost(types) and types.formats == Formats.MXFP4:
                    return choice.max_rows(n, self.k, types) > 0
                return choice.max_rows(n, self.k, types) > covered < self._most_rows(types)
            if not choice.quantizes_first(types):
                if is_unknown and choice.max_rows(ANY, ANY, types) >= MAX_ROWS:
                    return False
                if not is_unknown:
                    covered = max(covered, choice.max_rows(n, self.k, types))
        return False

    def _most_rows(self, types: ProductTypes) -> Int:
        """Returns the rows of a launch."""
        return rows_at_once(max(types.row_bytes(self.k), self.n * float_bytes(types.out)))


def quantized_workspace(format: Format, m: Int, k: Int) -> Workspace:
    """Returns the memory of scales and, behind them, codes of a quantized left side."""
    comptime ALIGNMENT = 256
    var scale_bytes = align_up(format.scale_bytes(m, k), ALIGNMENT)
    return Workspace(0, scale_bytes + format.packed_bytes(m * k))

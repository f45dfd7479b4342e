"""Which kernel computes a product on Hopper, and why.

`CHOICES` is the whole policy: the first row that covers (M, N, K) is taken, and the last row
covers every shape. A row names a kernel, how its groups share the work, and the reason; the
dispatch and `mx_kernels.explain` read it. `PORTABLE` is for operands that no fast kernel takes.

Few rows are bound by reading the weights: enough groups must run to keep all of memory busy, so a
cluster splits K where there are few tiles of columns. More rows are bound by decoding weights, and
then by tensor cores: as large a tile as still gives every multiprocessor a group.
"""

from std.utils.numerics import max_finite

from ..layout import BLOCK, TILE_ROWS
from ..many.kernel import MULTIPROCESSORS
from ..plan import MAX_RANKS, Plan

comptime ANY = Int(max_finite[DType.int32]())
"""No bound."""
comptime MAX_FEW_ROWS = 32
"""Up to this many rows of activations, no workspace is wanted. Guess."""
comptime MUCH_STAGING = 1024
"""Blocks of tokens from which on staging them weighs more than a cluster. H200, 2026-11-21."""
comptime MOST = MULTIPROCESSORS * 3 // 4
"""Groups that keep most multiprocessors busy."""


@fieldwise_init
struct Choice(TrivialRegisterPassable):
    """A row of the table: the shapes it covers, the plan for them, and why."""

    var plan: Plan
    var max_m: Int
    """Rows of activations, at most."""
    var max_staging: Int
    """Blocks of all rows of activations, at most."""
    var max_groups: Int
    """Groups that the plan gives, at most."""
    var min_groups: Int
    """Groups that the plan gives, at least; fewer do where K is too short for more ranks."""
    var min_blocks: Int
    """Blocks of K from which on more ranks could share them; 0 where that does not matter."""
    var reason: StaticString
    """Why this plan is for these shapes."""

    def covers(self, m: Int, n: Int, k: Int) -> Bool:
        """Says whether the row is for a shape."""
        var groups = self.plan.groups(m, n)
        var blocks = k // BLOCK
        return (
            _within(m, self.max_m)
            and _within(m * blocks, self.max_staging)
            and _within(groups, self.max_groups)
            and (groups >= self.min_groups or blocks < self.min_blocks)
        )


def _within(count: Int, bound: Int) -> Bool:
    """Says whether a bound allows a count."""
    return bound == ANY or count <= bound


def _warps_share_k(tokens: Int, reason: StaticString) -> Choice:
    """Returns a row for few rows and columns: a tile of weights a group, whose warps share K."""
    var plan = Plan.few(tokens, TILE_ROWS, 1)
    return Choice(plan, tokens, MUCH_STAGING - 1, 2 * (MULTIPROCESSORS - 1), 0, 0, reason)


def _few(tokens: Int, ranks: Int, reason: StaticString) -> Choice:
    """Returns a row for few rows: a tile of weights a warp."""
    var plan = Plan.few(tokens, 8 * TILE_ROWS, ranks)
    # A multiprocessor holds two groups, but one of the widest.
    var min_groups = MOST if tokens == MAX_FEW_ROWS else 2 * MULTIPROCESSORS * 3 // 4
    var is_last = ranks == MAX_RANKS
    return Choice(plan, tokens, ANY, ANY, 0 if is_last else min_groups, 2 * ranks, reason)


def _middle(tokens: Int, ranks: Int, min_groups: Int, reason: StaticString) -> Choice:
    """Returns a row for dozens to hundreds of rows."""
    return Choice(Plan.middle(tokens, ranks), ANY, ANY, ANY, min_groups, 0, reason)


def _many(min_groups: Int, reason: StaticString) -> Choice:
    """Returns a row for many rows."""
    return Choice(Plan.MANY, ANY, ANY, ANY, min_groups, 0, reason)


comptime _SHARE_K = "little to stage, few columns: a tile of weights a group, whose warps share K"
comptime _FULL = "few rows, enough tiles of weights: one a warp, nobody splits K"
comptime _SPLIT_2 = "few rows, fewer tiles of weights: two groups of a cluster split K"
comptime _SPLIT_4 = "few rows, few tiles of weights: four groups of a cluster split K"
comptime _SPLIT_8 = "few rows, very few tiles of weights: eight groups of a cluster split K"

comptime CHOICES = [
    # Few rows: weights stream through registers, and tokens are staged by the group.
    _warps_share_k(8, _SHARE_K),
    _few(8, 1, _FULL),
    _few(8, 2, _SPLIT_2),
    _few(8, 4, _SPLIT_4),
    _few(8, 8, _SPLIT_8),
    _warps_share_k(16, _SHARE_K),
    _few(16, 1, _FULL),
    _few(16, 2, _SPLIT_2),
    _few(16, 4, _SPLIT_4),
    _few(16, 8, _SPLIT_8),
    _warps_share_k(32, _SHARE_K),
    _few(32, 1, _FULL),
    _few(32, 2, _SPLIT_2),
    _few(32, 4, _SPLIT_4),
    _few(32, 8, _SPLIT_8),
    # More rows: activations are expanded first.
    _many(MOST, "a weight is decoded once for 256 rows, and most multiprocessors have a tile"),
    _middle(128, 1, MOST + 1, "hundreds of rows: tiles of 128 rows for most multiprocessors"),
    _middle(64, 1, MULTIPROCESSORS // 2 + 1, "tiles of 64 rows for half of the multiprocessors"),
    _middle(64, 2, MULTIPROCESSORS // 2 + 1, "fewer tiles: two groups of a cluster split K"),
    _middle(64, 4, MULTIPROCESSORS // 2 + 1, "few tiles: four groups of a cluster split K"),
    _middle(64, 8, 0, "very few tiles: eight groups of a cluster split K"),
]
"""In order of preference."""

comptime PORTABLE = Choice(
    Plan.PORTABLE,
    ANY,
    ANY,
    ANY,
    0,
    0,
    "fast kernels take MXFP4 weights, preshuffled for CUDA, with MXFP4 or bfloat16 activations",
)
"""For everything else."""


def choose(m: Int, n: Int, k: Int) -> Int:
    """Returns the row of `CHOICES` for a shape."""
    comptime last = len(CHOICES) - 1
    comptime assert CHOICES[last].covers(ANY, ANY, ANY), "the last row covers every shape"
    comptime for i in range(last):
        comptime choice = CHOICES[i]
        if choice.covers(m, n, k):
            return i
    return last


def plan_of(row: Int) -> Plan:
    """Returns the plan of a row of `CHOICES`."""
    comptime for i in range(len(CHOICES)):
        comptime plan = CHOICES[i].plan
        if row == i:
            return materialize[plan]()
    return materialize[Plan.PORTABLE]()

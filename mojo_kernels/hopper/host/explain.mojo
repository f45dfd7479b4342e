"""What the dispatch does on Hopper, in words and numbers, without a launch.

Grids and workspaces are those of the dispatch; for experts here stands what each launch is for, in the
order in which they run.
"""

from std.math import ceildiv

from ...experts import Experts, ExpertsProblem, GroupedProblem, Routing
from ...numbers.floats import float_code
from ...numbers.formats import FORMATS, NO_FORMAT
from ...numbers.gates import Gate
from ...numbers.rounding import Rounding
from ...problem import Left, NO_BIAS, Right
from ...simt import host as portable
from ..layout import TILE_ROWS as WEIGHT_ROWS
from ..plan import Kernel, PRESHUFFLED, takes_formats
from ..shapes import COLUMNS, EXPERT_CAPACITY
from . import gemm, moe, plans, workspace
from .choices import Choice, choice_of_mapped, choice_of_mxfp8, choice_of_portable, choose
from ...launch.grid import Explained, Grid, Workspace


@fieldwise_init
struct Explanation(TrivialRegisterPassable):
    """The choice for a product, and its launch."""

    var choice: Choice
    var grid: Grid
    var workspace: Workspace


def explain(m: Int, n: Int, k: Int, left_format: Int, right_format: Int) raises -> Explanation:
    """Returns what happens to weights [n, k] as `preshuffle` leaves them.

    The result is bfloat16, and so are activations that are kept.
    """
    if gemm.mapped_takes(left_format, right_format):
        var choice = choice_of_mapped(m, n, k, left_format, right_format)
        var grid = gemm.grid_of_mapped(m, n, choice.plan)
        return Explanation(choice, grid, workspace.workspace_of_mapped(m, k))
    var space = plans.workspace_of(m, n, k, left_format, right_format, PRESHUFFLED)
    if gemm.aligned_takes(left_format, right_format):
        var bits = materialize[FORMATS]()[right_format].element.bits
        var choice = choice_of_mxfp8(m, n, k, right_format)
        return Explanation(choice, gemm.grid_of_aligned(m, n, bits, choice.plan), space)
    if not takes_formats(left_format, right_format):
        var choice = choice_of_portable(m, n, k, left_format, right_format)
        if choice.plan.kernel == Kernel.TILES:
            var factors = portable.factors_of(left_format, right_format, k)
            var grid = portable.grid_of_tiles(m, n, portable.Cut.of(m, n, k), factors)
            return Explanation(choice, grid, portable.workspace_of_tiles(m, n, k))
        return Explanation(choice, portable.grid_of_warps(m, n), Workspace(0, 0))
    var choice = choose(m, n, k, gemm.fp8_takes(left_format, k), left_format == NO_FORMAT)
    return Explanation(choice, gemm.grid_of(m, n, k, choice.plan), space)


@fieldwise_init
struct ExpertsQuestion(TrivialRegisterPassable):
    """A grouped product of m rows, or a layer of m tokens of k numbers with n hidden ones."""

    var m: Int
    var n: Int
    var k: Int
    var experts: Int
    var slots: Int
    """Of a token; 0 for a grouped product."""
    var is_interleaved: Bool
    """Whether gates and ups are neighbours."""
    var left_format: Int
    """What bfloat16 is rounded to, or `NO_FORMAT`."""
    var right_format: Int

    def rows(self) -> Int:
        """Returns the rows of all experts."""
        return self.m * max(self.slots, 1)

    def left(self) -> Left:
        """Returns the left side, without memory."""
        comptime X = float_code(DType.bfloat16)
        if self.left_format == NO_FORMAT:
            return Left.kept(0, X, self.k)
        return Left.quantized(0, X, self.k, self.left_format, Rounding.EVEN)

    def weights(self) -> Experts:
        """Returns the weights, without memory."""
        var right = Right(0, 0, self.right_format, PRESHUFFLED)
        return Experts(right, self.experts, 0, 0, 0, NO_BIAS)

    def grouped(self) -> GroupedProblem:
        """Returns the grouped product."""
        var out = float_code(DType.bfloat16)
        return GroupedProblem(self.left(), self.weights(), 0, 0, out, self.m, self.n, self.k)

    def layer(self) -> ExpertsProblem:
        """Returns the layer."""
        var gate = Gate(Gate.SWIGLU_OAI if self.is_interleaved else Gate.SILU, 0, 0)
        var out, w = float_code(DType.bfloat16), self.weights()
        comptime ID_BYTES = 4
        var routing = Routing(0, ID_BYTES, 0, out, self.m, self.slots)
        return ExpertsProblem(self.left(), w, w, routing, gate, 0, out, self.k, self.n)


@fieldwise_init
struct ExplainedExperts(Copyable, Movable):
    """The launches of an operation."""

    var launches: List[Explained]
    var workspace: Workspace


def explain_experts(asked: ExpertsQuestion) -> ExplainedExperts:
    """Returns the launches of the dispatch, each with its purpose."""
    if asked.slots == 0:
        var problem = asked.grouped()
        return ExplainedExperts(_launches_of(problem, asked), moe.workspace_of(problem))
    var problem = asked.layer()
    return ExplainedExperts(_launches_of(problem, asked), moe.workspace_of(problem))


def _launches_of(problem: GroupedProblem, asked: ExpertsQuestion) -> List[Explained]:
    """Returns those of a grouped product."""
    var n, k, experts = asked.n, asked.k, asked.experts
    if not moe.supports(problem):
        return [_portable("product", asked.m, n, False)]
    if moe.streaming_takes(problem):
        return [_streaming("product", asked, 0, n, k, False)]
    var lists = moe.Memory.of(problem, 0).lists
    var reason = StaticString("rows of groups are cut into tiles")
    if moe.bytes_take(problem):
        return [
            _begin(reason, experts * ceildiv(n, WEIGHT_ROWS)),
            _prepare(asked.left(), lists, k),
            _bytes("product", asked.left(), lists, n, False),
        ]
    return [
        _route(reason),
        _stage("rows become stages once, not in each tile", asked, lists, k),
        _product("product", asked, lists, n, False),
    ]


def _launches_of(problem: ExpertsProblem, asked: ExpertsQuestion) -> List[Explained]:
    """Returns those of a layer."""
    var inner, width, experts, left = asked.n, asked.k, asked.experts, asked.left()
    if not moe.supports(problem):
        return [
            _portable("gate_up", asked.rows(), 2 * inner, True),
            _portable("down", asked.m, width, False),
        ]
    if moe.streaming_takes(problem):
        var slots = asked.rows()
        return [
            _streaming("gate_up", asked, slots, inner, width, True),
            _streaming("down", asked, slots, width, inner, False),
            _add(asked.m, width),
        ]
    var lists = moe.Memory.of(problem, 0).lists
    var reason = StaticString("slots are sorted by expert")
    if moe.bytes_take(problem):
        var tiles = ceildiv(2 * inner, WEIGHT_ROWS) + ceildiv(width, WEIGHT_ROWS)
        return [
            _begin(reason, experts * tiles),
            _prepare(left, lists, width),
            _bytes("gate_up", left, lists, inner, True),
            _prepare(left, lists, inner),
            _bytes("down", left, lists, width, False),
            _add(asked.m, width),
        ]
    return [
        _route(reason),
        _stage("tokens become stages once, not in each tile", asked, lists, width),
        _product("gate_up", asked, lists, inner, True),
        _stage("hidden numbers become stages once, not in each tile", asked, lists, inner),
        _product("down", asked, lists, width, False),
        _add(asked.m, width),
    ]


def _explained(
    name: StaticString,
    file: StaticString,
    reason: StaticString,
    grid: Grid,
    tile_m: Int = 0,
    tile_n: Int = 0,
) -> Explained:
    """Returns a launch; it has no tile where that has no rows."""
    var cut = String(tile_m, "x", tile_n) if tile_m > 0 else String()
    return Explained(name, file, reason, cut, tile_m, tile_n, grid)


def _portable(name: StaticString, rows: Int, columns: Int, is_gated: Bool) -> Explained:
    """Returns a portable product."""
    var tile_n = portable.WARPS * (portable.PAIRS if is_gated else portable.COLUMNS)
    var reason = StaticString("Hopper's kernels take MXFP4 weights and MX or kept activations")
    var grid = portable.grid_of_warps(rows, columns)
    return _explained(name, "simt/experts.mojo", reason, grid, 1, tile_n)


def _streaming(
    name: StaticString, asked: ExpertsQuestion, slots: Int, columns: Int, k: Int, is_gated: Bool
) -> Explained:
    """Returns a product of few rows of each expert."""
    var rows, experts = asked.rows(), asked.experts
    var config = moe.streaming_config(rows, experts, is_gated)
    var reason = StaticString("few rows of each expert: weights stream through registers")
    var grid = moe.grid_of_streaming(config, rows, experts, slots, columns, k)
    var file = StaticString("hopper/streaming/kernel.mojo")
    return _explained(name, file, reason, grid, config.rows(), config.columns())


def _route(reason: StaticString) -> Explained:
    """Returns the launch that lists rows."""
    return _explained("route", "hopper/experts/groups.mojo", reason, moe.grid_of_lists())


def _begin(reason: StaticString, weight_tiles: Int) -> Explained:
    """Returns the launch that lists rows, and finds what weights are divided by."""
    var grid = moe.grid_of_begin(weight_tiles)
    return _explained("route", "hopper/prepare/experts.mojo", reason, grid)


def _prepare(left: Left, lists: moe.ListPlaces, k: Int) -> Explained:
    """Returns the launch that encodes the rows of a product."""
    var reason = StaticString("rows become bytes once, not in each tile")
    var log_lanes = moe.log_lanes_of_places(left, lists.num_places, k)
    var grid = moe.grid_of_places(lists.num_places, log_lanes)
    return _explained("stage", "hopper/prepare/kernel.mojo", reason, grid)


def _bytes(
    name: StaticString, left: Left, lists: moe.ListPlaces, columns: Int, is_gated: Bool
) -> Explained:
    """Returns a product of bytes."""
    var reason = StaticString("activations of MXFP4 or MXFP8: FP8 tensor cores, at twice the rate")
    var num_groups = moe.num_groups_of(columns, is_gated)
    var grid = moe.grid_of_bytes(left.format == gemm.MXFP8, lists.num_tiles, num_groups)
    var tile_n = moe.HIDDEN if is_gated else COLUMNS
    var file = StaticString("hopper/gemm_rs_fp8.mojo")
    return _explained(name, file, reason, grid, EXPERT_CAPACITY, tile_n)


def _stage(
    reason: StaticString, asked: ExpertsQuestion, lists: moe.ListPlaces, k: Int
) -> Explained:
    """Returns the launch that stages the rows of a product."""
    var tile_rows = moe.tile_rows_of(asked.rows(), asked.experts)
    var grid = moe.grid_of_stages(tile_rows, lists.num_tiles, k)
    return _explained("stage", "hopper/prepare/bf16.mojo", reason, grid)


def _product(
    name: StaticString, asked: ExpertsQuestion, lists: moe.ListPlaces, columns: Int, is_gated: Bool
) -> Explained:
    """Returns a product of tiles."""
    var rows, experts = asked.rows(), asked.experts
    var reason = StaticString("tiles have the rows of most experts")
    if rows * moe.USUAL_SHARE > experts * moe.MOST_TILE_ROWS:
        reason = "most experts have more rows than the largest tile"
    var tile_rows = moe.tile_rows_of(rows, experts)
    var file = StaticString("hopper/gemm_rs_bf16.mojo")
    var num_groups = moe.num_groups_of(columns, is_gated)
    var grid = moe.grid_of_tiles(tile_rows, lists.num_tiles, num_groups)
    return _explained(name, file, reason, grid, tile_rows, moe.HIDDEN if is_gated else COLUMNS)


def _add(tokens: Int, width: Int) -> Explained:
    """Returns the launch that adds up slots."""
    var reason = StaticString("rows of a token are added in the order of its slots")
    return _explained("add", "hopper/experts/slots.mojo", reason, moe.grid_of_sums(tokens, width))

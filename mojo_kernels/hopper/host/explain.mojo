"""What the dispatch does on Hopper, in words and numbers, without a launch.

Grids and workspaces are those of the dispatch; for experts here stands what each launch is for, in the
order in which they run.
"""

from std.math import ceildiv

from ...experts import Experts, ExpertsProblem, GroupedProblem, Routing
from ...launch.grid import Explained, Grid, Workspace
from ...numbers.floats import float_code
from ...numbers.formats import FORMATS, NO_FORMAT
from ...numbers.gates import Gate
from ...numbers.rounding import Rounding
from ...problem import Left, NO_BIAS, Right
from ...simt import host as portable
from ..layout import TILE_ROWS as WEIGHT_ROWS
from ..plan import Kernel, PRESHUFFLED
from ..shapes import COLUMNS
from . import gemm, moe
from .choices import Choice, choice_of_portable, choose, workspace_of


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
    var pair = gemm.Pair.of(left_format, right_format, k)
    if pair != gemm.Pair.NONE:
        var choice = choose(m, n, k, pair)
        if choice.plan.kernel != Kernel.PORTABLE:
            var bits = materialize[FORMATS]()[right_format].element.bits
            var grid = gemm.grid_of(m, n, k, choice.plan, bits)
            return Explanation(choice, grid, workspace_of(m, n, k, pair))
    var choice = choice_of_portable(m, n, k, left_format, right_format)
    if choice.plan.kernel == Kernel.TILES:
        var factors = portable.factors_of(left_format, right_format, k)
        var grid = portable.grid_of_tiles(m, n, portable.Cut.of(m, n, k).beside(factors))
        return Explanation(choice, grid, portable.workspace_of_tiles(m, n, k))
    return Explanation(choice, portable.grid_of_warps(m, n), Workspace(0, 0))


@fieldwise_init
struct ExpertsQuestion(TrivialRegisterPassable):
    """A grouped product of m rows, or a layer of m tokens of k numbers with n hidden ones."""

    var m: Int
    var n: Int
    var k: Int
    var experts: Int
    var slots: Int
    """Of a token; 0 for a grouped product."""
    var gate: Gate
    """Of a layer."""
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
        var out, w = float_code(DType.bfloat16), self.weights()
        comptime ID_BYTES = 4
        var routing = Routing(0, ID_BYTES, 0, out, self.m, self.slots)
        return ExpertsProblem(self.left(), w, w, routing, self.gate, 0, out, self.k, self.n)


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
    var n, k, kernel = asked.n, asked.k, moe.kernel_of(problem)
    if kernel == Kernel.PORTABLE:
        return [_portable("product", "simt/matmul.mojo", asked.m, n, False)]
    if kernel == Kernel.STREAM:
        var launches = _round(asked, asked.m, k)
        launches.append(_streaming("product", asked, 0, n, k, False, False, 1))
        return launches^
    var memory = moe.Memory.of(problem, 0)
    var tiles = asked.experts * ceildiv(n, WEIGHT_ROWS)
    return [
        _list(memory, "rows of groups are cut into tiles", tiles),
        _prepare(memory, "rows", k),
        _product("product", asked, memory, n, False),
    ]


def _launches_of(problem: ExpertsProblem, asked: ExpertsQuestion) -> List[Explained]:
    """Returns those of a layer."""
    var inner, width, kernel = asked.n, asked.k, moe.kernel_of(problem)
    var sums, is_gated = problem.sums(), moe.is_fused(problem.gate)
    if kernel == Kernel.PORTABLE:
        return [
            _portable("gate_up", "simt/experts.mojo", asked.rows(), sums, problem.gate.is_there()),
            _portable("down", "simt/experts.mojo", asked.m, width, False),
        ]
    if kernel == Kernel.STREAM:
        var slots, parts = asked.rows(), moe.LayerParts.of(problem)
        is_gated = parts.is_gated
        var launches = _round(asked, asked.m, width)
        var columns = inner if is_gated else sums
        launches.append(
            _streaming(
                "gate_up", asked, slots, columns, width, is_gated, parts.is_long, parts.first
            )
        )
        if not is_gated:
            launches.append(_activate(slots, inner, parts.first))
        launches += _round(asked, slots, inner)
        launches.append(_streaming("down", asked, slots, width, inner, False, False, parts.second))
        launches.append(_add(asked.m, width))
        return launches^
    var memory = moe.Memory.of(problem, 0)
    var tiles = asked.experts * (ceildiv(sums, WEIGHT_ROWS) + ceildiv(width, WEIGHT_ROWS))
    var launches: List[Explained] = [
        _list(memory, "slots are sorted by expert", tiles),
        _prepare(memory, "tokens", width),
        _product("gate_up", asked, memory, inner if is_gated else sums, is_gated),
    ]
    if not is_gated:
        launches.append(_activate(memory.lists.num_places, inner, 1))
    launches.append(_prepare(memory, "hidden numbers", inner))
    launches.append(_product("down", asked, memory, width, False))
    launches.append(_add(asked.m, width))
    return launches^


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


def _portable(
    name: StaticString, file: StaticString, rows: Int, columns: Int, is_gated: Bool
) -> Explained:
    """Returns a portable product."""
    var tile_n = portable.WARPS * (portable.PAIRS if is_gated else portable.COLUMNS)
    var reason = StaticString(
        "Hopper's kernels take MXFP4 weights, or NVFP4 ones with kept or NVFP4 activations"
    )
    var grid = portable.grid_of_warps(rows, columns)
    return _explained(name, file, reason, grid, 1, tile_n)


def _streaming(
    name: StaticString,
    asked: ExpertsQuestion,
    slots: Int,
    columns: Int,
    k: Int,
    is_gated: Bool,
    is_long: Bool,
    parts: Int,
) -> Explained:
    """Returns a product of few rows of each expert."""
    var rows, experts = asked.rows(), asked.experts
    var config = moe.streaming_config(rows, experts, is_gated, is_long)
    var reason = StaticString("few rows of each expert: weights stream through registers")
    if parts > 1:
        reason = "few rows of each expert: weights stream through registers, K in parts"
    var grid = moe.grid_of_streaming(config, rows, experts, slots, columns, k, parts)
    var file = StaticString("hopper/streaming/kernel.mojo")
    return _explained(name, file, reason, grid, config.rows(), config.columns())


def _round(asked: ExpertsQuestion, rows: Int, k: Int) -> List[Explained]:
    """Returns the launch that rounds rows for `streaming`, if they want it."""
    if not moe.is_rounded(asked.left()):
        return []
    var grid = moe.grid_of_places(Kernel.STREAM, rows, k)
    var reason = StaticString("rows become bfloat16 numbers, and a factor each")
    return [_explained("stage", "hopper/prepare/kernel.mojo", reason, grid)]


def _list(memory: moe.Memory, reason: StaticString, weight_tiles: Int) -> Explained:
    """Returns the launch that lists rows; for FP8 it finds what weights are divided by, too."""
    if memory.is_fp8():
        var grid = moe.grid_of_begin(weight_tiles)
        return _explained("route", "hopper/prepare/experts.mojo", reason, grid)
    return _explained("route", "hopper/routing.mojo", reason, moe.grid_of_lists())


def _prepare(memory: moe.Memory, what: StaticString, k: Int) -> Explained:
    """Returns the launch that prepares the rows of a product."""
    var lists = memory.lists
    if memory.goes_by_places():
        var grid = moe.grid_of_places(memory.kernel, lists.num_places, k)
        var reason = StaticString("rows become bytes once, not in each tile")
        if memory.is_rounded:
            reason = "rows become bfloat16 numbers, and a factor each, once"
        return _explained("stage", "hopper/prepare/kernel.mojo", reason, grid)
    var reason = StaticString("rows become stages once, not in each tile")
    if what == "tokens":
        reason = "tokens become stages once, not in each tile"
    elif what == "hidden numbers":
        reason = "hidden numbers become stages once, not in each tile"
    var grid = moe.grid_of_stages(memory.tile_rows, lists.num_tiles, k)
    return _explained("stage", "hopper/prepare/bf16.mojo", reason, grid)


def _product(
    name: StaticString, asked: ExpertsQuestion, memory: moe.Memory, columns: Int, is_gated: Bool
) -> Explained:
    """Returns a product of tiles of listed rows."""
    var rows, experts = asked.rows(), asked.experts
    var file = StaticString("hopper/gemm_rs_bf16.mojo")
    var reason = StaticString("tiles have the rows of most experts")
    if rows > experts * moe.MOST_TILE_ROWS:
        reason = "most experts have more rows than the largest tile"
    if memory.is_fp8():
        file = "hopper/gemm_rs_fp8.mojo"
        reason = "activations of MXFP4 or MXFP8: FP8 tensor cores, at twice the rate"
    var tile_rows, column_tiles = memory.tile_rows, moe.column_tiles_of(columns, is_gated)
    var grid = moe.grid_of_tiles(memory.kernel, tile_rows, memory.lists.num_tiles, column_tiles)
    return _explained(name, file, reason, grid, tile_rows, moe.HIDDEN if is_gated else COLUMNS)


def _activate(rows: Int, inner: Int, parts: Int) -> Explained:
    """Returns the launch that makes hidden numbers of sums."""
    var reason = StaticString("products gate sums by silu and swiglu_oai alone")
    if parts > 1:
        reason = "sums of parts of K are added up, and gated"
    return _explained("gate", "hopper/target.mojo", reason, moe.grid_of_sums(rows, inner))


def _add(tokens: Int, width: Int) -> Explained:
    """Returns the launch that adds up slots."""
    var reason = StaticString("rows of a token are added in the order of its slots")
    return _explained("add", "hopper/routing.mojo", reason, moe.grid_of_sums(tokens, width))

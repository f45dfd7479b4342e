"""What the dispatch does with experts on Hopper, in words and numbers, without a launch.

Grids and workspace are those of the dispatch, whose launches a `Recorder` keeps; here stands what
each of them is for, in the order in which they run.
"""

from ...experts import Experts, ExpertsProblem, GroupedProblem, Routing
from ...launch.explained import Explained
from ...launch.recorder import Recorder
from ...numbers.floats import float_code
from ...numbers.formats import NO_FORMAT
from ...numbers.gates import Gate
from ...numbers.rounding import Rounding
from ...problem import ANY, Known, Left, NO_BIAS, Right
from ...simt import experts as portable
from ...simt.matmul import COLUMNS as WARP_COLUMNS, WARPS
from ..byte_experts import dispatch as of_bytes
from ..byte_experts.kernel import CAPACITY
from ..few_experts import dispatch as few
from ..plan import PRESHUFFLED
from ..staged.stages import COLUMNS
from .dispatch import (
    MOST_TILE_ROWS,
    USUAL_SHARE,
    multiply_experts,
    multiply_grouped,
    supports,
    tile_rows_of,
)
from .kernel import MANY_ROWS
from .result import HIDDEN

comptime KNOWN = Known(ANY, ANY, ANY, ANY, ANY, PRESHUFFLED, ANY, ANY)
"""What is known of any question."""


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
    var workspace_bytes: Int


@fieldwise_init
struct Purpose(Copyable, ImplicitlyCopyable, Movable):
    """What a launch is for."""

    var name: StaticString
    var file: StaticString
    var reason: StaticString
    var tile_m: Int
    """Rows of a tile; 0 where there is none."""
    var tile_n: Int


def explain_experts(asked: ExpertsQuestion) raises -> ExplainedExperts:
    """Returns the launches of the dispatch, each with its purpose."""
    var recorder = Recorder()
    var purposes: List[Purpose]
    if asked.slots == 0:
        multiply_grouped[KNOWN](asked.grouped(), recorder)
        purposes = _purposes_of_grouped(asked)
    else:
        multiply_experts[KNOWN, KNOWN](asked.layer(), recorder)
        purposes = _purposes_of_layer(asked)
    if len(purposes) != len(recorder.launches):
        raise Error(String("got ", len(recorder.launches), " launches, expected ", len(purposes)))
    var found = ExplainedExperts([], 0)
    for i in range(len(purposes)):
        var purpose = purposes[i]
        ref recorded = recorder.launches[i]
        var cut = String(purpose.tile_m, "x", purpose.tile_n) if purpose.tile_m > 0 else String()
        found.launches.append(
            Explained(
                purpose.name, purpose.file, purpose.reason, cut, purpose.tile_m, purpose.tile_n,
                recorded.grid,
            )
        )  # fmt: skip
        found.workspace_bytes = max(found.workspace_bytes, recorded.workspace.num_bytes())
    return found^


def _purposes_of_grouped(asked: ExpertsQuestion) -> List[Purpose]:
    """Returns those of a grouped product."""
    var problem = asked.grouped()
    if not supports(problem):
        return [_portable("product", False)]
    if few.takes(problem):
        return [_few("product", asked, False)]
    if of_bytes.takes(problem):
        return [_begin("rows of groups are cut into tiles"), _prepare(), _bytes("product", False)]
    return [
        Purpose("route", "hopper/experts/groups.mojo", "rows of groups are cut into tiles", 0, 0),
        _stage("rows become stages once, not in each tile"),
        _product("product", asked, False),
    ]


def _purposes_of_layer(asked: ExpertsQuestion) -> List[Purpose]:
    """Returns those of a layer."""
    var problem = asked.layer()
    if not supports(problem):
        return [_portable("gate_up", True), _portable("down", False)]
    var add = Purpose(
        "add",
        "hopper/experts/slots.mojo",
        "rows of a token are added in the order of its slots",
        0,
        0,
    )
    if few.takes(problem):
        return [_few("gate_up", asked, True), _few("down", asked, False), add]
    if of_bytes.takes(problem):
        return [
            _begin("slots are sorted by expert"),
            _prepare(),
            _bytes("gate_up", True),
            _prepare(),
            _bytes("down", False),
            add,
        ]
    return [
        Purpose("route", "hopper/experts/groups.mojo", "slots are sorted by expert", 0, 0),
        _stage("tokens become stages once, not in each tile"),
        _product("gate_up", asked, True),
        _stage("hidden numbers become stages once, not in each tile"),
        _product("down", asked, False),
        add,
    ]


def _portable(name: StaticString, is_gated: Bool) -> Purpose:
    """Returns the purpose of a portable product."""
    var columns = WARPS * (portable.PAIRS if is_gated else WARP_COLUMNS)
    var reason = StaticString("Hopper's kernels take MXFP4 weights and MX or kept activations")
    return Purpose(name, "simt/experts.mojo", reason, 1, columns)


def _few(name: StaticString, asked: ExpertsQuestion, is_gated: Bool) -> Purpose:
    """Returns the purpose of a product of few rows of each expert."""
    var shape = few.shape_of(asked.rows(), asked.experts, is_gated)
    var reason = StaticString("few rows of each expert: weights stream through registers")
    var file = StaticString("hopper/few_experts/kernel.mojo")
    return Purpose(name, file, reason, shape.rows(), shape.columns())


def _begin(reason: StaticString) -> Purpose:
    """Returns the purpose of the launch that lists rows, and finds what weights are divided by."""
    return Purpose("route", "hopper/byte_experts/begin.mojo", reason, 0, 0)


def _prepare() -> Purpose:
    """Returns the purpose of the launch that encodes the rows of a product."""
    var reason = StaticString("rows become bytes once, not in each tile")
    return Purpose("stage", "hopper/byte_experts/rows.mojo", reason, 0, 0)


def _bytes(name: StaticString, is_gated: Bool) -> Purpose:
    """Returns the purpose of a product of bytes."""
    var reason = StaticString("activations of MXFP4 or MXFP8: FP8 tensor cores, at twice the rate")
    var columns = HIDDEN if is_gated else COLUMNS
    return Purpose(name, "hopper/byte_experts/kernel.mojo", reason, CAPACITY, columns)


def _stage(reason: StaticString) -> Purpose:
    """Returns the purpose of the launch that stages the rows of a product."""
    return Purpose("stage", "hopper/experts/rows.mojo", reason, 0, 0)


def _product(name: StaticString, asked: ExpertsQuestion, is_gated: Bool) -> Purpose:
    """Returns the purpose of a product of tiles."""
    var rows, experts = asked.rows(), asked.experts
    var reason = StaticString("tiles have the rows of most experts")
    if rows * USUAL_SHARE > experts * MOST_TILE_ROWS:
        reason = "most experts have more rows than the largest tile"
    var tile_rows = tile_rows_of(rows, experts)
    var file = StaticString("hopper/experts/kernel.mojo")
    if tile_rows >= MANY_ROWS:
        file = "hopper/experts/many.mojo"
    return Purpose(name, file, reason, tile_rows, HIDDEN if is_gated else COLUMNS)

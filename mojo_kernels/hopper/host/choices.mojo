"""Which plan a product gets, its own or a forced one, why, and the workspace that it is lent.

Every plan that is for the rows of activations has a cost, see `costs`; the least one is chosen. Of
the shapes that were measured, `measured` names those where another plan was faster, which they get.
Portable kernels are for operands that no fast one takes, see `Pair`.
"""

from std.builtin.globals import global_constant
from std.os import abort

from ...launch.grid import Workspace, larger
from ...problem import Problem
from ...simt import host as tiles
from ...simt.host import Cut, factors_of
from ..plan import Kernel, Plan
from .costs import FAMILIES, Family, NEVER, RANKS, costs_of, terms_of
from .gemm import Pair
from .measured import EXCEPTIONS
from .workspace import RoundedPlaces, workspace_of as workspace_of_plan

comptime MAX_FEW_ROWS = 8
"""Up to this many rows of activations, no plan wants a workspace."""
comptime MIN_SIXES_ROWS = 128
"""From so many rows of bfloat16 on, to prepare MXFP6 weights pays. Guess: what `costs` expects with
MXFP4 weights, beside the time of the portable kernel with MXFP8 ones."""


@fieldwise_init
struct Candidate(Copyable, Movable):
    """A plan that is for a product."""

    var plan: Plan
    var family: Int
    """Its position in `FAMILIES`."""
    var us: Float64
    """What it is expected to take, in microseconds."""
    var terms: List[Float64]
    """What of it has a cost."""


@fieldwise_init
struct Choice(TrivialRegisterPassable):
    """A plan, and why it is chosen."""

    var plan: Plan
    var us: Float64
    """The microseconds that it is expected to take; 0 if the reason is another."""
    var is_measured: Bool
    """Whether it was the fastest for the product itself, and costs say otherwise."""

    def reason(self) -> String:
        """Returns why the plan was chosen."""
        if self.is_measured:
            return "the fastest plan that was measured for this shape"
        if self.plan.kernel == Kernel.PORTABLE or self.plan.kernel == Kernel.TILES:
            return (
                "fast kernels take MXFP4 weights, preshuffled for CUDA, with MXFP4, MXFP6, MXFP8 or"
                " bfloat16 activations, NVFP4 ones with NVFP4 or bfloat16, MXFP6 ones with the same"
                " MXFP6, MXFP8 or many rows of bfloat16, and MXFP8, or plain E4M3 with float32"
                " scales, on both sides"
            )
        if self.plan.kernel == Kernel.SS_E4M3:
            return "codes of eight bits under float scales: FP8 tensor cores, rows as they lie"
        if self.plan.kernel == Kernel.SS_E4M3_PREPARED:
            return "MXFP8 or MXFP6 activations: FP8 tensor cores, rows of bytes in the workspace"
        if self.plan.kernel == Kernel.RS_E4M3:
            return "MXFP8 or MXFP6 activations: FP8 tensor cores, weights become bytes on the way"
        var tenths = Int(10 * self.us + 0.5)
        return String("the least cost of all plans: ", tenths // 10, ".", tenths % 10, " us")


def choice_of_portable(m: Int, n: Int, k: Int, left_format: Int, right_format: Int) -> Choice:
    """Returns the choice for everything else, see `simt.dispatch`."""
    if not tiles.takes(m, k):
        return Choice(Plan.PORTABLE, 0, False)
    var cut = Cut.of(m, n, k).beside(factors_of(left_format, right_format, k))
    return Choice(Plan.portable_tiles(cut.tile, cut.parts), 0, False)


def choose(m: Int, n: Int, k: Int, given: Pair) -> Choice:
    """Returns the plan for a shape that fast kernels take."""
    var pair = given.planned()
    if not pair.is_eight_bits():
        for known in global_constant[EXCEPTIONS]():
            if m == known.m and n == known.n and k == known.k:
                var plan = _known(known.mxfp4 if pair == Pair.MXFP4 else known.kept)
                var is_for_kept = plan.kernel == Kernel.SS_BF16 or plan.maps_rows()
                if given.has(plan) and (pair == Pair.KEPT or not is_for_kept):
                    return Choice(plan, 0, True)
    return _cheapest(m, n, k, given)


def _cheapest(m: Int, n: Int, k: Int, pair: Pair) -> Choice:
    """Returns the plan that is expected to take the least, or the portable one if there is none."""
    ref families = global_constant[FAMILIES]()
    var found = Choice(Plan.PORTABLE, NEVER, False)
    for i in range(len(families)):
        if _is_for(families[i], m, pair):
            var us = costs_of(i, terms_of(families[i], m, n, k), m, k)
            for lane in range(len(RANKS)):
                if us[lane] < found.us:
                    found = Choice(families[i].plan.with_ranks(Int(RANKS[lane])), us[lane], False)
    return found


def _is_for(family: Family, m: Int, pair: Pair) -> Bool:
    """Says whether plans of a family are for so many rows of a product."""
    var is_few = pair == Pair.SIXES and m < MIN_SIXES_ROWS
    return family.has(m, pair.planned()) and pair.has(family.plan) and not is_few


def _known(text: StaticString) -> Plan:
    """Returns the plan of a text of the table."""
    try:
        return Plan.parse(text)
    except error:
        abort(String(error))


def candidates(m: Int, n: Int, k: Int, pair: Pair) -> List[Candidate]:
    """Returns the plans for a product."""
    ref families = global_constant[FAMILIES]()
    var found = List[Candidate]()
    for i in range(len(families)):
        if _is_for(families[i], m, pair):
            var terms = terms_of(families[i], m, n, k)
            var us = costs_of(i, terms, m, k)
            for lane in range(len(RANKS)):
                if us[lane] < NEVER:
                    var plan = families[i].plan.with_ranks(Int(RANKS[lane]))
                    found.append(Candidate(plan, i, us[lane], [term[lane] for term in terms]))
    return found^


def forced_plan(text: StringSlice) raises -> Optional[Plan]:
    """Returns the plan that tests, tuning or a user force; an empty text leaves it to the table."""
    if text.byte_length() == 0:
        return None
    var plan = Plan.parse(text)
    if plan.kernel == Kernel.TILES:
        raise Error(String("plan: got '", text, "', expected 'portable', which chooses its tiles"))
    return plan


def plan_of(problem: Problem, forced: Optional[Plan]) -> Plan:
    """Returns the plan for a problem: a forced one for it, the table's, or the portable one."""
    return _plan_of(problem.m, problem.n, problem.k, Pair.of(problem), forced)


def _plan_of(m: Int, n: Int, k: Int, pair: Pair, forced: Optional[Plan]) -> Plan:
    if pair == Pair.NONE or _is_portable(forced):
        return Plan.PORTABLE
    if forced and pair.has(forced.value()):
        return forced.value()
    return choose(m, n, k, pair).plan


def workspace_of(m: Int, n: Int, k: Int, pair: Pair, forced: Optional[Plan] = None) -> Workspace:
    """Returns the workspace that a product may want, with a forced plan or the table's.

    Only of NVFP4, MXFP8 and float scales, few rows want one. Results and types are not known here:
    those of float32 have another plan than those of two bytes, and the space is enough for either.
    """
    var plan = _plan_of(m, n, k, pair, forced)
    if plan == Plan.PORTABLE:
        return Workspace(0, 0)
    if pair == Pair.NVFP4:
        return Workspace(0, RoundedPlaces.of(m, n, k, plan).num_bytes)
    var is_forced = Bool(forced) and plan == forced.value()
    if m <= MAX_FEW_ROWS and not is_forced and not pair.is_eight_bits():
        return Workspace(0, 0)
    var space = workspace_of_plan(m, n, k, plan)
    if pair.is_eight_bits() or pair == Pair.SIXES or is_forced:
        return space
    var other = choose(m, n, k, Pair.MXFP4_WEIGHTS).plan
    return larger(space, workspace_of_plan(m, n, k, other))


def lent(
    m: Int,
    n: Int,
    k: Int,
    left_format: Int,
    right_format: Int,
    layout: Int,
    forced: Optional[Plan] = None,
) -> Workspace:
    """Returns the workspace that a product is lent, whatever its addresses and types.

    If it is any, it is enough for the portable kernels too.
    """
    var pair = Pair.of(left_format, right_format, k)
    if pair.layout() != layout:
        pair = Pair.NONE
    var space = workspace_of(m, n, k, pair, forced)
    # That is where fast kernels for few rows take it, at any address that is aligned.
    var is_ours = pair not in (Pair.NONE, Pair.SIXES) and not pair.is_eight_bits()
    if space.num_bytes() == 0 and is_ours and not _is_portable(forced):
        return space
    return larger(space, tiles.workspace_of_tiles(m, n, k)) if tiles.takes(m, k) else space


def _is_portable(forced: Optional[Plan]) -> Bool:
    """Says whether a forced plan leaves products to the portable kernels."""
    return forced and forced.value().kernel == Kernel.PORTABLE

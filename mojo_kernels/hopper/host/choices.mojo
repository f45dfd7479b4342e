"""Which kernel computes a product on Hopper, and why.

Every plan that is for the rows of activations has a cost, see `costs`; the least one is chosen. Of
the shapes that were measured, `measured` names those where another plan was faster, which they get.

FP8 tensor cores are for MXFP4 activations and results of two bytes, see `hopper.fp8`; numbers in the
workspace for bfloat16 ones that are kept, see `hopper.numbers`. Codes of eight bits have plans of
their own, and portable kernels are for operands that no fast one takes.
"""

from std.builtin.globals import global_constant
from std.os import abort

from ...simt import host as tiles
from ...simt.host import Cut, factors_of
from ..plan import Kernel, Plan
from .costs import FAMILIES, NEVER, Pair, RANKS, costs_of, terms_of
from .gemm import MXFP8
from .measured import EXCEPTIONS

comptime MAX_FEW_ROWS = 8
"""Up to this many rows of activations, no plan wants a workspace."""


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
                "fast kernels take MXFP4 weights, preshuffled for CUDA, with MXFP4, MXFP8 or"
                " bfloat16 activations, and MXFP8, or plain E4M3 with float32 scales, on both sides"
            )
        if self.plan.kernel == Kernel.SS_E4M3:
            return "codes of eight bits under float scales: FP8 tensor cores, rows as they lie"
        if self.plan.kernel == Kernel.SS_E4M3_PREPARED:
            return "MXFP8 activations: FP8 tensor cores, rows of bytes in the workspace"
        if self.plan.kernel == Kernel.RS_E4M3:
            return "MXFP8 activations: FP8 tensor cores, weights become bytes on the way"
        var tenths = Int(10 * self.us + 0.5)
        return String("the least cost of all plans: ", tenths // 10, ".", tenths % 10, " us")


def choice_of_portable(m: Int, n: Int, k: Int, left_format: Int, right_format: Int) -> Choice:
    """Returns the choice for everything else, see `simt.dispatch`."""
    if not tiles.takes(m, k):
        return Choice(Plan.PORTABLE, 0, False)
    var cut = Cut.of(m, n, k)
    var tile = tiles.tile_of(cut.rows, factors_of(left_format, right_format, k))
    return Choice(Plan.portable_tiles(tile, cut.parts), 0, False)


def choice_of_mapped(m: Int, n: Int, k: Int, left_format: Int, right_format: Int) -> Choice:
    """Returns the choice for E4M3 under float scales, see `hopper.mapped`: any number of rows."""
    return _cheapest(m, n, k, Pair.of(left_format, right_format, k))


def choice_of_mxfp8(m: Int, n: Int, k: Int, right_format: Int) -> Choice:
    """Returns the choice for MXFP8 activations: any number of rows."""
    return _cheapest(m, n, k, Pair.of(MXFP8, right_format, k))


def choose(m: Int, n: Int, k: Int, takes_bytes: Bool, are_numbers: Bool) -> Choice:
    """Returns the plan for a shape.

    `takes_bytes` says whether FP8 tensor cores may have it, `are_numbers` whether activations are
    bfloat16 and kept.
    """
    for known in global_constant[EXCEPTIONS]():
        if m == known.m and n == known.n and k == known.k:
            var plan = _known(known.mxfp4 if takes_bytes else known.kept)
            if are_numbers or plan.kernel != Kernel.SS_BF16:
                return Choice(plan, 0, True)
    if takes_bytes:
        return _cheapest(m, n, k, Pair.MXFP4)
    return _cheapest(m, n, k, Pair.KEPT if are_numbers else Pair.MXFP4_WEIGHTS)


def _cheapest(m: Int, n: Int, k: Int, pair: Pair) -> Choice:
    """Returns the plan that is expected to take the least."""
    ref families = global_constant[FAMILIES]()
    var found = Choice(Plan.PORTABLE, NEVER, False)
    for i in range(len(families)):
        if families[i].has(m, pair):
            var us = costs_of(i, terms_of(families[i], m, n, k), m, k)
            for lane in range(len(RANKS)):
                if us[lane] < found.us:
                    found = Choice(families[i].plan.with_ranks(Int(RANKS[lane])), us[lane], False)
    return found


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
        if families[i].has(m, pair):
            var terms = terms_of(families[i], m, n, k)
            var us = costs_of(i, terms, m, k)
            for lane in range(len(RANKS)):
                if us[lane] < NEVER:
                    var plan = families[i].plan.with_ranks(Int(RANKS[lane]))
                    found.append(Candidate(plan, i, us[lane], [term[lane] for term in terms]))
    return found^

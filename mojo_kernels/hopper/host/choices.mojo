"""Which kernel computes a product on Hopper, and why.

Every plan that is for the rows of activations has a cost, see `costs`; the least one is chosen. Of
the shapes that were measured, `measured` names those where another plan was faster, which they get.

FP8 tensor cores are for MXFP4 activations and results of two bytes, see `hopper.fp8`; numbers in the
workspace for bfloat16 ones that are kept, see `hopper.numbers`. Codes of eight bits have plans of
their own, and portable kernels are for operands that no fast one takes.
"""

from ...simt import host as tiles
from ...simt.host import Cut, factors_of
from ..aligned.choice import choose_plan as choose_aligned
from ..layout import OPERANDS
from ..mapped.choice import choose_plan as choose_mapped
from ..plan import Kernel, Plan
from .costs import FAMILIES, NEVER, RANKS, costs_of, terms_of
from .gemm import Scaling
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
    """The least microseconds that a plan is expected to take; 0 if the reason is another."""
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
        if self.plan.kernel == Kernel.MAPPED:
            return "codes of eight bits under float scales: FP8 tensor cores, rows as they lie"
        if self.plan.kernel == Kernel.ALIGNED:
            return "MXFP8 activations: FP8 tensor cores, rows of bytes in the workspace"
        if self.plan.kernel == Kernel.ALIGNED_FEW:
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
    var scaling = Scaling.of(left_format, right_format, k)
    return Choice(choose_mapped(m, n, k, scaling), 0, False)


def choice_of_mxfp8(m: Int, n: Int, k: Int, right_format: Int) -> Choice:
    """Returns the choice for MXFP8 activations: any number of rows."""
    var weight_bits = 4 if right_format == OPERANDS.code() else 8
    return Choice(choose_aligned(m, n, k, weight_bits), 0, False)


def choose(m: Int, n: Int, k: Int, takes_bytes: Bool, are_numbers: Bool) -> Choice:
    """Returns the plan for a shape.

    `takes_bytes` says whether FP8 tensor cores may have it, `are_numbers` whether activations are
    bfloat16 and kept.
    """
    comptime for i in range(len(EXCEPTIONS)):
        comptime known = EXCEPTIONS[i]
        if m == known[0] and n == known[1] and k == known[2]:
            var plan = Plan.from_code(known[3] if takes_bytes else known[4])
            if are_numbers or plan.kernel != Kernel.NUMBERS:
                return Choice(plan, 0, True)
    var found = Choice(Plan.PORTABLE, NEVER, False)
    comptime for i in range(len(FAMILIES)):
        comptime family = FAMILIES[i]
        comptime kernel = family.plan.kernel
        var is_open = takes_bytes or not kernel.wants_bytes()
        is_open = is_open and (are_numbers or kernel != Kernel.NUMBERS)
        if family.has(m) and is_open:
            var us = costs_of[i](terms_of[family](m, n, k), m, k)
            comptime for lane in range(len(RANKS)):
                if us[lane] < found.us:
                    comptime ranks = Int(RANKS[lane])
                    found = Choice(family.plan.with_ranks(ranks), us[lane], False)
    return found


def candidates(m: Int, n: Int, k: Int) -> List[Candidate]:
    """Returns the plans for a shape."""
    var found = List[Candidate]()
    comptime for i in range(len(FAMILIES)):
        comptime family = FAMILIES[i]
        if family.has(m):
            var terms = terms_of[family](m, n, k)
            var us = costs_of[i](terms, m, k)
            comptime for lane in range(len(RANKS)):
                if us[lane] < NEVER:
                    var plan = family.plan.with_ranks(Int(RANKS[lane]))
                    found.append(Candidate(plan, i, us[lane], [term[lane] for term in terms]))
    return found^

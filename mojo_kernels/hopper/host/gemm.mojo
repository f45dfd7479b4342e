"""What the host decides for a product of one matrix: who takes it, and the grid, by main loop."""

from std.math import ceildiv, lcm

from ...launch.grid import Grid, MAPPED_ALIGNMENT
from ...layouts import GRANULE_BYTES, Plain, layout_position
from ...numbers.elements import Element
from ...numbers.formats import FORMATS, Format, NO_FORMAT, WHOLE_ROW, block_of
from ...numbers.scales import Scale
from ...problem import LeftKind, Problem, may_be
from ...simt.host import BFLOAT16, FLOAT32, is_aligned
from ..layout import BLOCK, NVFP4, OPERANDS
from ..plan import Kernel, MULTIPROCESSORS, MainLoop, OperandType, PRESHUFFLED, Plan
from ..shapes import COLUMNS, ROW_BYTES, RsConfig, RsLayout, SsTile, StreamConfig, THREADS
from ..shapes import num_steps_of
from .workspace import MAX_K, is_shared

# Who takes a product.

comptime MXFP8 = Format.MXFP8.code()
comptime MXFP6 = Format.MXFP6.code()
comptime MXFP6_E3M2 = Format.MXFP6_E3M2.code()
comptime MXFP4 = OPERANDS.code()
comptime SIXES: List[Int] = [MXFP6, MXFP6_E3M2]
"""Those of six bits."""
comptime SIXES_K = lcm(8 * GRANULE_BYTES, Element.E2M3.bits) // Element.E2M3.bits
"""K of their weights is a multiple of this, or they stay plain."""
comptime PLAIN = layout_position(Plain.NAME)
"""The position in `LAYOUTS` of rows as they lie."""


def _float_scaled_formats() -> List[Int]:
    """Returns those that are E4M3 with a float32 scale for 128 elements or a row."""
    var found: List[Int] = []
    comptime for i in range(len(FORMATS)):
        comptime F = FORMATS[i]
        comptime has_blocks = F.block_k == ROW_BYTES or F.block_k == WHOLE_ROW
        comptime if F.element == Element.E4M3 and F.scale == Scale.FLOAT32 and has_blocks:
            found.append(i)
    return found^


@always_inline
def _is_one_of[formats: List[Int]](format: Int) -> Bool:
    """Says whether a format, or one that is not known yet, may be one of some."""
    comptime for known in formats:
        if may_be(format, known):
            return True
    return False


def takes_mxfp4_weights(left: Int, right: Int, layout: Int = PRESHUFFLED) -> Bool:
    """Says whether kernels for MXFP4 weights take two formats, or `ANY`; floats may be kept."""
    comptime LEFT: List[Int] = [MXFP4, NO_FORMAT]
    return _is_one_of[LEFT](left) and may_be(right, MXFP4) and may_be(layout, PRESHUFFLED)


def takes_nvfp4_weights(left: Int, right: Int, layout: Int = PRESHUFFLED) -> Bool:
    """Says whether the kernels that multiply bfloat16 take two formats: floats may be kept."""
    comptime LEFT: List[Int] = [NVFP4.code(), NO_FORMAT]
    var is_pair = _is_one_of[LEFT](left) and may_be(right, NVFP4.code())
    return is_pair and may_be(layout, PRESHUFFLED)


def takes_mxfp8(left: Int, right: Int, layout: Int = PRESHUFFLED) -> Bool:
    """Says whether those for MXFP8 activations do, and MXFP6 ones, which E4M3 holds."""
    comptime RIGHT: List[Int] = [MXFP8, MXFP4]
    var is_pair = may_be(left, MXFP8) and _is_one_of[RIGHT](right)
    is_pair = is_pair or may_be(left, MXFP6) and may_be(right, MXFP4)
    comptime for six in SIXES:
        var is_left = may_be(left, MXFP8) or may_be(left, six)
        is_pair = is_pair or is_left and may_be(right, six)
    return is_pair and may_be(layout, PRESHUFFLED)


def takes_six_bits(left: Int, right: Int, layout: Int = PRESHUFFLED) -> Bool:
    """Says whether the kernel that multiplies MXFP6 weights as bfloat16 does: floats are kept."""
    var is_pair = may_be(left, NO_FORMAT) and _is_one_of[SIXES](right)
    return is_pair and may_be(layout, PRESHUFFLED)


def takes_float_scales(left: Int, right: Int, layout: Int = PLAIN) -> Bool:
    """Says whether those for E4M3 under float scales do."""
    comptime BOTH = _float_scaled_formats()
    return _is_one_of[BOTH](left) and _is_one_of[BOTH](right) and may_be(layout, PLAIN)


@fieldwise_init
struct Pair(Equatable, TrivialRegisterPassable):
    """What a product has on both sides, as far as plans differ by it.

    FP8 tensor cores cut off what results of two bytes do not show but float32 may.
    """

    var code: Int

    comptime NONE = Self(-1)
    """What no fast kernel takes."""
    comptime MXFP4_WEIGHTS = Self(0)
    """Under activations that no plan is for alone."""
    comptime MXFP4 = Self(1)
    """Both sides; the result has two bytes."""
    comptime KEPT = Self(2)
    """Activations of bfloat16, which are kept; weights of MXFP4."""
    comptime KEPT_NVFP4 = Self(3)
    """The same, weights of NVFP4."""
    comptime NVFP4 = Self(4)
    """Both sides: activations become bfloat16 numbers, with the plans of those that are kept."""
    comptime SIXES = Self(5)
    """Activations of bfloat16, which are kept; weights of MXFP6."""
    comptime ROWS = Self(6)
    """E4M3 with a float scale for a row, on both sides; results of all below have two bytes."""
    comptime BLOCKS = Self(7)
    """E4M3 with more float scales than that."""
    comptime MXFP8 = Self(8)
    """Both sides."""
    comptime MXFP8_MXFP4 = Self(9)
    """Activations of MXFP8 or MXFP6, weights of MXFP4."""
    comptime MXFP8_MXFP6 = Self(10)
    """Activations of MXFP8 or of the weights' format, weights of MXFP6."""

    @staticmethod
    def of(left: Int, right: Int, k: Int) -> Self:
        """Returns that of two formats, for a result of two bytes; floats that are kept are bfloat16.

        Weights lie as fast kernels take them.
        """
        if _is_one_of[SIXES](right) and k % SIXES_K != 0:
            return Self.NONE
        if takes_mxfp4_weights(left, right):
            if left == NO_FORMAT:
                return Self.KEPT
            return Self.MXFP4 if k <= MAX_K else Self.MXFP4_WEIGHTS
        if takes_nvfp4_weights(left, right):
            return Self.KEPT_NVFP4 if left == NO_FORMAT else Self.NVFP4
        if takes_mxfp8(left, right):
            if right == MXFP8:
                return Self.MXFP8
            return Self.MXFP8_MXFP4 if right == MXFP4 else Self.MXFP8_MXFP6
        if takes_six_bits(left, right):
            return Self.SIXES
        if takes_float_scales(left, right):
            var has_rows = block_of(left).k_blocks(k) == 1 and block_of(right).k_blocks(k) == 1
            return Self.ROWS if has_rows else Self.BLOCKS
        return Self.NONE

    @staticmethod
    def of(problem: Problem) -> Self:
        """Returns that of a problem; `NONE` if its addresses or result are for no fast kernel."""
        var left, right = problem.left, problem.right
        var pair = Self.of(left.format, right.format, problem.k)
        var is_float32 = Int32(problem.result.dtype) == FLOAT32
        if pair == Self.NONE or right.layout != pair.layout() or not is_aligned(problem):
            return Self.NONE
        if pair in (Self.KEPT, Self.KEPT_NVFP4, Self.SIXES):
            # Rows that overlap would be no rows of a tensor map.
            var is_bfloat16 = left.kind == LeftKind.KEPT and Int32(left.dtype) == BFLOAT16
            if is_bfloat16 and left.row_stride >= problem.k:
                return pair
            return Self.NONE if pair == Self.SIXES else Self.MXFP4_WEIGHTS
        if not pair.is_eight_bits():
            return Self.MXFP4_WEIGHTS if is_float32 and pair == Self.MXFP4 else pair
        if left.kind == LeftKind.KEPT or is_float32:
            return Self.NONE
        if pair.is_float_scaled() and (right.codes | problem.k) % MAPPED_ALIGNMENT != 0:
            return Self.NONE
        return pair

    def planned(self) -> Self:
        """Returns the pair whose plans it gets."""
        if self in (Self.KEPT_NVFP4, Self.NVFP4, Self.SIXES):
            return Self.KEPT
        return Self.MXFP8 if self == Self.MXFP8_MXFP6 else self

    def is_eight_bits(self) -> Bool:
        """Says whether activations have eight bits."""
        return self.code >= Self.ROWS.code

    def is_float_scaled(self) -> Bool:
        """Says whether both sides have float scales."""
        return self == Self.ROWS or self == Self.BLOCKS

    def layout(self) -> Int:
        """Returns the position in `LAYOUTS` of weights."""
        return PLAIN if self.is_float_scaled() else PRESHUFFLED

    def has(self, plan: Plan) -> Bool:
        """Says whether a plan may be forced on it; for which activations it is, its launch says."""
        var kernel = plan.kernel
        if kernel.main_loop == MainLoop.PORTABLE or kernel.main_loop == MainLoop.TILES:
            return False
        if self.is_float_scaled():
            return kernel == Kernel.SS_E4M3
        if self == Self.SIXES:
            return kernel == Kernel.SS_BF16
        if self == Self.MXFP8_MXFP6:
            return kernel == Kernel.SS_E4M3_PREPARED
        if plan.maps_rows() and self.code > Self.KEPT.code:
            return False
        var is_e4m3 = kernel.operand == OperandType.E4M3
        return is_e4m3 == self.is_eight_bits() and kernel != Kernel.SS_E4M3

    def has_prepared(self, operand: OperandType) -> Bool:
        """Says whether operands of a type are prepared for it."""
        if operand == OperandType.E4M3:
            return self in (Self.MXFP8, Self.MXFP8_MXFP4, Self.MXFP8_MXFP6)
        return self.planned() == (Self.MXFP4 if operand == OperandType.E5M2 else Self.KEPT)


def takes(problem: Problem) -> Bool:
    """Says whether fast kernels can read the operands of a problem, and write C."""
    return Pair.of(problem) != Pair.NONE


@fieldwise_init
struct Scaling(Equatable, TrivialRegisterPassable):
    """Where sums of `gemm_ss` meet the scales of operands."""

    var code: Int

    comptime ROWS = Self(0)
    comptime TILES = Self(1)
    comptime COLUMNS = Self(2)
    comptime NUMBERS = Self(3)
    comptime ENDS = Self(4)
    comptime BOTH_ENDS = Self(5)

    @staticmethod
    def of(left: Int, right: Int, k: Int) -> Self:
        """Returns that of a pair of formats with float scales."""
        var of_weights = block_of(right)
        if of_weights.k_blocks(k) == 1:
            return Self.ROWS if block_of(left).k_blocks(k) == 1 else Self.TILES
        return Self.TILES if 1 << of_weights.row_bits == COLUMNS else Self.COLUMNS

    def is_of_numbers(self) -> Bool:
        """Says whether bfloat16 numbers are multiplied."""
        return self in (Self.NUMBERS, Self.ENDS, Self.BOTH_ENDS)

    def is_of_rows(self) -> Bool:
        """Says whether sums meet the factors of rows in the end."""
        return self == Self.ROWS or self == Self.BOTH_ENDS

    def is_of_stages(self) -> Bool:
        """Says whether stages have factors."""
        return self == Self.TILES or self == Self.COLUMNS


# Grids.

comptime MAX_SHARED_TILES = 4 * MULTIPROCESSORS
"""Up to so many tiles, a CTA takes several. Guess, after tiles of another shape."""
comptime MOST_IDLE = 8
"""Up to so many multiprocessors may have no tile, rather than that tiles have parts. Guess."""
comptime FEWEST_STEPS = 4
"""CTAs have no fewer stages than that, or fewer CTAs have some. Guess."""


def stream_k_ctas(tiles: Int, num_steps: Int) -> Int:
    """Returns the CTAs that share the stages of so many tiles: that have one each, if few would
    have none."""
    if tiles <= MULTIPROCESSORS and MULTIPROCESSORS - tiles <= MOST_IDLE:
        return tiles
    return max(min(MULTIPROCESSORS, tiles * num_steps // FEWEST_STEPS), 1)


def grid_of_streaming(m: Int, n: Int, plan: Plan, config: StreamConfig, share: Int) -> Grid:
    """Returns the grid of `gemm_streaming` for C of [m, n]; a CTA has `share` blocks of K."""
    var tiles = plan.tiles(m, n)
    return Grid(
        plan.ranks,
        tiles.columns,
        tiles.rows,
        threads=config.threads(),
        cluster=plan.ranks,
        shared_bytes=config.dense_bytes(share),
        max_shared_bytes=config.dense_bytes(1 << 30),
        starts_early=True,
    )


def grid_of_rs_bf16(m: Int, n: Int, k: Int, plan: Plan) -> Grid:
    """Returns the grid of the RS kernel on bfloat16 for C of [m, n].

    Of few tiles a CTA takes several; many are dealt, so that slow CTAs get fewer.
    """
    if plan.has_split_k_consumers():
        var config = RsConfig.split_k(plan.rows, plan.columns)
        return Grid(
            plan.ctas(m, n),
            threads=config.threads(),
            cluster=plan.ranks,
            shared_bytes=config.shared_bytes(),
            starts_early=True,
        )
    var config = RsConfig.persistent(Plan.PERSISTENT_RS_BF16.rows)
    var tiles = Plan.PERSISTENT_RS_BF16.ctas(m, n)
    var ctas = min(tiles, MULTIPROCESSORS) if tiles <= MAX_SHARED_TILES else tiles
    if is_shared(m, n, k, plan):
        config = RsConfig.persistent(plan.rows)
        ctas = stream_k_ctas(plan.tiles(m, n).num_tiles(), num_steps_of(k, plan))
    return Grid(
        ctas, threads=config.threads(), shared_bytes=config.shared_bytes(), starts_early=True
    )


def grid_of_rs_fp8(m: Int, n: Int, k: Int, plan: Plan, weight_bits: Int) -> Grid:
    """Returns the grid of the RS kernel on FP8: CTAs take tiles in turn, clusters one."""
    var has_factors = plan.kernel.operand == OperandType.E4M3
    var shared_bytes = RsLayout.fp8(plan.rows, weight_bits, has_factors).space().end()
    var grid = _grid_of_tiles(plan.tiles(m, n).num_tiles(), plan, shared_bytes, True)
    if is_shared(m, n, k, plan):
        grid.x = stream_k_ctas(plan.tiles(m, n).num_tiles(), num_steps_of(k, plan))
    return grid


def grid_of_ss(m: Int, n: Int, plan: Plan) -> Grid:
    """Returns the grid of the SS kernel for C of [m, n]: CTAs take tiles in turn, clusters one."""
    var tiles = plan.tiles(m, n).num_tiles()
    # CTAs that begin as others end lie anywhere on the chip: those that want the same boxes at
    # the same time are no neighbours then, and products of some rounds take a quarter longer.
    var starts_early = tiles * plan.ranks <= MULTIPROCESSORS
    var space = SsTile(plan.rows, plan.columns).stages()
    return _grid_of_tiles(tiles, plan, space.end(), starts_early)


def shareable(m: Int, n: Int, k: Int, plan: Plan) -> Plan:
    """Returns the plan, or one of whole tiles if stream-K has too many stages to share."""
    if plan.is_stream_k() and not is_shared(m, n, k, plan):
        return Plan.rs(plan.kernel.operand, plan.rows)
    return plan


def _grid_of_tiles(tiles: Int, plan: Plan, shared_bytes: Int, starts_early: Bool) -> Grid:
    var is_split = plan.ranks > 1
    return Grid(
        tiles * plan.ranks if is_split else min(tiles, MULTIPROCESSORS),
        threads=THREADS,
        cluster=plan.ranks if is_split else 0,
        shared_bytes=shared_bytes,
        starts_early=starts_early,
    )


def grid_of(m: Int, n: Int, k: Int, plan: Plan, weight_bits: Int) -> Grid:
    """Returns the grid of a plan for C of [m, n] and weights of so many bits."""
    if plan.kernel.main_loop == MainLoop.STREAM:
        var share = ceildiv(k // BLOCK, plan.ranks)
        return grid_of_streaming(m, n, plan, StreamConfig.dense(plan, share), share)
    if plan.kernel.main_loop == MainLoop.SS:
        return grid_of_ss(m, n, plan)
    if plan.kernel.operand == OperandType.BF16:
        return grid_of_rs_bf16(m, n, k, plan)
    return grid_of_rs_fp8(m, n, k, plan, weight_bits)

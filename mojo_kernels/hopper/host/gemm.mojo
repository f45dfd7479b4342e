"""What the host decides for a product of one matrix: which kernel takes it, and the grid, by kernel."""

from std.math import ceildiv

from ...launch.grid import Grid, MAPPED_ALIGNMENT
from ...layouts import Plain, layout_position
from ...numbers.elements import Element
from ...numbers.formats import FORMATS, Format, WHOLE_ROW, block_of
from ...numbers.scales import Scale
from ...problem import ANY, Known, LeftKind, Problem, may_be
from ...simt.host import BFLOAT16, FLOAT32, is_aligned
from ..layout import BLOCK, OPERANDS
from ..plan import Kernel, MULTIPROCESSORS, OperandType, PRESHUFFLED, Plan, takes_operands
from ..shapes import (
    COLUMNS,
    RsConfig,
    StreamConfig,
    ROW_BYTES,
    StreamConfig,
    THREADS,
    RsConfig,
    RsLayout,
    mapped_stages,
    num_steps_of,
)
from .workspace import MAX_K, is_shared, may_share

# Who takes a product.

comptime MXFP8 = Format.MXFP8.code()
comptime MXFP4 = OPERANDS.code()
comptime PLAIN = layout_position(Plain.NAME)
"""The position in `LAYOUTS` of rows as they lie."""


def is_kept_bfloat16(problem: Problem) -> Bool:
    """Says whether activations are bfloat16 numbers, which are kept; rows may not overlap."""
    var left = problem.left
    return (
        left.kind == LeftKind.KEPT
        and Int32(left.dtype) == BFLOAT16
        and left.row_stride >= problem.k
    )


def fp8_takes(left_format: Int, k: Int) -> Bool:
    """Says whether E5M2 takes activations: of no format, they are kept as they are."""
    return left_format == MXFP4 and k <= MAX_K


def fp8_takes(problem: Problem) -> Bool:
    """Says whether it takes a problem: MXFP4 on both sides, C of two-byte floats.

    It cuts off what bfloat16 and float16 do not show but float32 may.
    """
    return (
        takes_operands(problem)
        and fp8_takes(problem.left.format, problem.k)
        and Int32(problem.result.dtype) != FLOAT32
    )


def aligned_takes(left: Int, right: Int) -> Bool:
    """Says whether E4M3 alone takes a pair of formats: MXFP8 left."""
    return left == MXFP8 and right in (MXFP8, MXFP4)


def aligned_takes(problem: Problem) -> Bool:
    """Says whether it takes a problem that no other fast kernel does, C of two-byte floats.

    It cuts off what bfloat16 and float16 do not show but float32 may.
    """
    return (
        problem.left.kind != LeftKind.KEPT
        and aligned_takes(problem.left.format, problem.right.format)
        and problem.right.layout == PRESHUFFLED
        and is_aligned(problem)
        and Int32(problem.result.dtype) != FLOAT32
    )


def aligned_may_take[known: Known]() -> Bool:
    """Says whether what is known of a problem leaves it possible that E4M3 takes it."""
    comptime if not may_be(known.layout, PRESHUFFLED):
        return False
    elif known.left_format == ANY or known.right_format == ANY:
        return True
    else:
        return aligned_takes(known.left_format, known.right_format)


def is_e4m3(format: Int) -> Bool:
    """Says whether a format is E4M3 with a float32 scale for 128 elements or a row."""
    comptime for i in range(len(FORMATS)):
        comptime F = FORMATS[i]
        comptime has_blocks = F.block_k == ROW_BYTES or F.block_k == WHOLE_ROW
        comptime if F.element == Element.E4M3 and F.scale == Scale.FLOAT32 and has_blocks:
            if format == i:
                return True
    return False


def mapped_takes(left: Int, right: Int) -> Bool:
    """Says whether `mapped` takes a pair of formats."""
    return is_e4m3(left) and is_e4m3(right)


def mapped_takes(problem: Problem) -> Bool:
    """Says whether it takes a problem: C of two-byte floats.

    It cuts off what bfloat16 and float16 do not show but float32 may.
    """
    return (
        problem.left.kind != LeftKind.KEPT
        and mapped_takes(problem.left.format, problem.right.format)
        and problem.right.layout == PLAIN
        and is_aligned(problem)
        and problem.right.codes % MAPPED_ALIGNMENT == 0
        and problem.k % MAPPED_ALIGNMENT == 0
        and Int32(problem.result.dtype) != FLOAT32
    )


def mapped_may_take[known: Known]() -> Bool:
    """Says whether what is known of a problem leaves it possible that `mapped` takes it."""
    comptime if not may_be(known.layout, PLAIN):
        return False
    elif known.left_format == ANY or known.right_format == ANY:
        return True
    else:
        return mapped_takes(known.left_format, known.right_format)


def takes(problem: Problem) -> Bool:
    """Says whether fast kernels can read the operands of a problem, and write C."""
    return takes_operands(problem) or mapped_takes(problem) or aligned_takes(problem)


@fieldwise_init
struct Scaling(Equatable, TrivialRegisterPassable):
    """Where sums of `gemm_ss` meet the scales of operands."""

    var code: Int

    comptime ROWS = Self(0)
    comptime TILES = Self(1)
    comptime COLUMNS = Self(2)
    comptime NUMBERS = Self(3)

    @staticmethod
    def of(left: Int, right: Int, k: Int) -> Self:
        """Returns that of a pair of formats with float scales."""
        var of_weights = block_of(right)
        if of_weights.k_blocks(k) == 1:
            return Self.ROWS if block_of(left).k_blocks(k) == 1 else Self.TILES
        return Self.TILES if 1 << of_weights.row_bits == COLUMNS else Self.COLUMNS

    def is_of_stages(self) -> Bool:
        """Says whether stages have factors."""
        return self == Self.TILES or self == Self.COLUMNS


# Grids.

comptime MAX_SHARED_TILES = 4 * MULTIPROCESSORS
"""Up to so many tiles, a group takes several. Guess, after tiles of another shape."""
comptime MOST_IDLE = 8
"""Up to so many multiprocessors may have no tile, rather than that tiles have parts. Guess."""
comptime FEWEST_STEPS = 4
"""Groups have no fewer stages than that, or fewer groups have some. Guess."""


def groups_of(tiles: Int, num_steps: Int) -> Int:
    """Returns the groups that share the stages of so many tiles: that have one each, if few would
    have none."""
    if tiles <= MULTIPROCESSORS and MULTIPROCESSORS - tiles <= MOST_IDLE:
        return tiles
    return max(min(MULTIPROCESSORS, tiles * num_steps // FEWEST_STEPS), 1)


def grid_of_streaming(m: Int, n: Int, plan: Plan, config: StreamConfig, share: Int) -> Grid:
    """Returns the grid of `streaming` for C of [m, n]; `share` is the blocks of K of a CTA."""
    var x, y, z = plan.tiles(m, n).grid(plan.ranks)
    return Grid(
        x,
        y,
        z,
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
    if plan.is_middle():
        var config = RsConfig.split_k(plan.tokens)
        return Grid(
            plan.groups(m, n),
            threads=config.threads(),
            cluster=plan.ranks,
            shared_bytes=config.shared_bytes(),
            starts_early=True,
        )
    var tiles = Plan.MANY.groups(m, n)
    var groups = min(tiles, MULTIPROCESSORS) if tiles <= MAX_SHARED_TILES else tiles
    var config = RsConfig.many(Plan.MANY.tokens)
    if is_shared(m, n, k, plan):
        groups = groups_of(plan.tiles(m, n).num_tiles(), Int(num_steps_of(UInt32(k))))
        config = RsConfig.many(plan.tokens)
    return Grid(
        groups,
        threads=config.threads(),
        shared_bytes=config.shared_bytes(),
        starts_early=True,
    )


def grid_of_direct(
    m: Int, n: Int, tokens: Int, ranks: Int, bits: Int = 4, has_factors: Bool = False
) -> Grid:
    """Returns the grid of `gemm_rs_fp8` for C of [m, n]: CTAs take tiles in turn, clusters one."""
    var tiles = ceildiv(m, tokens) * ceildiv(n, COLUMNS)
    return Grid(
        tiles * ranks if ranks > 1 else min(tiles, MULTIPROCESSORS),
        threads=THREADS,
        cluster=ranks if ranks > 1 else 0,
        shared_bytes=RsLayout.fp8(tokens, bits, has_factors).space().end(),
        starts_early=True,
    )


def grid_of_mapped(m: Int, n: Int, plan: Plan) -> Grid:
    """Returns the grid of `gemm_ss` for C of [m, n]: CTAs take tiles in turn, clusters one."""
    var tiles = plan.tiles(m, n).num_tiles()
    return Grid(
        tiles * plan.ranks if plan.ranks > 1 else min(tiles, MULTIPROCESSORS),
        threads=THREADS,
        cluster=plan.ranks if plan.ranks > 1 else 0,
        shared_bytes=mapped_stages(plan.tokens).end(),
        # Groups that begin as others end lie anywhere on the chip: those that want the same boxes at
        # the same time are no neighbours then, and products of some rounds take a quarter longer.
        starts_early=tiles * plan.ranks <= MULTIPROCESSORS,
    )


def shareable(m: Int, n: Int, k: Int, plan: Plan) -> Plan:
    """Returns the plan, or one of whole tiles if stream-K has too many stages to share."""
    var num_steps = ceildiv(k, ROW_BYTES)
    if plan.is_stream_k() and not may_share(plan.tiles(m, n).num_tiles(), num_steps):
        return Plan.rs(OperandType.E5M2, plan.tokens)
    return plan


def grid_of_fp8(m: Int, n: Int, k: Int, plan: Plan) -> Grid:
    """Returns the grid of E5M2 for C of [m, n]."""
    if plan.kernel == Kernel.SS_E5M2:
        return grid_of_mapped(m, n, Plan.mapped(plan.tokens, 1))
    var grid = grid_of_direct(m, n, plan.tokens, plan.ranks)
    if shareable(m, n, k, plan).is_stream_k():
        grid.x = groups_of(plan.tiles(m, n).num_tiles(), ceildiv(k, ROW_BYTES))
    return grid


def grid_of_aligned(m: Int, n: Int, weight_bits: Int, plan: Plan) -> Grid:
    """Returns the grid of E4M3 for C of [m, n] and weights of so many bits."""
    if plan.kernel == Kernel.SS_E4M3_PREPARED:
        return grid_of_mapped(m, n, Plan.mapped(plan.tokens, plan.ranks))
    return grid_of_direct(m, n, plan.tokens, plan.ranks, weight_bits, True)


def grid_of(m: Int, n: Int, k: Int, plan: Plan) -> Grid:
    """Returns the grid of a plan for MXFP4 weights."""
    if plan.kernel == Kernel.STREAM:
        var share = ceildiv(k // BLOCK, plan.ranks)
        return grid_of_streaming(m, n, plan, StreamConfig.dense(plan, share), share)
    if plan.kernel == Kernel.SS_BF16:
        return grid_of_mapped(m, n, Plan.mapped(plan.tokens, plan.ranks))
    if plan.kernel.operand == OperandType.E5M2:
        return grid_of_fp8(m, n, k, plan)
    return grid_of_rs_bf16(m, n, k, plan)

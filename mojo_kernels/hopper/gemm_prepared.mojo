"""Products whose operands are prepared: preparation, then the main loop that a plan names.

    activations           weights           on tensor cores          prepared
    MXFP4                 MXFP4             E5M2 by E5M2             A; B for an SS main loop
    MXFP8                 MXFP8, MXFP4      E4M3 by E4M3 or E5M2     A; B for an SS main loop
    MXFP6 (E2M3)          MXFP4             E4M3 by E5M2             A; B for an SS main loop
    MXFP6, MXFP8          MXFP6             E4M3 by E4M3             A, B
    bfloat16, kept        MXFP4, MXFP6      bfloat16                 B
    bfloat16, kept        NVFP4             bfloat16                 B
    NVFP4                 NVFP4             bfloat16                 A, then B
    E4M3, float scales    the same          E4M3                     A, if it is floats

MXFP4, MXFP6 and MXFP8 weights are preshuffled, and RS main loops have those of four and eight bits
become bytes in registers, again for each tile of C; float-scaled ones are plain. In the end sums meet
the factors of both rows.
"""

from std.math import ceildiv

from ..launch.grid import Workspace
from ..launch.queue import Queue, device_pointer
from ..launch.tensor_map import MappedRows
from ..numbers.elements import Element
from ..numbers.formats import FORMATS, NO_FORMAT, block_of
from ..problem import LeftKind, Problem
from ..simt.arguments import Activations
from .stream_k import FixUp
from .gemm_operands import kept_rows
from .gemm_rs_fp8 import launch as launch_rs
from .gemm_ss import launch as launch_ss
from .host.gemm import MXFP4, Pair, Scaling, grid_of_rs_fp8, shareable
from .host.workspace import (
    LANE_CHUNKS,
    MANY_CHUNKS,
    MAX_TILE_CTAS,
    PREPARE_WARPS,
    RoundedPlaces,
    ctas_of_tile,
    fix_up_bytes,
    scales_at,
    workspace_of,
)
from .layout import NVFP4
from .plan import MainLoop, OperandType, Plan
from .shapes import (
    GROUPS,
    PLAIN_TILES,
    PREPARED_ROWS,
    ROW_BYTES,
    RS_TILE_HEIGHTS,
    SsTile,
    TILE_HEIGHTS,
)
from .prepare.float_scales import FloatOperands, FloatScaledRows, FloatScales
from .prepare.kept import Nvfp4Rows, round_rows
from .prepare.kernel import TilesOfB, launch_prepare
from .prepare.operands import PreparedRows, PreparedSixes
from .prepare.source import SourceRows


def launch_prepared[
    operand: OperandType
](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Launches a product of prepared operands; stages that are too many to be shared are not."""
    comptime IS_E4M3 = operand == OperandType.E4M3
    if not Pair.of(problem).has_prepared(operand):
        comptime if operand == OperandType.E5M2:
            raise Error("plan: E5M2 is for MXFP4 activations, and for bfloat16 or float16 results")
        elif IS_E4M3:
            raise Error("plan: E4M3 is for MXFP8 or MXFP6 activations, bfloat16 or float16 results")
        else:
            raise Error("plan: bfloat16 is for bfloat16 activations that are kept")
    comptime WEIGHT_BITS: List[Int] = [4, 8] if IS_E4M3 else [4]
    # MXFP6 weights are as wide as MXFP8 ones then.
    var is_wide = IS_E4M3 and problem.right.format != MXFP4
    var cut = shareable(problem.m, problem.n, problem.k, plan)
    comptime for tile_rows in RS_TILE_HEIGHTS:
        comptime for bits in WEIGHT_BITS:
            if plan.rows == tile_rows and is_wide == (bits == 8):
                comptime if operand == OperandType.E5M2 or (IS_E4M3 and tile_rows in TILE_HEIGHTS):
                    if plan.kernel.main_loop == MainLoop.RS:
                        return _launch[operand, bits, False, tile_rows](problem, cut, queue)
                comptime if tile_rows == PREPARED_ROWS or (IS_E4M3 and tile_rows in TILE_HEIGHTS):
                    return _launch[operand, bits, True, tile_rows](problem, cut, queue)
    raise Error(String("plan: no tile of these operands has ", plan.rows, " rows"))


def _launch[
    operand: OperandType, bits: Int, in_workspace: Bool, tile_rows: Int
](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Launches both kernels; B becomes codes of so many bits, or is in the workspace."""
    comptime Rows = PreparedRows[operand, bits, in_workspace]
    var m, n, k = problem.m, problem.n, problem.k
    var space = workspace_of(m, n, k, plan)
    var address = queue.workspace(space)
    var rows = Rows.at(m, n, k, tile_rows, address)
    var fix_up, num_counters = FixUp[tile_rows].at(0, 0), 0
    if plan.is_stream_k():
        var tiles = plan.tiles(m, n).num_tiles()
        var parts_at = address + space.num_bytes() - fix_up_bytes(tile_rows, tiles)
        fix_up, num_counters = FixUp[tile_rows].at(tiles, parts_at), GROUPS * tiles
    # Each has a stage of bytes for each warp.
    var most_ctas = MAX_TILE_CTAS if Rows.IS_BF16 else k // (ROW_BYTES * PREPARE_WARPS)
    var a, source = Activations(problem), SourceRows[False].of(
        m, k, MANY_CHUNKS if Rows.IS_E5M2 else LANE_CHUNKS
    )
    var b = TilesOfB.of(problem, ctas_of_tile(n, most_ctas) if in_workspace else 1)
    var left, right = _element_of(problem.left.format), _element_of(problem.right.format)
    var is_prepared = left.bits != 6 and right.bits != 6
    if is_prepared:
        launch_prepare(a, b, rows, source, queue, fix_up.counters, num_counters)
    comptime for of_a in [Element.E4M3, Element.E2M3, Element.E3M2]:
        comptime for of_b in [Element.E2M1, Element.E2M3, Element.E3M2]:
            comptime Sixes = PreparedSixes[operand, bits, in_workspace, of_a, of_b]
            comptime if Sixes.exists():
                if left == of_a and right == of_b:
                    launch_prepare(a, b, Sixes(rows), source, queue)
                    is_prepared = True
    if not is_prepared:
        raise Error("plan: MXFP6 weights are for an SS main loop")
    var cut = plan.within(Int(rows.num_steps()))
    comptime if in_workspace:
        comptime shape = SsTile.largest(tile_rows)
        var left, right = rows.left.mapped(m, tile_rows), rows.right.mapped(n, shape.columns)
        comptime if Rows.IS_BF16:
            left = kept_rows(problem, problem.left, tile_rows)
        launch_ss[shape=shape](problem, rows, left, right, cut, queue)
    else:
        var grid = grid_of_rs_fp8(m, n, k, cut, bits)
        comptime if Rows.IS_E5M2:
            if plan.is_stream_k():
                return launch_rs[Rows, tile_rows, is_stream_k=True](
                    rows, grid, problem, 1, queue, fix_up
                )
        launch_rs[Rows, tile_rows](rows, grid, problem, cut.ranks, queue)


def _element_of(format: Int) -> Element:
    """Returns the element of a format; what is kept meets weights as E4M3 would."""
    return Element.E4M3 if format == NO_FORMAT else materialize[FORMATS]()[format].element


def launch_nvfp4(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Launches a product of activations that are kept, or of NVFP4, and NVFP4 weights."""
    if not Pair.of(problem).has_prepared(OperandType.BF16):
        raise Error("plan: bfloat16 is for bfloat16 activations that are kept")
    comptime for is_rounded in [False, True]:
        if (problem.left.format == NVFP4.code()) == is_rounded:
            _launch_nvfp4[is_rounded](problem, plan, queue)


def _launch_nvfp4[is_rounded: Bool](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    var m, n, k, left = problem.m, problem.n, problem.k, problem.left
    var space, places = workspace_of(m, n, k, plan), RoundedPlaces.of(m, n, k, plan)
    comptime if is_rounded:
        space = Workspace(0, places.num_bytes)
    var address = queue.workspace(space)
    comptime if is_rounded:
        left = round_rows(problem.left, m, k, places, address, queue)
    var rows = Nvfp4Rows[is_rounded].at(problem, address, left.scales)
    var b = TilesOfB.of(problem, ctas_of_tile(n, MAX_TILE_CTAS))
    var source = SourceRows[False].of(m, k, LANE_CHUNKS)
    launch_prepare(Activations(problem), b, rows, source, queue)
    comptime shape = SsTile.largest(PREPARED_ROWS)
    var right = rows.right.mapped(n, shape.columns)
    var cut = plan.within(Int(rows.right.num_steps))
    launch_ss[shape=shape](problem, rows, kept_rows(problem, left, shape.rows), right, cut, queue)


def launch_float_scaled(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Launches E4M3 under float scales, both sides plain; floats are encoded before."""
    var scaling = Scaling.of(problem.left.format, problem.right.format, problem.k)
    comptime for known in [Scaling.ROWS, Scaling.TILES, Scaling.COLUMNS]:
        comptime for shape in PLAIN_TILES:
            if scaling == known and SsTile(plan.rows, plan.columns) == shape:
                return _launch_float_scaled[known, shape](problem, plan, queue)
    raise Error(String("plan: no tile is ", plan.rows, "x", plan.columns))


def _launch_float_scaled[
    scaling: Scaling, shape: SsTile
](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    var m, n, k = problem.m, problem.n, problem.k
    var codes, scales = problem.left.values, problem.left.scales
    if problem.left.kind == LeftKind.QUANTIZED:
        codes = queue.workspace(workspace_of(m, n, k, plan))
        scales = codes + scales_at(m, k)
        var to = FloatScaledRows(
            device_pointer[DType.uint32](codes), device_pointer[DType.float32](scales)
        )
        var rows = SourceRows[False].of(m, k, LANE_CHUNKS)
        launch_prepare(Activations(problem), TilesOfB.none(), to, rows, queue)
    var operands = FloatOperands[scaling](
        FloatScales.at(scales, m, block_of(problem.left.format), k),
        FloatScales.at(problem.right.scales, n, block_of(problem.right.format), k),
    )
    var left = MappedRows(codes, m, k, k, shape.rows)
    var right = MappedRows(problem.right.codes, n, k, k, shape.columns)
    launch_ss[shape=shape](
        problem, operands, left, right, plan.within(ceildiv(k, ROW_BYTES)), queue
    )

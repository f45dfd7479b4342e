"""How grouped products and layers of experts are launched on CDNA4, and with which cut.

A cut has tiles of as many rows as a group has on average, which is all that the host knows: an
expert's weights are read once for each tile of its rows, and rows that a tile lacks are free.

    grouped_linear    one launch
"""

from std.math import ceildiv

from ...experts import Experts, GroupedProblem
from ...launch.queue import Queue
from ...numbers.floats import float_code
from ...numbers.gates import Gate
from ...problem import Left
from ..chip import LDS_BYTES, MAX_TENSOR_BYTES
from ..decode.shape import DecodeLds, DecodeShape
from ..instructions.matrix import TILE, TILE_K
from ..types import ProductTypes, float_bytes
from .groups import most_tiles
from .kernel import ExpertRows, ExpertsKernel, Rows

comptime MAX_GRID_Y = (1 << 16) - 1
"""What HIP takes."""


def _cut(m_tiles: Int) -> DecodeShape:
    """Returns a cut with so many tiles of rows: eight waves share K, which may end anywhere."""
    return DecodeShape(m_tiles, 4, 1, 8, 1, True, 1)


comptime CUTS = [_cut(1), _cut(2), _cut(4)]
"""For groups of more and more rows."""


def fits(cut: DecodeShape, types: ProductTypes) -> Bool:
    """Says whether LDS has room for the activations of `types`."""
    var tile_bytes = TILE * TILE_K * float_bytes(types.floats())
    return DecodeLds(cut, tile_bytes, types.formats.left).num_bytes() <= LDS_BYTES


def choose(m: Int, groups: Int, types: ProductTypes) -> Int:
    """Returns the position in `CUTS` of the first that covers an average group, or of the last."""
    var found = 0
    comptime for i in range(len(CUTS)):
        comptime cut = CUTS[i]
        if fits(cut, types):
            found = i
            if ceildiv(m, max(groups, 1)) <= cut.m_tiles * TILE:
                return i
    return found


def multiply_grouped[types: ProductTypes](problem: GroupedProblem, mut queue: Some[Queue]) raises:
    """Launches a grouped product."""
    if problem.m == 0 or problem.n == 0:
        return
    _check[types](problem.left, problem.experts, problem.n, problem.k)
    if problem.dtype != float_code(types.out):
        raise Error("got a result of another type than was compiled for gfx950")
    var rows = ExpertRows(
        problem.left.values, problem.sizes, problem.m, 0, problem.m, problem.values
    )
    launch[types, Rows.GROUPED](rows, problem.experts, Gate.NONE, problem.n, problem.k, queue)


def launch[
    types: ProductTypes, rows: Rows
](of: ExpertRows, experts: Experts, gate: Gate, n: Int, k: Int, mut queue: Some[Queue]) raises:
    """Launches a product of experts with the cut that is chosen for it."""
    _check_bytes("activations", of.num_tokens * types.row_bytes(k), of.m, n, k)
    _check_bytes("results", of.m * n * float_bytes(types.out), of.m, n, k)
    _check_bytes("an expert's weights", types.formats.right.packed_bytes(n * k), of.m, n, k)
    var choice = choose(of.m, experts.count, types)
    comptime for i in range(len(CUTS)):
        comptime cut = CUTS[i]
        comptime if fits(cut, types):
            if choice == i:
                var tiles = most_tiles(of.m, experts.count, cut.m_tiles * TILE)
                if tiles > MAX_GRID_Y:
                    raise Error(
                        String(
                            "got ", of.m, " rows of ", experts.count, " experts, which can be ",
                            tiles, " tiles, expected at most ", MAX_GRID_Y,
                            ": call with fewer rows at a time",
                        )
                    )  # fmt: skip
                return ExpertsKernel[types, cut, rows].launch(of, experts, gate, n, k, queue)


def _check[types: ProductTypes](left: Left, experts: Experts, n: Int, k: Int) raises:
    """Raises unless a product is of what was compiled."""
    var problem = types.problem(1, n, k)
    problem.left = left
    problem.right = experts.right
    problem.result.bias_dtype = experts.bias_dtype
    if not types.match(problem) or (left.row_stride != k):
        raise Error("got experts of other formats, types or layout than were compiled for gfx950")


def _check_bytes(name: String, num_bytes: Int, m: Int, n: Int, k: Int) raises:
    """Raises unless a tensor has fewer bytes than a kernel can count."""
    if num_bytes >= MAX_TENSOR_BYTES:
        raise Error(
            String(
                "got ", name, " of ", num_bytes, " bytes for (M, N, K) = (", m, ", ", n, ", ", k,
                "), expected less than 2 GiB",
            )
        )  # fmt: skip

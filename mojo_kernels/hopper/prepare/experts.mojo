"""What comes before the first FP8 product of experts: lists of rows, shared exponents of all rows of B.

One kernel: its first CTA makes the lists of `routing`; of the others each warp takes tiles of 32 rows
of B, whose scales it reads. Weights need not be searched for the experts that are hit: few rows of
each, which miss some, are for `streaming`.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, grid_dim, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from std.math import ceildiv
from std.utils import StaticTuple

from ...experts import Experts
from ...launch.queue import KernelStruct
from ...routing.groups import Groups
from ...routing.slots import Slots
from ...simt.arguments import ExpertWeights
from ..host.moe import LIST_THREADS as THREADS, LIST_WARPS as WARPS
from ..layout import OPERANDS, TILE_ROWS
from ..routing import Lists, list_groups, list_slots
from .exponents import SharedExponents, find_exponents_of_warp


@fieldwise_init
struct Matrices(KernelStruct):
    """The right sides of a product, and where the shared exponents of their rows go."""

    var weights: ExpertWeights
    var exponents: SharedExponents
    """Those of an expert's rows behind another's, tiles of 32."""
    var tiles: UInt32
    """Tiles of an expert."""
    var k: UInt32

    @staticmethod
    def of(experts: Experts, n: Int, k: Int, exponents: SharedExponents) -> Self:
        """Returns weights [n, k] of each expert."""
        var tiles = UInt32(ceildiv(n, TILE_ROWS))
        return Self(ExpertWeights(experts, n), exponents, tiles, UInt32(k))

    @always_inline
    def num_tiles(self) -> UInt32:
        """Returns the tiles of all experts."""
        return UInt32(self.weights.count) * self.tiles

    @always_inline
    def find_exponents(self, index: UInt32):
        """Finds those of a tile; a warp calls it."""
        var expert, tile = divmod(index, self.tiles)
        find_exponents_of_warp[OPERANDS.element](
            self.weights.of(Int(expert)), self.exponents, index * UInt32(TILE_ROWS), tile, self.k
        )


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def begin_groups(groups: Groups, lists: Lists, tile_rows: UInt32, matrices: Matrices):
    """Lists the tiles of rows that are sorted, and finds all exponents."""
    launch_dependent_grids()
    wait_on_dependent_grids()
    if block_idx.x == 0:
        return list_groups(groups, lists, tile_rows)
    for index in range(_first_tile(), matrices.num_tiles(), _tiles_step()):
        matrices.find_exponents(UInt32(index))


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def begin_slots(slots: Slots, lists: Lists, tile_rows: UInt32, first: Matrices, second: Matrices):
    """Sorts slots by expert, and finds the exponents of both products."""
    launch_dependent_grids()
    wait_on_dependent_grids()
    if block_idx.x == 0:
        return list_slots(slots, UInt32(first.weights.count), lists, tile_rows)
    var of_first = first.num_tiles()
    for index in range(_first_tile(), of_first + second.num_tiles(), _tiles_step()):
        if UInt32(index) < of_first:
            first.find_exponents(UInt32(index))
        else:
            second.find_exponents(UInt32(index) - of_first)


@always_inline
def _first_tile() -> UInt32:
    """Returns the first tile of this warp."""
    return (UInt32(block_idx.x) - 1) * UInt32(WARPS) + UInt32(thread_idx.x) // 32


@always_inline
def _tiles_step() -> UInt32:
    """Returns the tiles from one of a warp to its next one."""
    return (UInt32(grid_dim.x) - 1) * UInt32(WARPS)

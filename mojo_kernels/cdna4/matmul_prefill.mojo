"""Matmul for many rows: C[M, N] = A @ W.T (+ bias), 256 x 256 or 128 x 256 of C a workgroup.

Eight waves, two by four, compute 128 x 64 (or 64 x 64) each from what they share
in LDS (prefill_tiles.mojo). They form two groups of four, a wave of each on
every SIMD; while one group multiplies, the other reads the fragments of its next
phase and fetches later ones (ping_pong.mojo):

    wave    0 .. 3    group 0    rows   0 .. 127    columns 64 * (wave % 4) .. + 63
            4 .. 7    group 1    rows 128 .. 255

Before the loop the workgroups of the same rows put their scales in order (team.mojo).
A launch has a workgroup of 512 threads for each tile of C, rounded up to a
multiple of the XCDs. Workgroups are numbered so that those which an XCD runs
together form a block of C about as wide as high: they share rows and columns in its L2.
"""

from layout import row_major
from layout.tile_tensor import stack_allocation
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from std.memory import AddressSpace
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ..formats import BLOCK
from .epilogue import Result
from .mma import LANES, SharedBytes
from .prefill_activations import PART_BLOCKS, ReorderedScales
from .prefill_result import store_tiles
from .prefill_run import PrefillRun
from .prefill_tiles import (
    COLUMNS,
    N_TILES,
    PrefillTile,
    Reader,
    SCALE_GROUP_ROWS,
    STAGE_BLOCKS,
    SharedScales,
    WAVES,
    WAVES_N,
    place_at,
)
from .team import Team, TeamWorkspace
from .tiles import PIECE_BYTES, TILE, quotient

comptime THREADS = WAVES * LANES
"""Threads of a workgroup."""
comptime WAVES_PER_SIMD = 2
"""Waves that the kernel's registers must leave room for."""
comptime NUM_XCDS = 8
"""XCDs, to which workgroups are dealt in turn; the grid is a multiple."""
comptime BAND = 8
"""Tiles of rows of C that workgroups go through before the next column. Guess."""


@always_inline
def tile_of_c(tiles_m: Int32, tiles_n: Int32) -> Tuple[Int32, Int32]:
    """Returns the row and the column of the workgroup's tile of C; beyond C if it has none."""
    var rows, columns = tiles_m.cast[DType.uint32](), tiles_n.cast[DType.uint32]()
    var per_xcd = (rows * columns + UInt32(NUM_XCDS - 1)) // UInt32(NUM_XCDS)
    var bid = UInt32(block_idx.x)
    var number = bid % UInt32(NUM_XCDS) * per_xcd + bid // UInt32(NUM_XCDS)
    var band = number // (UInt32(BAND) * columns)
    var in_band = number - band * UInt32(BAND) * columns
    var height = min(rows - band * UInt32(BAND), UInt32(BAND))
    if number >= rows * columns:
        return (tiles_m, tiles_n)
    var column = in_band // height
    var row = band * UInt32(BAND) + in_band - column * height
    return (row.cast[DType.int32](), column.cast[DType.int32]())


@fieldwise_init
struct Workgroup[m_tiles: Int](TrivialRegisterPassable):
    """Who a wave is: its workgroup's tile of C, and its place there.

    Parameters:
        m_tiles: Tiles of rows of a wave.
    """

    comptime Tile = PrefillTile[Self.m_tiles]
    """The workgroup's tile of C."""
    comptime WorkTeam = Team[Self.Tile.ROWS // SCALE_GROUP_ROWS, WAVES]
    """The workgroups of the same rows."""

    var row: Int32
    """The tile's row."""
    var column: Int32
    """The tile's column."""
    var tiles_m: Int32
    """Tiles of rows of C."""
    var tiles_n: Int32
    """Tiles of columns of C."""
    var wave: Int32
    """The wave."""
    var lane: Int32
    """The lane."""

    @staticmethod
    @always_inline
    def this(m: Int32, n: Int32) -> Self:
        """Returns the caller's."""
        comptime ROWS = Self.Tile.ROWS
        var tiles_m = quotient[ROWS](m + Int32(ROWS - 1))
        var tiles_n = quotient[COLUMNS](n + Int32(COLUMNS - 1))
        var tile = tile_of_c(tiles_m, tiles_n)
        var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
        return Self(tile[0], tile[1], tiles_m, tiles_n, wave, Int32(thread_idx.x) % LANES)

    @always_inline
    def has_tile(self) -> Bool:
        """Says whether there is work: the grid is rounded up to a multiple of the XCDs."""
        return self.row < self.tiles_m

    @always_inline
    def pair(self) -> Int32:
        """Returns which pair of tiles of rows the wave prepares, within the tile of C."""
        return self.wave % Int32(self.WorkTeam.pairs)

    @always_inline
    def first_shared_row(self) -> Int32:
        """Returns the first row of that pair."""
        return self.row * Int32(self.Tile.ROWS) + self.pair() * Int32(SCALE_GROUP_ROWS)

    @always_inline
    def team(self, workspace: MutPointer[UInt8, _], parts: Int32) -> Self.WorkTeam:
        """Returns the team, which shares `parts` parts of each pair."""
        return Self.WorkTeam.of(workspace, self.row, self.tiles_n, parts)


@fieldwise_init
struct Operands(TrivialRegisterPassable):
    """What is multiplied: plain codes, all else preshuffled."""

    comptime Bytes = ImmPointer[UInt8, ImmUntrackedOrigin]
    """Any of it."""

    var a_codes: Self.Bytes
    """Codes of activations."""
    var a_scales: Self.Bytes
    """Their scales."""
    var w_codes: Self.Bytes
    """Codes of weights."""
    var w_scales: Self.Bytes
    """Their scales."""
    var m: Int32
    """Rows of activations."""
    var n: Int32
    """Rows of weights."""
    var k: Int32
    """Elements of a row."""

    @staticmethod
    @always_inline
    def of(
        a_codes: ImmPointer[UInt8, _],
        a_scales: MutPointer[UInt8, _],
        w_codes: ImmPointer[UInt8, _],
        w_scales: ImmPointer[UInt8, _],
        m: Int32,
        n: Int32,
        k: Int32,
    ) -> Self:
        """Describes operands; those of activations may still be on their way."""
        return Self(
            Self.Bytes(unsafe_from_address=Int(a_codes)),
            Self.Bytes(unsafe_from_address=Int(a_scales)),
            Self.Bytes(unsafe_from_address=Int(w_codes)),
            Self.Bytes(unsafe_from_address=Int(w_scales)),
            m,
            n,
            k,
        )


@always_inline
def multiply_tile[
    m_tiles: Int, out_dtype: DType, bias_dtype: Optional[DType], //, k_tail: Bool
](
    operands: Operands,
    target: Result[out_dtype, bias_dtype],
    workgroup: Workgroup[m_tiles],
    team: Workgroup[m_tiles].WorkTeam,
    lds: SharedBytes,
):
    """Computes the workgroup's tile of C, once the team has prepared the activations."""
    comptime Run = PrefillRun[m_tiles, k_tail]
    var wave, lane = workgroup.wave, workgroup.lane
    var first_row = workgroup.row * Int32(Run.Tile.ROWS)
    var first_column = workgroup.column * Int32(COLUMNS)
    var m, n, k_blocks = operands.m, operands.n, quotient[BLOCK](operands.k)

    # Along K.
    var run = Run(
        Run.Codes.of(operands.a_codes, m, k_blocks, first_row, wave, lane),
        Run.Scales.of(operands.a_scales, m, k_blocks, first_row, wave, lane),
        SharedScales[COLUMNS].of(operands.w_scales, n, k_blocks, first_column, wave, lane),
        Run.Weights.of(operands.w_codes, n, k_blocks, first_column, wave, lane),
        Reader[m_tiles].of(wave, lane),
        lds,
    )
    run.fetch_weights()
    run.clear()
    team.meet(wave, lane)
    var num_stages = quotient[STAGE_BLOCKS](k_blocks + Int32(STAGE_BLOCKS - 1))
    run.run(quotient[WAVES_N](wave), num_stages)

    # To memory.
    first_row += quotient[WAVES_N](wave) * Int32(m_tiles * TILE)
    first_column += wave % Int32(WAVES_N) * Int32(N_TILES * TILE)
    store_tiles[m_tiles, N_TILES](target, run.sums, first_row, first_column, lane)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `rocdl.waves_per_eu`=SIMDLength(WAVES_PER_SIMD),
)
def matmul_prefill[
    m_tiles: Int, out_dtype: DType, bias_dtype: Optional[DType], k_tail: Bool
](
    a_codes: ImmPointer[UInt8, ImmutAnyOrigin],
    a_scales: ImmPointer[UInt8, ImmutAnyOrigin],
    w_codes: ImmPointer[UInt8, ImmutAnyOrigin],
    w_scales: ImmPointer[UInt8, ImmutAnyOrigin],
    workspace: MutPointer[UInt8, MutAnyOrigin],
    m: Int32,
    n: Int32,
    k: Int32,
    result: MutPointer[Scalar[out_dtype], MutAnyOrigin],
    bias: ImmPointer[UInt8, ImmutAnyOrigin],
):
    """Multiplies plain codes: C = A @ W.T + bias. Without `k_tail`, K % 256 == 0.

    Weights have layout `preshuffled_cdna4`; each tensor has less than 2 GiB. The
    counters of the workspace are zero. Arguments that come first are preloaded.
    """
    var workgroup = Workgroup[m_tiles].this(m, n)
    if not workgroup.has_tile():
        return

    var k_blocks = quotient[BLOCK](k)
    var team = workgroup.team(workspace, quotient[PART_BLOCKS](k_blocks + Int32(PART_BLOCKS - 1)))
    var first = team.draw(workgroup.pair(), workgroup.lane)
    var lds = stack_allocation[
        DType.bfloat16, address_space=AddressSpace.SHARED, alignment=PIECE_BYTES
    ](row_major[PrefillTile[m_tiles].LDS_BYTES // size_of[DType.bfloat16]()]())

    # Scales in the order in which they are multiplied.
    comptime Scales = ReorderedScales[k_tail]
    var parts = TeamWorkspace.of(Int(workgroup.tiles_m), Int(m), Int(k))
    var scales = workspace.unsafe_offset(parts.counter_bytes)
    var own_lds = place_at(lds.ptr, workgroup.wave * Int32(Scales.LDS_BYTES))
    var first_row = workgroup.first_shared_row()
    var work = Scales(a_scales, scales, m, k_blocks, first_row, own_lds, workgroup.lane)
    team.prepare(work, first, workgroup.wave, workgroup.lane)

    var operands = Operands.of(a_codes, scales, w_codes, w_scales, m, n, k)
    var target = Result[out_dtype, bias_dtype].of(result, bias, m, n)
    multiply_tile[k_tail](operands, target, workgroup, team, lds.ptr)

"""Matmul for many rows: C[M, N] = A @ W.T (+ bias), 256 x 256 of C a workgroup.

Eight waves, two by four, compute 128 x 64 each from what they share in LDS
(prefill_tiles.mojo). They form two groups of four, a wave of each on every
SIMD; while one group multiplies, the other reads the fragments of its next
slice and fetches later ones (ping_pong.mojo):

    wave    0 .. 3    group 0    rows   0 .. 127    columns 64 * (wave % 4) .. + 63
            4 .. 7    group 1    rows 128 .. 255

A launch has a workgroup of 512 threads for each tile of C, rounded up to a
multiple of the XCDs. Workgroups are numbered so that those which an XCD runs together form a block
of C about as wide as high: they share rows and columns in its L2.
"""

from layout import row_major
from layout.tile_tensor import stack_allocation
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.sync import (
    AMDScheduleBarrierMask,
    s_waitcnt,
    s_waitcnt_barrier,
    schedule_barrier,
    schedule_group_barrier,
)
from pipeline.pipeline_dsl import ScheduleEntry
from std.collections import Array
from std.memory import AddressSpace
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ..formats import BLOCK
from .epilogue import Result, Sums
from .mma import BlockCodes, LANES, Mma16, SharedBytes, set_priority
from .ping_pong import PingPong, PingPongOps
from .prefill_activations import PART_BLOCKS, ReorderedScales, SharedCodes
from .prefill_tiles import (
    A_SCALE_BYTES,
    B_SLICE_BYTES,
    COLUMNS,
    DEPTH,
    N_TILES,
    PrefillTile,
    Reader,
    SCALE_BYTES,
    SCALE_GROUP_ROWS,
    STAGE_BLOCKS,
    SharedScales,
    SharedWeights,
    WAVES,
    WAVES_N,
    next_of_ring,
    place_at,
)
from .prefill_result import store_tiles
from .team import Team, TeamWorkspace
from .tiles import PAIR, PIECE_BYTES, TILE, quotient

comptime THREADS = WAVES * LANES
"""Threads of a workgroup."""
comptime WAVES_PER_SIMD = 2
"""Waves that the kernel's registers must leave room for."""
comptime NUM_XCDS = 8
"""XCDs, to which workgroups are dealt in turn; the grid is a multiple."""
comptime BAND = 8
"""Tiles of rows of C that workgroups go through before the next column. Guess."""


@fieldwise_init
struct Ring[a_bytes: Int](TrivialRegisterPassable):
    """A place among the stages and slices in LDS.

    Parameters:
        a_bytes: Bytes of the activations of a stage.
    """

    var stage: Int32
    """The stage, counted from the beginning of K."""
    var a: Int32
    """Where its activations begin."""
    var scales: Int32
    """Where its scales begin."""

    @staticmethod
    @always_inline
    def before_first() -> Self:
        """Returns the place whose next one is that of the first stage."""
        comptime LAST = DEPTH - 1
        return Self(-1, Int32(LAST * Self.a_bytes), Int32(LAST * SCALE_BYTES))

    @always_inline
    def next(self) -> Self:
        """Returns the next stage."""
        return Self(
            self.stage + 1,
            next_of_ring[Self.a_bytes](self.a),
            next_of_ring[SCALE_BYTES](self.scales),
        )


struct PrefillRun[m_tiles: Int, k_tail: Bool]:
    """A wave's way along K: its fragments, and the sums.

    Parameters:
        m_tiles: Tiles of rows of a wave.
        k_tail: Whether K may end within a stage.
    """

    comptime Tile = PrefillTile[Self.m_tiles]
    """The workgroup's tile of C."""
    comptime Place = Ring[Self.Tile.A_BYTES]
    """A place in LDS."""
    comptime PHASE_SLICES = Self.Tile.PHASE_SLICES
    """Slices of a phase."""
    comptime Weights = SharedWeights[Self.PHASE_SLICES, Self.k_tail]
    """The workgroup's weights."""
    comptime Codes = SharedCodes[Self.m_tiles, Self.k_tail]
    """The codes of the workgroup's activations."""
    comptime Scales = SharedScales[Self.Tile.ROWS]
    """Their scales."""
    comptime ORDER = PingPong(
        phase_slices=Self.PHASE_SLICES,
        of_b=Self.Weights.LOADS,
        of_a=Self.Codes.LOADS,
        of_b_scales=SharedScales[COLUMNS].LOADS,
        of_a_scales=Self.Scales.LOADS,
    )
    """The order of the work."""

    var codes: Self.Codes
    """Codes of activations."""
    var a_scale_source: Self.Scales
    """Their scales."""
    var b_scale_source: SharedScales[COLUMNS]
    """Scales of weights."""
    var weights: Self.Weights
    """Weights."""
    var reader: Reader[Self.m_tiles]
    """Where the wave reads."""
    var lds: SharedBytes
    """The workgroup's LDS."""
    var fetched: Self.Place
    """The stage that is fetched next."""
    var used: Self.Place
    """The stage that is read next."""
    var fetched_phase: Int32
    """The phase whose weights are fetched next."""
    var fetched_b: Int32
    """Where it goes, from the first weights on."""
    var used_b: Int32
    """Where the weights that are read next begin."""
    var a: Array[BlockCodes, Self.PHASE_SLICES * Self.m_tiles]
    """Fragments of activations."""
    var b: Array[BlockCodes, Self.PHASE_SLICES * N_TILES]
    """Fragments of weights."""
    var a_scales: Array[UInt32, Self.m_tiles // PAIR]
    """Scales of a stage of activations."""
    var b_scales: Array[UInt32, N_TILES // PAIR]
    """Scales of a stage of weights."""
    var sums: Array[Sums, Self.m_tiles * N_TILES]
    """C, all columns of the first tile of rows, then of the next."""

    @always_inline
    def __init__(
        out self,
        codes: Self.Codes,
        a_scales: Self.Scales,
        b_scales: SharedScales[COLUMNS],
        weights: Self.Weights,
        reader: Reader[Self.m_tiles],
        lds: SharedBytes,
    ):
        """Finds this thread's part of the work."""
        self.codes = codes
        self.a_scale_source = a_scales
        self.b_scale_source = b_scales
        self.weights = weights
        self.reader = reader
        self.lds = lds
        self.fetched = Self.Place.before_first()
        self.used = self.fetched.next()
        self.fetched_phase = -1
        self.fetched_b = 0
        self.used_b = Int32(Self.Tile.B_BYTES)
        self.a = {uninitialized = True}
        self.b = {uninitialized = True}
        self.a_scales = {uninitialized = True}
        self.b_scales = {uninitialized = True}
        self.sums = {uninitialized = True}
        comptime for i in range(Self.m_tiles * N_TILES):
            self.sums[i] = 0

    @always_inline
    def scales_of(self, ring: Self.Place) -> SharedBytes:
        """Returns where the scales of a stage begin."""
        return place_at(self.lds, ring.scales + Int32(Self.Tile.SCALE_PLACE))

    @always_inline
    def read[slice: Int](mut self):
        """Reads the fragments of a slice."""
        comptime if slice == 0:
            var place = self.scales_of(self.used)
            self.reader.read_scales[True](place, self.a_scales)
            self.reader.read_scales[False](place, self.b_scales)
        comptime phase_slice = slice % Self.PHASE_SLICES
        var weights = self.used_b + Int32(Self.Tile.B_PLACE + phase_slice * B_SLICE_BYTES)
        self.reader.read_b[phase_slice * N_TILES](place_at(self.lds, weights), self.b)
        self.reader.read_a[slice, phase_slice * Self.m_tiles](
            place_at(self.lds, self.used.a), self.a
        )

    @always_inline
    def aim_b(mut self):
        """Turns to the next phase's weights to fetch."""
        self.fetched_phase += 1
        self.fetched_b = next_of_ring[Self.Tile.B_BYTES](self.fetched_b)
        self.weights.aim(self.fetched_phase)

    @always_inline
    def aim_stage(mut self):
        """Turns to the next stage to fetch."""
        self.fetched = self.fetched.next()
        self.codes.aim(self.fetched.stage)
        self.a_scale_source.aim(self.fetched.stage)
        self.b_scale_source.aim(self.fetched.stage)

    @always_inline
    def multiply[slice: Int](mut self):
        """Multiplies all tiles of a slice."""
        comptime if slice == 0 and Self.k_tail:
            self.weights.keep_inside(self.used.stage, self.a_scales)
            self.weights.keep_inside(self.used.stage, self.b_scales)
        comptime phase_slice = slice % Self.PHASE_SLICES
        comptime for m_tile in range(Self.m_tiles):
            comptime for n_tile in range(N_TILES):
                comptime tile = m_tile * N_TILES + n_tile
                self.sums[tile] = Mma16.step[
                    PAIR * slice + n_tile % PAIR, PAIR * slice + m_tile % PAIR
                ](
                    self.sums[tile],
                    self.b[phase_slice * N_TILES + n_tile],
                    self.a[phase_slice * Self.m_tiles + m_tile],
                    self.b_scales[n_tile // PAIR],
                    self.a_scales[m_tile // PAIR],
                )
                schedule_group_barrier(AMDScheduleBarrierMask.MFMA, 1, 0)
                schedule_group_barrier(AMDScheduleBarrierMask.SALU, 2, 0)

    @always_inline
    def fetch[entry: ScheduleEntry](mut self):
        """Starts the loads of one operation of the schedule."""
        comptime tag = entry.op.tag
        comptime if tag == PingPongOps.FETCH_B.value:
            self.weights.fetch(place_at(self.lds, self.fetched_b + Int32(Self.Tile.B_PLACE)))
        elif tag == PingPongOps.FETCH_A.value:
            self.codes.fetch[entry.op.subtile](place_at(self.lds, self.fetched.a))
        elif tag == PingPongOps.FETCH_B_SCALES.value:
            var place = place_at(self.scales_of(self.fetched), Int32(A_SCALE_BYTES))
            self.b_scale_source.fetch(place)
        else:
            comptime assert tag == PingPongOps.FETCH_A_SCALES.value, "nobody fetches this"
            self.a_scale_source.fetch(self.scales_of(self.fetched))

    @always_inline
    def perform[entry: ScheduleEntry](mut self):
        """Carries out one operation of the schedule."""
        comptime tag = entry.op.tag
        comptime if tag == PingPongOps.READ.value:
            self.read[entry.op.subtile]()
        elif tag == PingPongOps.MULTIPLY.value:
            self.multiply[entry.op.subtile]()
        elif tag == PingPongOps.AIM_B.value:
            self.aim_b()
        elif tag == PingPongOps.AIM_STAGE.value:
            self.aim_stage()
        elif tag == PingPongOps.REWIND.value:
            self.fetched = Self.Place.before_first()
        elif tag == PingPongOps.NEXT_WEIGHTS.value:
            self.used_b = next_of_ring[Self.Tile.B_BYTES](self.used_b)
        elif tag == PingPongOps.NEXT_STAGE.value:
            self.used = self.used.next()
        elif tag == PingPongOps.WAIT_VM.value:
            s_waitcnt[vmcnt=UInt32(entry.op.wait_value), lgkmcnt=0]()
        elif tag == PingPongOps.BARRIER.value:
            s_waitcnt_barrier()
        elif tag == PingPongOps.SET_PRIO.value:
            set_priority[entry.op.wait_value]()
        else:
            self.fetch[entry]()
        comptime if not PingPongOps(tag).is_scalar():
            schedule_barrier()

    @always_inline
    def fetch_weights(mut self):
        """Starts loading the first weights; only `FREE_BYTES` of LDS are free from now on."""
        comptime weights = Self.ORDER.weights()
        comptime for i in range(PingPong.WEIGHTS_LENGTH):
            self.perform[weights[i]]()

    @always_inline
    def run(mut self, group: Int32, num_stages: Int32):
        """Walks along K; the second group is a phase behind the first."""
        comptime activations = Self.ORDER.activations()
        comptime for i in range(PingPong.ACTIVATIONS_LENGTH):
            self.perform[activations[i]]()
        if group != 0:
            s_waitcnt_barrier()

        comptime steady = Self.ORDER.steady[Self.ORDER.steady_length()]()
        for _ in range(num_stages):
            comptime for i in range(Self.ORDER.steady_length()):
                self.perform[steady[i]]()

        if group == 0:
            s_waitcnt_barrier()
        s_waitcnt[vmcnt=0]()


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

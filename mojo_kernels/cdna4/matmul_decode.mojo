"""Matmul and linear for few rows: C[M, N] = A @ W.T (+ bias) in one launch.

A workgroup computes a tile of C, its waves share the work along K:

    workgroup x, y    tiles of columns (weights) and of rows (activations)
    workgroup z       a part of K, if `splits` > 1; the last to arrive adds up
    wave              a run of chunks along K, all rows and columns of the tile

So a wave meets every block of its activations once, encodes it in registers
and needs nobody else until its sums are done: no barrier along K. The lanes of
a wave in a step (128 along K, 16 rows, all columns of the tile):

    lane l    row l % 16 of 16 rows of A and of W, block l / 16
              C: row l % 16, columns 4 * (l / 16) .. + 3

Partial sums meet in LDS, then, with `splits`, in the workspace; they are always
added in the order of K, so that the result does not depend on who comes last.
Workgroups with equal x read the same weights. Where there are several, the grid's
x extent is a multiple of the number of XCDs, so that they share an L2.
"""

from layout import row_major
from layout.tile_tensor import stack_allocation
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, thread_idx
from max.gpu.sync import s_waitcnt, schedule_barrier
from pipeline.pipeline_dsl import ScheduleEntry
from pipeline.types import Phase
from std.collections import Array
from std.math import ceildiv
from std.memory import AddressSpace
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ..codec import Rounding
from ..formats import BLOCK
from .activations import ActivationSource, Prequantized, QuantizedOnTheFly
from .epilogue import Result, SUM_BYTES, Sums, TILE_SUM_BYTES, Workspace
from .mma import BlockCodes, LANES, Mma16, SharedBytes, loaded
from .schedule import Stream, StreamOps
from .tiles import PAIR, PIECE_BYTES, TILE, WeightTiles, quotient


@fieldwise_init
struct DecodeShape(Equatable, TrivialRegisterPassable):
    """How a workgroup cuts its work."""

    var m_tiles: Int
    """Tiles of 16 rows, a power of two."""
    var n_tiles: Int
    """Tiles of 16 columns, even or one."""
    var k_tiles: Int
    """Tiles of 128 along K of a chunk: one or two."""
    var waves: Int
    """Waves, each with a part of K."""
    var depth: Int
    """Chunks that a wave has in flight."""
    var k_tail: Bool
    """Whether K may end within a chunk."""
    var splits: Int
    """Workgroups that share a tile of C, each with a part of K."""

    def threads(self) -> Int:
        """Returns the threads of a workgroup."""
        return self.waves * LANES

    def tiles(self) -> Int:
        """Returns the tiles of C that a workgroup computes."""
        return self.m_tiles * self.n_tiles

    def own_tiles(self) -> Int:
        """Returns the tiles of C that a wave finishes."""
        return ceildiv(self.tiles(), self.waves)


@always_inline
def stream_of[Source: ActivationSource, shape: DecodeShape]() -> Stream:
    """Returns the loads and steps of a chunk."""
    comptime Weights = WeightTiles[shape.n_tiles, shape.k_tiles, shape.k_tail]
    return Stream(
        depth=shape.depth,
        k_tiles=shape.k_tiles,
        m_tiles=shape.m_tiles,
        of_weights=Weights.WORDS + shape.k_tiles * shape.n_tiles,
        of_step=Source.LOADS,
    )


struct WaveRun[Source: ActivationSource, shape: DecodeShape]:
    """A wave's way along K: the registers of all stages in flight, and the sums."""

    comptime Weights = WeightTiles[Self.shape.n_tiles, Self.shape.k_tiles, Self.shape.k_tail]
    """The wave's weights."""
    comptime CODES = Self.shape.k_tiles * Self.shape.n_tiles
    """Tiles of weights in a stage."""
    comptime HELD = Self.shape.k_tiles * Self.shape.m_tiles
    """Tiles of activations in a stage."""
    comptime STAGE_BYTES = Self.HELD * Self.Source.LDS_BYTES
    """LDS of a stage."""
    comptime STREAM = stream_of[Self.Source, Self.shape]()
    """The order of its loads."""

    var source: Self.Source
    """Activations."""
    var weights: Self.Weights
    """Weights."""
    var lds: SharedBytes
    """The wave's own part of LDS."""
    var lane: Int32
    """The lane."""
    var next_chunk: Int32
    """The chunk that is fetched next."""
    var codes: Array[BlockCodes, Self.shape.depth * Self.CODES]
    """Weights in flight, tile after tile along K, for each stage."""
    var scales: Array[UInt32, Self.shape.depth * Self.Weights.WORDS]
    """Their scales."""
    var first_blocks: Array[Int32, Self.shape.depth]
    """The first block along K of each stage."""
    var held: Array[Self.Source.Held, Self.shape.depth * Self.HELD]
    """What the source keeps of activations in flight."""
    var sums: Array[Sums, Self.shape.m_tiles * Self.shape.n_tiles]
    """The tile of C, all columns of the first rows, then of the next."""

    @always_inline
    def __init__(
        out self,
        source: Self.Source,
        weights: Self.Weights,
        lds: SharedBytes,
        lane: Int32,
        first_chunk: Int32,
    ):
        """Begins at a chunk, with sums of zero."""
        self.source = source
        self.weights = weights
        self.lds = lds
        self.lane = lane
        self.next_chunk = first_chunk
        self.codes = {uninitialized = True}
        self.scales = {uninitialized = True}
        self.first_blocks = {uninitialized = True}
        self.held = {uninitialized = True}
        self.sums = {uninitialized = True}
        comptime for i in range(Self.shape.tiles()):
            self.sums[i] = 0

    @always_inline
    def tile_in_lds[stage: Int, step: Int](self) -> SharedBytes:
        """Returns the place of a tile of activations."""
        comptime bytes = stage * Self.STAGE_BYTES + step * Self.Source.LDS_BYTES
        return self.lds.unsafe_offset(bytes // size_of[DType.bfloat16]())

    @always_inline
    def fetch[stage: Int, is_first: Bool](mut self):
        """Starts all loads of the next chunk, in the order that the waits count on."""
        var of_weights = self.weights.cursor(self.next_chunk)
        self.first_blocks[stage] = of_weights.first_block
        comptime for word in range(Self.Weights.WORDS):
            self.scales[stage * Self.Weights.WORDS + word] = self.weights.fetch_scales[word](
                of_weights, self.lane
            )
        comptime for i in range(Self.CODES):
            comptime k_tile, n_tile = divmod(i, Self.shape.n_tiles)
            self.codes[stage * Self.CODES + i] = self.weights.fetch_codes[k_tile, n_tile](
                of_weights, self.lane
            )
        schedule_barrier()

        comptime if is_first:
            self.source.settle(self.lane)
        var of_source = self.source.cursor(self.next_chunk)
        comptime for step in range(Self.HELD):
            comptime k_tile, m_tile = divmod(step, Self.shape.m_tiles)
            self.held[stage * Self.HELD + step] = self.source.fetch[k_tile, m_tile](
                of_source, self.tile_in_lds[stage, step](), self.lane
            )
            schedule_barrier()
        self.next_chunk += 1

    @always_inline
    def multiply[stage: Int, step: Int](mut self):
        """Encodes a tile of activations and multiplies it by all tiles of weights."""
        comptime k_tile, m_tile = divmod(step, Self.shape.m_tiles)
        comptime first_word = stage * Self.Weights.WORDS
        comptime if step == 0:
            comptime for word in range(first_word, first_word + Self.Weights.WORDS):
                self.scales[word] = self.weights.chosen_scales(
                    self.scales[word], self.first_blocks[stage], self.lane
                )

        var a = self.source.block(
            self.held[stage * Self.HELD + step], self.tile_in_lds[stage, step](), self.lane
        )
        comptime for n_tile in range(Self.shape.n_tiles):
            comptime tile = m_tile * Self.shape.n_tiles + n_tile
            comptime byte = Self.Weights.scale_byte[k_tile, n_tile]()
            self.sums[tile] = Mma16.step[byte, 0](
                self.sums[tile],
                self.codes[stage * Self.CODES + k_tile * Self.shape.n_tiles + n_tile],
                a.codes,
                self.scales[first_word + n_tile // PAIR],
                a.scale,
            )

    @always_inline
    def perform[entry: ScheduleEntry](mut self):
        """Carries out one operation of the schedule."""
        comptime tag = entry.op.tag
        comptime stage = entry.op.stage
        comptime if tag == StreamOps.FETCH.value:
            comptime is_first = stage == 0 and entry.phase == Phase.PROLOGUE
            self.fetch[stage, is_first]()
        elif tag == StreamOps.MULTIPLY.value:
            self.multiply[stage, entry.op.subtile]()
        elif tag == StreamOps.RELEASE.value:
            s_waitcnt[lgkmcnt=0]()
            schedule_barrier()
        else:
            comptime assert tag == StreamOps.WAIT_VM.value, "an operation nobody carries out"
            s_waitcnt[vmcnt=UInt32(entry.op.wait_value)]()
            schedule_barrier()

    @always_inline
    def start(mut self):
        """Starts the loads of the first chunks."""
        comptime prologue = Self.STREAM.prologue[Self.shape.depth]()
        comptime for i in range(Self.shape.depth):
            self.perform[prologue[i]]()

    @always_inline
    def finish(mut self, num_chunks: Int32):
        """Walks along K; `num_chunks` is a multiple of the depth."""
        comptime depth = Self.shape.depth
        comptime steady_length = Self.STREAM.steady_length()
        comptime steady = Self.STREAM.steady[steady_length]()
        for _ in range(quotient[depth](num_chunks) - 1):
            comptime for i in range(steady_length):
                self.perform[steady[i]]()

        comptime epilogue_length = Self.STREAM.epilogue_length()
        comptime epilogue = Self.STREAM.epilogue[epilogue_length]()
        comptime for i in range(epilogue_length):
            self.perform[epilogue[i]]()


@always_inline
def _wave_bytes[Source: ActivationSource, shape: DecodeShape]() -> Int:
    """Returns the LDS of a wave: for tiles on their way, later for its sums."""
    comptime tiles = shape.depth * WaveRun[Source, shape].STAGE_BYTES
    comptime sums = shape.tiles() * TILE_SUM_BYTES if shape.waves > 1 else 0
    return max(tiles, sums, PIECE_BYTES)


@always_inline
def _decode[
    Source: ActivationSource, out_dtype: DType, bias_dtype: Optional[DType], shape: DecodeShape
](
    source: Source,
    w_codes: ImmPointer[UInt8, ImmutAnyOrigin],
    w_scales: ImmPointer[UInt8, ImmutAnyOrigin],
    result: Result[out_dtype, bias_dtype],
    m: Int32,
    n: Int32,
    k: Int32,
    chunks_per_wave: Int32,
    workspace: MutPointer[UInt8, MutAnyOrigin],
):
    """Computes a workgroup's tile of C."""
    comptime WAVE_BYTES = _wave_bytes[Source, shape]()
    comptime WAVE_ELEMENTS = WAVE_BYTES // size_of[DType.bfloat16]()
    comptime COLUMNS = Int32(shape.n_tiles * TILE)
    var lane = Int32(thread_idx.x) % LANES
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var x, y, z = Int32(block_idx.x), Int32(block_idx.y), Int32(block_idx.z)
    if x * COLUMNS >= n:
        return  # Rounds the grid up to a multiple of the XCDs.

    # Along K, each wave on its own.
    var lds = stack_allocation[
        DType.bfloat16, address_space=AddressSpace.SHARED, alignment=PIECE_BYTES
    ](row_major[shape.waves * WAVE_ELEMENTS]())
    var own_lds = lds.ptr.unsafe_offset(Int(wave) * WAVE_ELEMENTS)
    var weights = WaveRun[Source, shape].Weights.of(
        w_codes, w_scales, n, quotient[BLOCK](k), x * Int32(shape.n_tiles)
    )
    var first_chunk = (z * Int32(shape.waves) + wave) * chunks_per_wave
    var run = WaveRun[Source, shape](source, weights, own_lds, lane, first_chunk)
    run.start()
    # What is needed at the end arrives while the first chunks do.
    var meeting_place = workspace
    comptime if shape.splits > 1:
        meeting_place = loaded(workspace)
    var bias = Array[Sums, shape.own_tiles()](uninitialized=True)
    comptime for i in range(shape.own_tiles()):
        var n_tile = (wave + Int32(i * shape.waves)) % Int32(shape.n_tiles)
        bias[i] = result.bias_of(x * COLUMNS + n_tile * TILE, lane)
    run.finish(chunks_per_wave)

    # Across waves: each gets every so many tiles.
    var sums = Array[Sums, shape.own_tiles()](uninitialized=True)
    comptime if shape.waves == 1:
        comptime for i in range(shape.own_tiles()):
            sums[i] = run.sums[i]
    else:
        _exchange[shape, WAVE_BYTES](run.sums, sums, lds.ptr, wave, lane)
        comptime if shape.waves > shape.tiles():
            if wave >= Int32(shape.tiles()):
                return

    # Across workgroups.
    comptime if shape.splits > 1:
        comptime ROWS = shape.m_tiles * TILE
        var groups_x = quotient[Int(COLUMNS)](n + COLUMNS - 1)
        var groups = groups_x * quotient[ROWS](m + Int32(ROWS - 1))
        var meeting = Workspace[shape.waves, shape.tiles(), shape.splits].of(
            meeting_place, x + groups_x * y, groups
        )
        if not _meet[shape](sums, meeting, z, wave, lane):
            return

    # To memory.
    comptime for i in range(shape.own_tiles()):
        var tile = wave + Int32(i * shape.waves)
        if tile < Int32(shape.tiles()):
            var m_tile, n_tile = tile // Int32(shape.n_tiles), tile % Int32(shape.n_tiles)
            var first_row = (y * Int32(shape.m_tiles) + m_tile) * TILE
            result.store(sums[i], bias[i], first_row, x * COLUMNS + n_tile * TILE, lane)


@always_inline
def _meet[
    shape: DecodeShape
](
    mut sums: Array[Sums, shape.own_tiles()],
    meeting: Workspace[shape.waves, shape.tiles(), shape.splits],
    share: Int32,
    wave: Int32,
    lane: Int32,
) -> Bool:
    """Leaves a wave's sums; the last one to do so gets the sums of all, and True."""
    comptime for i in range(shape.own_tiles()):
        var tile = wave + Int32(i * shape.waves)
        if tile < Int32(shape.tiles()):
            meeting.leave(sums[i], share, tile, lane)
    if not meeting.is_last(wave, lane):
        return False
    comptime for i in range(shape.own_tiles()):
        var tile = wave + Int32(i * shape.waves)
        if tile < Int32(shape.tiles()):
            sums[i] = meeting.total(tile, lane)
    return True


@always_inline
def _exchange[
    shape: DecodeShape, wave_bytes: Int
](
    partial: Array[Sums, shape.m_tiles * shape.n_tiles],
    mut sums: Array[Sums, shape.own_tiles()],
    lds: SharedBytes,
    wave: Int32,
    lane: Int32,
):
    """Adds the sums of all waves in their order; a wave gets tiles `wave`, `wave + waves`, .."""
    comptime WAVE_FLOATS = wave_bytes // 4
    comptime TILE_FLOATS = TILE_SUM_BYTES // 4
    var floats = lds.unsafe_bitcast[Float32]().unsafe_offset(Int(lane) * Mma16.VALUES)
    var own = floats.unsafe_offset(Int(wave) * WAVE_FLOATS)
    comptime for tile in range(shape.tiles()):
        own.unsafe_store[alignment=SUM_BYTES](tile * TILE_FLOATS, partial[tile])
    barrier()
    comptime for i in range(shape.own_tiles()):
        var tile = wave + Int32(i * shape.waves)
        if tile < Int32(shape.tiles()):
            comptime for other in range(shape.waves):
                var of_wave = floats.unsafe_load[width=Mma16.VALUES, alignment=SUM_BYTES](
                    other * WAVE_FLOATS + Int(tile) * TILE_FLOATS
                )
                sums[i] = of_wave if other == 0 else sums[i] + of_wave


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(shape.threads())),
    `rocdl.waves_per_eu`=SIMDLength(2),
)
def linear_decode[
    x_dtype: DType,
    out_dtype: DType,
    bias_dtype: Optional[DType],
    rounding: Rounding,
    shape: DecodeShape,
](
    x: ImmPointer[Scalar[x_dtype], ImmutAnyOrigin],
    w_codes: ImmPointer[UInt8, ImmutAnyOrigin],
    w_scales: ImmPointer[UInt8, ImmutAnyOrigin],
    result: MutPointer[Scalar[out_dtype], MutAnyOrigin],
    m: Int32,
    n: Int32,
    k: Int32,
    chunks_per_wave: Int32,
    bias: ImmPointer[UInt8, ImmutAnyOrigin],
    workspace: MutPointer[UInt8, MutAnyOrigin],
):
    """Quantizes x and multiplies: C = x @ W.T + bias."""
    comptime Source = QuantizedOnTheFly[
        x_dtype, rounding, shape.m_tiles, shape.k_tiles, shape.k_tail
    ]
    var source = Source(x, m, k, Int32(block_idx.y) * Int32(shape.m_tiles * TILE))
    var target = Result[out_dtype, bias_dtype].of(result, bias, m, n)
    _decode[Source, out_dtype, bias_dtype, shape](
        source, w_codes, w_scales, target, m, n, k, chunks_per_wave, workspace
    )


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(shape.threads())),
    `rocdl.waves_per_eu`=SIMDLength(2),
)
def matmul_decode[
    out_dtype: DType, bias_dtype: Optional[DType], shape: DecodeShape
](
    a_codes: ImmPointer[UInt8, ImmutAnyOrigin],
    a_scales: ImmPointer[UInt8, ImmutAnyOrigin],
    w_codes: ImmPointer[UInt8, ImmutAnyOrigin],
    w_scales: ImmPointer[UInt8, ImmutAnyOrigin],
    result: MutPointer[Scalar[out_dtype], MutAnyOrigin],
    m: Int32,
    n: Int32,
    k: Int32,
    chunks_per_wave: Int32,
    bias: ImmPointer[UInt8, ImmutAnyOrigin],
    workspace: MutPointer[UInt8, MutAnyOrigin],
):
    """Multiplies a plain operand: C = A @ W.T + bias."""
    comptime Source = Prequantized[shape.m_tiles, shape.k_tiles, shape.k_tail]
    var first_row = Int32(block_idx.y) * Int32(shape.m_tiles * TILE)
    var source = Source(a_codes, a_scales, m, quotient[BLOCK](k), first_row)
    var target = Result[out_dtype, bias_dtype].of(result, bias, m, n)
    _decode[Source, out_dtype, bias_dtype, shape](
        source, w_codes, w_scales, target, m, n, k, chunks_per_wave, workspace
    )

"""The ladder for few rows, C = A @ W.T with M = 16, where reading the weights is the work.

    product[1]    a wave computes 16 x 32 of C along all of K: few waves for a large chip
    product[7]    the same along a part of K; whoever comes last adds the parts up
    quantize      bfloat16 rows to MXFP4, a block a thread: the launch before a product
    fused         floats instead of codes, quantized in registers: one launch; its parameters are the
                  steps of a contest's post: what goes through LDS, how many stages, how much of C a
                  wave has, and how its results leave

W is MXFP4 as in `many_rows`, A is MXFP4 or bfloat16, C bfloat16. N is a multiple of 32, K of 256;
of `fused` rows and columns fill tiles.
"""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, grid_dim, thread_idx
from max.gpu.intrinsics import AMDBufferResource
from max.gpu.memory import CacheOperation
from max.gpu.sync import s_waitcnt, schedule_barrier
from std.memory import bitcast
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from mojo_kernels.cdna4.chip import BLOCK, LANES, PIECE_BYTES, SUMS, TILE
from mojo_kernels.cdna4.instructions.lds import (
    Lds,
    PIECE_WORDS,
    allocate_lds,
    read_piece,
    read_word,
    words_at,
)
from mojo_kernels.cdna4.instructions.matrix import SumTile, Sums, set_priority
from mojo_kernels.cdna4.instructions.memory import arrive, load_to_lds, publish
from mojo_kernels.cdna4.instructions.vector import zero_of_a_branch
from mojo_kernels.cdna4.operands.encode import EncodedBlock, encode_block
from mojo_kernels.cdna4.types import BF16
from mojo_kernels.layouts import PreshuffledCdna4
from mojo_kernels.numbers.formats import Format
from mojo_kernels.numbers.rounding import Rounding
from mojo_kernels.tiles import RegisterTile, in_registers
from shared_tile import (
    Bytes,
    GROUPS,
    GROUP_BYTES,
    MXFP4,
    Pieces,
    ROW_BYTES,
    ROW_PIECES,
    Rows,
    SLICES,
    STAGE_K,
    WORD_BYTES,
    Words,
    cleared,
    exchanged,
    multiply,
    store_tile,
)

comptime Result = MutPointer[BFloat16, MutAnyOrigin]
comptime Floats = ImmPointer[BFloat16, ImmutAnyOrigin]
comptime Workspace = MutPointer[UInt8, MutAnyOrigin]
comptime COLUMN_TILES = 2
"""Tiles of columns of a wave."""
comptime COLUMNS = COLUMN_TILES * TILE
comptime THREADS = 256
"""Threads of a workgroup of `quantize`."""
comptime PART_BYTES = 8
"""Bytes of sums that workgroups exchange at once: two float32."""


@always_inline
def block_of(x: Floats, block: Int32) -> EncodedBlock[MXFP4]:
    """Loads 32 neighbours and quantizes them."""
    var values = x.unsafe_offset(Int(block * BLOCK)).unsafe_load[width=BLOCK, alignment=16]()
    return encode_block[MXFP4, DType.bfloat16, Rounding.EVEN](values)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def quantize(
    x: Floats,
    codes: MutPointer[UInt8, MutAnyOrigin],
    scales: MutPointer[UInt8, MutAnyOrigin],
    m: Int32,
    k: Int32,
):
    """Quantizes [M, K]: plain codes, preshuffled scales."""
    var blocks = k // BLOCK
    var block = Int32(block_idx.x) * THREADS + Int32(thread_idx.x)
    if block < m * blocks:
        var encoded = block_of(x, block)
        comptime CODE_BYTES = MXFP4.block_bytes()
        codes.unsafe_offset(Int(block) * CODE_BYTES).unsafe_store[alignment=16](
            bitcast[DType.uint8, CODE_BYTES](encoded.codes)
        )
        var place = PreshuffledCdna4.scale_offset(
            Int(block // blocks), Int(block % blocks), Int(blocks)
        )
        scales[unsafe_offset=place] = encoded.scale.cast[DType.uint8]()


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(LANES)))
def product[
    parts: Int
](
    a: Bytes,
    a_scales: Bytes,
    w_codes: Bytes,
    w_scales: Bytes,
    c: Result,
    workspace: Workspace,
    n: Int32,
    k: Int32,
    stages: Int32,
):
    """One wave, 16 x 32 of C, `stages` of 256 along K from `block_idx.z` times as many on.

    Of one part of K `workspace` is not used.
    """
    var lane = Int32(thread_idx.x)
    var first_column, part = Int32(block_idx.x) * COLUMNS, Int32(block_idx.z)
    var a_rows = Rows.of(a, a_scales, TILE, k, 0)
    var w_rows = Rows.of(w_codes, w_scales, n, k, first_column)

    var codes = in_registers[DType.uint32, 4, SLICES, 1]()
    var w = in_registers[DType.uint32, 4, SLICES, COLUMN_TILES]()
    var a_words = in_registers[DType.uint32, 1, 1]()
    var w_words = in_registers[DType.uint32, 1, 1]()
    var sums = in_registers[DType.float32, SUMS, 1, COLUMN_TILES]()
    comptime for tile in range(COLUMN_TILES):
        sums[0, tile] = 0

    for stage in range(part * stages, (part + 1) * stages):
        w_words[0] = w_rows.word(0, stage, lane)
        comptime for slice in range(SLICES):
            var piece = Int32(slice * ROW_PIECES // SLICES) + lane // TILE
            comptime for tile in range(COLUMN_TILES):
                w[slice, tile] = w_rows.piece(Int32(tile * TILE) + lane % TILE, stage, piece)
        a_words[0] = a_rows.word(0, stage, lane)
        comptime for slice in range(SLICES):
            var piece = Int32(slice * ROW_PIECES // SLICES) + lane // TILE
            codes[slice, 0] = a_rows.piece(lane % TILE, stage, piece)
        comptime for slice in range(SLICES):
            multiply[slice](sums, codes, w, a_words, w_words)

    comptime if parts > 1:
        if not _add_up[parts](workspace, sums, lane):
            return

    comptime for tile in range(COLUMN_TILES):
        var column = first_column + Int32(tile * TILE) + lane // TILE * SUMS
        store_tile(c, sums[0, tile], n, lane % TILE, column)


@always_inline
def _add_up[
    rows: Int, columns: Int, //, parts: Int
](workspace: Workspace, sums: SumTile[rows, columns], lane: Int32) -> Bool:
    """Publishes the sums of a part of K; of the last workgroup of a tile they become those of all
    parts, in the order of K. Says whether this is the last one.

    In `workspace` a counter for each tile of the grid stands before the sums.
    """
    var tiles = Int32(grid_dim.x * grid_dim.y)
    var place = Int32(block_idx.y * grid_dim.x + block_idx.x)
    comptime SUM_BYTES = Int32(rows * columns * LANES * SUMS * 4)
    comptime ALL_BYTES = Int32(parts) * SUM_BYTES
    var memory = AMDBufferResource(workspace, Int(tiles * 4 + tiles * ALL_BYTES))

    var first = tiles * 4 + place * ALL_BYTES + lane * (SUMS * 4)
    var here = first + Int32(block_idx.z) * SUM_BYTES
    comptime for tile in range(rows * columns):
        comptime TILE_PLACE = Int32(tile * LANES * SUMS * 4)
        _publish(memory, sums[tile // columns, tile % columns], here + TILE_PLACE)
    s_waitcnt[vmcnt=0]()
    var before = UInt32(0)
    if lane == 0:
        before = arrive(memory, place * 4, UInt32(parts - 1))
    if readfirstlane(before.cast[DType.int32]()) != Int32(parts - 1):
        return False
    # Loads of all parts start before the first sum is needed, and none before the count.
    first += bitcast[DType.int32](zero_of_a_branch())
    var found = in_registers[DType.float32, SUMS, rows * columns, parts]()
    comptime for tile in range(rows * columns):
        comptime for other in range(parts):
            comptime PLACE = Int32(other) * SUM_BYTES + Int32(tile * LANES * SUMS * 4)
            found[tile, other] = bitcast[DType.float32, SUMS](
                memory.load[DType.uint8, 4 * SUMS, cache_policy=CacheOperation.GLOBAL](
                    first + PLACE
                )
            )
    schedule_barrier()
    comptime for tile in range(rows * columns):
        var sum = found[tile, 0]
        comptime for other in range(1, parts):
            sum += found[tile, other]
        sums[tile // columns, tile % columns] = sum
    return True


@always_inline
def _publish(memory: AMDBufferResource, sums: Sums, place: Int32):
    """Stores a lane's sums where every workgroup sees them."""
    comptime for half in range(2):
        publish(
            memory,
            place + Int32(half * PART_BYTES),
            0,
            bitcast[DType.uint32, 2](sums.slice[2, offset=2 * half]()),
        )


struct Fed[n_tiles: Int](TrivialRegisterPassable):
    """What a lane feeds for a stage: floats of A, codes and words of scales of W."""

    var floats: RegisterTile[DType.bfloat16, BLOCK, SLICES]
    var w: Pieces[SLICES, Self.n_tiles]
    var w_words: Words[GROUPS[Self.n_tiles]]

    @always_inline
    def __init__(out self):
        """Takes registers for it."""
        self.floats = in_registers[DType.bfloat16, BLOCK, SLICES]()
        self.w = in_registers[DType.uint32, PIECE_WORDS, SLICES, Self.n_tiles]()
        self.w_words = in_registers[DType.uint32, 1, GROUPS[Self.n_tiles]]()

    @always_inline
    def multiply[
        rows: Int, columns: Int, //, is_transposed: Bool
    ](self, sums: SumTile[rows, columns]):
        """Quantizes the floats and multiplies; with `is_transposed` a lane's sums are neighbours of
        a row of C, otherwise of a column, and tiles of columns come first in `sums`."""
        var codes = in_registers[DType.uint32, PIECE_WORDS, SLICES, 1]()
        var words = in_registers[DType.uint32, 1, 1]()
        var scales = UInt32(0)
        comptime for slice in range(SLICES):
            var encoded = encode_block[MXFP4, DType.bfloat16, Rounding.EVEN](self.floats[slice])
            codes[slice, 0] = rebind[SIMD[DType.uint32, PIECE_WORDS]](encoded.codes)
            scales |= encoded.scale << UInt32(16 * slice)
        words[0] = scales
        comptime for slice in range(SLICES):
            comptime if is_transposed:
                var by_rows = rebind[SumTile[1, Self.n_tiles]](sums)
                multiply[slice](by_rows, codes, self.w, words, self.w_words)
            else:
                var by_columns = rebind[SumTile[Self.n_tiles, 1]](sums)
                multiply[slice](by_columns, self.w, codes, self.w_words, words)


comptime FLOAT_PARTS = STAGE_K[MXFP4] // STAGE_K[BF16]
"""Parts of a stage of floats, of 128 bytes a row each."""
comptime TILE_BYTES = TILE * ROW_BYTES
"""Bytes of a tile's rows of a stage, or of a part."""
comptime TILE_LOADS = TILE * ROW_PIECES // LANES
"""Loads of a wave for them."""
comptime BLOCK_PIECES = ROW_PIECES // 2
"""Pieces of a block of floats."""


@fieldwise_init
struct Operands[n_tiles: Int, is_swizzled: Bool](TrivialRegisterPassable):
    """A wave's rows of A and W, and where a stage of them lies in LDS.

    parts of A    [16][128 bytes] each; a lane feeds half a row of one to a slice
    codes of W    [columns][128 bytes]
    scales of W   a word a lane for every 32 columns
    """

    comptime W_PLACE = FLOAT_PARTS * TILE_BYTES
    comptime SCALES_PLACE = Self.W_PLACE + Self.n_tiles * TILE_BYTES
    comptime STAGE_BYTES = Self.SCALES_PLACE + GROUPS[Self.n_tiles] * GROUP_BYTES
    comptime LOADS = (FLOAT_PARTS + Self.n_tiles) * TILE_LOADS + GROUPS[Self.n_tiles]
    """Loads of a stage."""

    var x: Rows[BF16]
    var w: Rows[MXFP4]
    var lane: Int32

    @staticmethod
    @always_inline
    def _exchanged[format: Format](piece: Int32) -> Int32:
        """Returns the piece that stands in the place of another. Lanes that LDS serves together
        read pieces of floats that are four apart, those of codes are one apart."""
        comptime if format == BF16 and Self.is_swizzled:
            return piece ^ (((piece >> 4) & 3) | ((piece >> 3) & 4))
        return exchanged[Self.is_swizzled](piece)

    @always_inline
    def fetch(self, stage: Int32, lds: Lds):
        """Starts loading a stage straight to LDS."""
        comptime for part in range(FLOAT_PARTS):
            self._fetch[1](
                self.x,
                stage * Int32(FLOAT_PARTS) + Int32(part),
                lds.unsafe_offset(part * TILE_BYTES),
            )
        self._fetch[Self.n_tiles](self.w, stage, lds.unsafe_offset(Self.W_PLACE))
        comptime for group in range(GROUPS[Self.n_tiles]):
            load_to_lds[WORD_BYTES](
                self.w.scales,
                self.w.word_offset(Int32(group), stage, self.lane),
                lds.unsafe_offset(Self.SCALES_PLACE + group * GROUP_BYTES),
                self.w.scales_place,
            )

    @always_inline
    def _fetch[format: Format, //, tiles: Int](self, rows: Rows[format], stage: Int32, lds: Lds):
        comptime for i in range(tiles * TILE_LOADS):
            var piece = Self._exchanged[format](Int32(i * LANES) + self.lane)
            load_to_lds[PIECE_BYTES](
                rows.codes,
                rows.codes_offset(piece // ROW_PIECES, stage, piece % ROW_PIECES),
                lds.unsafe_offset(i * LANES * PIECE_BYTES),
                rows.codes_place,
            )

    @always_inline
    def read(self, lds: Lds, fed: Fed[Self.n_tiles]):
        """Reads what the lane feeds from LDS."""
        var group, row = self.lane // TILE, self.lane % TILE
        comptime for slice in range(SLICES):
            var part = Int32(slice * FLOAT_PARTS // SLICES) + group // 2
            var floats = SIMD[DType.uint32, BLOCK // 2]()
            comptime for i in range(BLOCK_PIECES):
                var piece = row * ROW_PIECES + group % 2 * Int32(BLOCK_PIECES) + Int32(i)
                var place = part * Int32(TILE_BYTES) + Self._exchanged[BF16](piece) * PIECE_BYTES
                var words = read_piece(lds.unsafe_offset(Int(place)))
                floats = floats.insert[offset=PIECE_WORDS * i](words)
            fed.floats[slice] = bitcast[DType.bfloat16, BLOCK](floats)
            comptime for tile in range(Self.n_tiles):
                var piece = row * ROW_PIECES + Int32(slice * ROW_PIECES // SLICES) + group
                var place = Int(Self._exchanged[MXFP4](piece) * PIECE_BYTES)
                fed.w[slice, tile] = read_piece(
                    lds.unsafe_offset(Self.W_PLACE + tile * TILE_BYTES + place)
                )
        comptime for group in range(GROUPS[Self.n_tiles]):
            var place = Self.SCALES_PLACE + group * GROUP_BYTES + Int(self.lane * WORD_BYTES)
            fed.w_words[group] = read_word(words_at[1](lds.unsafe_offset(place)), Coord(0))

    @always_inline
    def load(self, stage: Int32, fed: Fed[Self.n_tiles]):
        """Loads what the lane feeds from memory."""
        var group, row = self.lane // TILE, self.lane % TILE
        comptime for i in range(GROUPS[Self.n_tiles]):
            fed.w_words[i] = self.w.word(Int32(i), stage, self.lane)
        comptime for slice in range(SLICES):
            comptime for tile in range(Self.n_tiles):
                var piece = Int32(slice * ROW_PIECES // SLICES) + group
                fed.w[slice, tile] = self.w.piece(Int32(tile * TILE) + row, stage, piece)
            var part = (
                stage * Int32(FLOAT_PARTS) + Int32(slice * FLOAT_PARTS // SLICES) + group // 2
            )
            var floats = SIMD[DType.uint32, BLOCK // 2]()
            comptime for i in range(BLOCK_PIECES):
                var piece = group % 2 * Int32(BLOCK_PIECES) + Int32(i)
                floats = floats.insert[offset=PIECE_WORDS * i](self.x.piece(row, part, piece))
            fed.floats[slice] = bitcast[DType.bfloat16, BLOCK](floats)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(LANES)))
def fused[
    depth: Int,
    is_swizzled: Bool = True,
    n_tiles: Int = 2,
    parts: Int = 1,
    has_priority: Bool = False,
    is_transposed: Bool = False,
    is_up_front: Bool = False,
](
    x: Bytes,
    w_codes: Bytes,
    w_scales: Bytes,
    c: Result,
    workspace: Workspace,
    m: Int32,
    n: Int32,
    k: Int32,
    stages: Int32,
):
    """One wave, 1 x `n_tiles` tiles of C, `stages` of 256 along K from `block_idx.z` times as many
    on; floats are quantized in registers.

    `depth`: Stages in LDS; with none operands come straight from memory.
    `has_priority`: Whether the wave goes first while it starts loads.
    `is_transposed`: Whether a lane stores neighbours of a row of C at once, not one by one.
    `is_up_front`: Whether all loads start first, of `depth` stages to LDS, or of two to registers;
    there are no others then.
    """
    comptime Pair = Operands[n_tiles, is_swizzled]
    var lane = Int32(thread_idx.x)
    var first_row = Int32(block_idx.y) * TILE
    var first_column = Int32(block_idx.x) * Int32(n_tiles * TILE)
    var pair = Pair(
        Rows[BF16].of(x, x, m, k, first_row),
        Rows[MXFP4].of(w_codes, w_scales, n, k, first_column),
        lane,
    )
    var first = Int32(block_idx.z) * stages
    var fed = Fed[n_tiles]()
    var sums = cleared[1 if is_transposed else n_tiles, n_tiles if is_transposed else 1]()

    comptime if is_up_front and depth == 0:
        var behind = Fed[n_tiles]()
        pair.load(first, fed)
        pair.load(first + 1, behind)
        schedule_barrier()
        fed.multiply[is_transposed](sums)
        behind.multiply[is_transposed](sums)
    elif depth == 0:
        for stage in range(first, first + stages):
            pair.load(stage, fed)
            fed.multiply[is_transposed](sums)
    elif is_up_front:
        var lds = allocate_lds[depth * Pair.STAGE_BYTES]()
        comptime for stage in range(depth):
            pair.fetch(first + Int32(stage), lds.unsafe_offset(stage * Pair.STAGE_BYTES))
        comptime for stage in range(depth):
            schedule_barrier()
            s_waitcnt[vmcnt=UInt32((depth - 1 - stage) * Pair.LOADS)]()
            schedule_barrier()
            pair.read(lds.unsafe_offset(stage * Pair.STAGE_BYTES), fed)
            fed.multiply[is_transposed](sums)
    else:
        var lds = allocate_lds[depth * Pair.STAGE_BYTES]()
        comptime AHEAD = Int32(depth - 1)
        comptime if AHEAD > 0:
            pair.fetch(first, lds)
        for stage in range(stages):
            var here = lds.unsafe_offset(Int(stage % Int32(depth)) * Pair.STAGE_BYTES)
            var next = lds.unsafe_offset(Int((stage + AHEAD) % Int32(depth)) * Pair.STAGE_BYTES)
            schedule_barrier()
            if stage + AHEAD < stages:
                comptime if has_priority:
                    set_priority[1]()
                pair.fetch(first + stage + AHEAD, next)
                comptime if has_priority:
                    set_priority[0]()
                s_waitcnt[vmcnt=UInt32(Pair.LOADS) * UInt32(AHEAD)]()
            else:
                s_waitcnt[vmcnt=0]()
            schedule_barrier()
            pair.read(here, fed)
            s_waitcnt[lgkmcnt=0]()
            schedule_barrier()
            fed.multiply[is_transposed](sums)

    comptime if parts > 1:
        if not _add_up[parts](workspace, sums, lane):
            return

    comptime for tile in range(n_tiles):
        var column = first_column + Int32(tile * TILE)
        comptime if is_transposed:
            var row = first_row + lane % TILE
            store_tile(c, sums[0, tile], n, row, column + lane // TILE * SUMS)
        else:
            comptime for i in range(SUMS):
                var row = first_row + lane // TILE * SUMS + Int32(i)
                var at = row * n + column + lane % TILE
                c[unsafe_offset=Int(at)] = sums[tile, 0][i].cast[DType.bfloat16]()

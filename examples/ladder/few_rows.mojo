"""The ladder for few rows, C = A @ W.T with M = 16, where reading the weights is the work.

    product[False, False]   a wave computes 16 x 32 of C along all of K: few waves for a large chip
    product[False, True]    the same along a part of K; whoever comes last adds the parts up
    quantize                bfloat16 rows to MXFP4, a block a thread: the launch before a product
    product[True, True]     floats instead of codes, quantized in registers: one launch

W is MXFP4 as in `many_rows`, A is MXFP4 or bfloat16, C bfloat16. N is a multiple of 32, K of 256.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, grid_dim, thread_idx
from max.gpu.intrinsics import AMDBufferResource
from max.gpu.memory import CacheOperation
from max.gpu.sync import s_waitcnt
from std.memory import bitcast
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from mojo_kernels.cdna4.chip import BLOCK, LANES, SUMS, TILE, TILE_BLOCKS
from mojo_kernels.cdna4.instructions.matrix import Sums
from mojo_kernels.cdna4.instructions.memory import arrive, publish
from mojo_kernels.cdna4.operands.encode import EncodedBlock, encode_block
from mojo_kernels.layouts import PreshuffledCdna4
from mojo_kernels.numbers.rounding import Rounding
from mojo_kernels.tiles import in_registers
from shared_tile import (
    Bytes,
    MXFP4,
    Pieces,
    ROW_PIECES,
    Rows,
    SLICES,
    STAGE_K,
    Words,
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
    is_fused: Bool, is_split: Bool
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

    Without `is_split` there is one part of K and `workspace` is not used.
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
        comptime if is_fused:
            _quantize_stage(a.unsafe_bitcast[BFloat16](), lane, stage, k, codes, a_words)
        else:
            a_words[0] = a_rows.word(0, stage, lane)
            comptime for slice in range(SLICES):
                var piece = Int32(slice * ROW_PIECES // SLICES) + lane // TILE
                codes[slice, 0] = a_rows.piece(lane % TILE, stage, piece)
        comptime for slice in range(SLICES):
            multiply[slice](sums, codes, w, a_words, w_words)

    comptime if is_split:
        var place = Int32(block_idx.x)
        var parts = Int32(grid_dim.z)
        var memory = AMDBufferResource(workspace, Int(_workspace_bytes(n, parts)))
        comptime for tile in range(COLUMN_TILES):
            _publish(memory, sums[0, tile], _part_place(place, part, parts, tile, lane, n))
        s_waitcnt[vmcnt=0]()
        var before = UInt32(0)
        if lane == 0:
            before = arrive(memory, place * 4, (parts - 1).cast[DType.uint32]())
        if readfirstlane(before.cast[DType.int32]()) != parts - 1:
            return
        comptime for tile in range(COLUMN_TILES):
            sums[0, tile] = 0
            for other in range(parts):
                var at = _part_place(place, other, parts, tile, lane, n)
                sums[0, tile] += bitcast[DType.float32, SUMS](
                    memory.load[DType.uint8, 4 * SUMS, cache_policy=CacheOperation.GLOBAL](at)
                )

    comptime for tile in range(COLUMN_TILES):
        var column = first_column + Int32(tile * TILE) + lane // TILE * SUMS
        store_tile(c, sums[0, tile], n, lane % TILE, column)


@always_inline
def _quantize_stage(
    x: Floats,
    lane: Int32,
    stage: Int32,
    k: Int32,
    codes: Pieces[SLICES, 1],
    words: Words[1],
):
    """Quantizes the blocks that the lane feeds; their scales where `multiply` looks for them."""
    var scales = UInt32(0)
    comptime for slice in range(SLICES):
        var in_row = (
            stage * Int32(STAGE_K[MXFP4] // BLOCK) + Int32(slice * TILE_BLOCKS) + lane // TILE
        )
        var encoded = block_of(x, lane % TILE * (k // BLOCK) + in_row)
        codes[slice, 0] = rebind[SIMD[DType.uint32, 4]](encoded.codes)
        scales |= encoded.scale << UInt32(16 * slice)
    words[0] = scales


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


@always_inline
def _workspace_bytes(n: Int32, parts: Int32) -> Int32:
    """Returns the bytes of counters and sums."""
    var tiles = n // COLUMNS
    return tiles * 4 + tiles * parts * (COLUMN_TILES * LANES * SUMS * 4)


@always_inline
def _part_place(place: Int32, part: Int32, parts: Int32, tile: Int, lane: Int32, n: Int32) -> Int32:
    """Returns where a lane's sums of a part of K lie, behind the counters."""
    var row = ((place * parts + part) * COLUMN_TILES + Int32(tile)) * LANES + lane
    return n // COLUMNS * 4 + row * (SUMS * 4)

"""The weights of a consumer warp of `matmul_middle`: a ring of copies on the way to registers.

A warp multiplies one tile of 32 weight rows. For each of its steps, two blocks of K, its lanes
copy what they will decode, and the scales, a few steps ahead:

    codes      1 KiB: a lane copies and reads sixteen bytes of each block, its own
    scales     64 bytes, copied by four lanes

Nobody else reads them, so there is no barrier. Blocks and tiles that do not exist are zeros.
"""

from max.gpu import thread_idx
from max.gpu.sync import syncwarp

from ..formats import BLOCK
from ..simt.launch import DevicePointer
from .expand_tokens import STEP
from .fragments import (
    any_lane,
    any_overflows,
    decode_rows,
    decode_rows_of_any,
    needs_two_factors,
)
from .layout import K_LANES, TILE_BYTES, TILE_ROWS
from .shared_memory import (
    commit_copies,
    copy_or_zero,
    load_quad,
    load_word,
    store_word,
    wait_copies,
)

comptime STEP_BLOCKS = STEP // BLOCK
"""Blocks of K in a step."""
comptime DEPTH = 6
"""Steps of a ring."""
comptime SCALES_AT = STEP_BLOCKS * TILE_BYTES
"""Where the scales of a step lie, behind the codes."""
comptime STEP_BYTES = SCALES_AT + STEP_BLOCKS * TILE_ROWS
"""Bytes of a step."""
comptime RING_BYTES = DEPTH * STEP_BYTES
"""Bytes of a ring."""
comptime QUAD_BYTES = 16
"""Bytes that a lane copies at a time."""
comptime BLOCK_SCALE_LANES = TILE_ROWS // QUAD_BYTES
"""Lanes that copy the scales of a block."""


@fieldwise_init
struct WeightRing(TrivialRegisterPassable):
    """The steps of one warp's weights that are on the way."""

    var base: UInt32
    """Where the ring lies."""
    var codes: DevicePointer[DType.uint8]
    """This lane's codes of the step to copy next."""
    var scales: DevicePointer[DType.uint8]
    """This lane's scales of the step to copy next."""
    var left: Int32
    """Blocks from the step to copy next to the end of the share; none where there is no tile."""
    var stride: Int32
    """Blocks of K from one step of this warp to the next."""
    var copied: UInt32
    """The place in the ring to copy to next."""
    var read: UInt32
    """The place in the ring to read next."""

    @staticmethod
    @always_inline
    def start(
        base: UInt32,
        codes: DevicePointer[DType.uint8],
        scales: DevicePointer[DType.uint8],
        tile: UInt32,
        num_tiles: UInt32,
        k_blocks: UInt32,
        first_block: UInt32,
        end_block: UInt32,
        stride: UInt32,
    ) -> Self:
        """Starts the copies of the first steps."""
        var lane = UInt32(thread_idx.x) % 32
        var exists = tile < num_tiles
        var first = Int(tile) * Int(k_blocks) + Int(first_block) if exists else 0
        var ring = Self(
            base,
            codes.unsafe_offset(first * TILE_BYTES + Int(lane) * QUAD_BYTES),
            scales.unsafe_offset(first * TILE_ROWS + Int(lane % 4) * QUAD_BYTES),
            Int32(end_block) - Int32(first_block) if exists else 0,
            Int32(stride),
            0,
            0,
        )
        for _ in range(DEPTH - 1):
            ring.copy_step(lane)
        return ring

    @always_inline
    def copy_step(mut self, lane: UInt32):
        """Starts the copies of the next step."""
        var at = self.base + self.copied * UInt32(STEP_BYTES)
        comptime for block in range(STEP_BLOCKS):
            copy_or_zero(
                at + UInt32(block * TILE_BYTES) + lane * UInt32(QUAD_BYTES),
                self.codes.unsafe_offset(block * TILE_BYTES),
                self.left > Int32(block),
            )
        if lane < UInt32(STEP_BLOCKS * BLOCK_SCALE_LANES):
            copy_or_zero(
                at + UInt32(SCALES_AT) + lane * UInt32(QUAD_BYTES),
                self.scales,
                self.left > Int32(lane // UInt32(BLOCK_SCALE_LANES)),
            )
        commit_copies()
        self.left = max(self.left - self.stride, 0)
        if self.left > 0:
            self.codes = self.codes.unsafe_offset(Int(self.stride) * TILE_BYTES)
            self.scales = self.scales.unsafe_offset(Int(self.stride) * TILE_ROWS)
        self.copied = self.copied + 1 if self.copied < DEPTH - 1 else 0

    @always_inline
    def next(mut self) -> StepWeights:
        """Waits for the next step and loads it; starts the copies of a later one."""
        var lane = UInt32(thread_idx.x) % 32
        wait_copies[DEPTH - 2]()
        syncwarp()
        var at = self.base + self.read * UInt32(STEP_BYTES)
        var loaded = StepWeights(0, 0)
        comptime for block in range(STEP_BLOCKS):
            loaded.words = loaded.words.insert[offset=4 * block](
                load_quad(at + UInt32(block * TILE_BYTES) + lane * UInt32(QUAD_BYTES))
            )
            loaded.scales[block] = load_word(
                at + UInt32(SCALES_AT + block * TILE_ROWS) + 4 * (lane // UInt32(K_LANES))
            )
        self.read = self.read + 1 if self.read < DEPTH - 1 else 0
        # Into the place that was read before the last one: all lanes are done with it.
        self.copy_step(lane)
        return loaded


@fieldwise_init
struct StepWeights(TrivialRegisterPassable):
    """What a lane has of its warp's tile in a step: four rows, two blocks."""

    var words: SIMD[DType.uint32, 4 * STEP_BLOCKS]
    """Words of codes, the first block's four rows first."""
    var scales: SIMD[DType.uint32, STEP_BLOCKS]
    """Four scales a word, one word a block."""

    @always_inline
    def decode[block: Int](self, flag: UInt32) -> SIMD[DType.uint32, 16]:
        """Decodes a block; raises the flag where bfloat16 cannot hold it."""
        var words = self.words.slice[4, offset=4 * block]()
        var scales = self.scales[block]
        if any_lane(needs_two_factors(scales)):
            if any_overflows(scales):
                store_word(flag, 1)
            return decode_rows_of_any(words, scales)
        return decode_rows(words, scales)

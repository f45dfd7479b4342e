"""Weights on their way to a stage of shared memory: loaded ahead, decoded to numbers, stored.

A stage has 64 of K of 128 rows of weights, which are columns of C. A thread has eight elements, a
chunk, of every 32nd row:

    thread        0       1     ...    7      8     ...  255
    row           0       0            0      1          31      and 32, 64, 96 behind
    elements      0..7    8..15        56..63 0..7       56..63

Sixteen bytes of numbers lie where the row's last three bits say, so that neither who stores rows nor
who loads columns meets at a bank of shared memory. In every layout, 32 rows, 64 of K, and the runs
of a chunk are each a step that is the same everywhere: a thread finds its place once.
"""

from max.gpu import thread_idx

from ...layouts import LAYOUTS, RUN_BYTES, padded_blocks
from ...numbers.elements import Element
from ...numbers.formats import has_float_scales
from ...numbers.scales import E8M0_BIAS
from ..arguments import Weights
from ..codec import BLOCK, CHUNK, LANES_PER_BLOCK
from ..instructions import store_quad
from ..views import flat_of
from .flags import Flags
from .numbers import are_lost, numbers_of
from .shape import PASSES, PASS_ROWS, ROW_BYTES, STEP, STEP_CHUNKS, place_in_stage


@fieldwise_init
struct WeightLoads[element: Element](TrivialRegisterPassable):
    """What a thread has loaded of a step, and where the next one is."""

    comptime RUNS = CHUNK * Self.element.bits // 8 // RUN_BYTES
    """Runs of a chunk."""
    comptime Words = SIMD[DType.uint32, Self.RUNS]
    """Codes of a chunk."""
    comptime STEP_BYTES = STEP * Self.element.bits // 8
    """Bytes of codes of a row of a stage."""

    var codes_at: UInt32
    """Where the step's codes of the first chunk are."""
    var scales_at: UInt32
    """Where the scales of the first chunk's row are."""
    var row_step: UInt32
    """Bytes of codes from one chunk of this thread to the next."""
    var run_step: UInt32
    """Bytes from one run of a chunk to the next."""
    var k_step: UInt32
    """Bytes of codes from one step to the next."""
    var scale_row_step: UInt32
    """Scales from one chunk of this thread to the next."""
    var block: UInt32
    """The next step's block of this thread."""
    var num_chunks: UInt32
    """Chunks of this thread that are columns of C."""
    var words: SIMD[DType.uint32, PASSES * Self.RUNS]
    """Codes that are loaded, chunk by chunk."""
    var scale_bytes: SIMD[DType.uint32, PASSES]
    """The scales of these chunks."""

    @staticmethod
    @always_inline
    def of(w: Weights, layout: Int32, first_row: UInt32, rows: UInt32, k: UInt32) -> Self:
        """Finds the place of this thread."""
        var row_in_tile, chunk = divmod(UInt32(thread_idx.x), UInt32(STEP_CHUNKS))
        var row = first_row + row_in_tile
        var num_chunks = UInt32(0)
        if row < rows:
            num_chunks = min((rows - row + UInt32(PASS_ROWS - 1)) // UInt32(PASS_ROWS), PASSES)
        var row_bytes = Int(k) * Self.element.bits // 8
        var loads = Self(
            0, 0, 0, 0, 0, 0, chunk // UInt32(LANES_PER_BLOCK), num_chunks, 0, 0
        )  # fmt: skip
        comptime for i in range(len(LAYOUTS)):
            comptime L = LAYOUTS[i]
            if layout == Int32(i):
                var blocks = padded_blocks[L](Int(k) // BLOCK)
                var byte = Int(chunk) * Self.RUNS * RUN_BYTES
                loads.codes_at = UInt32(L.code_offset(Int(row), byte, row_bytes))
                loads.row_step = UInt32(L.code_offset(PASS_ROWS, 0, row_bytes))
                loads.run_step = UInt32(L.code_offset(0, RUN_BYTES, row_bytes))
                loads.k_step = UInt32(L.code_offset(0, Self.STEP_BYTES, row_bytes))
                loads.scales_at = UInt32(L.scale_offset(Int(row), 0, blocks))
                loads.scale_row_step = UInt32(L.scale_offset(PASS_ROWS, 0, blocks))
        return loads

    @always_inline
    def load(mut self, w: Weights, layout: Int32, k: UInt32):
        """Loads this thread's chunks of the step, and goes on; zeros where there is nothing."""
        self.words = 0
        self.scale_bytes = UInt32(E8M0_BIAS)
        var is_there = self.block < k // UInt32(BLOCK)
        var block_at = UInt32(0)
        comptime for i in range(len(LAYOUTS)):
            comptime L = LAYOUTS[i]
            if layout == Int32(i):
                var blocks = padded_blocks[L](Int(k) // BLOCK)
                block_at = UInt32(L.scale_offset(0, Int(self.block), blocks))
        comptime for i in range(PASSES):
            if is_there and UInt32(i) < self.num_chunks:
                comptime for run in range(Self.RUNS):
                    var at = UInt32(i) * self.row_step + UInt32(run) * self.run_step
                    var source = w.codes.unsafe_offset(Int(self.codes_at + at))
                    self.words[i * Self.RUNS + run] = source.unsafe_bitcast[UInt32]()[]
                if not has_float_scales(Int(w.format)):
                    var at = self.scales_at + UInt32(i) * self.scale_row_step + block_at
                    self.scale_bytes[i] = flat_of(w.scales)[Int(at)].cast[DType.uint32]()
        self.advance(1)

    @always_inline
    def advance(mut self, steps: UInt32):
        """Goes on by so many steps."""
        self.codes_at += steps * self.k_step
        self.block += steps * UInt32(STEP // BLOCK)

    @always_inline
    def store(self, stage: UInt32, flags: Flags):
        """Stores the numbers of what is loaded, and flags the columns of which some are lost."""
        var row, chunk = divmod(UInt32(thread_idx.x), UInt32(STEP_CHUNKS))
        var place = stage + place_in_stage(row, chunk)
        comptime for i in range(PASSES):
            comptime first = i * PASS_ROWS
            var words = self.words.slice[Self.RUNS, offset=i * Self.RUNS]()
            var scale = self.scale_bytes[i]
            if are_lost[Self.element](words, scale):
                flags.set(row + UInt32(first))
            store_quad(place + UInt32(first * ROW_BYTES), numbers_of[Self.element](words, scale))

"""Weights on their way to a stage of shared memory: loaded ahead, decoded to numbers, stored.

A stage has 64 of K of 128 rows of weights, or 64, which are columns of C. A thread has eight elements,
a chunk, of every 32nd row:

    thread        0       1     ...    7      8     ...  255
    row           0       0            0      1          31      and 32, 64, 96 behind
    elements      0..7    8..15        56..63 0..7       56..63

Sixteen bytes of numbers lie where the row's last three bits say, so that neither who stores rows nor
who loads columns meets at a bank of shared memory. In every layout, 32 rows and 64 of K are each a
step that is the same everywhere, and so are the runs of a thread's chunks: it finds its place once.
"""

from max.gpu import thread_idx

from ...layouts import LAYOUTS, RUN_BYTES, e4m3_offset_in, padded_blocks
from ...numbers.decode import decode
from ...numbers.elements import Element
from ...numbers.formats import has_float_scales
from ...numbers.packing import spread_sixes
from ...numbers.scales import E8M0_BIAS
from ..arguments import Weights
from ..codec import BLOCK, CHUNK_WORDS, ChunkWords, LANES_PER_BLOCK
from ..codec import first_run_of_chunk, words_of_runs
from ..host import CHUNK, ROW_BYTES, STEP
from ..instructions import keep_branch, store_quad
from ..views import flat_of
from .flags import Flags
from .numbers import are_lost, bf16_pair, has_specials, is_usual, multiplied, numbers_of
from .place import PASS_ROWS, STEP_CHUNKS, place_in_stage


comptime E4M3_ONE = Element.E4M3.bias << Element.E4M3.mantissa_bits
"""The E4M3 scale of padding: one."""


@fieldwise_init
struct WeightLoads[element: Element, has_e4m3: Bool, columns: Int](TrivialRegisterPassable):
    """What a thread has loaded of a step, and where the next one is."""

    comptime PASSES = Self.columns // PASS_ROWS
    """Chunks of a thread."""
    comptime Words = ChunkWords[Self.element.bits]
    """Codes of a chunk: of six bits, a byte each."""
    comptime RUNS = CHUNK_WORDS[Self.element.bits]
    """Runs that hold a chunk."""
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
    var last_chunk: UInt32
    """The last chunk of this thread that is of a row; it stands in for those behind."""
    var words: SIMD[DType.uint32, Self.PASSES * Self.RUNS]
    """Codes that are loaded, chunk by chunk."""
    var scale_bytes: SIMD[DType.uint32, Self.PASSES]
    """The scales of these chunks, E8M0 or E4M3."""

    @staticmethod
    @always_inline
    def of(w: Weights, layout: Int32, first_row: UInt32, rows: UInt32, k: UInt32) -> Self:
        """Finds the place of this thread."""
        var row_in_tile, chunk = divmod(UInt32(thread_idx.x), UInt32(STEP_CHUNKS))
        # Rows past the end are columns that nobody stores: others stand in for them.
        var row = min(first_row + row_in_tile, rows - 1)
        var last_chunk = (rows - 1 - row) // UInt32(PASS_ROWS)
        var row_bytes = Int(k) * Self.element.bits // 8
        var loads = Self(
            0, 0, 0, 0, 0, 0, chunk // UInt32(LANES_PER_BLOCK), last_chunk, 0, 0
        )  # fmt: skip
        comptime for i in range(len(LAYOUTS)):
            comptime L = LAYOUTS[i]
            if layout == Int32(i):
                var blocks = padded_blocks[L](Int(k) // BLOCK)
                var byte = first_run_of_chunk[Self.element.bits](Int(chunk)) * RUN_BYTES
                loads.codes_at = UInt32(L.code_offset(Int(row), byte, row_bytes))
                loads.row_step = UInt32(L.code_offset(PASS_ROWS, 0, row_bytes))
                loads.run_step = UInt32(L.code_offset(0, RUN_BYTES, row_bytes))
                comptime if Self.element.bits == 6:
                    # The second run may be of another granule.
                    var next_run = L.code_offset(0, byte + RUN_BYTES, row_bytes)
                    loads.run_step = UInt32(next_run - L.code_offset(0, byte, row_bytes))
                loads.k_step = UInt32(L.code_offset(0, Self.STEP_BYTES, row_bytes))
                comptime if Self.has_e4m3:
                    var element = Int(chunk % UInt32(LANES_PER_BLOCK)) * CHUNK
                    loads.scales_at = UInt32(e4m3_offset_in[L](Int(row), element, Int(k)))
                    loads.scale_row_step = UInt32(e4m3_offset_in[L](PASS_ROWS, 0, Int(k)))
                else:
                    loads.scales_at = UInt32(L.scale_offset(Int(row), 0, blocks))
                    loads.scale_row_step = UInt32(L.scale_offset(PASS_ROWS, 0, blocks))
        return loads

    @always_inline
    def load(mut self, w: Weights, layout: Int32, k: UInt32):
        """Loads this thread's chunks of the step, and goes on; zeros past the end of K."""
        self.words = 0
        self.scale_bytes = UInt32(E4M3_ONE if Self.has_e4m3 else E8M0_BIAS)
        if self.block < k // UInt32(BLOCK):
            keep_branch()
            var scales_at = self._scales_of_step(layout, k)
            comptime for i in range(Self.PASSES):
                var words = self._words(w, UInt32(i))
                comptime for run in range(Self.RUNS):
                    self.words[i * Self.RUNS + run] = words[run]
                self.scale_bytes[i] = self._scale(w, scales_at, UInt32(i))
        self.advance(1)

    @always_inline
    def _words(self, w: Weights, chunk: UInt32) -> Self.Words:
        """Loads the codes of one of this thread's chunks of the step."""
        var words = Self.Words()
        var codes_at = self.codes_at + min(chunk, self.last_chunk) * self.row_step
        comptime for run in range(Self.RUNS):
            var source = w.codes.unsafe_offset(Int(codes_at + UInt32(run) * self.run_step))
            words[run] = source.unsafe_bitcast[UInt32]()[]
        comptime if Self.element.bits == 6:
            words = words_of_runs[Self.element.bits](words, UInt32(thread_idx.x))
            words[1] = spread_sixes((words[0] >> 24) | (words[1] << 8))
            words[0] = spread_sixes(words[0])
        return words

    @always_inline
    def _scales_of_step(self, layout: Int32, k: UInt32) -> UInt32:
        """Returns where the scale of this thread's first chunk of the step is."""
        var at = self.scales_at
        comptime for i in range(len(LAYOUTS)):
            comptime L = LAYOUTS[i]
            if layout == Int32(i):
                comptime if Self.has_e4m3:
                    at += UInt32(e4m3_offset_in[L](0, Int(self.block) * BLOCK, Int(k)))
                else:
                    var blocks = padded_blocks[L](Int(k) // BLOCK)
                    at += UInt32(L.scale_offset(0, Int(self.block), blocks))
        return at

    @always_inline
    def _scale(self, w: Weights, first: UInt32, chunk: UInt32) -> UInt32:
        """Loads the scale of one of this thread's chunks; float scales are for sums."""
        comptime if not Self.has_e4m3:
            if has_float_scales(Int(w.format)):
                return UInt32(E8M0_BIAS)
        var at = first + min(chunk, self.last_chunk) * self.scale_row_step
        return flat_of(w.scales)[Int(at)].cast[DType.uint32]()

    @always_inline
    def advance(mut self, steps: UInt32):
        """Goes on by so many steps."""
        self.codes_at += steps * self.k_step
        self.block += steps * UInt32(STEP // BLOCK)

    @always_inline
    def store(self, w: Weights, layout: Int32, k: UInt32, stage: UInt32, flags: Flags[_]):
        """Stores the numbers of what is loaded, and flags the columns of which some are lost."""
        var row, chunk = divmod(UInt32(thread_idx.x), UInt32(STEP_CHUNKS))
        var place = stage + place_in_stage(row, chunk)
        var are_usual = True
        comptime for i in range(Self.PASSES):
            comptime first = UInt32(i * PASS_ROWS)
            var words = self.words.slice[Self.RUNS, offset=i * Self.RUNS]()
            var scale = self.scale_bytes[i]
            comptime if Self.has_e4m3:
                # Of elements under a scale of one, as any bfloat16 numbers.
                var numbers = numbers_of[Self.element, True](words, UInt32(E8M0_BIAS))
                numbers = multiplied(numbers, bf16_pair(decode[Element.E4M3](scale)))
                store_quad(place + first * UInt32(ROW_BYTES), numbers)
                continue
            are_usual &= is_usual[Self.element](scale)
            if has_specials[Self.element](words):
                flags.set(row + first)
            store_quad(
                place + first * UInt32(ROW_BYTES), numbers_of[Self.element, True](words, scale)
            )
        if not are_usual:
            keep_branch()
            self._store_unusual(w, layout, k, place, row, flags)

    @always_inline
    def _store_unusual(
        self, w: Weights, layout: Int32, k: UInt32, place: UInt32, row: UInt32, flags: Flags[_]
    ):
        """Stores them once more, whatever their scales; loaded anew, nothing is kept for it."""
        var step = self
        step.advance(UInt32.MAX)
        var scales_at = step._scales_of_step(layout, k)
        for i in range(UInt32(Self.PASSES)):
            var first = UInt32(i) * UInt32(PASS_ROWS)
            var words = step._words(w, UInt32(i))
            var scale = step._scale(w, scales_at, UInt32(i))
            if are_lost[Self.element](words, scale):
                flags.set(row + first)
            store_quad(
                place + first * UInt32(ROW_BYTES), numbers_of[Self.element, False](words, scale)
            )

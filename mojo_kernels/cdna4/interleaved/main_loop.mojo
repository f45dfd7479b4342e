"""The main loop of a wave in the interleaved schedule: what it holds, and what each operation does.

The operations come from `StageOrder`, as data. Of stage s, in ring place s % depth:

    activations    codes in LDS; fragments of some tiles of rows in registers
    their scales   in LDS, by 4096 along K or all of them (shape.mojo); a word a tile of rows:
                   byte i for slice i, or a float
    weights        codes and scales in registers, from memory straight

Where scales are floats of blocks, products are not summed by the matrix instruction. They are
scaled and added some instructions later, when they are there:

    matrix         products of tile i
    add            products of tile i - 3, times their factor, to its sums
"""

from layout import Coord, Idx
from max.gpu.sync import AMDScheduleBarrierMask, s_waitcnt, s_waitcnt_barrier, schedule_barrier
from pipeline.types import OpDesc
from std.memory import bitcast

from ...numbers.scales import Scale
from ...tiles import RegisterTile, in_registers
from ..chip import CODE_PIECE_BYTES, LANE_BYTES, MAX_COUNT, PIECE_BYTES, SUMS
from ..chip import TILE, TILE_BLOCKS, WORD_BYTES
from ..streaming.split_k import SumsListener, NoListener
from ..instructions.lds import Lds, PIECE_WORDS, pieces_at, read_pair, read_piece
from ..instructions.lds import read_sixes, read_word, words_at
from ..instructions.matrix import BlockCodes, CODE_WORDS, CodeTile, PIECES, SumTile, Sums
from ..instructions.matrix import WordTile, cleared, keep_apart, multiply_codes, multiply_tiles
from ..instructions.memory import scalar_here
from ..instructions.vector import chosen_bytes, here
from ..operands.memory import View, quotient, remainder
from ..operands.shared import SharedRows, fetch_bytes, place_of_sixes, store_last
from ..operands.tiles import exchanged
from ..operands.weights import WeightCursor, WeightFragments
from ..types import Formats
from ..operations import Ops
from .order import StageOrder
from .shape import LINES, InterleavedShape, ROW_BYTES, ROW_PIECES

comptime TILE_BYTES = TILE * ROW_BYTES
"""Bytes of the scales of a tile of rows in LDS."""
comptime IN_FLIGHT = 4
"""Tiles of products that are scaled later: sums have a multiple of so many tiles."""


@fieldwise_init
struct StageCursor(TrivialRegisterPassable):
    """Where a stage lies in memory, the same for all lanes."""

    var activations: View
    """Of the first row's codes."""
    var weights: WeightCursor


struct InterleavedLoop[
    formats: Formats,
    shape: InterleavedShape,
    k_tail: Bool = False,
    are_listed: Bool = False,
    scales_end: Bool = False,
    has_lines: Bool = False,
]:
    """A wave along K.

    `k_tail`: Whether K may end within a stage.
    `are_listed`: Whether rows of activations are those of a list.
    `scales_end`: Whether scales of activations end where K does; or they fill the last stage.
    `has_lines`: Whether scales of activations come in whole lines.
    """

    comptime LISTED_ROUNDS = Self.shape.rounds() if Self.are_listed else 0
    comptime LISTED_SCALE_ROUNDS = Self.shape.scale_rounds() if Self.are_listed else 0
    comptime PIECE = CODE_PIECE_BYTES[Self.formats.left]
    comptime Rows = SharedRows[
        Self.shape.row_pieces(), Self.shape.waves, Self.LISTED_ROUNDS, piece_bytes=Self.PIECE
    ]
    comptime SHARES_OFFSETS = Self.are_listed and Self.PIECE == PIECE_BYTES
    """Whether a lane loads scales of the rows of which it loads codes."""
    comptime ScaleRows = SharedRows[
        ROW_PIECES,
        Self.shape.waves,
        Self.LISTED_SCALE_ROUNDS,
        LANE_BYTES[Self.formats.left] if Self.SHARES_OFFSETS else 1,
    ]

    comptime SLICES = Self.shape.slices
    comptime Weights = WeightFragments[
        Self.formats.right, Self.shape.n_tiles, Self.SLICES, Self.k_tail
    ]
    comptime HAS_SCALES = not Self.formats.left.has_row_scales()
    """Whether there are scales along K: sums are multiplied by those of rows."""
    comptime HAS_FLOATS = Self.HAS_SCALES and Self.formats.left.scale == Scale.FLOAT32
    """Whether those are floats."""
    comptime ORDER = StageOrder(
        Self.shape,
        PIECES[Self.formats.left],
        Self.Weights.TILE_LOADS,
        Self.Weights.WORDS,
        Self.HAS_SCALES,
    )
    """The order of the work of a stage."""
    comptime SCALE_BYTES = ROW_BYTES // Self.shape.chunk_stages()
    """Bytes of the scales of a stage of a row."""
    comptime LDS_BYTES = Self.shape.lds_bytes(LINES) if Self.has_lines else Self.shape.lds_bytes()
    comptime FRAGMENTS = Self.ORDER.fragments()
    comptime DEPTH = Self.shape.depth
    comptime START_PARTS = Self.DEPTH + 1
    """Parts of the loads with which a tile begins: see `start_part`."""

    var codes: Self.Rows
    var scales: Self.ScaleRows
    var weights: Self.Weights
    var first_stage: Int32
    """The first stage of the workgroup, counted from the beginning of K."""
    var num_stages: Int32
    var stage: Int32
    var ahead: StageCursor
    """The stage that is fetched to the place of the one that is multiplied."""
    var ahead_of_last: StageCursor
    """The stage before, fetched to the place of the one that was multiplied last."""
    var lds: Lds
    var wave: Int32
    var lane: Int32
    var a_place: Int32
    """Where the lane reads the first fragment of a stage."""
    var scale_place: Int32
    """Where the lane's row of scales begins."""
    var next_scales: Int32
    """Where the lane reads the scales of the next stage."""
    var shift: Int32
    """Where in a line the lane's scales begin."""
    var scales_end_at: Int32
    """Bytes of scales that are read of a row with the longest such beginning: the last stage reads
    those of a next one."""
    var chunks_ahead: Int32
    """Chunks of scales that are there when the first stage is: two if some rows need both."""
    var selector: UInt32
    """Which bytes of two words are the lane's scales."""
    var whole_selector: UInt32
    """The same in stages that end before K."""
    var last_bytes: UInt8
    """Of the tensor of scales, what is no whole word: a byte a lane."""
    var a: CodeTile[Self.formats.left, Self.FRAGMENTS]
    var read_scales: RegisterTile[DType.uint32, Self.SLICES, Self.shape.m_tiles]
    """Scales of activations as they are in LDS."""
    var a_scales: WordTile[Self.shape.m_tiles]
    """Scales of activations in their places."""
    var b: CodeTile[Self.formats.right, Self.DEPTH, Self.SLICES, Self.shape.n_tiles]
    var b_scales: WordTile[Self.DEPTH, max(Self.Weights.WORDS, 1)]
    var sums: SumTile[Self.shape.m_tiles, Self.shape.n_tiles]
    var products: SumTile[IN_FLIGHT]
    """Products that are not scaled yet."""
    var factors: RegisterTile[DType.float32, 1, IN_FLIGHT]
    """What they are multiplied by."""

    @always_inline
    def __init__(
        out self,
        codes: Self.Rows,
        scales: Self.ScaleRows,
        weights: Self.Weights,
        first_stage: Int32,
        num_stages: Int32,
        lds: Lds,
        wave: Int32,
        lane: Int32,
    ):
        comptime assert Self.shape.bits == Self.formats.left.element.bits, "a cut for other codes"
        self.codes = codes
        self.scales = scales
        self.weights = weights
        self.first_stage = first_stage
        self.num_stages = num_stages
        self.stage = 0
        var begin = StageCursor(codes.memory, weights.cursor(first_stage))
        self.ahead = begin
        self.ahead_of_last = begin
        self.lds = lds
        self.wave = wave
        self.lane = lane
        # Of row l % 16 piece l / 16; others by exclusive or.
        var piece = lane % Int32(TILE) * Int32(ROW_PIECES) + quotient[TILE](lane)
        self.a_place = exchanged[ROW_PIECES](piece) * Int32(PIECE_BYTES)
        comptime if Self.shape.bits == 6:
            self.a_place = place_of_sixes[Self.shape.load_rows(), Self.shape.row_bytes()](lane)
        var row = exchanged[ROW_PIECES](lane % Int32(TILE) * Int32(ROW_PIECES))
        self.scale_place = row * Int32(PIECE_BYTES) + Int32(Self.shape.scale_place())
        self.next_scales = 0
        self.shift = 0
        self.scales_end_at = (num_stages + 1) * Int32(Self.SCALE_BYTES)
        self.chunks_ahead = 1
        comptime if Self.has_lines:
            comptime assert Self.shape.has_scale_lines() and not Self.are_listed, "lines of rows"
            var first = first_stage * Int32(Self.SCALE_BYTES)
            var all_begin = weights.k_blocks | first | Int32(ROW_BYTES)
            self.shift = remainder[ROW_BYTES](lane % Int32(TILE) * weights.k_blocks + first)
            var longest = Int32(ROW_BYTES) - (all_begin & -all_begin)
            self.scales_end_at += longest
            self.chunks_ahead = 2 if longest > 0 else 1
        comptime BOTH, ONE = UInt32(0x0C0C0400), UInt32(0x0C0C0C00)
        comptime STEP = UInt32(0x0101) if Self.SLICES > 1 else UInt32(1)
        self.selector = BOTH if Self.SLICES > 1 else ONE
        self.selector += quotient[TILE](lane).cast[DType.uint32]() * STEP
        comptime if Self.scales_end:
            comptime assert Self.HAS_SCALES and not Self.are_listed, "rows one behind another"
            comptime assert Self.SLICES > 1, "scales of the next stage are read after these"
            # Words are read from where the first one has the scale; the other one has it there too.
            var byte = lane % Int32(TILE) * weights.k_blocks + quotient[TILE](lane)
            var in_word = remainder[WORD_BYTES](byte)
            self.scale_place = byte - in_word + Int32(Self.shape.scale_place())
            self.selector = BOTH + in_word.cast[DType.uint32]() * STEP
        self.whole_selector = self.selector
        self.last_bytes = 0
        comptime A_WORDS = CODE_WORDS[Self.formats.left]
        comptime B_WORDS = CODE_WORDS[Self.formats.right]
        self.a = in_registers[DType.uint32, A_WORDS, Self.FRAGMENTS]()
        self.read_scales = in_registers[DType.uint32, Self.SLICES, Self.shape.m_tiles]()
        self.a_scales = in_registers[DType.uint32, 1, Self.shape.m_tiles]()
        self.b = in_registers[DType.uint32, B_WORDS, Self.DEPTH, Self.SLICES, Self.shape.n_tiles]()
        self.b_scales = in_registers[DType.uint32, 1, Self.DEPTH, max(Self.Weights.WORDS, 1)]()
        self.sums = in_registers[DType.float32, SUMS, Self.shape.m_tiles, Self.shape.n_tiles]()
        self.products = in_registers[DType.float32, SUMS, IN_FLIGHT]()
        self.factors = in_registers[DType.float32, 1, IN_FLIGHT]()
        self.seek_scales(0)

    @always_inline
    def place_of(self, stage: Int32) -> StageCursor:
        """Returns where a stage lies in memory; behind the last one nothing is loaded."""
        comptime BEYOND = Int32(1 << 22)
        var is_wanted = stage < self.num_stages
        var at = self.weights.cursor(self.first_stage + stage if is_wanted else BEYOND)
        at.codes.place = scalar_here(at.codes.place)
        at.scales.place = scalar_here(at.scales.place)
        var a = self.codes.memory.moved_if(stage * Int32(Self.shape.row_bytes()), is_wanted)
        a.place = scalar_here(a.place)
        return StageCursor(a, at)

    @always_inline
    def fetch_a[ring: Int](self, round: Int, at: StageCursor):
        comptime FIRST = Int32(ring * Self.shape.ring_bytes())
        var place = FIRST + Self.Rows.Loads.place(Int32(round), self.wave)
        self.codes.fetch(at.activations, Int32(round), self.lds.unsafe_offset(Int(place)))

    @always_inline
    def fetch_a_scales(self, chunk: Int32, round: Int32):
        """Starts a load of the scales of a chunk, if there is such a load."""
        comptime if Self.scales_end:
            return
        comptime CHUNK_BYTES = Int32(Self.shape.chunk_bytes())
        if round < Int32(Self.shape.scale_rounds()):
            if self._has_chunk(chunk):
                var place = Int32(Self.shape.scale_place()) + Self.chunk_place(chunk) * CHUNK_BYTES
                place += Self.ScaleRows.Loads.place(round, self.wave)
                var memory = self.scales.memory.moved(chunk * Int32(ROW_BYTES))
                self.scales.fetch(memory, round, self.lds.unsafe_offset(Int(place)))

    @always_inline
    def all_scales(self) -> Int32:
        return Int32(Self.shape.rows()) * self.weights.k_blocks

    @always_inline
    def scale_lds(self) -> Lds:
        return self.lds.unsafe_offset(Self.shape.scale_place())

    @always_inline
    def _has_chunk(self, chunk: Int32) -> Bool:
        """Says whether scales of a row are read in a chunk, those behind the last stage too."""
        comptime if Self.has_lines:
            return chunk * Int32(ROW_BYTES) < self.scales_end_at
        else:
            return chunk * Int32(Self.shape.chunk_stages()) <= self.num_stages

    @staticmethod
    @always_inline
    def chunk_place(chunk: Int32) -> Int32:
        """Returns which of the places in LDS a chunk of scales has."""
        return remainder[LINES if Self.has_lines else 2](chunk)

    @always_inline
    def fetch_b_scales[ring: Int, word: Int](mut self, at: StageCursor):
        self.b_scales[ring, word] = self.weights.fetch_scales[word](at.weights, self.lane)[0]

    @always_inline
    def fetch_b[ring: Int, slice: Int, tile: Int](mut self, at: StageCursor):
        self.b[ring, slice, tile] = self.weights.fetch_codes[slice, tile](at.weights, self.lane)

    @always_inline
    def read_a[ring: Int, step: Int](mut self):
        comptime slice, tile = divmod(step, Self.shape.m_tiles)
        comptime LANE_PIECES = PIECES[Self.formats.left]
        comptime FIRST = Int32(ring * Self.shape.ring_bytes() + tile * Self.shape.tile_bytes())
        comptime if Self.shape.bits == 6:
            comptime SLICE = Int32(slice * Self.shape.row_bytes() // Self.SLICES)
            var place = self.lds.unsafe_offset(Int(self.a_place + FIRST + SLICE))
            self.a[step % Self.FRAGMENTS] = rebind[BlockCodes[Self.formats.left]](read_sixes(place))
            return
        var codes = BlockCodes[Self.formats.left]()
        comptime for i in range(LANE_PIECES):
            comptime piece = (slice * LANE_PIECES + i) * TILE_BLOCKS
            var place = self.a_place ^ Int32(piece * PIECE_BYTES)
            var pieces = pieces_at[1](self.lds.unsafe_offset(Int(place)), FIRST)
            codes = codes.insert[offset=i * PIECE_WORDS](read_piece(pieces, Coord(Idx[0])))
        self.a[step % Self.FRAGMENTS] = codes

    @always_inline
    def seek_scales(mut self, stage: Int32):
        """Finds the lane's scales of a stage."""
        comptime if Self.scales_end:
            comptime ONE, NONE, LOW = UInt32(0x0C0C0C00), UInt32(0x0C0C0C0C), UInt32(0xFF)
            var block = (self.first_stage + stage) * Int32(Self.SLICES * TILE_BLOCKS)
            self.next_scales = self.scale_place + block
            var left = self.weights.k_blocks - block - quotient[TILE](self.lane)
            var whole = self.whole_selector
            self.selector = whole & LOW | ONE if left > 0 else NONE
            self.selector = whole if left > Int32(TILE_BLOCKS) else self.selector
            return
        comptime CHUNK_BYTES = Int32(Self.shape.chunk_bytes())
        comptime STAGES = Self.shape.chunk_stages()
        var chunk = quotient[STAGES](stage)
        var in_row = remainder[STAGES](stage) * Int32(Self.SCALE_BYTES)
        comptime if Self.has_lines:
            var byte = self.shift + stage * Int32(Self.SCALE_BYTES)
            chunk, in_row = quotient[ROW_BYTES](byte), remainder[ROW_BYTES](byte)
        var place = Self.chunk_place(chunk) * CHUNK_BYTES
        self.next_scales = (self.scale_place - Int32(Self.shape.scale_place())) ^ in_row
        self.next_scales += place + Int32(Self.shape.scale_place())

    @always_inline
    def read_a_scales[tile: Int](mut self):
        var place = self.next_scales + Int32(tile * TILE_BYTES)
        comptime if Self.scales_end:
            place = self.next_scales + Int32(tile * TILE) * self.weights.k_blocks
            var pair = read_pair[WORD_BYTES](self.lds.unsafe_offset(Int(place)))
            self.read_scales[tile] = rebind[SIMD[DType.uint32, Self.SLICES]](pair)
        elif Self.SLICES > 1:
            var pair = read_pair(self.lds.unsafe_offset(Int(place)))
            self.read_scales[tile] = rebind[SIMD[DType.uint32, Self.SLICES]](pair)
        else:
            self.read_scales[tile] = read_word(words_at[1](self.lds, place), Coord(Idx[0]))

    @always_inline
    def apply_a_scales[tile: Int](mut self):
        """Puts the scales of a tile of rows in their places."""
        comptime if Self.HAS_FLOATS:
            self.a_scales[tile] = self.read_scales[tile][0]
        else:
            var words = SIMD[DType.uint32, 2](self.read_scales[tile][0])
            words[1] = self.read_scales[tile][Self.SLICES - 1]
            self.a_scales[tile] = chosen_bytes(words, self.selector)

    @always_inline
    def multiply[ring: Int, slot: Int](mut self):
        comptime step, n_tile = divmod(slot, Self.shape.n_tiles)
        comptime slice, m_tile = divmod(step, Self.shape.m_tiles)
        comptime if slot == 0:
            var first_block = (self.first_stage + self.stage) * Int32(Self.Weights.CHUNK_BLOCKS)
            comptime for word in range(Self.Weights.WORDS):
                comptime next = min(word + 1, Self.Weights.WORDS - 1)
                self.b_scales[ring, word] = self.weights.chosen_scales(
                    self.b_scales[ring, word], self.b_scales[ring, next], first_block, self.lane
                )
        comptime word = Self.Weights.scale_word[slice, n_tile]()
        comptime if Self.HAS_FLOATS:
            self.products[slot % IN_FLIGHT] = multiply_codes[Self.formats.left, Self.formats.right](
                Sums(0), self.b[ring, slice, n_tile], self.a[step % Self.FRAGMENTS]
            )
            var left = bitcast[DType.float32, 1](self.a_scales[m_tile])
            self.factors[slot % IN_FLIGHT] = left * bitcast[DType.float32, 1](
                self.b_scales[ring, word]
            )
            self.add_products[slot + 1]()
        else:
            self.sums[m_tile, n_tile] = multiply_tiles[
                Self.formats.left,
                Self.formats.right,
                Self.Weights.scale_byte[slice, n_tile](),
                slice,
            ](
                self.sums[m_tile, n_tile],
                self.b[ring, slice, n_tile],
                self.a[step % Self.FRAGMENTS],
                self.b_scales[ring, word],
                self.a_scales[m_tile],
            )

    @always_inline
    def add_products[next_slot: Int](mut self):
        """Scales and adds the oldest products: `next_slot` will take their place."""
        comptime SLOTS = Self.shape.m_tiles * Self.shape.n_tiles
        comptime assert SLOTS % IN_FLIGHT == 0, "tiles of sums are a multiple of those in flight"
        comptime m_tile, n_tile = divmod(
            (next_slot + SLOTS - IN_FLIGHT) % SLOTS, Self.shape.n_tiles
        )
        comptime place = next_slot % IN_FLIGHT
        var total = self.products[place].fma(Sums(self.factors[place]), self.sums[m_tile, n_tile])
        # Otherwise the compiler keeps many products, and adds them all in the next stage.
        var halves = bitcast[DType.uint64, 2](total)
        comptime for half in range(2):
            halves[half] = here(halves[half])
        self.sums[m_tile, n_tile] = bitcast[DType.float32, SUMS](halves)

    @always_inline
    def sync[later_loads: Int](self):
        """Waits until the next stage is there for all waves, and nobody reads this one."""
        schedule_barrier()
        s_waitcnt[vmcnt=UInt32(min(later_loads, MAX_COUNT)), lgkmcnt=0]()
        s_waitcnt_barrier()
        schedule_barrier()

    @always_inline
    def perform[op: OpDesc, ring: Int](mut self):
        """Carries out one operation on the stage in a place of the ring."""
        comptime tag = op.tag
        comptime index = op.subtile
        comptime behind = (ring + Self.DEPTH - 1) % Self.DEPTH
        comptime if tag == Ops.MULTIPLY.value:
            self.multiply[ring, index]()
        elif tag == Ops.READ.value:
            self.read_a[ring, index]()
        elif tag == Ops.READ_NEXT.value:
            self.read_a[(ring + 1) % Self.DEPTH, index]()
        elif tag == Ops.APPLY_SCALES.value:
            self.apply_a_scales[index]()
        elif tag == Ops.READ_SCALES.value:
            comptime if index == 0:
                self.seek_scales(self.stage + 1)
            self.read_a_scales[index]()
        elif tag == Ops.FETCH_A.value:
            comptime if index < Self.ORDER.early_rounds():
                self.fetch_a[ring](index, self.ahead)
            else:
                self.fetch_a[behind](index, self.ahead_of_last)
        elif tag == Ops.FETCH_A_SCALES.value:
            comptime STAGES = Self.shape.chunk_stages()
            var chunk = quotient[STAGES](self.stage)
            chunk += self.chunks_ahead if Self.has_lines else 1
            self.fetch_a_scales(chunk, remainder[STAGES](self.stage))
        elif tag == Ops.FETCH_B_SCALES.value:
            self.fetch_b_scales[behind, index](self.ahead_of_last)
        elif tag == Ops.FETCH_B.value:
            self.fetch_b[behind, Self.SLICES - 1, index](self.ahead_of_last)
        elif tag == Ops.FETCH_EARLY_B.value:
            self.fetch_b[ring, 0, index](self.ahead)
        elif tag == Ops.SYNC.value:
            self.sync[Self.ORDER.later_loads()]()
        else:
            comptime assert tag == Ops.NEXT.value, "an operation nobody carries out"
            self.stage += 1
            self.ahead_of_last = self.ahead
            self.ahead = self.place_of(self.stage + Int32(Self.DEPTH))
        schedule_barrier(AMDScheduleBarrierMask.SALU)

    @always_inline
    def start_weights(mut self):
        """Starts the loads of the first stage's weights, while the rows of a list are looked up."""
        comptime assert Self.are_listed, "otherwise rows are known"
        self.fetch_weights[0, Self.SLICES, Self.Weights.WORDS](self.place_of(0))
        schedule_barrier()

    @always_inline
    def fetch_weights[ring: Int, slices: Int, words: Int](mut self, at: StageCursor):
        """Starts loading the first slices of the weights of a stage, and scales."""
        comptime for word in range(words):
            self.fetch_b_scales[ring, word](at)
        comptime for slice in range(slices):
            comptime for tile in range(Self.shape.n_tiles):
                self.fetch_b[ring, slice, tile](at)

    @always_inline
    def start(mut self):
        """Starts the loads of the first stages, in the order in which they are waited for.

        Those of `start_weights` have been started if rows are those of a list.
        """
        comptime for part in range(Int(Self.are_listed), Self.START_PARTS):
            self.start_part[part]()

    @always_inline
    def turn_to(mut self, codes: View, scales: View, weights: Self.Weights):
        """Turns to another tile of C, whose loads are to be started: no wave reads LDS any more."""
        self.codes.memory = codes
        self.scales.memory = scales
        self.weights = weights
        self.stage = 0
        self.seek_scales(0)
        schedule_barrier()
        s_waitcnt[lgkmcnt=0]()
        s_waitcnt_barrier()
        schedule_barrier()

    @always_inline
    def start_part[part: Int](mut self):
        """Starts a part of the loads of the first stages: `start_weights`, then a stage each."""
        comptime ring = part - 1
        comptime if part == 0:
            comptime if Self.are_listed:
                self.start_weights()
            return
        comptime if Self.scales_end and ring == 0:
            self.last_bytes = fetch_bytes[Self.shape.waves](
                self.scales.memory, self.all_scales(), self.scale_lds(), self.wave, self.lane
            )
        elif Self.HAS_SCALES and ring == 0:
            comptime for round in range(Self.shape.scale_rounds()):
                self.fetch_a_scales(0, Int32(round))
            comptime if Self.has_lines:
                if self.chunks_ahead == 2:
                    comptime for round in range(Self.shape.scale_rounds()):
                        self.fetch_a_scales(1, Int32(round))
        comptime IS_LAST = ring == Self.DEPTH - 1
        var at = self.place_of(Int32(ring))
        comptime if IS_LAST:
            self.fetch_weights[ring, Self.SLICES - 1, 0](at)
        comptime for round in range(Self.ORDER.early_rounds() if IS_LAST else Self.shape.rounds()):
            self.fetch_a[ring](round, at)
        comptime if not IS_LAST and (ring > 0 or not Self.are_listed):
            self.fetch_weights[ring, Self.SLICES, Self.Weights.WORDS](at)
        self.ahead_of_last = at
        schedule_barrier()
        comptime if IS_LAST:
            self.ahead = self.place_of(Int32(Self.DEPTH))

    @always_inline
    def clear(mut self):
        """Sets the sums to zero here, where there is time, not at the loop."""
        comptime for m_tile in range(Self.shape.m_tiles):
            comptime for n_tile in range(Self.shape.n_tiles):
                self.sums[m_tile, n_tile] = cleared[Self.shape.sums_apart()]()
        comptime for place in range(IN_FLIGHT if Self.HAS_FLOATS else 0):
            self.products[place] = 0
            self.factors[place] = 0

    @always_inline
    def run_rest[ring: Int](mut self, count: Int32):
        """Multiplies the stages that do not fill the ring: what they need is on its way."""
        comptime operations = Self.ORDER.operations()
        comptime if ring < Self.DEPTH - 1:
            if count > Int32(ring):
                comptime for i in range(len(operations)):
                    comptime ops = Ops(operations[i].tag)
                    comptime if ops.value == Ops.SYNC.value:
                        comptime if ring < Self.DEPTH - 2:
                            self.sync[Self.ORDER.later_loads_of_rest(ring)]()
                    elif not ops.is_fetch():
                        self.perform[operations[i], ring]()
                self.run_rest[ring + 1](count)

    @always_inline
    def run(mut self):
        var nobody = NoListener()
        self.run(nobody)

    @always_inline
    def run[Listener: SumsListener](mut self, mut listener: Listener):
        """Runs along K; tells a listener when the last stages begin."""
        # The first stage has arrived: behind it are the other stages, and its own weights, which
        # are before it if rows are those of a list.
        comptime STAGES = Self.DEPTH - 1 - Int(Self.are_listed)
        comptime OWN = 0 if Self.are_listed else Self.shape.rounds()
        comptime EARLY = Self.ORDER.early_tiles() + Self.ORDER.early_rounds()
        comptime LATER = STAGES * Self.ORDER.sure_loads() + EARLY - OWN
        s_waitcnt[vmcnt=UInt32(min(LATER, MAX_COUNT))]()
        s_waitcnt_barrier()
        schedule_barrier()
        comptime if Self.scales_end:
            store_last(
                self.scales.memory, self.all_scales(), self.scale_lds(), self.wave, self.lane,
                self.last_bytes,
            )  # fmt: skip
            schedule_barrier()
        comptime for tile in range(Self.shape.m_tiles if Self.HAS_SCALES else 0):
            self.read_a_scales[tile]()
        comptime for step in range(Self.FRAGMENTS):
            self.read_a[0, step]()
        comptime if Self.HAS_SCALES:
            self.apply_a_scales[0]()
        schedule_barrier()

        comptime operations = Self.ORDER.operations()
        var turns = quotient[Self.DEPTH](self.num_stages)
        comptime if Listener.LISTENS:
            if turns == 0:
                listener.announce()
        for turn in range(turns):
            comptime if Self.shape.sums_apart():
                keep_apart(self.sums)
            comptime for ring in range(Self.DEPTH):
                comptime if Listener.LISTENS and ring == Self.DEPTH - 1:
                    if turn == turns - 1:
                        listener.announce()
                        schedule_barrier()
                comptime for i in range(len(operations)):
                    self.perform[operations[i], ring]()
        self.run_rest[0](self.num_stages % Int32(Self.DEPTH))
        comptime for slot in range(1 if Self.HAS_FLOATS else IN_FLIGHT, IN_FLIGHT):
            self.add_products[slot]()
        s_waitcnt[vmcnt=0]()

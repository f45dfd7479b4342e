"""The main loop of a wave in the ping-pong schedule: the operations of its schedule, and the sums.

`PingPongLoop.ORDER` is the schedule (order.mojo); `perform` says what an
operation means for what the workgroup shares in LDS (fragments.mojo):

    products    where scales are floats, tiles that are scaled and added later: behind the matrix
                instruction of a tile soon after, the last ones of a phase in the next one
    fetched     places of activations, weights and scales that go from memory to LDS next
    used        places whose fragments are read next
    sums        8 x 4 or 4 x 4 tiles of C
"""

from max.gpu.sync import AMDScheduleBarrierMask, s_waitcnt, schedule_barrier, schedule_group_barrier
from pipeline.types import OpDesc
from std.memory import bitcast
from std.sys.intrinsics import readfirstlane

from ...tiles import in_registers
from ..chip import CODE_LOAD_BYTES, MAX_COUNT, PAIR, SUMS, TILE, WORD_BYTES
from ..instructions.lds import Lds
from ..instructions.matrix import BlockCodes, CODE_WORDS, CodeTile, PIECES, SumTile, Sums, WordTile
from ..instructions.matrix import decoded_block, multiply_codes, multiply_floats, multiply_piece
from ..instructions.matrix import multiply_tiles, set_priority
from ..instructions.vector import zeros_of_a_branch
from ..instructions.wave import workgroup_barrier
from ..operands.memory import quotient, remainder
from ..types import Formats, KEPT
from ..operands.columns import SharedColumns, settled
from ..operands.shared import SharedCodes, SharedOperand, SharedRightSide
from ..operands.shared import SharedScales, SharedWeights
from ..operations import Ops
from .order import PingPong
from .shape import COLUMNS, N_TILES, PingPongTile, WAVES
from .fragments import Reader, Ring, SLICES


struct PingPongLoop[formats: Formats, m_tiles: Int, k_tail: Bool, are_tiled: Bool = False]:
    """A wave along K: its fragments, and the sums.

    `m_tiles`: Tiles of rows of a wave.
    `k_tail`: Whether K may end within a stage.
    `are_tiled`: Whether codes of activations were prepared to lie by tiles.
    """

    comptime Tile = PingPongTile[Self.formats, Self.m_tiles]
    comptime IS_KEPT = Self.formats.left == KEPT
    """Whether activations stay floats, and weights are decoded to such."""
    comptime APlace = Ring[Self.Tile.A_BYTES, Self.Tile.DEPTH]
    comptime BPlace = Ring[Self.Tile.B_BYTES, Self.Tile.DEPTH]
    comptime ScalePlace = Ring[Self.Tile.SCALE_BYTES, Self.Tile.SCALE_DEPTH, Self.Tile.SCALE_RUN]
    comptime PHASE_SLICES = Self.Tile.PHASE_SLICES
    comptime Weights: SharedRightSide = SharedColumns[
        Self.Fragments.B_LINE_PIECES, WAVES, 1, Self.Tile.PARTS
    ] if Self.formats.are_columns else Self.WeightRows
    comptime WeightRows: SharedRightSide = SharedCodes[
        Self.formats.right,
        Self.Tile.ROW_PIECES,
        WAVES,
        Self.Tile.B_BYTES // (WAVES * CODE_LOAD_BYTES[Self.formats.right]),
        Self.Tile.PARTS,
        Self.k_tail,
    ] if Self.formats.are_floats() else SharedWeights[
        Self.formats.right, COLUMNS, WAVES, Self.PHASE_SLICES, Self.Tile.PARTS, Self.k_tail
    ]
    """Plain floats, or codes that are preshuffled."""
    comptime Rows = SharedCodes[
        Self.formats.left,
        Self.Tile.ROW_PIECES,
        WAVES,
        Self.Tile.A_BYTES // (WAVES * CODE_LOAD_BYTES[Self.formats.left]),
        Self.Tile.FETCHES,
        Self.k_tail,
        Self.are_tiled,
    ]
    """Codes that lie row by row, or by tiles."""
    comptime Codes: SharedOperand = SharedColumns[
        Self.Fragments.A_LINE_PIECES, WAVES, Self.Tile.PARTS, Self.Tile.PARTS
    ] if Self.formats.are_columns else Self.Rows
    comptime Scales = SharedScales[
        Self.formats.left, Self.Tile.ROWS, Self.m_tiles * TILE, Self.k_tail, Self.Tile.SCALE_RUN
    ]
    comptime WeightScales = SharedScales[
        Self.formats.right, COLUMNS, N_TILES * TILE, Self.k_tail, Self.Tile.SCALE_RUN
    ]
    comptime Fragments = Reader[Self.formats, Self.m_tiles]
    comptime HAS_BYTES = Self.Fragments.HAS_BYTES
    """Whether scales are bytes, four to a word."""
    comptime HAS_SCALES = Self.WeightScales.LOADS > 0
    """Whether there are scales in the loop."""
    comptime LATE = 0 if Self.k_tail else 1 if Self.formats.are_columns else 3
    """Tiles of products that are scaled later, as registers allow: one less than divides a part."""
    comptime ORDER = PingPong(
        phase_slices=Self.PHASE_SLICES,
        parts=Self.Tile.PARTS,
        place_slices=Self.Tile.PLACE_SLICES,
        fetches=Self.Tile.FETCHES,
        of_a=Self.Codes.LOADS,
        of_b=Self.Weights.LOADS,
        of_a_scales=0 if Self.IS_KEPT else Self.Scales.LOADS,
        of_b_scales=Self.WeightScales.LOADS,
        scale_run=Self.Tile.SCALE_RUN,
        decodes=Self.IS_KEPT,
        cuts_columns=Self.Tile.CUTS_COLUMNS,
    )
    """The order of the work."""

    var codes: Self.Codes
    var a_scale_source: Self.Scales
    var b_scale_source: Self.WeightScales
    var weights: Self.Weights
    var reader: Self.Fragments
    var lds: Lds
    var fetched_a: Self.APlace
    var used_a: Self.APlace
    var fetched_b: Self.BPlace
    var used_b: Self.BPlace
    var fetched_scales: Self.ScalePlace
    var used_scales: Self.ScalePlace
    var a: CodeTile[Self.formats.left, Self.PHASE_SLICES, Self.Tile.PART_TILES]
    var b: CodeTile[Self.formats.right, Self.PHASE_SLICES, N_TILES]
    var decoded: CodeTile[KEPT, Self.Tile.PART_COLUMNS]
    """Those of a part decoded, for floats that are kept."""
    var a_scales: WordTile[Self.Fragments.A_WORDS]
    """Scales of activations: of a stage, or floats of what is multiplied next."""
    var b_scales: WordTile[Self.Fragments.B_WORDS]
    """Scales of weights, likewise."""
    var sums: SumTile[Self.m_tiles, N_TILES]
    var products: SumTile[Self.LATE + 1]
    """Products that are not scaled yet."""
    var late_scale: Float32
    """What the last ones of a phase are multiplied by: they are of one tile of rows."""

    @always_inline
    def __init__(
        out self,
        codes: Self.Codes,
        a_scales: Self.Scales,
        b_scales: Self.WeightScales,
        weights: Self.Weights,
        reader: Self.Fragments,
        lds: Lds,
    ):
        self.codes = codes
        self.a_scale_source = a_scales
        self.b_scale_source = b_scales
        self.weights = weights
        self.reader = reader
        self.lds = lds
        self.fetched_a = Self.APlace.before_first()
        self.used_a = self.fetched_a.next()
        self.fetched_b = Self.BPlace.before_first(0)
        self.used_b = self.fetched_b.next()
        self.fetched_scales = Self.ScalePlace.before_first()
        self.used_scales = self.fetched_scales.next()
        comptime A_WORDS = CODE_WORDS[Self.formats.left]
        comptime B_WORDS = CODE_WORDS[Self.formats.right]
        self.a = in_registers[DType.uint32, A_WORDS, Self.PHASE_SLICES, Self.Tile.PART_TILES]()
        self.b = in_registers[DType.uint32, B_WORDS, Self.PHASE_SLICES, N_TILES]()
        self.decoded = in_registers[DType.uint32, CODE_WORDS[KEPT], Self.Tile.PART_COLUMNS]()
        self.a_scales = in_registers[DType.uint32, 1, Self.Fragments.A_WORDS]()
        self.b_scales = in_registers[DType.uint32, 1, Self.Fragments.B_WORDS]()
        self.sums = in_registers[DType.float32, SUMS, Self.m_tiles, N_TILES]()
        self.products = in_registers[DType.float32, SUMS, Self.LATE + 1]()
        self.late_scale = 0

    @always_inline
    def scales_of(self, place: Self.ScalePlace) -> Lds:
        return self.lds.unsafe_offset(Int(place.offset + Int32(Self.Tile.SCALE_PLACE)))

    @always_inline
    def weights_of(self, place: Self.BPlace) -> Lds:
        return self.lds.unsafe_offset(Int(place.offset + Int32(Self.Tile.B_PLACE)))

    @always_inline
    def read[work: Int](mut self):
        """Reads the fragments of a part of a slice, with the first part the weights."""
        comptime slice, part = divmod(work, Self.Tile.PARTS)
        var scales = self.scales_of(self.used_scales)
        comptime if Self.Tile.HAS_FLOATS:
            comptime STAGE_BYTES = SLICES * WORD_BYTES
            var stage = remainder[Self.Tile.SCALE_RUN](self.used_scales.index)
            scales = scales.unsafe_offset(Int(stage) * STAGE_BYTES)
            self.reader.read_floats[slice, part](scales, self.a_scales, self.b_scales)
        elif work == 0 and Self.HAS_SCALES:
            comptime if not Self.IS_KEPT:
                self.reader.read_scales[True](scales, self.a_scales)
            self.reader.read_scales[False](scales, self.b_scales)
        comptime phase_slice = slice % Self.PHASE_SLICES
        comptime if Self.Tile.CUTS_COLUMNS and part > 0:
            return
        comptime if part == 0:
            self.reader.read_b[phase_slice](self.weights_of(self.used_b), self.b)
        var codes = self.lds.unsafe_offset(Int(self.used_a.offset))
        self.reader.read_a[slice % Self.Tile.PLACE_SLICES, part, phase_slice](codes, self.a)

    @always_inline
    def decode[work: Int](mut self):
        """Decodes half of the weights that a part of a slice multiplies: the first products'."""
        comptime if work == 0 and Self.k_tail:
            self.weights.keep_inside(self.used_scales.index, self.b_scales)
        self.decode_half[work, 0]()

    @staticmethod
    def first_column[work: Int]() -> Int:
        """Returns the first tile of columns of a part of a slice."""
        return work % Self.Tile.PARTS * Self.Tile.PART_COLUMNS if Self.Tile.CUTS_COLUMNS else 0

    @always_inline
    def decode_half[work: Int, half: Int](mut self):
        comptime slice = work // Self.Tile.PARTS
        comptime COUNT = Self.Tile.PART_COLUMNS // 2
        comptime FIRST = Self.first_column[work]() + half * COUNT
        comptime for n_tile in range(FIRST, FIRST + COUNT):
            comptime HAS_PAIRS = Self.Fragments.B_SCALES > 1
            comptime word = n_tile // PAIR * Self.Fragments.B_SCALES + (slice if HAS_PAIRS else 0)
            comptime part = n_tile % PAIR + (0 if HAS_PAIRS else PAIR * slice)
            self.decoded[n_tile % Self.Tile.PART_COLUMNS] = decoded_block[Self.formats.right, part](
                self.b[0, n_tile], self.b_scales[word]
            )

    @always_inline
    def product[m_tile: Int, tile: Int, n_tile: Int, slice: Int](self) -> Sums:
        """Returns the sums of a tile with the products of a slice; `tile` is within the part."""
        comptime phase_slice = slice % Self.PHASE_SLICES
        return multiply_tiles[
            Self.formats.left,
            Self.formats.right,
            PAIR * slice + n_tile % PAIR,
            PAIR * slice + m_tile % PAIR,
        ](
            self.sums[m_tile, n_tile],
            self.b[phase_slice, n_tile],
            self.a[phase_slice, tile],
            self.b_scales[n_tile // PAIR if Self.HAS_BYTES else 0],
            self.a_scales[m_tile // PAIR if Self.HAS_BYTES else tile],
        )

    @always_inline
    def multiply[work: Int](mut self):
        """Multiplies the tiles of a part of a slice."""
        comptime if work == 0 and Self.k_tail and Self.HAS_BYTES and not Self.IS_KEPT:
            self.weights.keep_inside(self.used_scales.index, self.a_scales)
            self.weights.keep_inside(self.used_scales.index, self.b_scales)
        comptime slice, part = divmod(work, Self.Tile.PARTS)
        comptime if Self.formats.are_columns:
            self.settle[part]()
        comptime if Self.formats.are_floats():
            self.multiply_pairs[part]()
        elif Self.IS_KEPT:
            self.multiply_kept[work]()
        elif Self.Tile.HAS_FLOATS:
            self.multiply_blocks[part]()
        else:
            comptime for tile in range(Self.Tile.PART_TILES):
                comptime m_tile = part * Self.Tile.PART_TILES + tile
                comptime for n_tile in range(N_TILES):
                    self.sums[m_tile, n_tile] = self.product[m_tile, tile, n_tile, slice]()
                    schedule_group_barrier(AMDScheduleBarrierMask.MFMA, 1, 0)
                    schedule_group_barrier(AMDScheduleBarrierMask.SALU, 2, 0)

    @always_inline
    def settle[part: Int](mut self):
        """Takes fragments that transposing reads have brought; weights come with the first part."""
        comptime for tile in range(Self.Tile.PART_TILES):
            self.a[0, tile] = settled[Self.formats.left](self.a[0, tile])
        comptime for tile in range(N_TILES if part == 0 else 0):
            self.b[0, tile] = settled[Self.formats.right](self.b[0, tile])
        schedule_barrier()

    @always_inline
    def multiply_blocks[part: Int](mut self):
        """Multiplies codes of blocks with float scales, and adds products when they are there: the
        last ones of a part behind the first matrix instructions of the next."""
        comptime ADDITIONS = 2  # Packed ones.
        comptime TILES = Self.Tile.PART_TILES * N_TILES
        comptime BEFORE = (part + Self.Tile.PARTS - 1) % Self.Tile.PARTS
        var scales = in_registers[DType.float32, 1, Self.Tile.PART_TILES]()
        var b_scale = bitcast[DType.float32, 1](readfirstlane(self.b_scales[0]))
        comptime for tile in range(Self.Tile.PART_TILES):
            scales[tile] = bitcast[DType.float32, 1](self.a_scales[tile]) * b_scale
        comptime for i in range(TILES):
            comptime tile, n_tile = divmod(i, N_TILES)
            self.products[i % (Self.LATE + 1)] = multiply_codes[
                Self.formats.left, Self.formats.right
            ](Sums(0), self.b[0, n_tile], self.a[0, tile])
            schedule_group_barrier(AMDScheduleBarrierMask.MFMA, 1, 0)
            schedule_group_barrier(AMDScheduleBarrierMask.SALU, 2, 0)
            comptime if i >= Self.LATE:
                self.add_products[part, i - Self.LATE](scales[(i - Self.LATE) // N_TILES])
                schedule_group_barrier(AMDScheduleBarrierMask.VALU, Int32(ADDITIONS), 0)
            else:
                self.add_products[BEFORE, TILES - Self.LATE + i](self.late_scale)
                schedule_group_barrier(AMDScheduleBarrierMask.VALU, Int32(ADDITIONS + 2), 0)
        self.late_scale = scales[Self.Tile.PART_TILES - 1]

    @always_inline
    def add_products[part: Int, i: Int](mut self, scale: Float32):
        """Adds the products of a tile of a part, which are `scale` times as large."""
        comptime tile, n_tile = divmod(i, N_TILES)
        comptime m_tile = part * Self.Tile.PART_TILES + tile
        self.sums[m_tile, n_tile] = self.products[i % (Self.LATE + 1)].fma(
            Sums(scale), self.sums[m_tile, n_tile]
        )

    @always_inline
    def multiply_pairs[part: Int](mut self):
        """Multiplies floats by floats; the products of a tile of C are apart, to follow at once."""
        comptime for piece in range(PIECES[Self.formats.left]):
            comptime for tile in range(Self.Tile.PART_TILES):
                comptime m_tile = part * Self.Tile.PART_TILES + tile
                comptime for n_tile in range(N_TILES):
                    self.sums[m_tile, n_tile] = multiply_piece[Self.formats.left, piece](
                        self.sums[m_tile, n_tile],
                        rebind[BlockCodes[Self.formats.left]](self.b[0, n_tile]),
                        self.a[0, tile],
                    )
                    schedule_group_barrier(AMDScheduleBarrierMask.MFMA, 1, 0)
                    schedule_group_barrier(AMDScheduleBarrierMask.SALU, 1, 0)

    @always_inline
    def multiply_kept[work: Int](mut self):
        """Multiplies kept floats; decodes the other half of the weights between products."""
        # As many between products as it takes: E4M3 scales are multiplied.
        comptime CONVERSIONS = Int32(1 + Self.Fragments.B_SCALES)
        comptime part = work % Self.Tile.PARTS
        comptime FIRST, TILES = Self.first_column[work](), Self.Tile.PART_TILES
        comptime if Self.Tile.CUTS_COLUMNS or part == 0:
            self.decode_half[work, 1]()
        comptime for n_tile in range(FIRST, FIRST + Self.Tile.PART_COLUMNS):
            comptime for tile in range(TILES):
                comptime m_tile = tile if Self.Tile.CUTS_COLUMNS else part * TILES + tile
                self.sums[m_tile, n_tile] = multiply_floats(
                    self.sums[m_tile, n_tile],
                    self.decoded[n_tile % Self.Tile.PART_COLUMNS],
                    rebind[BlockCodes[KEPT]](self.a[0, tile]),
                )
                comptime for _ in range(PIECES[KEPT]):
                    schedule_group_barrier(AMDScheduleBarrierMask.MFMA, 1, 0)
                    schedule_group_barrier(AMDScheduleBarrierMask.VALU, CONVERSIONS, 0)
                    schedule_group_barrier(AMDScheduleBarrierMask.SALU, 2, 0)

    @always_inline
    def fetch[op: OpDesc](mut self):
        comptime if op.tag == Ops.FETCH_B.value:
            self.weights.fetch[op.subtile](self.weights_of(self.fetched_b))
        elif op.tag == Ops.FETCH_A.value:
            self.codes.fetch[op.subtile](self.lds.unsafe_offset(Int(self.fetched_a.offset)))
        elif op.tag == Ops.FETCH_B_SCALES.value:
            var place = self.scales_of(self.fetched_scales)
            self.b_scale_source.fetch(place.unsafe_offset(Self.Tile.B_SCALE_PLACE))
        else:
            comptime assert op.tag == Ops.FETCH_A_SCALES.value, "nobody fetches this"
            self.a_scale_source.fetch(self.scales_of(self.fetched_scales))

    @always_inline
    def perform[op: OpDesc](mut self):
        comptime tag = op.tag
        comptime if tag == Ops.READ.value:
            self.read[op.subtile]()
        elif tag == Ops.MULTIPLY.value:
            self.multiply[op.subtile]()
        elif tag == Ops.DECODE.value:
            self.decode[op.subtile]()
        elif tag == Ops.SEEK_B.value:
            self.fetched_b = self.fetched_b.next()
            self.weights.seek(self.fetched_b.index)
        elif tag == Ops.SEEK_A.value:
            self.fetched_a = self.fetched_a.next()
            self.codes.seek(self.fetched_a.index)
        elif tag == Ops.SEEK_SCALES.value:
            self.fetched_scales = self.fetched_scales.next()
            self.a_scale_source.seek(self.fetched_scales.index)
            self.b_scale_source.seek(self.fetched_scales.index)
        elif tag == Ops.REWIND.value:
            self.fetched_scales = Self.ScalePlace.before_first()
        elif tag == Ops.NEXT_B.value:
            self.used_b = self.used_b.next()
        elif tag == Ops.NEXT_A.value:
            self.used_a = self.used_a.next()
        elif tag == Ops.NEXT_SCALES.value:
            self.used_scales = self.used_scales.next()
        elif tag == Ops.WAIT_VM.value:
            s_waitcnt[vmcnt=UInt32(op.wait_value), lgkmcnt=0]()
        elif tag == Ops.BARRIER.value:
            workgroup_barrier()
        elif tag == Ops.SET_PRIO.value:
            set_priority[op.wait_value]()
        else:
            self.fetch[op]()
        comptime if not Ops(tag).is_scalar():
            schedule_barrier()

    @always_inline
    def fetch_weights(mut self):
        """Starts loading the first weights; only `FREE_BYTES` of LDS are free from now on."""
        comptime weights = Self.ORDER.weights()
        comptime for i in range(len(weights)):
            self.perform[weights[i]]()

    @always_inline
    def clear(mut self):
        """Sets the sums to zero here, where there is time, not at the loop."""
        comptime for m_tile in range(Self.m_tiles):
            comptime for n_tile in range(N_TILES):
                var low, high = zeros_of_a_branch(), zeros_of_a_branch()
                self.sums[m_tile, n_tile] = bitcast[DType.float32, SUMS](low.join(high))
        comptime for i in range(Self.LATE + 1 if Self.Tile.HAS_FLOATS else 0):
            self.products[i] = 0

    @always_inline
    def turn_to(
        mut self,
        codes: Self.Codes,
        a_scales: Self.Scales,
        b_scales: Self.WeightScales,
        weights: Self.Weights,
    ):
        """Begins anew with another tile of C, when all waves have left this one; sums stay."""
        self.codes = codes
        self.a_scale_source = a_scales
        self.b_scale_source = b_scales
        self.weights = weights
        self.fetched_a = Self.APlace.before_first()
        self.used_a = self.fetched_a.next()
        self.fetched_b = Self.BPlace.before_first(0)
        self.used_b = self.fetched_b.next()
        self.fetched_scales = Self.ScalePlace.before_first()
        self.used_scales = self.fetched_scales.next()

    @always_inline
    def fetch_activations(mut self):
        comptime activations = Self.ORDER.activations()
        comptime for i in range(len(activations)):
            self.perform[activations[i]]()

    @always_inline
    def run(mut self, group: Int32, num_slices: Int32):
        """Runs along K, from the first activations on."""
        self.fetch_activations()
        self.arrive()
        self.run_on[True](group, num_slices)

    @always_inline
    def arrive[later_operations: Int = 0](self):
        """Waits until what the wave has fetched for the first phase is in LDS.

        Parameters:
            later_operations: Memory operations of the wave since, at least.
        """
        comptime COUNT = Self.ORDER.later_loads() + later_operations
        s_waitcnt[vmcnt=UInt32(min(COUNT, MAX_COUNT)), lgkmcnt=0]()
        schedule_barrier()

    @always_inline
    def run_on[multiplies: Bool](mut self, group: Int32, num_slices: Int32):
        """Runs along K once all waves have arrived; the second group is a phase behind the first.

        Parameters:
            multiplies: Whether there are rows to multiply; otherwise the wave only fetches.
        """
        workgroup_barrier()
        schedule_barrier()
        if group != 0:
            workgroup_barrier()

        comptime steady, last = Self.ORDER.steady(), Self.ORDER.last_slice()
        # With float scales there are no registers for it.
        comptime CAN_END = Self.k_tail and Self.ORDER.has_slices() and Self.HAS_BYTES
        var slices = num_slices if CAN_END else num_slices + Int32(SLICES - 1)
        for _ in range(quotient[SLICES](slices)):
            comptime for i in range(len(steady)):
                comptime if multiplies or not Ops(steady[i].tag).is_of_products():
                    self.perform[steady[i]]()
        comptime if CAN_END:
            if remainder[SLICES](slices) != 0:
                comptime for i in range(len(last)):
                    comptime if multiplies or not Ops(last[i].tag).is_of_products():
                        self.perform[last[i]]()
        comptime TILES = Self.Tile.PART_TILES * N_TILES
        comptime for i in range(TILES - Self.LATE, TILES if Self.Tile.HAS_FLOATS else 0):
            self.add_products[Self.Tile.PARTS - 1, i](self.late_scale)

    @always_inline
    def leave(self, group: Int32):
        """Meets the other group, which is a phase behind, for the last time."""
        if group == 0:
            workgroup_barrier()
        s_waitcnt[vmcnt=0]()

"""A wave's way along K in a prefill kernel: the operations of its schedule, and the sums.

`PrefillWalk.ORDER` is the schedule (order.mojo); `perform` says what an
operation means for what the workgroup shares in LDS (stages.mojo):

    fetched     stage and phase that go from memory to LDS next
    used        stage and phase whose fragments are read next
    sums        8 x 4 or 4 x 4 tiles of C
"""

from max.gpu.sync import (
    AMDScheduleBarrierMask,
    s_waitcnt,
    s_waitcnt_barrier,
    schedule_barrier,
    schedule_group_barrier,
)
from pipeline.pipeline_dsl import ScheduleEntry
from std.memory import bitcast

from ...tiles import in_registers
from ..instructions.lds import Lds
from ..instructions.matrix import (
    CODE_WORDS,
    CodeTile,
    SUMS,
    SumTile,
    Sums,
    WordTile,
    multiply_tiles,
    set_priority,
)
from ..instructions.vector import zero_of_a_branch
from ..operands.tiles import PAIR
from ..types import Formats
from .activations import SharedCodes
from .order import PingPong, PingPongOps
from .shape import (
    A_SCALE_BYTES,
    COLUMNS,
    DEPTH,
    N_TILES,
    PrefillTile,
    SCALE_BYTES,
)
from .stages import Reader, SharedScales, SharedWeights, next_of_ring


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


struct PrefillWalk[formats: Formats, m_tiles: Int, k_tail: Bool]:
    """A wave's way along K: its fragments, and the sums.

    Parameters:
        formats: What is multiplied.
        m_tiles: Tiles of rows of a wave.
        k_tail: Whether K may end within a stage.
    """

    comptime Tile = PrefillTile[Self.formats, Self.m_tiles]
    """The workgroup's tile of C."""
    comptime Place = Ring[Self.Tile.A_BYTES]
    """A place in LDS."""
    comptime PHASE_SLICES = Self.Tile.PHASE_SLICES
    comptime Weights = SharedWeights[Self.formats.right, Self.PHASE_SLICES, Self.k_tail]
    """The workgroup's weights."""
    comptime Codes = SharedCodes[Self.formats, Self.m_tiles, Self.k_tail]
    """The codes of the workgroup's activations."""
    comptime Scales = SharedScales[Self.Tile.ROWS]
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
    var b_scale_source: SharedScales[COLUMNS]
    """Scales of weights."""
    var weights: Self.Weights
    var reader: Reader[Self.formats, Self.m_tiles]
    """Where the wave reads."""
    var lds: Lds
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
    var a: CodeTile[Self.formats.left, Self.PHASE_SLICES, Self.m_tiles]
    """Fragments of activations."""
    var b: CodeTile[Self.formats.right, Self.PHASE_SLICES, N_TILES]
    """Fragments of weights."""
    var a_scales: WordTile[Self.m_tiles // PAIR]
    """Scales of a stage of activations."""
    var b_scales: WordTile[N_TILES // PAIR]
    """Scales of a stage of weights."""
    var sums: SumTile[Self.m_tiles, N_TILES]
    """C."""

    @always_inline
    def __init__(
        out self,
        codes: Self.Codes,
        a_scales: Self.Scales,
        b_scales: SharedScales[COLUMNS],
        weights: Self.Weights,
        reader: Reader[Self.formats, Self.m_tiles],
        lds: Lds,
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
        comptime A_WORDS = CODE_WORDS[Self.formats.left]
        comptime B_WORDS = CODE_WORDS[Self.formats.right]
        self.a = in_registers[DType.uint32, A_WORDS, Self.PHASE_SLICES, Self.m_tiles]()
        self.b = in_registers[DType.uint32, B_WORDS, Self.PHASE_SLICES, N_TILES]()
        self.a_scales = in_registers[DType.uint32, 1, Self.m_tiles // PAIR]()
        self.b_scales = in_registers[DType.uint32, 1, N_TILES // PAIR]()
        self.sums = in_registers[DType.float32, SUMS, Self.m_tiles, N_TILES]()

    @always_inline
    def scales_of(self, ring: Self.Place) -> Lds:
        """Returns where the scales of a stage begin."""
        return self.lds.unsafe_offset(Int(ring.scales + Int32(Self.Tile.SCALE_PLACE)))

    @always_inline
    def read[slice: Int](mut self):
        """Reads the fragments of a slice."""
        comptime if slice == 0:
            var scales = self.scales_of(self.used)
            self.reader.read_scales[True](scales, self.a_scales)
            self.reader.read_scales[False](scales, self.b_scales)
        comptime phase_slice = slice % Self.PHASE_SLICES
        var weights = self.lds.unsafe_offset(Int(self.used_b + Int32(Self.Tile.B_PLACE)))
        self.reader.read_b[phase_slice](weights, self.b)
        self.reader.read_a[slice, phase_slice](self.lds.unsafe_offset(Int(self.used.a)), self.a)

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
                self.sums[m_tile, n_tile] = multiply_tiles[
                    Self.formats.left,
                    Self.formats.right,
                    PAIR * slice + n_tile % PAIR,
                    PAIR * slice + m_tile % PAIR,
                ](
                    self.sums[m_tile, n_tile],
                    self.b[phase_slice, n_tile],
                    self.a[phase_slice, m_tile],
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
            var phase = self.fetched_b + Int32(Self.Tile.B_PLACE)
            self.weights.fetch(self.lds.unsafe_offset(Int(phase)))
        elif tag == PingPongOps.FETCH_A.value:
            self.codes.fetch[entry.op.subtile](self.lds.unsafe_offset(Int(self.fetched.a)))
        elif tag == PingPongOps.FETCH_B_SCALES.value:
            var place = self.scales_of(self.fetched).unsafe_offset(A_SCALE_BYTES)
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
    def clear(mut self):
        """Sets the sums to zero here, where there is time, not at the loop."""
        comptime for m_tile in range(Self.m_tiles):
            comptime for n_tile in range(N_TILES):
                var zeros = Sums(0)
                comptime for i in range(SUMS):
                    zeros[i] = bitcast[DType.float32](zero_of_a_branch())
                self.sums[m_tile, n_tile] = zeros

    @always_inline
    def walk(mut self, group: Int32, num_stages: Int32):
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

    @always_inline
    def leave(self, group: Int32):
        """Meets the other group, which is a phase behind, for the last time."""
        if group == 0:
            s_waitcnt_barrier()
        s_waitcnt[vmcnt=0]()

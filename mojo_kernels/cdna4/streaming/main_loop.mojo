"""The main loop of a wave in the streaming schedule: what it holds, and what each operation does.

The operations come from `Stream`, as data. A wave multiplies all rows of its
workgroup by its own columns; the lanes in a step (128 along K, 16 rows):

    lane l    row l % 16 of 16 rows of A and of W, block l / 16
              C: row l % 16, columns 4 * (l / 16) .. + 3

A wave alone encodes its activations and keeps them in registers. Of S sharers,
number s fetches tiles s, s + S, .. of a stage and encodes them for all; in LDS are

    codes     tile t, lane l, piece p: 1024 * p + 16 * l behind where its wave had the floats;
              of six bits, lane l: 24 * l behind it, which no two lanes' banks share
    scales    tile t, lane l: 256 * (t / 4) + 4 * l + t % 4

where t counts the rows' tiles of the first 128 along K, then of the next. One
word of scales of the activations and one of the weights thus serve all products
of 32 rows, 32 columns and 256 along K. Floats that are kept lie there already, as fetched.
"""

from layout import Coord, Idx
from max.gpu.sync import s_waitcnt, schedule_barrier
from pipeline.types import OpDesc

from ...numbers.formats import Format
from ...numbers.scales import Scale
from ...tiles import RegisterTile, in_registers
from ..chip import LANES, LANE_BYTES, LANE_SCALES, PIECE_BYTES, SUMS, WORD_SCALES
from ..instructions.lds import Lds, PIECE_WORDS, SharedPieces, bytes_at, pieces_at, read_piece
from ..instructions.lds import Sixes, read_sixes, read_word, words_at, write_byte, write_piece
from ..instructions.lds import write_sixes, write_word
from ..instructions.matrix import BlockCodes, CODE_WORDS, CodeTile, PIECES, SumTile, WordTile
from ..instructions.matrix import multiply_tiles
from ..instructions.vector import copied_here
from ..instructions.wave import workgroup_barrier
from ..operands.activations import ActivationSource
from ..operands.encode import EncodedBlock
from ..operands.memory import quotient
from ..operands.weights import WeightFragments
from ..types import KEPT
from ..operations import Ops
from .order import Stream
from .shape import StreamingLds, StreamingShape


struct StreamingLoop[Source: ActivationSource, right: Format, shape: StreamingShape]:
    """A wave along K: the registers of all stages in flight, and the sums."""

    comptime COLUMNS = Self.shape.wave_columns()
    comptime Weights = WeightFragments[
        Self.right, Self.COLUMNS, Self.shape.k_tiles, Self.shape.k_tail
    ]
    comptime OWN = Self.shape.own_steps()
    """Tiles of activations of a stage that the wave fetches."""
    comptime IS_SHARED = Self.shape.sharers > 1
    """Whether other waves need them too."""
    comptime LDS = StreamingLds(Self.shape, Self.Source.PIECES * PIECE_BYTES, Self.Source.left)
    comptime WAVE_BYTES = Self.LDS.wave_bytes()
    comptime GROUPS_PLACE = Self.LDS.first_group()
    comptime GROUP_BYTES = Self.LDS.group_bytes()
    comptime SCALE_WORDS = Self.LDS.scale_words()
    comptime SHARED_SCALES = Self.LDS.word_scales()
    """Scales of such a word."""
    comptime ARE_SIXES = Self.Source.left.element.bits == 6
    """Whether what a lane feeds is no multiple of a piece."""
    comptime HAS_SCALES = not Self.Source.left.has_row_scales()
    """Whether products are multiplied by scales; sums are by those of rows."""
    comptime DECODES_LONG = Self.Source.left == KEPT and LANE_SCALES[Self.right] > 1
    """Whether weights are decoded by three times the instructions, for their E4M3 scales."""
    comptime HOLDS = Self.DECODES_LONG and Self.shape.depth == 1
    """Whether weights are held while the next ones are fetched."""
    comptime STREAM = Stream(Self.shape, Self.Weights.LOADS, Self.Source.LOADS, Self.HOLDS)

    var source: Self.Source
    var weights: Self.Weights
    var lds: Lds
    """The wave's own area of LDS."""
    var first_lds: Lds
    """The area of the first wave of its group."""
    var group_scales: Lds
    """The shared scales of its group."""
    var lane: Int32
    var sharer: Int32
    var next_chunk: Int32
    var first_blocks: RegisterTile[DType.int32, 1, Self.shape.depth]
    """The first block along K of each stage."""
    var b: CodeTile[Self.right, Self.shape.depth, Self.shape.k_tiles, Self.COLUMNS]
    var b_scales: WordTile[Self.shape.depth, max(Self.Weights.WORDS, 1)]
    """Their scales, some words."""
    var held: CodeTile[Self.right, Self.shape.k_tiles, Self.COLUMNS]
    """The weights of the stage in use, and their scales."""
    var held_scales: WordTile[max(Self.Weights.WORDS, 1)]
    var a: CodeTile[Self.Source.left, Self.shape.depth, Self.shape.steps()]
    """Activations: what the source keeps of those in flight, then those of the stage in use."""
    var a_scales: WordTile[Self.shape.depth, Self.shape.steps()]
    """Their scales; if shared, of bytes each is a word of four tiles."""
    var sums: SumTile[Self.shape.m_tiles, Self.COLUMNS]

    @always_inline
    def __init__(
        out self,
        source: Self.Source,
        weights: Self.Weights,
        lds: Lds,
        wave: Int32,
        lane: Int32,
        first_chunk: Int32,
    ):
        """Begins at a chunk, with sums of zero; `lds` is the workgroup's."""
        var group = quotient[Self.shape.sharers](wave)
        self.source = source
        self.weights = weights
        self.lds = lds.unsafe_offset(Int(wave) * Self.WAVE_BYTES)
        self.first_lds = lds.unsafe_offset(Int(group) * Self.shape.sharers * Self.WAVE_BYTES)
        self.group_scales = lds.unsafe_offset(Self.GROUPS_PLACE + Int(group) * Self.GROUP_BYTES)
        self.lane = lane
        self.sharer = wave - group * Int32(Self.shape.sharers)
        self.next_chunk = first_chunk
        comptime DEPTH = Self.shape.depth
        comptime STEPS = Self.shape.steps()
        comptime A_WORDS = CODE_WORDS[Self.Source.left]
        comptime B_WORDS = CODE_WORDS[Self.right]
        self.first_blocks = in_registers[DType.int32, 1, DEPTH]()
        self.b = in_registers[DType.uint32, B_WORDS, DEPTH, Self.shape.k_tiles, Self.COLUMNS]()
        self.b_scales = in_registers[DType.uint32, 1, DEPTH, max(Self.Weights.WORDS, 1)]()
        self.held = in_registers[DType.uint32, B_WORDS, Self.shape.k_tiles, Self.COLUMNS]()
        self.held_scales = in_registers[DType.uint32, 1, max(Self.Weights.WORDS, 1)]()
        self.a = in_registers[DType.uint32, A_WORDS, DEPTH, STEPS]()
        self.a_scales = in_registers[DType.uint32, 1, DEPTH, STEPS]()
        self.sums = in_registers[DType.float32, SUMS, Self.shape.m_tiles, Self.COLUMNS]()
        comptime for m_tile in range(Self.shape.m_tiles):
            comptime for n_tile in range(Self.COLUMNS):
                self.sums[m_tile, n_tile] = 0

    @always_inline
    def tile_in_lds[stage: Int, step: Int](self) -> SharedPieces[Self.Source.PIECES]:
        """Returns the place of a tile of activations that the wave fetches."""
        comptime place = Self.LDS.tile(stage, step)
        return pieces_at[Self.Source.PIECES](self.lds, Int32(place))

    @always_inline
    def sixes_at(self, lds: Lds, tile: Int) -> Lds:
        """Returns where the lane's block of a tile of six-bit codes is."""
        return lds.unsafe_offset(Int(self.lane * Int32(LANE_BYTES[Self.Source.left])) + tile)

    @always_inline
    def share[stage: Int](self, tile: Int32, scale: UInt32):
        """Writes the lane's scale of an encoded tile for all sharers."""
        comptime DEPTH = Self.shape.depth
        comptime if Self.Source.left.scale == Scale.E8M0:
            var scales = bytes_at[DEPTH, Self.SCALE_WORDS, LANES, WORD_SCALES](self.group_scales)
            var word, byte = divmod(tile, Int32(WORD_SCALES))
            write_byte(scales, Coord(Idx[stage], word, self.lane, byte), scale.cast[DType.uint8]())
        elif Self.HAS_SCALES:
            var scales = words_at[DEPTH, Self.SCALE_WORDS, LANES](self.group_scales)
            write_word(scales, Coord(Idx[stage], tile, self.lane), scale)

    @always_inline
    def fetch[stage: Int](mut self):
        """Starts the loads of the activations of the next chunk."""
        comptime for step in range(Self.OWN):
            self.fetch_tile[stage, step]()
            schedule_barrier()
        self.first_blocks[stage] = self.next_chunk * Int32(Self.Weights.CHUNK_BLOCKS)
        self.next_chunk += 1

    @always_inline
    def fetch_tile[stage: Int, step: Int](mut self):
        """Starts loading a tile of activations: of all, or of those that fall to this sharer."""
        var place = self.tile_in_lds[stage, step]()
        comptime if Self.IS_SHARED:
            var tile = self.sharer + Int32(step * Self.shape.sharers)
            var k_tile = quotient[Self.shape.m_tiles](tile)
            var m_tile = tile - k_tile * Int32(Self.shape.m_tiles)
            var chunk = self.next_chunk * Int32(Self.shape.k_tiles) + k_tile
            var at = self.source.cursor(chunk, m_tile, k_tile < Int32(Self.shape.k_tiles))
            var block = self.source.fetch[0, 0](at, place, self.lane)
            comptime if not Self.HOLDS:
                self.keep[stage, step](block)
        else:
            comptime k_tile, m_tile = divmod(step, Self.shape.m_tiles)
            var at = self.source.cursor(self.next_chunk)
            var block = self.source.fetch[k_tile, m_tile](at, place, self.lane)
            comptime if not Self.HOLDS:
                self.keep[stage, step](block)

    @always_inline
    def keep[stage: Int, step: Int](mut self, block: EncodedBlock[Self.Source.left]):
        self.a[stage, step] = block.codes
        self.a_scales[stage, step] = block.scale

    @always_inline
    def fetch_weights[stage: Int](mut self):
        var at = self.weights.cursor(quotient[Self.Weights.CHUNK_BLOCKS](self.first_blocks[stage]))
        comptime for load in range(Self.Weights.SCALE_LOADS):
            var words = self.weights.fetch_scales[load](at, self.lane)
            comptime for i in range(Self.Weights.LOAD_WORDS):
                self.b_scales[stage, load * Self.Weights.LOAD_WORDS + i] = words[i]
        comptime for k_tile in range(Self.shape.k_tiles):
            comptime for n_tile in range(Self.COLUMNS):
                self.b[stage, k_tile, n_tile] = self.weights.fetch_codes[k_tile, n_tile](
                    at, self.lane
                )
        schedule_barrier()

    @always_inline
    def encode[stage: Int, step: Int](mut self):
        """Encodes a tile of activations: for this wave, or to its place in LDS for all."""
        comptime if Self.IS_SHARED and Self.Source.left == KEPT:
            return
        var place = self.tile_in_lds[stage, step]()
        var kept = EncodedBlock[Self.Source.left](self.a[stage, step], self.a_scales[stage, step])
        var block = self.source.block(kept, place)
        comptime if Self.IS_SHARED:
            comptime LANE_PIECES = PIECES[Self.Source.left]
            comptime place = Self.LDS.tile(stage, step)
            comptime if Self.ARE_SIXES:
                write_sixes(self.sixes_at(self.lds, place), rebind[Sixes](block.codes))
            else:
                var codes = pieces_at[LANE_PIECES, LANES](self.lds, Int32(place))
                comptime for i in range(LANE_PIECES):
                    var piece = block.codes.slice[PIECE_WORDS, offset=i * PIECE_WORDS]()
                    write_piece(codes, Coord(Idx[i], self.lane), piece)
            var tile = self.sharer + Int32(step * Self.shape.sharers)
            self.share[stage](tile, block.scale)
            # Words are read as a whole: nothing in them is left undefined.
            comptime unused = Self.LDS.unused_scales()
            comptime slots = Self.LDS.slots()
            comptime if step == 0 and unused > 0:
                if self.sharer < Int32(unused):
                    self.share[stage](Int32(slots) + tile, block.scale)
        else:
            self.keep[stage, step](block)

    @always_inline
    def read[stage: Int](mut self):
        """Reads the activations of a stage, encoded or kept."""
        comptime if Self.Source.left == KEPT:
            return self.read_kept[stage]()
        comptime for step in range(Self.shape.steps()):
            comptime word, byte = divmod(step, Self.SHARED_SCALES)
            comptime own_step, sharer = divmod(step, Self.shape.sharers)
            comptime if not Self.HAS_SCALES:
                self.a_scales[stage, step] = 0
            elif byte == 0:
                var words = words_at[Self.shape.depth, Self.SCALE_WORDS, LANES](self.group_scales)
                self.a_scales[stage, step] = read_word(
                    words, Coord(Idx[stage], Idx[word], self.lane)
                )
            else:
                self.a_scales[stage, step] = self.a_scales[stage, step - byte]
            comptime place = sharer * Self.WAVE_BYTES + Self.LDS.tile(stage, own_step)
            comptime LANE_PIECES = PIECES[Self.Source.left]
            var codes = BlockCodes[Self.Source.left]()
            comptime if Self.ARE_SIXES:
                codes = rebind[BlockCodes[Self.Source.left]](
                    read_sixes(self.sixes_at(self.first_lds, place))
                )
            else:
                var pieces = pieces_at[LANE_PIECES, LANES](self.first_lds, Int32(place))
                comptime for i in range(LANE_PIECES):
                    var piece = read_piece(pieces, Coord(Idx[i], self.lane))
                    codes = codes.insert[offset=i * PIECE_WORDS](piece)
            self.a[stage, step] = codes

    @always_inline
    def read_kept[stage: Int](mut self):
        """Reads the floats of a stage where their sharers have fetched them to."""
        comptime for step in range(Self.shape.steps()):
            comptime own_step, sharer = divmod(step, Self.shape.sharers)
            comptime place = sharer * Self.WAVE_BYTES + Self.LDS.tile(stage, own_step)
            var floats = pieces_at[Self.Source.PIECES](self.first_lds, Int32(place))
            self.keep[stage, step](self.source.block({0, 0}, floats))

    @always_inline
    def hold[stage: Int](mut self):
        """Copies weights: a register that a loop fetches anew is not what it multiplies."""
        # More pieces of floats are on their way from LDS than a wait can count.
        s_waitcnt[lgkmcnt=0]()
        schedule_barrier()
        self.choose_scales[stage]()
        comptime for word in range(Self.Weights.WORDS):
            comptime next = min(word + 1, Self.Weights.WORDS - 1)
            comptime if word % 2 == 0:
                var both = copied_here([self.b_scales[stage, word], self.b_scales[stage, next]])
                self.held_scales[word] = both[0]
                self.held_scales[next] = both[next - word]
        comptime for k_tile in range(Self.shape.k_tiles):
            comptime for n_tile in range(Self.COLUMNS):
                comptime for i in range(0, CODE_WORDS[Self.right], 2):
                    var words = copied_here(self.b[stage, k_tile, n_tile].slice[2, offset=i]())
                    self.held[k_tile, n_tile] = self.held[k_tile, n_tile].insert[offset=i](words)
        schedule_barrier()

    @always_inline
    def choose_scales[stage: Int](mut self):
        """Takes from the words of scales what a stage has."""
        comptime for word in range(Self.Weights.WORDS):
            comptime next = min(word + 1, Self.Weights.WORDS - 1)
            comptime k_tile = word % Self.Weights.LOAD_WORDS
            self.b_scales[stage, word] = self.weights.chosen_scales[k_tile](
                self.b_scales[stage, word],
                self.b_scales[stage, next],
                self.first_blocks[stage],
                self.lane,
            )

    @always_inline
    def multiply[stage: Int, step: Int](mut self):
        """Multiplies a tile of activations by all tiles of weights."""
        comptime k_tile, m_tile = divmod(step, Self.shape.m_tiles)
        comptime if step == 0 and not Self.HOLDS:
            comptime if Self.Source.left == KEPT:
                # More pieces of floats are on their way from LDS than a wait can count.
                s_waitcnt[lgkmcnt=0]()
                schedule_barrier()
            self.choose_scales[stage]()
        comptime for n_tile in range(Self.COLUMNS):
            comptime b_word = Self.Weights.scale_word[k_tile, n_tile]()
            comptime b_byte = Self.Weights.scale_byte[k_tile, n_tile]()
            comptime a_byte = step % Self.SHARED_SCALES if Self.IS_SHARED else 0
            self.sums[m_tile, n_tile] = multiply_tiles[
                Self.Source.left, Self.right, b_byte, a_byte
            ](
                self.sums[m_tile, n_tile],
                self.held[k_tile, n_tile] if Self.HOLDS else self.b[stage, k_tile, n_tile],
                self.a[stage, step],
                self.held_scales[b_word] if Self.HOLDS else self.b_scales[stage, b_word],
                self.a_scales[stage, step],
            )

    @always_inline
    def perform[op: OpDesc](mut self):
        comptime tag = op.tag
        comptime stage = op.stage
        comptime if tag == Ops.FETCH_A.value:
            self.fetch[stage]()
        elif tag == Ops.FETCH_B.value:
            self.fetch_weights[stage]()
        elif tag == Ops.ENCODE.value:
            self.encode[stage, op.subtile]()
        elif tag == Ops.SYNC.value:
            s_waitcnt[lgkmcnt=0]()
            workgroup_barrier()
            schedule_barrier()
        elif tag == Ops.READ.value:
            self.read[stage]()
        elif tag == Ops.HOLD.value:
            self.hold[stage]()
        elif tag == Ops.MULTIPLY.value:
            self.multiply[stage, op.subtile]()
        elif tag == Ops.RELEASE.value:
            s_waitcnt[lgkmcnt=0]()
            schedule_barrier()
        else:
            comptime assert tag == Ops.WAIT_VM.value, "an operation nobody carries out"
            s_waitcnt[vmcnt=UInt32(op.wait_value)]()
            schedule_barrier()

    @always_inline
    def start(mut self):
        """Starts the loads of the first chunks."""
        self.source.settle(self.lane)
        comptime prologue = Self.STREAM.prologue()
        comptime for i in range(len(prologue)):
            self.perform[prologue[i]]()

    @always_inline
    def finish(mut self, num_chunks: Int32):
        """Runs along K; `num_chunks` is a multiple of the depth."""
        self.source.settle_block(self.lane)
        comptime if Self.DECODES_LONG and not Self.IS_SHARED:
            if self.first_blocks[0] >= self.weights.k_blocks:
                # All of the wave's chunks are beyond K: decoding would keep others waiting.
                s_waitcnt[vmcnt=0]()
                return
        comptime if not Self.shape.up_front:
            comptime steady = Self.STREAM.steady()
            for _ in range(quotient[Self.shape.depth](num_chunks) - 1):
                comptime for i in range(len(steady)):
                    self.perform[steady[i]]()

        comptime epilogue = Self.STREAM.epilogue()
        comptime for i in range(len(epilogue)):
            self.perform[epilogue[i]]()

"""Rows of an operand that the waves of a workgroup share: from memory straight to LDS.

A lane loads 16 bytes at a time, a wave what lies behind each other in LDS, all waves a round:

    SharedRows       plain rows of codes or scales, one behind another or those of a list, through
                     a view: the hardware adds the stage to the offset of a lane
    SharedCodes      plain rows of codes, of a descriptor for each stage or slice
    SharedWeights    preshuffled codes, in the order of their layout, which is that of the lanes
    SharedColumns    either, column by column (columns.mojo)
    SharedScales     scales in the order of the preshuffled layout, a group a wave; or floats

The pieces of a plain row are exchanged within it (tiles.mojo), so that the lanes that load a row
read whole lines of memory. Beyond K everything reads as zeros.

A block of six-bit codes is 24 bytes: two loads of 12, and its place a multiple of 8. Nothing is
exchanged; what a wave loads at once, eight rows of 96 bytes or four of 192, has 16 bytes behind it
instead, and the lanes that LDS serves together find all banks:

    byte of LDS     0 .. 767      768 .. 783    784 .. 1551    ..
    holds           rows 0 .. 7   nothing       rows 8 .. 15
"""

from layout import Coord
from max.gpu.intrinsics import AMDBufferResource
from max.gpu.sync import s_waitcnt, s_waitcnt_barrier
from std.bit import next_power_of_two

from ...numbers.formats import Format
from ...numbers.scales import Scale
from ..chip import CODE_LOAD_BYTES, CODE_PIECE_BYTES, GROUP_BLOCKS, GROUP_TILES, LANES, LANE_BYTES
from ..chip import LANE_SCALES, LOAD_BYTES, PIECE_BYTES
from ..chip import load_bytes_of, piece_bytes_of, scale_load_bytes
from ..chip import SCALE_GROUP_BYTES, SCALE_GROUP_ROWS, TILE, TILE_BLOCKS, WORD_BYTES
from ..instructions.lds import Lds, bytes_at, write_byte
from ..instructions.matrix import PIECES, WordTile
from ..instructions.memory import load_to_lds
from ..instructions.wave import lane_here
from .memory import Bytes, NO_ROW, OUT_OF_RANGE, Span, View, load_word, quotient, remainder
from .tiles import exchanged
from .weights import scale_row_bytes


@fieldwise_init
struct OperandRows(TrivialRegisterPassable):
    """Codes or scales of an operand, and which of its rows a workgroup begins at."""

    var bytes: Bytes
    var count: Int32
    var k_blocks: Int32
    var first: Int32
    """The workgroup's first row."""


trait SharedOperand(TrivialRegisterPassable):
    """Codes on their way to LDS, whatever their order in memory."""

    comptime LOADS: Int
    """Loads of a wave for a part of a place."""

    @staticmethod
    def of(rows: OperandRows, wave: Int32, lane: Int32) -> Self:
        ...

    def seek(mut self, place: Int32):
        """Turns to a place along K; one beyond K reads as zeros."""
        ...

    def fetch[part: Int](self, place: Lds):
        """Starts loading a part of the place."""
        ...


trait SharedRightSide(SharedOperand):
    """The same of weights, which know where K ends."""

    def keep_inside[count: Int, //](self, stage: Int32, words: WordTile[count]):
        """Removes what lies beyond K from the lane's words of scales of a stage, of any operand."""
        comptime assert count < 0, "plain codes have no bytes of scales to remove"


@always_inline
def place_of_sixes[load_rows: Int, row_bytes: Int](lane: Int32) -> Int32:
    """Returns where in a tile of rows of six-bit codes the lane's block of the first slice lies."""
    comptime LOAD_BYTES, BLOCK_BYTES = load_bytes_of(piece_bytes_of(6)), Format.MXFP6.block_bytes()
    var load, row = divmod(lane % Int32(TILE), Int32(load_rows))
    return (
        load * Int32(LOAD_BYTES)
        + row * Int32(row_bytes)
        + quotient[TILE](lane) * Int32(BLOCK_BYTES)
    )


struct RowLoads[row_pieces: Int, waves: Int, parts: Int = 1, piece_bytes: Int = PIECE_BYTES]:
    """Who loads which piece of plain rows; a part of them is every `parts`-th round."""

    comptime ROWS = LANES // Self.row_pieces
    comptime ROUND_ROWS = Self.waves * Self.ROWS
    comptime Numbers[loads: Int] = SIMD[DType.int32, next_power_of_two(max(loads, 1))]
    """A number for each load of a lane."""

    @staticmethod
    @always_inline
    def row_and_byte(wave: Int32, lane: Int32) -> Tuple[Int32, Int32]:
        """Returns which row of a round a lane loads a piece of, and where in the row it is."""
        var row, piece = Self.row_and_piece(wave, lane)
        return (row, piece * Int32(Self.piece_bytes))

    @staticmethod
    @always_inline
    def row_and_piece(wave: Int32, lane: Int32) -> Tuple[Int32, Int32]:
        """Returns the same, counting pieces."""
        var at = wave * Int32(LANES) + lane
        comptime if Self.piece_bytes == PIECE_BYTES:
            at = exchanged[Self.row_pieces](at)
        return (quotient[Self.row_pieces](at), remainder[Self.row_pieces](at))

    @staticmethod
    def first_row(load: Int, loads: Int) -> Int:
        """Returns the first row of one of a wave's loads, counted part by part."""
        var part, round = divmod(load, loads // Self.parts)
        return (round * Self.parts + part) * Self.ROUND_ROWS

    @staticmethod
    @always_inline
    def place(round: Int32, wave: Int32) -> Int32:
        """Returns where a wave's part of a round begins in LDS."""
        return (round * Int32(Self.waves) + wave) * Int32(load_bytes_of(Self.piece_bytes))

    @staticmethod
    @always_inline
    def listed[
        loads: Int
    ](list: AMDBufferResource, first: Int32, wave: Int32, lane: Int32) -> Self.Numbers[loads]:
        """Starts looking up which rows a list names from `first` on, for each load of a lane."""
        var row, _ = Self.row_and_byte(wave, lane)
        var rows = Self.Numbers[loads]()
        comptime for load in range(loads):
            var at = first + row + Int32(Self.first_row(load, loads))
            rows[load] = load_word(list, at * Int32(WORD_BYTES))
        return rows


@fieldwise_init
struct SharedRows[
    row_pieces: Int,
    waves: Int,
    listed_rounds: Int = 0,
    part: Int = 1,
    piece_bytes: Int = PIECE_BYTES,
](TrivialRegisterPassable):
    """Rows of codes or of scales.

    `listed_rounds`: Rounds of a list; 0 if rows lie one behind another.
    `part`: How many times as long rows are whose offsets these share, to save registers.
    """

    comptime Loads = RowLoads[Self.row_pieces, Self.waves, piece_bytes=Self.piece_bytes]
    comptime Listed = Self.Loads.Numbers[Self.listed_rounds]

    var memory: View
    """The bytes, from the first row on; of a list, all of them."""
    var row_bytes: Int32
    var offsets: Self.Listed
    """Where the lane's piece of each load lies; that of the first one if there is no list."""
    var wave: Int32

    @staticmethod
    @always_inline
    def of[
        lines: Bool = False
    ](rows: OperandRows, row_bytes: Int32, first_byte: Int32, wave: Int32, lane: Int32) -> Self:
        """Describes the rows from byte `first_byte` of each on, or from the beginning of its line;
        of a list none yet: which of them, `turn_to` says."""
        var offsets = Self.Listed()
        comptime if Self.listed_rounds > 0:
            return Self(View.of(rows.bytes, rows.count * row_bytes), row_bytes, offsets, wave)
        var row, byte = Self.Loads.row_and_byte(wave, lane)
        var memory = View.of(rows.bytes, rows.count * row_bytes)
        comptime if lines:
            comptime LINE_BYTES = Self.row_pieces * PIECE_BYTES
            memory = memory.moved(rows.first * row_bytes)
            var first = row * row_bytes + first_byte
            offsets[0] = first - remainder[LINE_BYTES](first) + byte
        else:
            memory = memory.moved(rows.first * row_bytes + first_byte)
            offsets[0] = row * row_bytes + byte
        return Self(memory, row_bytes, offsets, wave)

    @always_inline
    def turn_to(mut self, listed: Self.Listed, count: Int32, lane: Int32):
        """Takes the first `count` rows that were looked up, and zeros for others."""
        var row, byte = Self.Loads.row_and_byte(self.wave, lane)
        comptime for round in range(Self.listed_rounds):
            var offset = listed[round] * self.row_bytes + byte
            var is_there = row + Int32(round * Self.Loads.ROUND_ROWS) < count
            self.offsets[round] = offset if is_there else OUT_OF_RANGE

    @always_inline
    def turn_to(mut self, longer: SharedRows[_, Self.waves, _, _, _]):
        """Takes the same rows as others, which are `part` times as long."""
        comptime assert longer.listed_rounds == Self.listed_rounds, "as many rounds"
        comptime for round in range(Self.listed_rounds):
            self.offsets[round] = longer.offsets[round]

    @always_inline
    def fetch(self, memory: View, round: Int32, place: Lds):
        """Starts loading the wave's part of a round of `memory`: the rows from some byte on, or
        nothing."""
        var offset = self.offsets[0]
        comptime for other in range(1, Self.listed_rounds):
            offset = self.offsets[other] if round == Int32(other) else offset
        var at = memory
        comptime if Self.listed_rounds == 0:
            at = memory.moved(round * Int32(Self.Loads.ROUND_ROWS) * self.row_bytes)
        comptime if Self.part > 1:
            var _, byte = Self.Loads.row_and_byte(self.wave, lane_here())
            var own = quotient[Self.part](offset - byte) + byte
            offset = own if offset != OUT_OF_RANGE else OUT_OF_RANGE
        at.load_to_lds[Self.piece_bytes](offset, place)


@always_inline
def fetch_bytes[
    waves: Int
](memory: View, num_bytes: Int32, lds: Lds, wave: Int32, lane: Int32) -> UInt8:
    """Starts loading bytes as they are in memory, a little more than `num_bytes`.

    The hardware loads whole words to LDS: returns the lane's byte of what is left behind the last
    word of the tensor, which `store_last` stores where all else has come.
    """
    var last_bytes = UInt8(0)
    var count = memory.tensor.desc[2].cast[DType.int32]()
    var rest = remainder[WORD_BYTES](count)
    if rest != 0:
        var end = View(memory.tensor, count - rest)
        last_bytes = end.load[1](lane)[0]
    var size = num_bytes + 2 * Int32(PIECE_BYTES)
    for at in range(wave * Int32(LOAD_BYTES), size, Int32(waves * LOAD_BYTES)):
        var place = lds.unsafe_offset(Int(at))
        memory.moved(at).load_to_lds[PIECE_BYTES](lane * Int32(PIECE_BYTES), place)
    return last_bytes


@always_inline
def store_last(
    memory: View, num_bytes: Int32, lds: Lds, wave: Int32, lane: Int32, last_bytes: UInt8
):
    """Stores the bytes that are no whole word, if they are among those that were wanted."""
    var count = memory.tensor.desc[2].cast[DType.int32]()
    var rest = remainder[WORD_BYTES](count)
    var at = count - rest - memory.place
    if rest != 0 and at < num_bytes:
        if wave == 0 and lane < rest:
            write_byte(bytes_at[WORD_BYTES](lds, at), Coord(lane), last_bytes)
        s_waitcnt[lgkmcnt=0]()
        s_waitcnt_barrier()


@always_inline
def _row_offset(row: Int32, row_bytes: Int32) -> Int32:
    """Returns `row * row_bytes`, both less than 2**24: a multiplication at full rate."""
    comptime LOW_24 = Int32(0xFFFFFF)
    return (row & LOW_24) * (row_bytes & LOW_24)


@fieldwise_init
struct SharedCodes[
    format: Format,
    row_pieces: Int,
    waves: Int,
    rounds: Int,
    parts: Int,
    k_tail: Bool,
    are_tiled: Bool = False,
](SharedRightSide):
    """Codes, a stage or a slice at a time.

    `parts`: Parts in which a place is fetched, each with every `parts`-th round.
    `are_tiled`: Whether what a wave loads at once lies together; otherwise codes are plain.
    """

    comptime PIECE = CODE_PIECE_BYTES[Self.format]
    comptime Loads = RowLoads[Self.row_pieces, Self.waves, Self.parts, Self.PIECE]
    comptime Listed = Self.Loads.Numbers[Self.rounds]
    comptime LOADS = Self.rounds // Self.parts
    comptime CODE_BYTES = LANE_BYTES[Self.format]
    comptime PLACE_BLOCKS = Self.row_pieces * Self.PIECE // Self.CODE_BYTES

    var codes: Span
    var k_blocks: Int32
    var offsets: Self.Listed
    """Where the lane's pieces of a place lie."""
    var lane_block: Int32
    """Which block of a place the lane loads, or a part of."""
    var wave: Int32
    var at: AMDBufferResource
    var block: Int32

    @staticmethod
    @always_inline
    def of(rows: OperandRows, wave: Int32, lane: Int32) -> Self:
        var row_bytes = rows.k_blocks * Int32(Self.CODE_BYTES)
        var row, piece = Self.Loads.row_and_piece(wave, lane)
        var count = rows.count
        comptime if Self.are_tiled:
            comptime assert Self.PLACE_BLOCKS == TILE_BLOCKS, "a tile is of 128 along K"
            comptime ROWS = Self.Loads.ROWS
            var tiles = quotient[TILE_BLOCKS](rows.k_blocks + Int32(TILE_BLOCKS - 1))
            row_bytes = tiles * Int32(TILE_BLOCKS * Self.CODE_BYTES)
            count = quotient[ROWS](count + Int32(ROWS - 1)) * Int32(ROWS)
        var offset = rows.first * row_bytes
        var span = Span.of(rows.bytes, count * row_bytes).from_offset(offset)
        var offsets = Self.Listed()
        comptime for load in range(Self.rounds):
            var load_row = row + Int32(Self.Loads.first_row(load, Self.rounds))
            comptime if Self.are_tiled:
                load_row -= remainder[Self.Loads.ROWS](row)
                offsets[load] = _row_offset(load_row, row_bytes) + lane * Int32(Self.PIECE)
                continue
            offsets[load] = _row_offset(load_row, row_bytes) + piece * Int32(Self.PIECE)
        var block = quotient[PIECES[Self.format]](piece)
        return Self(span, rows.k_blocks, offsets, block, wave, span.after(0), 0)

    @staticmethod
    @always_inline
    def of_list(rows: OperandRows, listed: Self.Listed, wave: Int32, lane: Int32) -> Self:
        """Describes the codes of rows that were looked up, and of `NO_ROW`."""
        var described = Self.of(rows, wave, lane)
        var row_bytes = rows.k_blocks * Int32(Self.CODE_BYTES)
        var _, byte = Self.Loads.row_and_byte(wave, lane)
        comptime for load in range(Self.rounds):
            var name = listed[load]
            var offset = _row_offset(name, row_bytes) + byte
            described.offsets[load] = offset if name != NO_ROW else OUT_OF_RANGE
        return described

    @always_inline
    def seek(mut self, place: Int32):
        self.block = place * Int32(Self.PLACE_BLOCKS)
        var is_inside = self.block < self.k_blocks
        comptime ROWS = Self.Loads.ROWS if Self.are_tiled else 1
        self.at = self.codes.after_if(self.block * Int32(ROWS * Self.CODE_BYTES), is_inside)

    @always_inline
    def fetch[part: Int](self, place: Lds):
        comptime for i in range(Self.LOADS):
            comptime load = part * Self.LOADS + i
            var offset = self.offsets[load]
            comptime if Self.k_tail:
                offset = offset if self.block + self.lane_block < self.k_blocks else OUT_OF_RANGE
            comptime FIRST = Self.Loads.first_row(load, Self.rounds) // Self.Loads.ROWS
            var first = (Int32(FIRST) + self.wave) * Int32(CODE_LOAD_BYTES[Self.format])
            load_to_lds[Self.PIECE](self.at, offset, place.unsafe_offset(Int(first)))


@fieldwise_init
struct SharedWeights[
    format: Format, columns: Int, waves: Int, slices: Int, parts: Int, k_tail: Bool
](SharedRightSide):
    """Preshuffled weights.

    `parts`: Parts in which they are fetched.
    """

    comptime CODE_BYTES = LANE_BYTES[Self.format]
    comptime TILE_BYTES = TILE * TILE_BLOCKS * Self.CODE_BYTES
    comptime WAVE_TILES = Self.columns // TILE // Self.waves
    """Tiles of columns that a wave loads."""
    comptime PIECE = CODE_PIECE_BYTES[Self.format]
    comptime TILE_LOADS = Self.WAVE_TILES * PIECES[Self.format]
    """Loads of a wave for a slice."""
    comptime LOADS = Self.slices * Self.TILE_LOADS // Self.parts

    var codes: Span
    var k_blocks: Int32
    var offsets: SIMD[DType.int32, Self.WAVE_TILES]
    """Where the lane's pieces of a phase begin."""
    var wave: Int32
    var lane: Int32
    var at: AMDBufferResource
    var block: Int32

    @staticmethod
    @always_inline
    def of(rows: OperandRows, wave: Int32, lane: Int32) -> Self:
        var tile_row_bytes = rows.k_blocks * Int32(TILE * Self.CODE_BYTES)
        var tiles = quotient[TILE](rows.count + Int32(TILE - 1))
        var offset = quotient[TILE](rows.first) * tile_row_bytes
        var span = Span.of(rows.bytes, tiles * tile_row_bytes).from_offset(offset)
        var offsets = SIMD[DType.int32, Self.WAVE_TILES](0)
        comptime for i in range(Self.WAVE_TILES):
            var tile = wave + Int32(i * Self.waves)
            offsets[i] = tile * tile_row_bytes + lane * Int32(Self.PIECE)
        return Self(span, rows.k_blocks, offsets, wave, lane, span.after(0), 0)

    @always_inline
    def seek(mut self, place: Int32):
        self.block = place * Int32(Self.slices * TILE_BLOCKS)
        var is_inside = self.block < self.k_blocks
        self.at = self.codes.after_if(self.block * Int32(TILE * Self.CODE_BYTES), is_inside)

    @always_inline
    def fetch[part: Int](self, place: Lds):
        comptime LANE_PIECES = PIECES[Self.format]
        comptime for load in range(Self.LOADS):
            comptime slice, tile_load = divmod(part * Self.LOADS + load, Self.TILE_LOADS)
            comptime i, piece = divmod(tile_load, LANE_PIECES)
            comptime piece_byte = piece * LANES * Self.PIECE
            var offset = self.offsets[i] + Int32(slice * Self.TILE_BYTES + piece_byte)
            comptime if Self.k_tail:
                var fed = quotient[TILE](self.lane) + Int32(piece * TILE_BLOCKS)
                var block = Int32(slice * TILE_BLOCKS) + quotient[LANE_PIECES](fed)
                comptime if Self.format.element.bits == 6:
                    # K is a multiple of 64, half of a tile.
                    block = Int32(slice * TILE_BLOCKS + piece * TILE_BLOCKS // LANE_PIECES)
                offset = offset if self.block + block < self.k_blocks else OUT_OF_RANGE
            var tile = self.wave + Int32((slice * Self.WAVE_TILES + i) * Self.waves)
            var first = tile * Int32(Self.TILE_BYTES) + Int32(piece_byte)
            load_to_lds[Self.PIECE](self.at, offset, place.unsafe_offset(Int(first)))

    @always_inline
    def keep_inside[count: Int, //](self, stage: Int32, words: WordTile[count]):
        comptime LOW_HALF = UInt32(0x0000FFFF)
        var block = stage * Int32(GROUP_BLOCKS) + quotient[TILE](self.lane)
        comptime if LANE_SCALES[Self.format] > 1:
            comptime for word in range(count):
                comptime slice = word % GROUP_TILES
                var is_inside = block + Int32(slice * TILE_BLOCKS) < self.k_blocks
                words[word] = words[word] if is_inside else 0
            return
        var low = LOW_HALF if block < self.k_blocks else 0
        var high = ~LOW_HALF if block + Int32(TILE_BLOCKS) < self.k_blocks else 0
        comptime for word in range(count):
            words[word] &= low | high


@fieldwise_init
struct SharedScales[format: Format, shared_rows: Int, wave_rows: Int, k_tail: Bool, run: Int = 1](
    TrivialRegisterPassable
):
    """Scales, a group of 32 rows and a stage a wave.

    They are bytes in the preshuffled order, or floats of blocks in the plain one. Where there are
    fewer groups than waves, the other waves load zeros.

    Of floats a load is of a run of stages, and of as many of the rows as a wave has lanes for:

        lane    0 .. 7              8 .. 15             ..
        byte    0 .. 31             32 .. 63            ..
        of      row 0, 8 blocks     row 1, 8 blocks     ..      (a run of four)

    `shared_rows`: Rows of the operand that the workgroup shares.
    `wave_rows`: Rows of the operand that a wave multiplies.
    `run`: Stages of a run, and loads of its rows.
    """

    comptime HAS_BYTES = Self.format.scale != Scale.FLOAT32
    comptime GROUP_BYTES = SCALE_GROUP_BYTES * LANE_SCALES[Self.format]
    comptime LOADS = LANE_SCALES[Self.format] if Self.HAS_BYTES else _float_loads(Self.format)
    comptime RUN_SLICES = Self.run * GROUP_TILES
    comptime LOAD_ROWS = LANES // Self.RUN_SLICES
    """Rows of a load of floats."""
    comptime BLOCK_ROWS = Self.format.block_rows if Self.LOADS > 0 else 1

    var scales: Span
    """The scales from the workgroup's first row on."""
    var k_blocks: Int32
    var offset: Int32
    """Where the lane's word of a stage lies."""
    var place: Int32
    """The byte where the wave's words go."""
    var at: AMDBufferResource
    var block: Int32
    """Of floats, the lane's first block of a stage."""
    var blocks_left: Int32
    """Blocks from what was sought to K."""
    var load: Int32
    """Of floats, which of the loads of a run."""

    @staticmethod
    @always_inline
    def of(rows: OperandRows, wave: Int32, lane: Int32) -> Self:
        var offset, block, span = Int32(0), Int32(0), Span(rows.bytes, 0)
        comptime if Self.HAS_BYTES:
            var row_bytes = scale_row_bytes[Self.format](rows.k_blocks)
            var groups = quotient[SCALE_GROUP_ROWS](rows.count + Int32(SCALE_GROUP_ROWS - 1))
            var first = quotient[SCALE_GROUP_ROWS](rows.first) * row_bytes
            span = Span.of(rows.bytes, groups * row_bytes).from_offset(first)
            offset = wave * row_bytes + lane * 4
        else:
            # A lane's is of a row and a slice, or of the wave's columns.
            comptime ROWS = Self.BLOCK_ROWS
            var row_bytes = _float_row_bytes(rows.k_blocks)
            var row = rows.first + wave * Int32(SCALE_GROUP_ROWS) + quotient[Self.RUN_SLICES](lane)
            var slice = remainder[Self.RUN_SLICES](lane)
            comptime if ROWS > 1:
                comptime assert ROWS % Self.wave_rows == 0, "a wave's columns share scales"
                comptime WAVES_N = Self.shared_rows // Self.wave_rows
                row = rows.first + wave % Int32(WAVES_N) * Int32(Self.wave_rows)
            span = Span.of(rows.bytes, quotient[ROWS](rows.count + Int32(ROWS - 1)) * row_bytes)
            offset = quotient[ROWS](row) * row_bytes + slice * Int32(WORD_BYTES)
            block = slice * Int32(TILE_BLOCKS)
        var is_shared = wave * Int32(SCALE_GROUP_ROWS) < Int32(Self.shared_rows)
        offset = offset if is_shared else OUT_OF_RANGE
        var place = wave * Int32(Self.GROUP_BYTES)
        comptime if not Self.HAS_BYTES and Self.BLOCK_ROWS == 1:
            place = wave * Int32(Self.run * scale_load_bytes(Self.run))
        return Self(span, rows.k_blocks, offset, place, span.after(0), block, rows.k_blocks, 0)

    @always_inline
    def seek(mut self, stage: Int32):
        """Turns to a stage; of floats to a load, of which a run has as many as stages."""
        comptime if Self.LOADS > 0:
            var run = quotient[Self.run](stage)
            self.load = remainder[Self.run](stage)
            self.blocks_left = self.k_blocks - run * Int32(Self.run * GROUP_BLOCKS)
            var offset = run * Int32(Self.GROUP_BYTES)
            comptime if not Self.HAS_BYTES:
                offset = run * Int32(Self.RUN_SLICES * WORD_BYTES)
                comptime if Self.BLOCK_ROWS == 1 and Self.run > 1:
                    var rows = self.load * Int32(Self.LOAD_ROWS)
                    offset += rows * _float_row_bytes(self.k_blocks)
            self.at = self.scales.after_if(offset, self.blocks_left > 0)

    @always_inline
    def fetch(self, stage: Lds):
        """Starts loading the wave's share of the stage, or of a run."""
        var offset, first_byte = self.offset, self.place
        comptime if not Self.HAS_BYTES and Self.BLOCK_ROWS == 1:
            first_byte += self.load * Int32(scale_load_bytes(Self.run))
        comptime if Self.k_tail and not Self.HAS_BYTES:
            # Beyond K is the next row, which may be NaN.
            offset = offset if self.block < self.blocks_left else OUT_OF_RANGE
        comptime for load in range(Self.LOADS):
            comptime first = load * SCALE_GROUP_BYTES
            var place = stage.unsafe_offset(Int(first_byte) + first)
            load_to_lds[WORD_BYTES](self.at, offset + Int32(first), place)


@always_inline
def _float_row_bytes(k_blocks: Int32) -> Int32:
    """Returns the bytes of the float scales of a row of blocks of 1 x 128."""
    return quotient[TILE_BLOCKS](k_blocks + Int32(TILE_BLOCKS - 1)) * Int32(WORD_BYTES)


def _float_loads(format: Format) -> Int:
    """Returns the loads of float scales of a stage."""
    return 0 if format.has_row_scales() else 1

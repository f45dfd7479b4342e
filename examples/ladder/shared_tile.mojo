"""What a workgroup of the ladder shares: a stage of both operands in LDS, and who computes what.

    wave (m, n)     64 rows x 64 columns of C: 4 x 4 tiles of 16 x 16
    stage           256 along K: two slices, each one matrix instruction a tile
    in LDS          codes of A, codes of W, scale words of A, scale words of W

A row of a stage is 128 bytes, eight pieces of 16; a lane feeds one piece. With `is_swizzled` the
pieces of a row are exchanged by its number, so that the lanes that LDS serves together meet in
no bank. Codes are plain [rows, K / 2]; scales are words of the preshuffled layout, one a lane.
"""

from layout import Coord
from max.gpu import block_idx, thread_idx
from max.gpu.intrinsics import AMDBufferResource
from std.math import ceildiv
from std.memory import bitcast
from std.sys.intrinsics import readfirstlane

from mojo_kernels.cdna4.chip import LANES, PIECE_BYTES, SUMS, TILE
from mojo_kernels.cdna4.instructions.lds import (
    Lds,
    Piece,
    pieces_at,
    read_piece,
    read_word,
    words_at,
    write_piece,
)
from mojo_kernels.cdna4.instructions.matrix import BlockCodes, SumTile, Sums, multiply_tiles
from mojo_kernels.cdna4.instructions.memory import load_to_lds
from mojo_kernels.cdna4.instructions.vector import zero_of_a_branch
from mojo_kernels.numbers.formats import Format
from mojo_kernels.tiles import RegisterTile, in_registers

comptime MXFP4 = Format.MXFP4
comptime SIDE = 4
"""Tiles of a wave along either side."""
comptime SLICES = 2
"""Matrix instructions along K of a stage."""
comptime ROW_BYTES = 128
"""Bytes of a row of a stage."""
comptime ROW_PIECES = ROW_BYTES // PIECE_BYTES
comptime STAGE_K = 2 * ROW_BYTES
"""Elements along K of a stage."""
comptime GROUP_ROWS = 32
"""Rows whose scales share words."""
comptime WORD_BYTES = 4
comptime GROUP_BYTES = LANES * WORD_BYTES
"""Bytes of the scales of such rows, of a stage."""
comptime GROUPS = SIDE * TILE // GROUP_ROWS
"""Groups of scales of a wave along either side."""
comptime Bytes = ImmPointer[UInt8, ImmutAnyOrigin]
comptime Pieces[*sizes: Int] = RegisterTile[DType.uint32, 4, *sizes]
comptime Words[*sizes: Int] = RegisterTile[DType.uint32, 1, *sizes]


@fieldwise_init
struct Rows(TrivialRegisterPassable):
    """An operand from a workgroup's first row on."""

    var codes: AMDBufferResource
    var scales: AMDBufferResource
    var codes_place: Int32
    """Bytes from the operand's first row to the workgroup's."""
    var scales_place: Int32
    """The same of the scales."""
    var k: Int32

    @staticmethod
    @always_inline
    def of(
        codes: Bytes,
        scales: Bytes,
        rows: Int32,
        k: Int32,
        first_row: Int32,
    ) -> Self:
        """Describes the rows from `first_row` on, a multiple of 32."""
        var stages = k // STAGE_K
        return Self(
            AMDBufferResource(codes, Int(rows * (k // 2))),
            AMDBufferResource(scales, Int(ceildiv(rows, GROUP_ROWS) * stages * GROUP_BYTES)),
            first_row * (k // 2),
            first_row // GROUP_ROWS * stages * GROUP_BYTES,
            k,
        )

    @always_inline
    def codes_offset(self, row: Int32, stage: Int32, piece: Int32) -> Int32:
        """Returns where a piece of a row of a stage lies."""
        return row * (self.k // 2) + stage * ROW_BYTES + piece * PIECE_BYTES

    @always_inline
    def piece(self, row: Int32, stage: Int32, piece: Int32) -> Piece:
        """Loads a piece to registers."""
        var bytes = self.codes.load[DType.uint8, PIECE_BYTES](
            self.codes_offset(row, stage, piece), scalar_offset=self.codes_place
        )
        return bitcast[DType.uint32, 4](bytes)

    @always_inline
    def word_offset(self, group: Int32, stage: Int32, lane: Int32) -> Int32:
        """Returns where a lane's word of scales lies."""
        return (group * (self.k // STAGE_K) + stage) * GROUP_BYTES + lane * WORD_BYTES

    @always_inline
    def word(self, group: Int32, stage: Int32, lane: Int32) -> UInt32:
        """Loads a lane's word of scales to a register."""
        var bytes = self.scales.load[DType.uint8, WORD_BYTES](
            self.word_offset(group, stage, lane), scalar_offset=self.scales_place
        )
        return bitcast[DType.uint32, 1](bytes)


@always_inline
def exchanged[is_swizzled: Bool](piece: Int32) -> Int32:
    """Returns the piece of a tile that stands in the place of `piece`; its own inverse."""
    comptime if is_swizzled:
        return piece ^ ((piece >> 4) & 7)  # Bits 4 .. 6: the row's number, halved.
    return piece


@always_inline
def cleared() -> SumTile[SIDE, SIDE]:
    """Returns sums of zero."""
    var sums = in_registers[DType.float32, SUMS, SIDE, SIDE]()
    comptime for m in range(SIDE):
        comptime for n in range(SIDE):
            var zeros = Sums(0)
            comptime for i in range(SUMS):
                zeros[i] = bitcast[DType.float32](zero_of_a_branch())
            sums[m, n] = zeros
    return sums


@always_inline
def store_tile(
    c: MutPointer[BFloat16, MutAnyOrigin], sums: Sums, n: Int32, row: Int32, column: Int32
):
    """Stores a lane's four neighbours of a row."""
    c.unsafe_offset(Int(row * n + column)).unsafe_store[alignment=8](sums.cast[DType.bfloat16]())


@fieldwise_init
struct SharedTile[waves_m: Int, waves_n: Int, is_swizzled: Bool](TrivialRegisterPassable):
    """A workgroup of `waves_m` x `waves_n` waves, and a thread's place in it."""

    comptime WAVES = Self.waves_m * Self.waves_n
    comptime ROWS = Self.waves_m * SIDE * TILE
    """Rows of C of the workgroup."""
    comptime COLUMNS = Self.waves_n * SIDE * TILE
    comptime W_PLACE = Self.ROWS * ROW_BYTES
    comptime A_SCALES_PLACE = Self.W_PLACE + Self.COLUMNS * ROW_BYTES
    comptime W_SCALES_PLACE = Self.A_SCALES_PLACE + Self.WAVES * GROUP_BYTES
    comptime STAGE_BYTES = Self.W_SCALES_PLACE + Self.WAVES * GROUP_BYTES
    """Bytes of a stage in LDS."""
    comptime A_LOADS = Self.ROWS * ROW_PIECES // (LANES * Self.WAVES)
    """Pieces of A that a thread moves for a stage."""
    comptime W_LOADS = Self.COLUMNS * ROW_PIECES // (LANES * Self.WAVES)
    comptime LOADS = Self.A_LOADS + Self.W_LOADS + 2
    """Loads of a wave for a stage, scales included."""

    var a: Rows
    var w: Rows
    var first_row: Int32
    var first_column: Int32
    var wave: Int32
    var lane: Int32

    @staticmethod
    @always_inline
    def of(
        a_codes: Bytes,
        a_scales: Bytes,
        w_codes: Bytes,
        w_scales: Bytes,
        m: Int32,
        n: Int32,
        k: Int32,
    ) -> Self:
        """Finds this thread's workgroup, wave and lane."""
        var first_row = Int32(block_idx.y) * Int32(Self.ROWS)
        var first_column = Int32(block_idx.x) * Int32(Self.COLUMNS)
        return Self(
            Rows.of(a_codes, a_scales, m, k, first_row),
            Rows.of(w_codes, w_scales, n, k, first_column),
            first_row,
            first_column,
            readfirstlane(Int32(thread_idx.x) // LANES),
            Int32(thread_idx.x) % LANES,
        )

    @always_inline
    def fetch(self, stage: Int32, lds: Lds):
        """Starts loading a stage straight to LDS."""
        self._fetch[Self.A_LOADS](self.a, stage, lds)
        self._fetch[Self.W_LOADS](self.w, stage, lds.unsafe_offset(Self.W_PLACE))
        self._fetch_scales[Self.ROWS](self.a, stage, lds.unsafe_offset(Self.A_SCALES_PLACE))
        self._fetch_scales[Self.COLUMNS](self.w, stage, lds.unsafe_offset(Self.W_SCALES_PLACE))

    @always_inline
    def _fetch[loads: Int](self, rows: Rows, stage: Int32, lds: Lds):
        comptime for i in range(loads):
            var first = (Int32(i * Self.WAVES) + self.wave) * LANES
            var piece = exchanged[Self.is_swizzled](first + self.lane)
            load_to_lds[PIECE_BYTES](
                rows.codes,
                rows.codes_offset(piece // ROW_PIECES, stage, piece % ROW_PIECES),
                lds.unsafe_offset(Int(first * PIECE_BYTES)),
                rows.codes_place,
            )

    @always_inline
    def _fetch_scales[count: Int](self, rows: Rows, stage: Int32, lds: Lds):
        # Waves beyond the groups load one again, to a place that nobody reads.
        var group = self.wave % Int32(count // GROUP_ROWS)
        load_to_lds[WORD_BYTES](
            rows.scales,
            rows.word_offset(group, stage, self.lane),
            lds.unsafe_offset(Int(self.wave * GROUP_BYTES)),
            rows.scales_place,
        )

    @always_inline
    def load_codes(self, stage: Int32, pieces: Pieces[Self.A_LOADS + Self.W_LOADS]):
        """Loads a thread's pieces of a stage to registers."""
        comptime for i in range(Self.A_LOADS + Self.W_LOADS):
            var rows = self.a if i < Self.A_LOADS else self.w
            comptime load = i if i < Self.A_LOADS else i - Self.A_LOADS
            var piece = (Int32(load * Self.WAVES) + self.wave) * LANES + self.lane
            pieces[i] = rows.piece(piece // ROW_PIECES, stage, piece % ROW_PIECES)

    @always_inline
    def write_codes(self, pieces: Pieces[Self.A_LOADS + Self.W_LOADS], lds: Lds):
        """Writes such pieces to LDS."""
        comptime for i in range(Self.A_LOADS + Self.W_LOADS):
            comptime start = 0 if i < Self.A_LOADS else Self.W_PLACE
            comptime load = i if i < Self.A_LOADS else i - Self.A_LOADS
            var piece = (Int32(load * Self.WAVES) + self.wave) * LANES + self.lane
            var place = start + Int(exchanged[Self.is_swizzled](piece) * PIECE_BYTES)
            write_piece(pieces_at[1](lds.unsafe_offset(place)), Coord(0), pieces[i])

    @always_inline
    def read_codes[slice: Int](self, lds: Lds, a: Pieces[SLICES, SIDE], w: Pieces[SLICES, SIDE]):
        """Reads what the lane feeds for a slice."""
        var m, n = self.wave // Int32(Self.waves_n), self.wave % Int32(Self.waves_n)
        var in_row = Int32(slice * ROW_PIECES // SLICES) + self.lane // TILE
        comptime for tile in range(SIDE):
            var row = (m * SIDE + Int32(tile)) * TILE + self.lane % TILE
            var piece = exchanged[Self.is_swizzled](row * ROW_PIECES + in_row)
            a[slice, tile] = _read(lds, piece)
            row = (n * SIDE + Int32(tile)) * TILE + self.lane % TILE
            piece = exchanged[Self.is_swizzled](row * ROW_PIECES + in_row)
            w[slice, tile] = _read(lds.unsafe_offset(Self.W_PLACE), piece)

    @always_inline
    def read_scales(self, lds: Lds, a: Words[GROUPS], w: Words[GROUPS]):
        """Reads the lane's words of scales from LDS."""
        var m, n = self.wave // Int32(Self.waves_n), self.wave % Int32(Self.waves_n)
        comptime for group in range(GROUPS):
            a[group] = self._word(lds, Self.A_SCALES_PLACE, m * GROUPS + Int32(group))
            w[group] = self._word(lds, Self.W_SCALES_PLACE, n * GROUPS + Int32(group))

    @always_inline
    def _word(self, lds: Lds, start: Int, group: Int32) -> UInt32:
        var place = start + Int(group * GROUP_BYTES + self.lane * WORD_BYTES)
        return read_word(words_at[1](lds.unsafe_offset(place)), Coord(0))

    @always_inline
    def load_scales(self, stage: Int32, a: Words[GROUPS], w: Words[GROUPS]):
        """Loads the lane's words of scales from memory."""
        var m, n = self.wave // Int32(Self.waves_n), self.wave % Int32(Self.waves_n)
        comptime for group in range(GROUPS):
            a[group] = self.a.word(m * GROUPS + Int32(group), stage, self.lane)
            w[group] = self.w.word(n * GROUPS + Int32(group), stage, self.lane)

    @always_inline
    def store(
        self,
        c: MutPointer[BFloat16, MutAnyOrigin],
        sums: SumTile[SIDE, SIDE],
        n: Int32,
    ):
        """Stores the wave's part of C."""
        var row = self.first_row + self.wave // Int32(Self.waves_n) * (SIDE * TILE)
        var column = self.first_column + self.wave % Int32(Self.waves_n) * (SIDE * TILE)
        row += self.lane % TILE
        column += self.lane // TILE * SUMS
        comptime for m_tile in range(SIDE):
            comptime for n_tile in range(SIDE):
                store_tile(
                    c,
                    sums[m_tile, n_tile],
                    n,
                    row + Int32(m_tile * TILE),
                    column + Int32(n_tile * TILE),
                )


@always_inline
def _read(lds: Lds, piece: Int32) -> Piece:
    return read_piece(pieces_at[1](lds.unsafe_offset(Int(piece * PIECE_BYTES))), Coord(0))


@always_inline
def multiply[
    m_tiles: Int, n_tiles: Int, a_groups: Int, w_groups: Int, //, slice: Int
](
    sums: SumTile[m_tiles, n_tiles],
    a: Pieces[SLICES, m_tiles],
    w: Pieces[SLICES, n_tiles],
    a_scales: Words[a_groups],
    w_scales: Words[w_groups],
):
    """Multiplies a slice: a word of scales serves two tiles and both slices."""
    comptime for m in range(m_tiles):
        comptime for n in range(n_tiles):
            sums[m, n] = multiply_tiles[MXFP4, MXFP4, 2 * slice + n % 2, 2 * slice + m % 2](
                sums[m, n],
                rebind[BlockCodes[MXFP4]](w[slice, n]),
                rebind[BlockCodes[MXFP4]](a[slice, m]),
                w_scales[n // 2],
                a_scales[m // 2],
            )

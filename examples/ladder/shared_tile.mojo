"""What a workgroup of the ladder shares: a stage of both operands in LDS, and who computes what.

    wave (m, n)     `m_tiles` x `n_tiles` tiles of C, of 16 x 16
    stage           a row has 128 bytes: 256 along K of MXFP4, 128 of FP8, 64 of float16
    slice           half a row, of which a lane feeds a piece of 16 bytes
    in LDS          codes of A, codes of W; of MXFP4 scale words of A, scale words of W

A slice of MXFP4 or float16 is one matrix instruction a tile, both slices of FP8 together are one. With
`is_swizzled` the pieces of a row are exchanged by its number, so that the lanes that LDS serves
together meet in no bank. Codes are plain, row by row; scales of MXFP4 are words of the preshuffled
layout, one a lane; FP8, which is E4M3, and float16 have no scales.
"""

from layout import Coord
from max.gpu import block_idx, thread_idx
from max.gpu.intrinsics import AMDBufferResource
from max.gpu.sync import s_waitcnt, schedule_barrier
from std.math import ceildiv
from std.memory import bitcast
from std.sys._assembly import inlined_assembly
from std.sys.intrinsics import readfirstlane

from mojo_kernels.cdna4.chip import LANES, PIECE_BYTES, SUMS, TILE
from mojo_kernels.cdna4.instructions.lds import (
    Lds,
    PIECE_WORDS,
    Piece,
    bytes_at,
    pieces_at,
    read_piece,
    read_word,
    words_at,
    write_byte,
    write_piece,
)
from mojo_kernels.cdna4.instructions.matrix import (
    BlockCodes,
    SumTile,
    Sums,
    multiply_codes,
    multiply_piece,
    multiply_tiles,
)
from mojo_kernels.cdna4.instructions.memory import load_to_lds, scalar_here
from mojo_kernels.cdna4.instructions.vector import zero_of_a_branch
from mojo_kernels.cdna4.types import F16
from mojo_kernels.numbers.formats import Format
from mojo_kernels.tiles import RegisterTile, in_registers

comptime MXFP4 = Format.MXFP4
comptime FP8 = Format.FP8
comptime SLICES = 2
"""Pieces of a row of a stage that a lane feeds."""
comptime ROW_BYTES = 128
"""Bytes of a row of a stage."""
comptime ROW_PIECES = ROW_BYTES // PIECE_BYTES
comptime STAGE_K[format: Format] = ROW_BYTES * 8 // format.element.bits
"""Elements along K of a stage."""
comptime GROUP_ROWS = 32
"""Rows whose scales share words."""
comptime WORD_BYTES = 4
comptime GROUP_BYTES = LANES * WORD_BYTES
"""Bytes of the scales of such rows, of a stage."""
comptime GROUPS[tiles: Int] = ceildiv(tiles * TILE, GROUP_ROWS)
"""Groups of scales of so many tiles."""
comptime ACCUMULATORS = 256
"""Accumulation registers of a lane."""
comptime FILL_ACCUMULATORS[tiles: Int] = tiles * SUMS == ACCUMULATORS
"""Whether sums of so many tiles fill them."""
comptime Bytes = ImmPointer[UInt8, ImmutAnyOrigin]
comptime Pieces[*sizes: Int] = RegisterTile[DType.uint32, 4, *sizes]
comptime Words[*sizes: Int] = RegisterTile[DType.uint32, 1, *sizes]


@fieldwise_init
struct Rows[format: Format = MXFP4](TrivialRegisterPassable):
    """An operand from a workgroup's first row on."""

    comptime HAS_SCALES = Self.format == MXFP4

    var codes: AMDBufferResource
    var scales: AMDBufferResource
    var codes_place: Int32
    """Bytes from the operand's first row to the workgroup's."""
    var scales_place: Int32
    """The same of the scales."""
    var stages: Int32
    """Stages along K."""

    @staticmethod
    @always_inline
    def of(
        codes: Bytes,
        scales: Bytes,
        rows: Int32,
        k: Int32,
        first_row: Int32,
    ) -> Self:
        """Describes the rows from `first_row` on; of MXFP4 it is a multiple of 32."""
        var stages = k // Int32(STAGE_K[Self.format])
        var scale_bytes = ceildiv(rows, GROUP_ROWS) * stages * GROUP_BYTES
        return Self(
            AMDBufferResource(codes, Int(rows * stages * ROW_BYTES)),
            AMDBufferResource(scales, Int(scale_bytes) if Self.HAS_SCALES else 0),
            first_row * stages * ROW_BYTES,
            first_row // GROUP_ROWS * stages * GROUP_BYTES,
            stages,
        )

    @always_inline
    def codes_offset(self, row: Int32, stage: Int32, piece: Int32) -> Int32:
        """Returns where a piece of a row of a stage lies."""
        return (row * self.stages + stage) * ROW_BYTES + piece * PIECE_BYTES

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
        return (group * self.stages + stage) * GROUP_BYTES + lane * WORD_BYTES

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
def wave_of_thread() -> Int32:
    """Returns the number of this wave in its workgroup."""
    return readfirstlane(Int32(thread_idx.x) // LANES)


@always_inline
def cleared[m_tiles: Int, n_tiles: Int]() -> SumTile[m_tiles, n_tiles]:
    """Returns sums of zero."""
    var sums = in_registers[DType.float32, SUMS, m_tiles, n_tiles]()
    comptime for m in range(m_tiles):
        comptime for n in range(n_tiles):
            var zeros = Sums(0)
            comptime if not FILL_ACCUMULATORS[m_tiles * n_tiles]:
                comptime for i in range(SUMS):
                    zeros[i] = bitcast[DType.float32](zero_of_a_branch())
            sums[m, n] = zeros
    keep(sums)
    return sums


@always_inline
def keep[m_tiles: Int, n_tiles: Int, //](sums: SumTile[m_tiles, n_tiles]):
    """Keeps sums that fill the accumulation registers there; the compiler moves them about
    otherwise."""
    comptime if FILL_ACCUMULATORS[m_tiles * n_tiles]:
        comptime for m in range(m_tiles):
            comptime for n in range(n_tiles):
                sums[m, n] = inlined_assembly["", Sums, constraints="=a,0", has_side_effect=True](
                    sums[m, n]
                )


@always_inline
def store_tile(
    c: MutPointer[BFloat16, MutAnyOrigin], sums: Sums, n: Int32, row: Int32, column: Int32
):
    """Stores a lane's four neighbours of a row."""
    c.unsafe_offset(Int(row * n + column)).unsafe_store[alignment=8](sums.cast[DType.bfloat16]())


@fieldwise_init
struct SharedTile[
    format: Format,
    waves_m: Int,
    waves_n: Int,
    m_tiles: Int,
    n_tiles: Int,
    is_swizzled: Bool,
    parts: Int = 1,
](TrivialRegisterPassable):
    """A workgroup of `waves_m` x `waves_n` waves, and a thread's place in it.

    `parts`: Into how many the workgroup's rows, and its columns, are cut; each wave has its share of
    every one. Of MXFP4 it is 1.
    """

    comptime WAVES = Self.waves_m * Self.waves_n
    comptime ROWS = Self.waves_m * Self.m_tiles * TILE
    """Rows of C of the workgroup."""
    comptime COLUMNS = Self.waves_n * Self.n_tiles * TILE
    comptime HAS_SCALES = Rows[Self.format].HAS_SCALES
    comptime SCALES_BYTES = Self.WAVES * GROUP_BYTES if Self.HAS_SCALES else 0
    """Bytes of the scales of a stage of an operand."""
    comptime W_PLACE = Self.ROWS * ROW_BYTES
    comptime A_SCALES_PLACE = Self.W_PLACE + Self.COLUMNS * ROW_BYTES
    comptime W_SCALES_PLACE = Self.A_SCALES_PLACE + Self.SCALES_BYTES
    comptime STAGE_BYTES = Self.W_SCALES_PLACE + Self.SCALES_BYTES
    """Bytes of a stage in LDS."""
    comptime A_LOADS = Self.ROWS * ROW_PIECES // (LANES * Self.WAVES)
    """Pieces of A that a thread moves for a stage."""
    comptime W_LOADS = Self.COLUMNS * ROW_PIECES // (LANES * Self.WAVES)
    comptime LOADS = Self.A_LOADS + Self.W_LOADS + (2 if Self.HAS_SCALES else 0)
    """Loads of a wave for a stage, scales included."""
    comptime A = Pieces[SLICES, Self.m_tiles]
    """What a lane feeds of A for a stage."""
    comptime W = Pieces[SLICES, Self.n_tiles]
    comptime AScales = Words[GROUPS[Self.m_tiles]]
    comptime WScales = Words[GROUPS[Self.n_tiles]]

    var a: Rows[Self.format]
    var w: Rows[Self.format]
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
        var row, column = Int32(block_idx.y), Int32(block_idx.x)
        return Self.at(a_codes, a_scales, w_codes, w_scales, m, n, k, row, column, wave_of_thread())

    @staticmethod
    @always_inline
    def at(
        a_codes: Bytes,
        a_scales: Bytes,
        w_codes: Bytes,
        w_scales: Bytes,
        m: Int32,
        n: Int32,
        k: Int32,
        row: Int32,
        column: Int32,
        wave: Int32,
    ) -> Self:
        """Describes wave `wave` of tile (`row`, `column`) of C."""
        var first_row, first_column = row * Int32(Self.ROWS), column * Int32(Self.COLUMNS)
        return Self(
            Rows[Self.format].of(a_codes, a_scales, m, k, first_row),
            Rows[Self.format].of(w_codes, w_scales, n, k, first_column),
            first_row,
            first_column,
            wave,
            Int32(thread_idx.x) % LANES,
        )

    @always_inline
    def fetch(self, stage: Int32, lds: Lds):
        """Starts loading a stage straight to LDS."""
        self.fetch_rows[0, Self.A_LOADS](stage, lds)
        self.fetch_columns[0, Self.W_LOADS](stage, lds)
        comptime if Self.HAS_SCALES:
            self._fetch_scales[Self.ROWS](self.a, stage, lds.unsafe_offset(Self.A_SCALES_PLACE))
            self._fetch_scales[Self.COLUMNS](self.w, stage, lds.unsafe_offset(Self.W_SCALES_PLACE))

    @always_inline
    def fetch_rows[first: Int, loads: Int](self, stage: Int32, lds: Lds):
        """Starts some loads of A, from number `first` of `A_LOADS` on."""
        self._fetch[first, loads](self.a, stage, lds)

    @always_inline
    def fetch_columns[first: Int, loads: Int](self, stage: Int32, lds: Lds):
        """Starts some loads of W, from number `first` of `W_LOADS` on."""
        self._fetch[first, loads](self.w, stage, lds.unsafe_offset(Self.W_PLACE))

    @always_inline
    def _fetch[first: Int, loads: Int](self, rows: Rows[Self.format], stage: Int32, lds: Lds):
        comptime for i in range(first, first + loads):
            var place = (Int32(i * Self.WAVES) + self.wave) * LANES
            var piece = exchanged[Self.is_swizzled](place + self.lane)
            load_to_lds[PIECE_BYTES](
                rows.codes,
                rows.codes_offset(piece // ROW_PIECES, stage, piece % ROW_PIECES),
                lds.unsafe_offset(Int(place * PIECE_BYTES)),
                rows.codes_place,
            )

    @always_inline
    def _fetch_scales[count: Int](self, rows: Rows[Self.format], stage: Int32, lds: Lds):
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
    def move_bytes(self, stage: Int32, lds: Lds):
        """Moves a stage a byte at a time: each is loaded, waited for and written."""
        self._move_bytes[Self.ROWS](self.a, stage, lds)
        self._move_bytes[Self.COLUMNS](self.w, stage, lds.unsafe_offset(Self.W_PLACE))

    @always_inline
    def _move_bytes[count: Int](self, rows: Rows[Self.format], stage: Int32, lds: Lds):
        comptime THREADS = Self.WAVES * LANES
        var byte = UInt32(self.wave * LANES + self.lane)
        for _ in range(scalar_here(Int32(count * ROW_BYTES // THREADS))):
            var row, in_row = Int32(byte // ROW_BYTES), Int32(byte % ROW_BYTES)
            var code = rows.codes.load[DType.uint8, 1](
                rows.codes_offset(row, stage, 0) + in_row, scalar_offset=rows.codes_place
            )
            write_byte(bytes_at[1](lds.unsafe_offset(Int(byte))), Coord(0), code)
            byte += UInt32(THREADS)

    @always_inline
    def read_codes[slice: Int](self, lds: Lds, a: Self.A, w: Self.W):
        """Reads what the lane feeds for a slice."""
        self.read_rows[slice](lds, a)
        self.read_columns[slice](lds, w)

    @always_inline
    def read_rows[
        tiles: Int, //, slice: Int, first: Int = 0
    ](self, lds: Lds, a: Pieces[SLICES, tiles]):
        """Reads what the lane feeds of some tiles of A, from number `first` of the wave's on."""
        comptime for tile in range(tiles):
            a[slice, tile] = self._read[slice](lds, self._row_of[first + tile]())

    @always_inline
    def read_columns[
        tiles: Int, //, slice: Int, first: Int = 0
    ](self, lds: Lds, w: Pieces[SLICES, tiles]):
        """Reads the same of W."""
        comptime for tile in range(tiles):
            w[slice, tile] = self._read[slice](
                lds.unsafe_offset(Self.W_PLACE), self._column_of[first + tile]()
            )

    @always_inline
    def _row_of[tile: Int](self) -> Int32:
        """Returns the first row of a tile of the wave, counted in the workgroup's."""
        comptime PART = Self.m_tiles // Self.parts
        comptime FIRST = tile // PART * Self.waves_m * PART + tile % PART
        return (self.wave // Int32(Self.waves_n) * Int32(PART) + Int32(FIRST)) * TILE

    @always_inline
    def _column_of[tile: Int](self) -> Int32:
        """Returns its first column, likewise."""
        comptime PART = Self.n_tiles // Self.parts
        comptime FIRST = tile // PART * Self.waves_n * PART + tile % PART
        return (self.wave % Int32(Self.waves_n) * Int32(PART) + Int32(FIRST)) * TILE

    @always_inline
    def _read[slice: Int](self, lds: Lds, first_row: Int32) -> Piece:
        # Tiles do not change what is exchanged: one address serves them all.
        var in_row = Int32(slice * ROW_PIECES // SLICES) + self.lane // TILE
        var piece = exchanged[Self.is_swizzled](self.lane % TILE * ROW_PIECES + in_row)
        var place = Int(piece * PIECE_BYTES + first_row * ROW_BYTES)
        return read_piece(lds.unsafe_offset(place))

    @always_inline
    def read_scales(self, lds: Lds, a: Self.AScales, w: Self.WScales):
        """Reads the lane's words of scales from LDS, if there are scales."""
        var m, n = self.wave // Int32(Self.waves_n), self.wave % Int32(Self.waves_n)
        comptime if Self.HAS_SCALES:
            comptime for group in range(GROUPS[Self.m_tiles]):
                a[group] = self._word(
                    lds, Self.A_SCALES_PLACE, m * Int32(GROUPS[Self.m_tiles]) + Int32(group)
                )
            comptime for group in range(GROUPS[Self.n_tiles]):
                w[group] = self._word(
                    lds, Self.W_SCALES_PLACE, n * Int32(GROUPS[Self.n_tiles]) + Int32(group)
                )

    @always_inline
    def _word(self, lds: Lds, start: Int, group: Int32) -> UInt32:
        var place = start + Int(group * GROUP_BYTES + self.lane * WORD_BYTES)
        return read_word(words_at[1](lds.unsafe_offset(place)), Coord(0))

    @always_inline
    def load_scales(self, stage: Int32, a: Self.AScales, w: Self.WScales):
        """Loads the lane's words of scales from memory, if there are scales."""
        var m, n = self.wave // Int32(Self.waves_n), self.wave % Int32(Self.waves_n)
        comptime if Self.HAS_SCALES:
            comptime for group in range(GROUPS[Self.m_tiles]):
                a[group] = self.a.word(
                    m * Int32(GROUPS[Self.m_tiles]) + Int32(group), stage, self.lane
                )
            comptime for group in range(GROUPS[Self.n_tiles]):
                w[group] = self.w.word(
                    n * Int32(GROUPS[Self.n_tiles]) + Int32(group), stage, self.lane
                )

    @always_inline
    def multiply_stage[
        part: Int
    ](
        self,
        lds: Lds,
        sums: SumTile[Self.m_tiles, Self.n_tiles],
        a_scales: Self.AScales,
        w_scales: Self.WScales,
    ):
        """Reads a stage from LDS and multiplies it: MXFP4 by slices, others `part` tiles of rows at
        a time, each part after its own wait."""
        var w = in_registers[DType.uint32, PIECE_WORDS, SLICES, Self.n_tiles]()
        comptime if Self.format == MXFP4:
            var a = in_registers[DType.uint32, PIECE_WORDS, SLICES, Self.m_tiles]()
            comptime for slice in range(SLICES):
                self.read_codes[slice](lds, a, w)
                multiply[slice](sums, a, w, a_scales, w_scales)
        else:
            var a = in_registers[DType.uint32, PIECE_WORDS, SLICES, part]()
            comptime for slice in range(SLICES):
                self.read_columns[slice](lds, w)
            comptime for first in range(0, Self.m_tiles, part):
                comptime for slice in range(SLICES):
                    self.read_rows[slice, first](lds, a)
                s_waitcnt[lgkmcnt=0]()
                schedule_barrier()
                multiply_unscaled[Self.format, first](sums, a, w)

    @always_inline
    def store(
        self,
        c: MutPointer[BFloat16, MutAnyOrigin],
        sums: SumTile[Self.m_tiles, Self.n_tiles],
        n: Int32,
    ):
        """Stores the wave's part of C."""
        var row, column = self.lane % TILE, self.lane // TILE * SUMS
        comptime for m_tile in range(Self.m_tiles):
            comptime for n_tile in range(Self.n_tiles):
                store_tile(
                    c,
                    sums[m_tile, n_tile],
                    n,
                    self.first_row + self._row_of[m_tile]() + row,
                    self.first_column + self._column_of[n_tile]() + column,
                )


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
    """Multiplies a slice of MXFP4: a word of scales serves two tiles and both slices."""
    comptime for m in range(m_tiles):
        comptime for n in range(n_tiles):
            sums[m, n] = multiply_tiles[MXFP4, MXFP4, 2 * slice + n % 2, 2 * slice + m % 2](
                sums[m, n],
                rebind[BlockCodes[MXFP4]](w[slice, n]),
                rebind[BlockCodes[MXFP4]](a[slice, m]),
                w_scales[n // 2],
                a_scales[m // 2],
            )


@always_inline
def multiply_unscaled[
    m_tiles: Int,
    n_tiles: Int,
    rows: Int,
    columns: Int,
    //,
    format: Format,
    first_row: Int = 0,
    first_column: Int = 0,
](sums: SumTile[rows, columns], a: Pieces[SLICES, m_tiles], w: Pieces[SLICES, n_tiles]):
    """Multiplies both slices, not of MXFP4; adds to the tiles of `sums` from the named one on."""
    comptime for slice in range(SLICES if format == F16 else 1):
        comptime for m in range(m_tiles):
            comptime for n in range(n_tiles):
                var before = sums[first_row + m, first_column + n]
                var fed_w = rebind[BlockCodes[format]](w[0, n].join(w[1, n]))
                var fed_a = rebind[BlockCodes[format]](a[0, m].join(a[1, m]))
                comptime if format == F16:
                    sums[first_row + m, first_column + n] = multiply_piece[format, slice](
                        before, fed_w, fed_a
                    )
                else:
                    sums[first_row + m, first_column + n] = multiply_codes[format, format](
                        before, fed_w, fed_a
                    )

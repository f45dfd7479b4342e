"""How a workgroup of the interleaved schedule cuts its work, and where things lie in its LDS.

Four waves, one a SIMD, have all rows of the workgroup's tile of C and a quarter of its
columns each. K goes by in stages: 256 of codes of four bits or six, 128 of eight-bit ones. In LDS,
for rows of 128 bytes, of six-bit codes 192:

    codes     a stage of activations, `depth` of them in a ring
    scales    of 4096 along K, and of the next 4096; none of rows

Rows of scales may begin within a line of memory. Where LDS has room, whole lines are in it,
no line is loaded twice then:

    scales    the line of a stage, that of the next stage for some rows, and two more

Where K ends within a stage, rows of scales may begin at any byte. They are in LDS as they are
in memory then, one behind another, all of them: K is at most 8192.
"""

from std.math import ceildiv

from ...launch.grid import Grid, Workspace
from ...schedule.xcd import XcdBands
from ..chip import BLOCK, CUS, GROUP_BLOCKS, GROUP_TILES, LANES, LDS_BYTES, PIECE_BYTES, TILE
from ..chip import TILE_K, load_bytes_of, piece_bytes_of
from ..streaming.shape import StreamingShape, count_behind

comptime WAVES = 4
"""Waves of a workgroup, each with columns of its own, unless there are two a SIMD."""
comptime THREADS = WAVES * LANES
"""Threads of so many."""
comptime STAGE_BLOCKS = GROUP_BLOCKS
"""Blocks along K of a stage of four-bit codes."""
comptime STAGE_K = STAGE_BLOCKS * BLOCK
"""Elements along K of a stage of four-bit codes."""
comptime ROW_PIECES = 8
"""Pieces of a row of scales in LDS: of 16 times as many blocks."""
comptime ROW_BYTES = ROW_PIECES * PIECE_BYTES
"""Bytes of such a row."""
comptime CHUNK_K = ROW_BYTES * BLOCK
"""Elements along K of which a row of scales has the scales: bytes of 32, or floats of 128."""
comptime LINES = 4
"""Lines of scales of a row in LDS: three are in use."""
comptime MOST_MIXED = 50
"""Tiles of sums of a wave that leave registers of their kind for other values."""
comptime MOST_TAILED_K = 2 * CHUNK_K
"""The largest K that may end within a stage: LDS has room for the scales."""


def slices_of(bits: Int) -> Int:
    """Returns the tiles along K of a stage of codes of so many bits."""
    return 1 if bits == 8 else GROUP_TILES


struct InterleavedShape(Equatable, TrivialRegisterPassable):
    """How a workgroup cuts its work."""

    var m_tiles: Int
    """Tiles of 16 rows: an even number."""
    var n_tiles: Int
    """Tiles of 16 columns of a wave."""
    var depth: Int
    var splits: Int
    """Workgroups that share a tile of C, each with a part of K."""
    var bits: Int
    """Bits of a code of activations."""
    var slices: Int
    """Tiles along K of a stage."""
    var waves: Int
    """Waves: one a SIMD or two."""

    def __init__(
        out self,
        m_tiles: Int,
        n_tiles: Int,
        depth: Int,
        splits: Int,
        bits: Int = 4,
        waves: Int = WAVES,
    ):
        """Describes a cut; unless told otherwise, of four-bit codes."""
        self.m_tiles = m_tiles
        self.n_tiles = n_tiles
        self.depth = depth
        self.splits = splits
        self.bits = bits
        self.slices = slices_of(bits)
        self.waves = waves

    def of_bits(self, bits: Int) -> Self:
        """Returns the same cut for codes of so many bits, whose stage is as long."""
        return Self(self.m_tiles, self.n_tiles, self.depth, self.splits, bits, self.waves)

    def name(self) -> String:
        """Returns middle<rows>x<columns>, and s<splits> if there are several."""
        var splits = String("s", self.splits) if self.splits > 1 else ""
        return String("middle", self.rows(), "x", self.columns(), splits)

    @staticmethod
    def named(name: String, *, bits: Int = 4) -> Self:
        """Returns the cut of a name, with d<stages>, and w<waves> if they are not usual, behind."""
        comptime FAMILY = "middle"
        var begin = FAMILY.byte_length()
        var waves = count_behind("w", name, begin=begin, otherwise=WAVES)
        return Self(
            count_behind(FAMILY, name) // TILE,
            count_behind("x", name, begin=begin) // (waves * TILE),
            count_behind("d", name, begin=begin),
            count_behind("s", name, begin=begin),
            bits,
            waves,
        )

    def stage_k(self) -> Int:
        return self.slices * TILE_K

    def chunk_stages(self) -> Int:
        """Returns the stages of which a row of scales has the scales."""
        return CHUNK_K // self.stage_k()

    def rows(self) -> Int:
        return self.m_tiles * TILE

    def columns(self) -> Int:
        return self.waves * self.n_tiles * TILE

    def threads(self) -> Int:
        return self.waves * LANES

    def waves_per_simd(self) -> Int:
        """Returns how many waves that go from tile to tile may share a SIMD: two, if each does
        with half of its registers."""
        comptime REGISTERS, OTHERS, WORDS = 256, 100, 4
        var weights = self.depth * self.slices * self.n_tiles * WORDS
        return 2 if self.m_tiles * self.n_tiles * WORDS + weights + OTHERS <= REGISTERS else 1

    def sums_apart(self) -> Bool:
        """Says whether sums fill the accumulation registers: the others are for the rest."""
        return self.waves == WAVES and self.m_tiles * self.n_tiles > MOST_MIXED

    def has_few_registers(self) -> Bool:
        """Says whether two waves share a SIMD's registers, or sums have half of them."""
        return self.waves > WAVES or self.sums_apart()

    def has_registers(self) -> Bool:
        """Says whether no register is spilled: where they are few, by six-bit codes some are."""
        return self.bits == 4 or not self.has_few_registers()

    def workgroups(self) -> Int:
        """Returns how many workgroups the chip has room for."""
        return CUS * max(min(self.waves_per_simd(), LDS_BYTES // self.lds_bytes()), 1)

    def row_bytes(self) -> Int:
        """Returns the bytes of codes of a row in a stage."""
        return self.stage_k() * self.bits // 8

    def row_pieces(self) -> Int:
        return self.row_bytes() // piece_bytes_of(self.bits)

    def load_rows(self) -> Int:
        """Returns the rows of codes that a wave loads at once."""
        return LANES // self.row_pieces()

    def tile_bytes(self) -> Int:
        """Returns the bytes of LDS of a tile of rows of codes."""
        return TILE // self.load_rows() * load_bytes_of(piece_bytes_of(self.bits))

    def rounds(self) -> Int:
        """Returns the loads with which each wave gets its share of the codes of a stage."""
        return self.rows() // (self.waves * self.load_rows())

    def scale_rounds(self) -> Int:
        """Returns the loads with which each wave gets its share of a chunk of scales."""
        return self.rows() * ROW_PIECES // self.threads()

    def ring_bytes(self) -> Int:
        """Returns the bytes of LDS of a stage of activations."""
        return self.m_tiles * self.tile_bytes()

    def chunk_bytes(self) -> Int:
        """Returns the bytes of LDS of a chunk of scales."""
        return self.rows() * ROW_BYTES

    def scale_place(self) -> Int:
        return self.depth * self.ring_bytes()

    def lds_bytes(self, chunks: Int = 2) -> Int:
        """Returns all bytes of LDS with so many chunks of scales."""
        return self.scale_place() + chunks * self.chunk_bytes()

    def has_scale_lines(self) -> Bool:
        """Says whether scales come in whole lines: whatever the tile, rows begin alike in them."""
        return self.slices == GROUP_TILES and self.lds_bytes(LINES) <= LDS_BYTES

    def stages(self, k: Int) -> Int:
        return ceildiv(ceildiv(k, self.stage_k()), self.splits)

    def has_tail(self, k: Int) -> Bool:
        return k % self.stage_k() != 0

    def supports(self, k: Int) -> Bool:
        """Says whether there is a kernel for that K: each workgroup has some of it."""
        if self.has_tail(k) and (self.slices != GROUP_TILES or k > MOST_TAILED_K):
            return False
        return (self.splits - 1) * self.stages(k) < ceildiv(k, self.stage_k())

    def tiles_of_c(self, m: Int, n: Int) -> XcdBands[]:
        return XcdBands(ceildiv(m, self.rows()), ceildiv(n, self.columns()))

    def grid(self, m: Int, n: Int) -> Grid:
        return Grid(self.tiles_of_c(m, n).num_workgroups(), 1, self.splits, threads=self.threads())

    def split_k(self) -> StreamingShape:
        """Returns the same tile of C as a cut of waves that share its columns and split K."""
        return StreamingShape(
            self.m_tiles,
            self.waves * self.n_tiles,
            self.slices,
            self.waves,
            self.depth,
            False,
            self.splits,
            sharers=self.waves,
        )

    def workspace(self, m: Int, n: Int) -> Workspace:
        return self.split_k().workspace(m, n)

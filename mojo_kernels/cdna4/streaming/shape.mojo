"""How a workgroup of the streaming schedule cuts its work, and where things lie in its LDS.

    rows       all waves have all of them
    columns    split among sharers, who also split the encoding of activations
    K          split among workgroups, then among groups of sharers, then into chunks
"""

from std.math import align_up, ceildiv

from ...numbers.formats import Format
from ...numbers.scales import Scale
from ..chip import BLOCK, GROUP_TILES, LANES, PAIR, PIECE_BYTES, SUMS, TILE, TILE_BLOCKS, TILE_K
from ..chip import WORD_BYTES, WORD_SCALES
from ...schedule.xcd import XcdColumns
from ...launch.grid import Grid, Workspace

comptime SUM_BYTES = 4 * SUMS
"""Bytes of a lane's sums of a tile of C."""
comptime TILE_SUM_BYTES = LANES * SUM_BYTES
"""Bytes of the sums of a tile."""

comptime MAX_WAVE_TILES = 16
"""Tiles of C of a wave. With 32, LLVM of Mojo 1.2.0 does not clear all sums before the loop."""
comptime MOST_TAKEN = 32
"""Tiles of sums of others that a wave takes at once: registers."""


def levels_of(splits: Int) -> Int:
    """Returns the levels of the tree of so many parts of K."""
    var levels = 0
    while 1 << levels < splits:
        levels += 1
    return levels


def count_behind(word: String, name: String, *, begin: Int = 0, otherwise: Int = 1) -> Int:
    """Returns the number behind a word in the name of a cut, from some byte on."""
    var at = name.find(word, begin)
    if at < 0:
        return otherwise
    var count = 0
    var bytes = name.as_bytes()
    for i in range(at + word.byte_length(), name.byte_length()):
        var digit = Int(bytes[i]) - ord("0")
        if digit < 0 or digit > 9:
            break
        count = 10 * count + digit
    return count


struct StreamingShape(Equatable, TrivialRegisterPassable):
    """How a workgroup cuts its work."""

    var m_tiles: Int
    """Tiles of 16 rows, a power of two."""
    var n_tiles: Int
    """Tiles of 16 columns; for each sharer an even number or one."""
    var k_tiles: Int
    """Tiles of 128 along K of a chunk: one or two."""
    var waves: Int
    """Waves, each with a part of K or, if they share activations, of the columns."""
    var depth: Int
    """Chunks that a wave has in flight."""
    var k_tail: Bool
    """Whether K may end within a chunk."""
    var splits: Int
    """Workgroups that share a tile of C, each with a part of K."""
    var sharers: Int
    """Waves with the same part of K, which share its encoded activations."""
    var up_front: Bool
    """Whether all chunks of a wave are in flight together, so that nothing loops."""

    def __init__(
        out self,
        m_tiles: Int,
        n_tiles: Int,
        k_tiles: Int,
        waves: Int,
        depth: Int,
        k_tail: Bool,
        splits: Int,
        sharers: Int = 1,
        up_front: Bool = False,
    ):
        """Describes a cut; unless told otherwise, waves share nothing and loop along K."""
        self.m_tiles = m_tiles
        self.n_tiles = n_tiles
        self.k_tiles = k_tiles
        self.waves = waves
        self.depth = depth
        self.k_tail = k_tail
        self.splits = splits
        self.sharers = sharers
        self.up_front = up_front

    def name(self) -> String:
        """Returns m<tiles>n<tiles>w<waves>, and what there is more than one of."""
        var name = String("m", self.m_tiles, "n", self.n_tiles, "w", self.waves)
        for letter, count in [
            ("s", self.splits),
            ("k", self.k_tiles),
            ("d", self.depth),
            ("h", self.sharers),
        ]:
            if count > 1:
                name += String(letter, count)
        return name + ("u" if self.up_front else "")

    @staticmethod
    def named(name: String, *, k_tail: Bool = False) -> Self:
        """Returns the cut of a name: `name` says the same of it."""
        return Self(
            count_behind("m", name),
            count_behind("n", name),
            count_behind("k", name),
            count_behind("w", name),
            count_behind("d", name),
            k_tail,
            count_behind("s", name),
            count_behind("h", name),
            name.find("u") >= 0,
        )

    def is_possible(self) -> Bool:
        return (
            self.waves % self.sharers == 0
            and self.n_tiles % self.sharers == 0
            and (self.wave_columns() == 1 or self.wave_columns() % PAIR == 0)
            and 1 <= self.k_tiles <= GROUP_TILES
            and self.wave_tiles() <= MAX_WAVE_TILES
        )

    def chunks_per_wave(self, k: Int) -> Int:
        """Returns the chunks along K of each wave: a multiple of the depth."""
        var chunks = ceildiv(k, self.k_tiles * TILE_K)
        return align_up(ceildiv(chunks, self.k_groups() * self.splits), self.depth)

    def supports(self, k: Int) -> Bool:
        return (self.k_tail or k % (self.k_tiles * TILE_K) == 0) and (
            not self.up_front or self.chunks_per_wave(k) == self.depth
        )

    def tiles_of_c(self, m: Int, n: Int) -> XcdColumns:
        return XcdColumns(ceildiv(m, self.m_tiles * TILE), ceildiv(n, self.n_tiles * TILE))

    def grid(self, m: Int, n: Int) -> Grid:
        var x, y = self.tiles_of_c(m, n).grid()
        return Grid(x, y, self.splits, threads=self.threads())

    def workspace(self, m: Int, n: Int) -> Workspace:
        """Returns the slots of partial sums of all tiles of C, and behind them the counters of
        waves: zero between launches."""
        if self.splits == 1:
            return Workspace(0, 0)
        var tiles = self.tiles_of_c(m, n)
        var slot_bytes = self.slots() * self.tiles() * TILE_SUM_BYTES
        return Workspace(tiles.rows * tiles.columns * (slot_bytes + self.waves * WORD_BYTES), 0)

    def adds_in_pairs(self) -> Bool:
        """Says whether partial sums meet two by two: those of all others would be too many for
        registers, or are one."""
        var others = (1 << levels_of(self.splits)) - 1
        return others == 1 or others * self.own_tiles() > MOST_TAKEN

    def slots(self) -> Int:
        """Returns in how many places workgroups with parts of K leave sums: each, or one of two."""
        return self.splits - 1 if self.adds_in_pairs() else self.splits

    def threads(self) -> Int:
        return self.waves * LANES

    def tile(self) -> Tuple[Int, Int]:
        return (self.m_tiles * TILE, self.n_tiles * TILE)

    def tiles(self) -> Int:
        return self.m_tiles * self.n_tiles

    def k_groups(self) -> Int:
        """Returns the parts into which a workgroup cuts its K."""
        return self.waves // self.sharers

    def wave_columns(self) -> Int:
        return self.n_tiles // self.sharers

    def wave_tiles(self) -> Int:
        """Returns the tiles of C of which a wave has partial sums."""
        return self.m_tiles * self.wave_columns()

    def own_tiles(self) -> Int:
        """Returns the tiles of C that a wave finishes."""
        return ceildiv(self.tiles(), self.waves)

    def steps(self) -> Int:
        return self.m_tiles * self.k_tiles

    def own_steps(self) -> Int:
        """Returns the tiles of activations of a chunk that a wave fetches and encodes."""
        return ceildiv(self.steps(), self.sharers)

    def fetched_m_tiles(self) -> Int:
        """Returns the tiles of rows of what a wave fetches: it may be one, chosen at run time."""
        return 1 if self.sharers > 1 else self.m_tiles

    def fetched_k_tiles(self) -> Int:
        """Returns the tiles along K of what a wave fetches: it may be one, chosen at run time."""
        return 1 if self.sharers > 1 else self.k_tiles

    @always_inline
    def tile_of(self, wave: Int32, i: Int) -> Int32:
        """Returns the tile of C, counted sharer by sharer, that a wave finishes as its `i`th."""
        if self.k_groups() == 1:
            return wave * Int32(self.wave_tiles()) + Int32(i)
        return wave + Int32(i * self.waves)

    @always_inline
    def corner(self, tile: Int32) -> Tuple[Int32, Int32]:
        """Returns where a tile lies in the workgroup's, in tiles of rows and of columns."""
        var sharer, of_sharer = divmod(tile, Int32(self.wave_tiles()))
        var m_tile, column = divmod(of_sharer, Int32(self.wave_columns()))
        return (m_tile, sharer * Int32(self.wave_columns()) + column)


@fieldwise_init
struct StreamingLds(TrivialRegisterPassable):
    """Places in LDS, in bytes: an area for each wave, then scales for each group of sharers."""

    var shape: StreamingShape
    var float_bytes: Int
    """Of a tile of activations on its way; none if they go straight to registers."""
    var format: Format

    def tile_bytes(self) -> Int:
        """Returns the bytes of a tile of activations: on its way, then, if shared, its codes."""
        var code_bytes = TILE * TILE_BLOCKS * self.format.packed_bytes(BLOCK)
        return max(self.float_bytes, code_bytes if self.shape.sharers > 1 else 0)

    def tile(self, stage: Int, own_step: Int) -> Int:
        """Returns where a tile begins in the area of the wave that fetches it."""
        return (stage * self.shape.own_steps() + own_step) * self.tile_bytes()

    def wave_bytes(self) -> Int:
        """Returns the area of a wave: for activations, later for its sums."""
        var sums = self.shape.wave_tiles() * TILE_SUM_BYTES if self.shape.k_groups() > 1 else 0
        return max(self.tile(self.shape.depth, 0), sums, PIECE_BYTES)

    def slots(self) -> Int:
        """Returns the tiles of a stage, with those that fill up the last round of the sharers."""
        return self.shape.own_steps() * self.shape.sharers

    def word_scales(self) -> Int:
        """Returns the shared scales of a word: bytes of four tiles, or a float."""
        return WORD_SCALES if self.format.scale == Scale.E8M0 else 1

    def unused_scales(self) -> Int:
        """Returns the scales of the last word of a stage that no tile has."""
        return align_up(self.slots(), self.word_scales()) - self.slots()

    def scale_words(self) -> Int:
        """Returns the words of a lane's shared scales of a stage."""
        return 0 if self.format.has_row_scales() else ceildiv(self.slots(), self.word_scales())

    def group_bytes(self) -> Int:
        var words = self.scale_words() if self.shape.sharers > 1 else 0
        return self.shape.depth * words * LANES * WORD_BYTES

    def first_group(self) -> Int:
        return self.shape.waves * self.wave_bytes()

    def num_bytes(self) -> Int:
        return self.first_group() + self.shape.k_groups() * self.group_bytes()

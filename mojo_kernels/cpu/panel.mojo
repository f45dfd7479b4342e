"""Panels of weights, and what an arithmetic has to offer to multiply rows by them.

A panel is `PANEL_TILES` weight tiles, 16 columns each: neighbours, or one of each half. A `PanelProduct`
holds the activations in its own form and adds a panel's blocks to float32 sums, a
row's blocks in order, so a result depends on neither the threads, the number of
rows, the weight layout nor the width of the machine's vectors:

    bytes/panel.mojo     elements that are small integers: an integer dot product a block
    floats/panel.mojo    anything that bfloat16 holds: float32 sums a block

Both decode weights either in registers as they are loaded, or beforehand for several
groups of rows, a stretch of K at a time.
"""

from layout import Coord, Idx, TileTensor
from layout.tile_layout import Layout
from std.collections import Array
from std.sys._assembly import inlined_assembly

from ..layouts import OperandShape
from ..numbers.formats import Format
from .block_order import GroupLimits, RowGroups
from .ranges import RowRange
from .vectors import LANES, Sums, Words
from .weights import WeightTiles, half_scales, scale_bits
from .window import ScaleWindow

comptime PANEL_TILES = 2
"""Weight tiles of a panel."""
comptime PANEL_COLUMNS = PANEL_TILES * LANES
"""Columns of a panel."""

comptime PanelSums = TileTensor[
    DType.float32,
    type_of(Layout(Coord((1, Idx[PANEL_COLUMNS])), Coord((Idx[PANEL_COLUMNS], Idx[1])))),
    MutUntrackedOrigin,
]
"""The sums of some rows, [rows, PANEL_COLUMNS]."""


def panel_sums(address: Int, rows: Int) -> PanelSums:
    """Views the sums of some rows at `address`."""
    return PanelSums(
        MutPointer[Float32, MutUntrackedOrigin](unsafe_from_address=address),
        Layout(Coord((rows, Idx[PANEL_COLUMNS])), Coord((Idx[PANEL_COLUMNS], Idx[1]))),
    )


comptime PREFETCH_BLOCKS = 32
"""How far ahead of their use weights are asked for: 8 KiB of a tile of four bits."""


@fieldwise_init
struct PanelTiles(TrivialRegisterPassable):
    """Which tiles of the weights make a panel.

    neighbours    0 1 | 2 3 | 4 5 | ..
    halves        0 8 | 1 9 | 2 10 | ..    of 16 tiles
    """

    var next: Int
    """Tiles from one tile of a panel to its next."""
    var next_panel: Int
    """Tiles from the first of a panel to that of the next panel."""

    comptime NEIGHBOURS = Self(1, PANEL_TILES)

    @staticmethod
    def halves(num_tiles: Int) -> Self:
        """Returns panels of a tile of each half."""
        return Self(num_tiles // PANEL_TILES, 1)

    @always_inline
    def first(self, panel: Int) -> Int:
        """Returns the first tile of a panel."""
        return panel * self.next_panel

    @always_inline
    def at(self, panel: Int, tile: Int) -> Int:
        """Returns which tile of the weights is tile `tile` of a panel."""
        return self.first(panel) + tile * self.next


@fieldwise_init
struct PanelTile(TrivialRegisterPassable):
    """A tile in one block."""

    var block: Int
    var tile: Int


@fieldwise_init
struct WeightPanel[Tiles: WeightTiles](TrivialRegisterPassable):
    """A panel as it lies in memory, from some block on."""

    var tiles: Self.Tiles
    """The weights."""
    var order: PanelTiles
    """Which tiles make a panel; beyond the last tile, that one repeats."""
    var panel: Int
    """The number of the panel."""
    var last_tile: Int
    """The last tile of the weights."""
    var first_block: Int
    """The block of the weights that is block 0 here."""

    @always_inline
    def codes(self, tile: Int, block: Int) -> Self.Tiles.Codes:
        """Returns the codes of tile `tile` of the panel, and asks for what lies ahead of them."""
        var ahead = self.first_block + block + PREFETCH_BLOCKS
        self.tiles.prefetch(self.order.at(self.panel, tile), ahead)
        return self.tiles.codes(self._tile(tile), self.first_block + block)

    @always_inline
    def scale_bits[halvings: Int](self, tile: Int, block: Int) -> Words:
        """Returns the float32 bits of the scales of tile `tile`, halved some times."""
        var scales = self.tiles.scales(self._tile(tile), self.first_block + block)
        return scale_bits[halvings](scales)

    @always_inline
    def half_scales(self, tile: Int, block: Int) -> Sums:
        """Returns half the scales of tile `tile`, which may be floats."""
        var scales = self.tiles.scales(self._tile(tile), self.first_block + block)
        return half_scales[Self.Tiles.format.scale](scales)

    @always_inline
    def place(self, tile: Int, block: Int) -> PanelTile:
        """Returns where tile `tile` of the panel is in the weights, in one of its blocks."""
        return PanelTile(self.first_block + block, self._tile(tile))

    @always_inline
    def _tile(self, tile: Int) -> Int:
        return min(self.order.at(self.panel, tile), self.last_tile)


trait DecodedStretch(TrivialRegisterPassable):
    """Memory for a stretch of a panel, decoded once for many rows."""

    @staticmethod
    def on_stack() -> Self:
        """Returns memory that lives as long as the calling function."""
        ...

    def decode[Tiles: WeightTiles](self, panel: WeightPanel[Tiles], num_blocks: Int):
        """Decodes the first `num_blocks` blocks of `panel`."""
        ...


trait ScaleStretch(TrivialRegisterPassable):
    """Memory for the scales of a stretch of a panel, decoded before its codes are used."""

    @staticmethod
    def on_stack() -> Self:
        """Returns memory that lives as long as the calling function."""
        ...

    def decode[
        Tiles: WeightTiles
    ](
        self,
        panel: WeightPanel[Tiles],
        first_tile: Int,
        last_tile: Int,
        num_blocks: Int,
        takes_bytes: Bool,
    ):
        """Decodes the scales of some tiles in the first `num_blocks` blocks, if they take it; they
        may stay bytes."""
        ...


@fieldwise_init
struct PanelPart(TrivialRegisterPassable):
    """A group of rows and some blocks along K: what is multiplied at a time."""

    var group: Int
    var first_block: Int
    """Where K begins, a multiple of a stretch; the sums begin from zero at block 0."""
    var num_blocks: Int
    """At most a stretch, or all of K for a single group."""
    var sums: PanelSums
    """Of the group and others."""
    var sums_row: Int
    """Where those of the group begin."""


struct GroupSums[num_rows: Int, num_tiles: Int, in_registers: Bool]:
    """The sums over K of a group of rows and some tiles: kept in registers, or only there while a
    block is added to them, which leaves more registers to the block."""

    comptime COUNT = Self.num_rows * Self.num_tiles
    """Vectors of sums, tile by tile in a row."""

    var part: PanelPart
    var first_tile: Int
    var kept: Array[Sums, Self.COUNT]
    """Those in registers."""

    @always_inline
    def __init__(out self, part: PanelPart, first_tile: Int):
        """Takes the sums of the blocks before the part, zero at block 0."""
        self.part = part
        self.first_tile = first_tile
        self.kept = Array[Sums, Self.COUNT](uninitialized=True)
        comptime for i in range(Self.COUNT):
            comptime if Self.in_registers:
                self.kept[i] = self._load[i]() if part.first_block > 0 else Sums(0)
            else:
                if part.first_block == 0:
                    self._store[i](Sums(0))

    @always_inline
    def begin_block(self):
        """Keeps sums in memory from staying in registers too, from which they would be spilled."""
        comptime if not Self.in_registers:
            inlined_assembly["", NoneType, constraints="~{memory}", has_side_effect=True]()

    @always_inline
    def get[i: Int](self) -> Sums:
        """Returns sums `i`."""
        comptime if Self.in_registers:
            return self.kept[i]
        else:
            return self._load[i]()

    @always_inline
    def put[i: Int](mut self, sums: Sums):
        """Replaces sums `i`."""
        comptime if Self.in_registers:
            self.kept[i] = sums
        else:
            self._store[i](sums)

    @always_inline
    def store(self):
        """Stores what is in registers."""
        comptime if Self.in_registers:
            comptime for i in range(Self.COUNT):
                self._store[i](self.kept[i])

    @always_inline
    def _row[i: Int](self) -> Int:
        return self.part.sums_row + i // Self.num_tiles

    @always_inline
    def _column[i: Int](self) -> Int:
        return (self.first_tile + i % Self.num_tiles) * LANES

    @always_inline
    def _load[i: Int](self) -> Sums:
        return self.part.sums.load[width=LANES](Coord(self._row[i](), self._column[i]()))

    @always_inline
    def _store[i: Int](self, sums: Sums):
        self.part.sums.store(Coord(self._row[i](), self._column[i]()), sums)


trait PanelProduct(TrivialRegisterPassable):
    """Activations, and the arithmetic that multiplies them by panels."""

    comptime LIMITS: GroupLimits
    """How many rows are multiplied together."""
    comptime STRETCH_BLOCKS: Int
    """Blocks of K that are decoded at a time: they fit the first-level cache."""
    comptime Decoded: DecodedStretch
    """Where a stretch of weights is decoded to."""
    comptime Scales: ScaleStretch
    """Where E4M3 scales are decoded to beside weights in registers."""
    comptime SCALES_BLOCKS: Int
    """Blocks of K whose E4M3 scales are decoded at a time for a single group."""
    comptime TAKES_E4M3_IN_REGISTERS: Bool
    """Whether codes under E4M3 scales may be decoded in registers, those a stretch at a time."""
    comptime HAS_ROW_FACTORS: Bool
    """Whether the sums over K are still to be multiplied by a factor of their row."""
    comptime HAS_COLUMN_FACTORS: Bool
    """Whether they are by the scales of their columns."""

    def shape(self) -> OperandShape:
        """Returns M and k."""
        ...

    def of_range(self, rows: RowRange) -> Self:
        """Returns a part of the rows, all being prepared."""
        ...

    def groups(self) -> RowGroups:
        """Returns how the rows are cut."""
        ...

    def row_bytes(self) -> Int:
        """Returns the bytes that a row of activations takes."""
        ...

    def add[
        num_rows: Int, Tiles: WeightTiles
    ](self, part: PanelPart, tile: Int, panel: WeightPanel[Tiles], e4m3: Self.Scales):
        """Adds a part for one tile of the panel, decoding it in registers."""
        ...

    def add_decoded[num_rows: Int](self, part: PanelPart, decoded: Self.Decoded):
        """Adds a part for all tiles of a panel."""
        ...

    def takes_bytes(self) -> Bool:
        """Says whether `add` wants E4M3 scales as bytes where they are regular."""
        ...

    def row_factor(self, row: Int) -> Float32:
        """Returns the factor of a row."""
        ...

    def window(self, first_row: Int, num_rows: Int) -> ScaleWindow:
        """Returns the exponents that occur in some rows."""
        ...

    @staticmethod
    def is_regular[format: Format](rows: ScaleWindow, weights: ScaleWindow) -> Bool:
        """Says whether float32 holds every product and sum of rows and a tile as regular.

        Codes of the weights that are not finite do not count.
        """
        ...

    def sum_in_float64[Tiles: WeightTiles](self, row: Int, tiles: Tiles, tile: Int) -> Sums:
        """Returns the sums of one row and one tile that are not regular in float32."""
        ...

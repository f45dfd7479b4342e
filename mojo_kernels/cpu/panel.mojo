"""Panels of weights, and what an arithmetic has to offer to multiply rows by them.

A panel is `PANEL_TILES` neighbouring weight tiles, 16 columns each. A `PanelProduct`
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

from ..layouts import OperandShape
from ..numbers.formats import Format
from .block_order import GroupLimits, RowGroups
from .vectors import LANES, Sums, Words
from .weights import WeightTiles, scale_bits
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
struct WeightPanel[Tiles: WeightTiles](TrivialRegisterPassable):
    """A panel as it lies in memory, from some block on."""

    var tiles: Self.Tiles
    """The weights."""
    var first_tile: Int
    """The first tile of the panel; beyond the last tile, that one repeats."""
    var last_tile: Int
    """The last tile of the weights."""
    var first_block: Int
    """The block of the weights that is block 0 here."""

    @always_inline
    def codes(self, tile: Int, block: Int) -> Self.Tiles.Codes:
        """Returns the codes of tile `tile` of the panel, and asks for what lies ahead of them."""
        self.tiles.prefetch(self.first_tile + tile, self.first_block + block + PREFETCH_BLOCKS)
        return self.tiles.codes(self._tile(tile), self.first_block + block)

    @always_inline
    def scale_bits[halvings: Int](self, tile: Int, block: Int) -> Words:
        """Returns the float32 bits of the scales of tile `tile`, halved some times."""
        var scales = self.tiles.scales(self._tile(tile), self.first_block + block)
        return scale_bits[halvings](scales)

    @always_inline
    def _tile(self, tile: Int) -> Int:
        return min(self.first_tile + tile, self.last_tile)


trait DecodedStretch(TrivialRegisterPassable):
    """Memory for a stretch of a panel, decoded once for many rows."""

    @staticmethod
    def on_stack() -> Self:
        """Returns memory that lives as long as the calling function."""
        ...

    def decode[Tiles: WeightTiles](self, panel: WeightPanel[Tiles], num_blocks: Int):
        """Decodes the first `num_blocks` blocks of `panel`."""
        ...


@fieldwise_init
struct Part(TrivialRegisterPassable):
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


trait PanelProduct(TrivialRegisterPassable):
    """Activations, and the arithmetic that multiplies them by panels."""

    comptime LIMITS: GroupLimits
    """How many rows are multiplied together."""
    comptime STRETCH_BLOCKS: Int
    """Blocks of K that are decoded at a time: they fit the first-level cache."""
    comptime Decoded: DecodedStretch
    """Where a stretch of weights is decoded to."""

    def shape(self) -> OperandShape:
        """Returns M and k."""
        ...

    def groups(self) -> RowGroups:
        """Returns how the rows are cut."""
        ...

    def row_bytes(self) -> Int:
        """Returns the bytes that a row of activations takes."""
        ...

    def add[
        num_rows: Int, Tiles: WeightTiles
    ](self, part: Part, tile: Int, panel: WeightPanel[Tiles]):
        """Adds a part for one tile of the panel, decoding it in registers."""
        ...

    def add_decoded[num_rows: Int](self, part: Part, decoded: Self.Decoded):
        """Adds a part for all tiles of a panel."""
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

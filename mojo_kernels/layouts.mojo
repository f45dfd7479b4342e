"""Every byte order of an MX operand: one struct with a diagram each.

A layout maps (row, byte of the row) to the byte offset of packed codes and
(row, block) to the byte offset of scales, and back. Rows and blocks beyond
the operand, up to the layout's multiples, are padding: zero codes and scales
of one, so that a padded tile is finite. Scales that are no bytes lie row by
row in every layout, without padding. So do E4M3 scales and the tensor scale of
a row behind them, but where a layout orders them, padded with zeros: byte by
byte, as if each were the scale of a block; or two by two, as if they were one
scale of 32, and behind those of a tile's rows their tensor scales, row by row.

A layout knows bytes of a row and blocks of a row, no format. Four neighbouring bytes of a row
(`RUN_BYTES`) stay neighbours in every layout, and codes that share a byte share it. GPU layouts
keep 16 (`GRANULE_BYTES`), of which rows are made: of six-bit codes, K is a multiple of 64.
"""

from std.math import align_up, ceildiv

from .numbers.formats import E4M3_BLOCK, Format
from .numbers.scales import E8M0_BIAS, Scale

comptime RUN_BYTES = 4
"""Bytes of a row that no layout separates."""
comptime GRANULE_BYTES = 16
"""Bytes of a row that a lane of a GPU loads at once: what GPU layouts keep in one tile."""
comptime PADDING_SCALE = UInt8(E8M0_BIAS)
"""The scale byte of padding: one."""


@fieldwise_init
struct OperandShape(TrivialRegisterPassable):
    """The logical shape [rows, k] of an operand; k is a multiple of `K_MULTIPLE`."""

    var rows: Int
    """Rows: M of the activations or N of the weights."""
    var k: Int
    """Elements of a row."""

    def row_bytes[format: Format](self) -> Int:
        """Returns the bytes of packed codes of a row."""
        return format.packed_bytes(self.k)

    def k_blocks[format: Format](self) -> Int:
        """Returns the number of blocks, and so of scales, of a row."""
        return ceildiv(self.k, format.block_k)


trait OperandLayout:
    """A byte order for packed codes and scales."""

    comptime NAME: StaticString
    """The name used in every API."""
    comptime DEVICE: StaticString
    """The device whose `preshuffle` picks this layout; empty for none."""
    comptime HAS_FLOAT_SCALES: Bool
    """Whether it does so for formats with float scales too: else kernels read rows as they lie."""
    comptime E4M3_RUN: Int
    """E4M3 scales that lie as one of others, neighbours of a row; 0 if they stay row by row."""
    comptime ROW_MULTIPLE: Int
    """Code rows are padded to a multiple of this."""
    comptime BYTE_MULTIPLE: Int
    """Bytes of a row of codes are a multiple of this: others have no place."""
    comptime SCALE_ROW_MULTIPLE: Int
    """Scale rows are padded to a multiple of this."""
    comptime SCALE_K_MULTIPLE: Int
    """Scales of a row are padded to a multiple of this."""

    @staticmethod
    def code_offset(row: Int, byte: Int, row_bytes: Int) -> Int:
        """Returns the offset of byte `byte` of row `row`."""
        ...

    @staticmethod
    def code_coord(offset: Int, row_bytes: Int) -> Tuple[Int, Int]:
        """Returns the (row, byte) stored at `offset`: the inverse of `code_offset`."""
        ...

    @staticmethod
    def scale_offset(row: Int, block: Int, padded_k_blocks: Int) -> Int:
        """Returns the offset of the scale of (`row`, `block`)."""
        ...

    @staticmethod
    def scale_coord(offset: Int, padded_k_blocks: Int) -> Tuple[Int, Int]:
        """Returns the (row, block) stored at `offset`: the inverse of `scale_offset`."""
        ...


def code_rows[Layout: OperandLayout](shape: OperandShape) -> Int:
    """Returns the rows of codes that are stored, padding included."""
    return ceildiv(shape.rows, Layout.ROW_MULTIPLE) * Layout.ROW_MULTIPLE


def scale_rows[Layout: OperandLayout](shape: OperandShape) -> Int:
    """Returns the rows of scales that are stored, padding included."""
    return ceildiv(shape.rows, Layout.SCALE_ROW_MULTIPLE) * Layout.SCALE_ROW_MULTIPLE


def padded_blocks[Layout: OperandLayout](k_blocks: Int) -> Int:
    """Returns the scales of a row of `k_blocks` that are stored, padding included."""
    return align_up(k_blocks, Layout.SCALE_K_MULTIPLE)


def scale_blocks[Layout: OperandLayout, format: Format](shape: OperandShape) -> Int:
    """Returns the scales of a row that are stored, padding included."""
    return padded_blocks[Layout](shape.k_blocks[format]())


def e4m3_blocks[Layout: OperandLayout](k: Int) -> Int:
    """Returns the E4M3 scales of a row that are stored, padding included."""
    comptime MULTIPLE = Layout.E4M3_RUN * Layout.SCALE_K_MULTIPLE
    return align_up(k // E4M3_BLOCK, max(MULTIPLE, 1))


def e4m3_row_bytes[Layout: OperandLayout](k: Int) -> Int:
    """Returns the bytes of a row of E4M3 scales and its tensor scale that are stored."""
    return e4m3_blocks[Layout](k) + Scale.E4M3.row_bytes


@always_inline
def e4m3_place[Layout: OperandLayout](row: Int, index: Int, k: Int) -> Int:
    """Returns where a byte of a row of E4M3 scales is: those of stored blocks, then of its tensor
    scale."""
    comptime RUN, ROWS = Layout.E4M3_RUN, Layout.SCALE_ROW_MULTIPLE
    comptime if RUN == 0:
        return row * Format.NVFP4.scale_row_bytes(k) + index
    elif RUN == 1:
        return Layout.scale_offset(row, index, e4m3_row_bytes[Layout](k))
    else:
        var blocks, (tile, in_tile) = e4m3_blocks[Layout](k), divmod(row, ROWS)
        var first = tile * ROWS * e4m3_row_bytes[Layout](k)
        if index >= blocks:
            return first + ROWS * blocks + in_tile * Scale.E4M3.row_bytes + index - blocks
        var run, within = divmod(index, RUN)
        return first + RUN * Layout.scale_offset(in_tile, run, blocks // RUN) + within


@always_inline
def e4m3_offset_in[Layout: OperandLayout](row: Int, element: Int, k: Int) -> Int:
    """Returns where the E4M3 scale of an element is.

    Byte `i` of a row's tensor scale is where that of the element `k + i * E4M3_BLOCK` would be.
    """
    var index = element // E4M3_BLOCK
    comptime if Layout.E4M3_RUN > 1:
        if element >= k:
            index += e4m3_blocks[Layout](k) - k // E4M3_BLOCK
    return e4m3_place[Layout](row, index, k)


@always_inline
def element_of_e4m3[Layout: OperandLayout](index: Int, k: Int) -> Int:
    """Returns the element that `e4m3_offset_in` means by a byte of `e4m3_place`, -1 of padding."""
    var blocks = e4m3_blocks[Layout](k)
    if index >= blocks:
        return k + (index - blocks) * E4M3_BLOCK
    return index * E4M3_BLOCK if index * E4M3_BLOCK < k else -1


def e4m3_bytes_of[Layout: OperandLayout](rows: Int, k: Int) -> Int:
    """Returns the bytes of the E4M3 scales and tensor scales that are stored."""
    var held = scale_rows[Layout](OperandShape(rows, k)) if Layout.E4M3_RUN > 0 else rows
    return held * e4m3_row_bytes[Layout](k)


struct Plain(OperandLayout):
    """Row major: any rows, any number of blocks, no padding."""

    comptime NAME: StaticString = "plain"
    """The name used in every API."""
    comptime DEVICE: StaticString = ""
    """No device's `preshuffle` picks it."""
    comptime HAS_FLOAT_SCALES = True
    """Of all formats."""
    comptime E4M3_RUN = 0
    """Row by row."""
    comptime ROW_MULTIPLE = 1
    """No row padding."""
    comptime BYTE_MULTIPLE = 1
    """Any."""
    comptime SCALE_ROW_MULTIPLE = 1
    """No row padding."""
    comptime SCALE_K_MULTIPLE = 1
    """No padding along K."""

    @staticmethod
    @always_inline
    def code_offset(row: Int, byte: Int, row_bytes: Int) -> Int:
        """Returns the offset of byte `byte` of row `row`."""
        return row * row_bytes + byte

    @staticmethod
    def code_coord(offset: Int, row_bytes: Int) -> Tuple[Int, Int]:
        """Returns the (row, byte) stored at `offset`."""
        return divmod(offset, row_bytes)

    @staticmethod
    @always_inline
    def scale_offset(row: Int, block: Int, padded_k_blocks: Int) -> Int:
        """Returns the offset of the scale of (`row`, `block`)."""
        return row * padded_k_blocks + block

    @staticmethod
    def scale_coord(offset: Int, padded_k_blocks: Int) -> Tuple[Int, Int]:
        """Returns the (row, block) stored at `offset`."""
        return divmod(offset, padded_k_blocks)


struct PreshuffledCdna4(OperandLayout):
    """Weights as CDNA4 waves load them: AITER's (16, 16), MAX's preshuffled B.

    Codes, one tile of 16 rows x 16 bytes after another; of four-bit codes, four
    tiles are the contiguous KiB that a wave multiplies in one instruction:

        offset in tile    0 .. 15    16 .. 31   ...   240 .. 255
        row of the tile   0          1          ...   15

    Scales, one group of 32 rows x 8 blocks after another, four to a word;
    each word feeds the four MFMAs of a 2 x 2 group of tiles:

        byte in word      0          1            2           3
        scale at          (r, s)     (r + 16, s)  (r, s + 4)  (r + 16, s + 4)
        word in group     s * 16 + r, for r in 0 .. 15 and s in 0 .. 3

    Of E4M3 scales two neighbours are a scale of such a word, which is one of eight bytes.
    """

    comptime NAME: StaticString = "preshuffled_cdna4"
    """The name used in every API."""
    comptime DEVICE: StaticString = "gfx950"
    """The device whose `preshuffle` picks it."""
    comptime HAS_FLOAT_SCALES = True
    """Of all formats."""
    comptime E4M3_RUN = 2
    """A lane decodes 32 codes."""
    comptime ROW_MULTIPLE = 16
    """Rows of a code tile."""
    comptime BYTE_MULTIPLE = GRANULE_BYTES
    """Whole granules."""
    comptime SCALE_ROW_MULTIPLE = 32
    """Rows of a scale group."""
    comptime SCALE_K_MULTIPLE = 8
    """Blocks of a scale group."""
    comptime K_LANES = 4
    """Blocks that one MFMA covers along K."""

    @staticmethod
    @always_inline
    def code_offset(row: Int, byte: Int, row_bytes: Int) -> Int:
        """Returns the offset of byte `byte` of row `row`."""
        var tile_row, lane = divmod(row, Self.ROW_MULTIPLE)
        var granule, within = divmod(byte, GRANULE_BYTES)
        return ((tile_row * (row_bytes // GRANULE_BYTES) + granule) * Self.ROW_MULTIPLE + lane) * (
            GRANULE_BYTES
        ) + within

    @staticmethod
    def code_coord(offset: Int, row_bytes: Int) -> Tuple[Int, Int]:
        """Returns the (row, byte) stored at `offset`."""
        var line, within = divmod(offset, GRANULE_BYTES)
        var tile, lane = divmod(line, Self.ROW_MULTIPLE)
        var tile_row, granule = divmod(tile, row_bytes // GRANULE_BYTES)
        return (
            tile_row * Self.ROW_MULTIPLE + lane,
            granule * GRANULE_BYTES + within,
        )

    @staticmethod
    @always_inline
    def scale_offset(row: Int, block: Int, padded_k_blocks: Int) -> Int:
        """Returns the offset of the scale of (`row`, `block`)."""
        var group_row, row_in_group = divmod(row, Self.SCALE_ROW_MULTIPLE)
        var row_half, row_lane = divmod(row_in_group, Self.ROW_MULTIPLE)
        var group_k, block_in_group = divmod(block, Self.SCALE_K_MULTIPLE)
        var k_half, k_lane = divmod(block_in_group, Self.K_LANES)

        var group = group_row * (padded_k_blocks // Self.SCALE_K_MULTIPLE) + group_k
        var word = (group * Self.K_LANES + k_lane) * Self.ROW_MULTIPLE + row_lane
        return 4 * word + 2 * k_half + row_half

    @staticmethod
    def scale_coord(offset: Int, padded_k_blocks: Int) -> Tuple[Int, Int]:
        """Returns the (row, block) stored at `offset`."""
        var word, byte = divmod(offset, 4)
        var k_half, row_half = divmod(byte, 2)
        var line, row_lane = divmod(word, Self.ROW_MULTIPLE)
        var group, k_lane = divmod(line, Self.K_LANES)
        var group_row, group_k = divmod(group, padded_k_blocks // Self.SCALE_K_MULTIPLE)
        return (
            group_row * Self.SCALE_ROW_MULTIPLE + row_half * Self.ROW_MULTIPLE + row_lane,
            group_k * Self.SCALE_K_MULTIPLE + k_half * Self.K_LANES + k_lane,
        )


struct PreshuffledCpu(OperandLayout):
    """Weights as the CPU's byte dot product loads them.

    One tile of 16 rows x 1 block after another. Lane n of a 64-byte vector
    is row n of the tile; vector j holds bytes 4j .. 4j + 3 of each row:

        offset in tile    0 .. 3     4 .. 7    ...   60 .. 63    64 .. 67   ...
        row, bytes        0, 0..3    1, 0..3   ...   15, 0..3    0, 4..7    ...

    The 16 scales of a tile are contiguous, tiles in the same order.
    """

    comptime NAME: StaticString = "preshuffled_cpu"
    """The name used in every API."""
    comptime DEVICE: StaticString = "cpu"
    """The device whose `preshuffle` picks it."""
    comptime HAS_FLOAT_SCALES = True
    """Of all formats."""
    comptime E4M3_RUN = 0
    """Row by row."""
    comptime ROW_MULTIPLE = 16
    """Rows of a tile."""
    comptime BYTE_MULTIPLE = RUN_BYTES
    """Whole runs."""
    comptime SCALE_ROW_MULTIPLE = 16
    """Rows of a tile."""
    comptime SCALE_K_MULTIPLE = 1
    """No padding along K."""

    @staticmethod
    @always_inline
    def code_offset(row: Int, byte: Int, row_bytes: Int) -> Int:
        """Returns the offset of byte `byte` of row `row`."""
        var tile_row, lane = divmod(row, Self.ROW_MULTIPLE)
        var run, within = divmod(byte, RUN_BYTES)
        return ((tile_row * (row_bytes // RUN_BYTES) + run) * Self.ROW_MULTIPLE + lane) * (
            RUN_BYTES
        ) + within

    @staticmethod
    def code_coord(offset: Int, row_bytes: Int) -> Tuple[Int, Int]:
        """Returns the (row, byte) stored at `offset`."""
        var line, within = divmod(offset, RUN_BYTES)
        var rest, lane = divmod(line, Self.ROW_MULTIPLE)
        var tile_row, run = divmod(rest, row_bytes // RUN_BYTES)
        return (tile_row * Self.ROW_MULTIPLE + lane, run * RUN_BYTES + within)

    @staticmethod
    @always_inline
    def scale_offset(row: Int, block: Int, padded_k_blocks: Int) -> Int:
        """Returns the offset of the scale of (`row`, `block`)."""
        var tile_row, lane = divmod(row, Self.ROW_MULTIPLE)
        return (tile_row * padded_k_blocks + block) * Self.ROW_MULTIPLE + lane

    @staticmethod
    def scale_coord(offset: Int, padded_k_blocks: Int) -> Tuple[Int, Int]:
        """Returns the (row, block) stored at `offset`."""
        var line, lane = divmod(offset, Self.ROW_MULTIPLE)
        var tile_row, block = divmod(line, padded_k_blocks)
        return (tile_row * Self.ROW_MULTIPLE + lane, block)


struct PreshuffledCuda(OperandLayout):
    """Weights as Hopper warps load them: one contiguous burst a tile.

    One tile of 32 rows x 16 bytes after another, 512 bytes. In the fragments of
    `mma.m16n8k16` lane 4 * g + t owns rows g and g + 8; of each it gets the four
    bytes of codes k = 8 * t .. 8 * t + 7, and of a second fragment the same:

        offset in tile    0 .. 3   4 .. 7   8 .. 11  12 .. 15   16 .. 19   ...
        row               0        8        16       24         0          ...
        bytes of 16       0 .. 3   0 .. 3   0 .. 3   0 .. 3     4 .. 7     ...

    Scales, 32 bytes a tile, tiles in the same order; one word feeds one lane:

        offset in tile    0        1        2        3          4          ...
        row               0        8        16       24         1          ...
    """

    comptime NAME: StaticString = "preshuffled_cuda"
    """The name used in every API."""
    comptime DEVICE: StaticString = "cuda"
    """The device whose `preshuffle` picks it."""
    comptime HAS_FLOAT_SCALES = False
    """Tensor maps cut their tiles out of rows."""
    comptime E4M3_RUN = 1
    """A tile has 32 scales of its first sixteen codes, then as many of the others."""
    comptime ROW_MULTIPLE = 32
    """Rows of a tile: two fragments of 16."""
    comptime BYTE_MULTIPLE = GRANULE_BYTES
    """Whole granules."""
    comptime SCALE_ROW_MULTIPLE = Self.ROW_MULTIPLE
    """Rows of a tile."""
    comptime SCALE_K_MULTIPLE = 1
    """No padding along K."""
    comptime ROW_LANES = 8
    """Rows that one word of each lane covers."""
    comptime ROWS_PER_LANE = Self.ROW_MULTIPLE // Self.ROW_LANES
    """Rows whose words lie side by side in a lane's 16 bytes."""
    comptime K_LANES = GRANULE_BYTES // RUN_BYTES
    """Lanes that share a row."""
    comptime TILE_BYTES = Self.ROW_MULTIPLE * GRANULE_BYTES
    """Bytes of a tile's codes."""

    @staticmethod
    @always_inline
    def code_offset(row: Int, byte: Int, row_bytes: Int) -> Int:
        """Returns the offset of byte `byte` of row `row`."""
        var tile_row, row_in_tile = divmod(row, Self.ROW_MULTIPLE)
        var word, row_lane = divmod(row_in_tile, Self.ROW_LANES)
        var granule, byte_in_granule = divmod(byte, GRANULE_BYTES)
        var k_lane, within = divmod(byte_in_granule, RUN_BYTES)
        var tile = tile_row * (row_bytes // GRANULE_BYTES) + granule
        var lane = row_lane * Self.K_LANES + k_lane
        return tile * Self.TILE_BYTES + (lane * Self.ROWS_PER_LANE + word) * RUN_BYTES + within

    @staticmethod
    def code_coord(offset: Int, row_bytes: Int) -> Tuple[Int, Int]:
        """Returns the (row, byte) stored at `offset`."""
        var tile, offset_in_tile = divmod(offset, Self.TILE_BYTES)
        var run, within = divmod(offset_in_tile, RUN_BYTES)
        var lane, word = divmod(run, Self.ROWS_PER_LANE)
        var row_lane, k_lane = divmod(lane, Self.K_LANES)
        var tile_row, granule = divmod(tile, row_bytes // GRANULE_BYTES)
        return (
            tile_row * Self.ROW_MULTIPLE + word * Self.ROW_LANES + row_lane,
            granule * GRANULE_BYTES + k_lane * RUN_BYTES + within,
        )

    @staticmethod
    @always_inline
    def scale_offset(row: Int, block: Int, padded_k_blocks: Int) -> Int:
        """Returns the offset of the scale of (`row`, `block`)."""
        var tile_row, row_in_tile = divmod(row, Self.ROW_MULTIPLE)
        var word, row_lane = divmod(row_in_tile, Self.ROW_LANES)
        var tile = tile_row * padded_k_blocks + block
        return tile * Self.ROW_MULTIPLE + row_lane * Self.ROWS_PER_LANE + word

    @staticmethod
    def scale_coord(offset: Int, padded_k_blocks: Int) -> Tuple[Int, Int]:
        """Returns the (row, block) stored at `offset`."""
        var tile, row_in_tile = divmod(offset, Self.ROW_MULTIPLE)
        var row_lane, word = divmod(row_in_tile, Self.ROWS_PER_LANE)
        var tile_row, block = divmod(tile, padded_k_blocks)
        return (
            tile_row * Self.ROW_MULTIPLE + word * Self.ROW_LANES + row_lane,
            block,
        )


comptime _List[*Layouts: OperandLayout] = Layouts
comptime LAYOUTS = _List[Plain, PreshuffledCdna4, PreshuffledCpu, PreshuffledCuda]
"""Every layout; the position is the code that bindings use."""


def layout_position(name: StaticString) -> Int:
    """Returns the position of a layout in `LAYOUTS`, -1 for none of them."""
    comptime for i in range(len(LAYOUTS)):
        if LAYOUTS[i].NAME == name:
            return i
    return -1

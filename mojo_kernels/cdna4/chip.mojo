"""What there is of everything, what a launch can count, and what the matrix instruction takes."""

from std.math import align_down

from ..layouts import PreshuffledCdna4
from ..numbers.formats import Format

comptime CUS = 256
"""Compute units."""
comptime LDS_BYTES = 160 * 1024
"""Of a compute unit."""
comptime LANES = 64
"""Lanes of a wave."""
comptime MAX_COUNT = 63
"""Loads that a wait can leave in flight."""
comptime MAX_TENSOR_BYTES = 1 << 31
"""Kernels count bytes in 32 bits."""
comptime MAX_ROWS = 1 << 20
"""Rows of operands that a launch takes: HIP's grids end at 65536 tiles, of 16 rows at least."""
comptime ROWS_MULTIPLE = 256
"""Stretches of rows begin where any access is aligned."""
comptime WORD_BYTES = 4
"""Bytes of an int32 or a float32."""
comptime PIECE_BYTES = 16
"""What a lane moves at once."""
comptime LOAD_BYTES = LANES * PIECE_BYTES
"""What a wave does."""

comptime BLOCK = 32
"""Elements along K that share a scale byte: the instruction knows no other block."""
comptime TILE = 16
"""Rows of both operands of the instruction."""
comptime TILE_BLOCKS = 4
"""Blocks along K of a tile."""
comptime TILE_K = TILE_BLOCKS * BLOCK
"""Elements along K of a tile."""
comptime SUMS = 4
"""Values of C that a lane holds: neighbouring columns of one row."""
comptime LANE_K[format: Format] = BLOCK // 2 if _is_float(format) else BLOCK
"""Elements along K that a lane feeds to a tile: where both sides are floats, which take twice the
bytes and cycles of eight bits, a tile is half as long."""
comptime LANE_BYTES[format: Format] = format.packed_bytes(LANE_K[format])
"""Bytes of the packed codes that a lane feeds."""
comptime LANE_SCALES[format: Format] = max(BLOCK // format.block_k, 1)
"""Scales of these: two of sixteen codes each, or one."""

comptime CODE_PIECE_BYTES[format: Format] = piece_bytes_of(format.element.bits)
"""Bytes of codes that a lane loads straight to LDS: half a block of six-bit codes."""
comptime CODE_LOAD_BYTES[format: Format] = load_bytes_of(CODE_PIECE_BYTES[format])
"""Bytes of LDS from such codes of a wave to the next."""

comptime GROUP_BLOCKS = PreshuffledCdna4.SCALE_K_MULTIPLE
"""Blocks along K whose scales share words: those of two tiles."""
comptime GROUP_TILES = GROUP_BLOCKS // TILE_BLOCKS
"""Tiles along K whose scales share words."""
comptime PAIR = PreshuffledCdna4.SCALE_ROW_MULTIPLE // TILE
"""Tiles along the rows whose scales share a word."""
comptime WORD_SCALES = PAIR * GROUP_TILES
"""Scales of a word."""
comptime SCALE_GROUP_ROWS = PAIR * TILE
"""Rows whose scales share words."""
comptime SCALE_GROUP_BYTES = SCALE_GROUP_ROWS * GROUP_BLOCKS
"""Bytes of the scales of two tiles of rows and as many along K."""
comptime QUANTIZED_ROWS = SCALE_GROUP_ROWS
"""Rows that a wave quantizes."""
comptime QUANTIZE_WAVES = 2
"""Waves of a workgroup that quantizes. Guess."""


def _is_float(format: Format) -> Bool:
    """Says whether codes are floats of 16 bits without scales."""
    return format.element.bits == 16 and format.has_row_scales()


def piece_bytes_of(bits: Int) -> Int:
    """Returns the bytes of codes of so many bits that a lane loads straight to LDS."""
    comptime HALF_A_BLOCK_OF_SIXES = 12
    return HALF_A_BLOCK_OF_SIXES if bits == 6 else PIECE_BYTES


def load_bytes_of(piece_bytes: Int) -> Int:
    """Returns the bytes of LDS from what a wave loads at once to the next; operands/shared.mojo
    says why there are some between them."""
    return LANES * piece_bytes + (0 if piece_bytes == PIECE_BYTES else PIECE_BYTES)


def scale_load_bytes(run: Int) -> Int:
    """Returns the bytes of LDS from a load of float scales of a wave to its next: where the rows of
    a tile are of two loads, with a word between these, so that all rows find banks of their own."""
    return SCALE_GROUP_BYTES + (WORD_BYTES if run > PAIR else 0)


def rows_at_once(row_bytes: Int) -> Int:
    """Returns how many rows of at most `row_bytes` a launch takes."""
    var rows = align_down((MAX_TENSOR_BYTES - 1) // row_bytes, ROWS_MULTIPLE)
    return max(min(MAX_ROWS, rows), 1)

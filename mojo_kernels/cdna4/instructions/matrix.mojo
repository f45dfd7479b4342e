"""The scaled matrix instruction: a tile of weights times a tile of activations.

    v_mfma_scale_f32_16x16x128_f8f6f4    16 cycles for four-bit elements, else 32

Each lane feeds a block of both operands. Weights go first, so that a lane receives
neighbouring columns of one row of C, in the order of memory:

    lane l    feeds row l % 16, block l / 16
              receives row l % 16, columns 4 * (l / 16) .. + 3

A scale operand is a word of four scale bytes; a compile-time index picks one.
"""

from linalg.arch.amd.block_scaled_mma import CDNA4F8F6F4MatrixFormat, cdna4_block_scaled_mfma
from std.memory import bitcast
from std.sys.intrinsics import llvm_intrinsic

from ...numbers.elements import Element
from ...numbers.formats import Format
from ...numbers.scales import Scale
from ...tiles import RegisterTile

comptime LANES = 64
"""Lanes of a wave."""
comptime BLOCK = 32
"""Elements along K that share a scale byte: the instruction knows no other block."""
comptime TILE = 16
"""Rows of both operands."""
comptime TILE_BLOCKS = 4
"""Blocks along K of a tile."""
comptime TILE_K = TILE_BLOCKS * BLOCK
"""Elements along K of a tile."""
comptime SUMS = 4
"""Values of C that a lane holds: neighbouring columns of one row."""
comptime Sums = SIMD[DType.float32, SUMS]
"""A lane's part of a tile of C."""
comptime CODE_WORDS[format: Format] = format.block_bytes() // 4
"""Words of the packed codes of one block."""
comptime BlockCodes[format: Format] = SIMD[DType.uint32, CODE_WORDS[format]]
"""The packed codes of one block in registers: what a lane feeds."""
comptime CodeTile[format: Format, *sizes: Int] = RegisterTile[
    DType.uint32, CODE_WORDS[format], *sizes
]
"""What a lane feeds for some tiles."""
comptime WordTile[*sizes: Int] = RegisterTile[DType.uint32, 1, *sizes]
"""Words of scales of a lane."""
comptime SumTile[*sizes: Int] = RegisterTile[DType.float32, SUMS, *sizes]
"""A lane's part of some tiles of C."""


def operand_code(element: Element) -> Optional[Int]:
    """Returns the instruction's number for an element, none if it takes no such operand."""
    if element == Element.E4M3:
        return 0
    if element == Element.E5M2:
        return 1
    if element == Element.E2M1:
        return 4
    return None


def feeds_matrix_instruction(format: Format) -> Bool:
    """Says whether the instruction takes operands of a format: their element, block and scale."""
    return (
        Bool(operand_code(format.element))
        and format.scale == Scale.E8M0
        and format.block_rows == 1
        and format.block_k == BLOCK
    )


@always_inline
def multiply_tiles[
    left: Format, right: Format, b_byte: Int, a_byte: Int
](
    sums: Sums, b: BlockCodes[right], a: BlockCodes[left], b_scales: UInt32, a_scales: UInt32
) -> Sums:
    """Returns `sums + b @ a.T`, scaled by byte `b_byte` and `a_byte` of the scale words."""
    comptime assert feeds_matrix_instruction(left), String(
        "no matrix instruction for ", left.name(), " on the left"
    )
    comptime assert feeds_matrix_instruction(right), String(
        "no matrix instruction for ", right.name(), " on the right"
    )
    comptime LEFT = CDNA4F8F6F4MatrixFormat(operand_code(left.element).value())
    comptime RIGHT = CDNA4F8F6F4MatrixFormat(operand_code(right.element).value())
    var result = sums
    cdna4_block_scaled_mfma[Int32(b_byte), Int32(a_byte), RIGHT, LEFT](
        result,
        bitcast[DType.uint8, right.block_bytes()](b),
        bitcast[DType.uint8, left.block_bytes()](a),
        bitcast[DType.int32](b_scales),
        bitcast[DType.int32](a_scales),
    )
    return result


@always_inline
def set_priority[level: Int]():
    """Sets the wave's priority, 0 .. 3, among the waves of its SIMD."""
    llvm_intrinsic["llvm.amdgcn.s.setprio", NoneType, has_side_effect=True](Int16(level))

"""The matrix instructions: a tile of weights times a tile of activations, 128 along K.

    v_mfma_scale_f32_16x16x128_f8f6f4    16 cycles for elements of four and six bits, else 32
    v_mfma_f32_16x16x128_f8f6f4          the same without scales
    v_mfma_f32_16x16x32_bf16             four of them, 64 cycles, for kept activations
    v_mfma_f32_16x16x32_bf16, .._f16     two of them, 32 cycles, 64 along K, for floats by floats

Weights go first, so that a lane receives neighbouring columns of one row of C, in the order of
memory. Of each operand it feeds as many bytes as a block has, in pieces of 16; six-bit codes end with
half a piece. Of eight-bit codes pieces are not neighbours, though the scale is that of block l / 16:

    lane l    feeds block l / 16 of row l % 16; of eight bits, piece p is the 16 bytes number
              4 * p + l / 16 of the tile's row
              receives row l % 16, columns 4 * (l / 16) .. + 3

A scale operand is a word of four scale bytes; a compile-time index picks one. Of kept activations
a lane feeds block l / 16 as bfloat16, and the weights' block is decoded to the same. So a scale
may be none that the instruction knows: a code times an E4M3 scale has six significant bits.

The instruction knows no float scales. One of a row waits for the sums; others are those of the
128 along K of one instruction, whose products are summed on their own and multiplied by both.
"""

from max.gpu.intrinsics import permlane_swap
from linalg.arch.amd.block_scaled_mma import CDNA4F8F6F4MatrixFormat, cdna4_block_scaled_mfma
from std.bit import next_power_of_two
from std.math import ceildiv
from std.memory import bitcast
from std.sys._assembly import inlined_assembly
from std.sys.intrinsics import llvm_intrinsic

from ...numbers.elements import Element
from ...numbers.floats import F32_MANTISSA_BITS
from ...numbers.formats import Format
from ...numbers.scales import Scale
from ...tiles import RegisterTile
from ..chip import BLOCK, LANE_BYTES, LANE_SCALES, PIECE_BYTES, SUMS
from ..types import F16, KEPT, name_of, operand_code
from .lds import PIECE_WORDS
from .vector import decode_e4m3, decode_pair, zeros_of_a_branch

comptime Sums = SIMD[DType.float32, SUMS]
"""A lane's part of a tile of C."""
comptime PIECES[format: Format] = ceildiv(LANE_BYTES[format], PIECE_BYTES)
"""Pieces of an operand that a lane feeds, the last one perhaps half."""
comptime LAST_BYTES[format: Format] = LANE_BYTES[format] - (PIECES[format] - 1) * PIECE_BYTES
"""Bytes of the last of them."""
comptime IS_SPLIT[format: Format] = format.element.bits == 8
"""Whether they are not neighbours."""
comptime CODE_WORDS[format: Format] = next_power_of_two(LANE_BYTES[format] // 4)
"""Words of registers for the same: vectors have a power of two. Others are used by nobody."""
comptime BlockCodes[format: Format] = SIMD[DType.uint32, CODE_WORDS[format]]
"""The same in registers: of MX formats one block."""
comptime CodeTile[format: Format, *sizes: Int] = RegisterTile[
    DType.uint32, CODE_WORDS[format], *sizes
]
"""What a lane feeds for some tiles."""
comptime WordTile[*sizes: Int] = RegisterTile[DType.uint32, 1, *sizes]
"""Words of scales of a lane."""
comptime SumTile[*sizes: Int] = RegisterTile[DType.float32, SUMS, *sizes]
"""A lane's part of some tiles of C."""


def feeds_matrix_instruction(format: Format) -> Bool:
    """Says whether the instruction takes operands of a format: their element, block and scale.

    Of formats with float scales it takes the codes alone.
    """
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
    """Returns `sums + b @ a.T`, scaled by byte `b_byte` and `a_byte` of the scale words.

    Of E4M3 scales a half takes the place of a byte. A float scale is a word; those of rows are
    applied elsewhere.
    """
    comptime if left == KEPT:
        var weights = decoded_block[right, b_byte](b, b_scales)
        return multiply_floats(sums, weights, rebind[BlockCodes[KEPT]](a))
    elif left.scale == Scale.E8M0:
        comptime NONE = "no matrix instruction for "
        comptime assert feeds_matrix_instruction(left), String(NONE, name_of(left), " on the left")
        comptime assert feeds_matrix_instruction(right), String(
            NONE, name_of(right), " on the right"
        )
        return _multiply_words[left, right, b_byte, a_byte](sums, b, a, b_scales, a_scales)
    elif left.has_row_scales():
        return multiply_codes[left, right](sums, b, a)
    else:
        var scale = bitcast[DType.float32](a_scales) * bitcast[DType.float32](b_scales)
        return multiply_codes[left, right](Sums(0), b, a).fma(Sums(scale), sums)


@always_inline
def decoded_block[
    format: Format, part: Int
](b: BlockCodes[format], b_scales: UInt32) -> BlockCodes[KEPT]:
    """Returns 32 weights as bfloat16, a word of codes for each matrix instruction.

    `part`: Which byte of a word is their scale, or which half of E4M3 scales.
    """
    comptime assert format.element == Element.E2M1, "kept activations multiply four-bit weights"
    comptime PAIRS = 4
    comptime WORDS = CODE_WORDS[format]
    var floats = BlockCodes[KEPT]()
    comptime if format.scale == Scale.E4M3:
        var scales = decode_e4m3[part](b_scales)
        comptime for word in range(WORDS):
            comptime for byte in range(PAIRS):
                var pair = decode_pair[Element.E2M1, byte, DType.float32](b[word], 1)
                pair *= scales[word * LANE_SCALES[format] // WORDS]
                var rounded = pair.cast[DType.bfloat16]()
                floats[PAIRS * word + byte] = bitcast[DType.uint32, 1](rounded)
    else:
        var exponent = (b_scales >> UInt32(8 * part)) & 0xFF
        var scale = bitcast[DType.float32](exponent << UInt32(F32_MANTISSA_BITS))
        comptime for word in range(WORDS):
            comptime for byte in range(PAIRS):
                var pair = decode_pair[Element.E2M1, byte](b[word], scale)
                floats[PAIRS * word + byte] = bitcast[DType.uint32, 1](pair)
    return floats


@always_inline
def multiply_floats(sums: Sums, b: BlockCodes[KEPT], a: BlockCodes[KEPT]) -> Sums:
    """Returns `sums + b @ a.T` for kept activations."""
    var result = sums
    comptime for piece in range(PIECES[KEPT]):
        result = multiply_piece[KEPT, piece](result, b, a)
    return result


@always_inline
def multiply_piece[
    format: Format, piece: Int
](sums: Sums, b: BlockCodes[format], a: BlockCodes[format]) -> Sums:
    """Returns `sums + b @ a.T` for a piece of floats, 32 along K of a tile."""
    comptime IS_F16 = format == F16
    comptime dtype = DType.float16 if IS_F16 else DType.bfloat16
    comptime NAME: StaticString = (
        "llvm.amdgcn.mfma.f32.16x16x32.f16" if IS_F16 else "llvm.amdgcn.mfma.f32.16x16x32.bf16"
    )
    comptime FED, FIRST = 2 * PIECE_WORDS, PIECE_WORDS * piece
    return llvm_intrinsic[NAME, Sums, has_side_effect=False](
        bitcast[dtype, FED](b.slice[PIECE_WORDS, offset=FIRST]()),
        bitcast[dtype, FED](a.slice[PIECE_WORDS, offset=FIRST]()),
        sums,
        Int32(0),
        Int32(0),
        Int32(0),
    )


@always_inline
def multiply_codes[
    left: Format, right: Format
](sums: Sums, b: BlockCodes[right], a: BlockCodes[left]) -> Sums:
    """Multiplies codes without scales: zeros that are constants choose that instruction."""
    return _multiply_words[left, right, 0, 0](sums, b, a, 0, 0)


@always_inline
def _multiply_words[
    left: Format, right: Format, b_byte: Int, a_byte: Int
](
    sums: Sums, b: BlockCodes[right], a: BlockCodes[left], b_scales: UInt32, a_scales: UInt32
) -> Sums:
    """Emits the instruction."""
    comptime LEFT = CDNA4F8F6F4MatrixFormat(operand_code(left.element).value())
    comptime RIGHT = CDNA4F8F6F4MatrixFormat(operand_code(right.element).value())
    var result = sums
    cdna4_block_scaled_mfma[Int32(b_byte), Int32(a_byte), RIGHT, LEFT](
        result,
        bitcast[DType.uint8, 4 * CODE_WORDS[right]](b),
        bitcast[DType.uint8, 4 * CODE_WORDS[left]](a),
        bitcast[DType.int32](b_scales),
        bitcast[DType.int32](a_scales),
    )
    return result


@always_inline
def fed[format: Format](block: BlockCodes[format]) -> BlockCodes[format]:
    """Returns the pieces that a lane feeds; `block` is block `lane / 16` of its row.

    Of eight-bit codes lane group g has the pieces 2 * g and 2 * g + 1 of a row and feeds g and
    4 + g. With piece 4 * x + 2 * y + z in group 2 * x + y, place z, two exchanges of bits do it.
    """
    comptime ODD_ROWS, HALVES = 16, 32
    var result = block
    comptime if IS_SPLIT[format]:
        comptime for word in range(PIECE_WORDS):
            comptime high = PIECE_WORDS + word
            var words = permlane_swap[ODD_ROWS](result[word], result[high])
            words = permlane_swap[HALVES](words[0], words[1])
            result[word], result[high] = words[0], words[1]
    return result


@always_inline
def set_priority[level: Int]():
    """Sets the wave's priority, 0 .. 3, among the waves of its SIMD."""
    llvm_intrinsic["llvm.amdgcn.s.setprio", NoneType, has_side_effect=True](Int16(level))


@always_inline
def cleared[is_apart: Bool]() -> Sums:
    """Returns zeros that are made here, where there is time, and not at a loop.

    `is_apart`: whether they are kept in accumulation registers.
    """
    var low, high = zeros_of_a_branch(), zeros_of_a_branch()
    var zeros = bitcast[DType.float32, SUMS](low.join(high))
    comptime if is_apart:
        return _kept_apart(zeros)
    return zeros


@always_inline
def keep_apart[m_tiles: Int, n_tiles: Int, //](sums: SumTile[m_tiles, n_tiles]):
    """Keeps sums in accumulation registers; the compiler moves them about otherwise."""
    comptime for m_tile in range(m_tiles):
        comptime for n_tile in range(n_tiles):
            sums[m_tile, n_tile] = _kept_apart(sums[m_tile, n_tile])


@always_inline
def summed_here(sums: Sums) -> Sums:
    """Returns sums, in a way that the compiler cannot add them up later."""
    return inlined_assembly["", Sums, constraints="=v,0", has_side_effect=True](sums)


@always_inline
def _kept_apart(sums: Sums) -> Sums:
    return inlined_assembly["", Sums, constraints="=a,0", has_side_effect=True](sums)

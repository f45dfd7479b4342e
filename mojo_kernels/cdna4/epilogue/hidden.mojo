"""Hidden numbers: sums of gates and ups, which are neighbours, gated and stored half as many.

    Hidden         as floats, a tile at a time
    HiddenCodes    rounded to the same floats, then encoded; a wave has a block of each of its rows

Of a row of a tile, lanes q = l / 16 have two hidden numbers each, a byte of four-bit codes or two
bytes. Four tiles of rows, and four of columns, exchange them so that each lane gets a whole block;
for codes of six bits, whose converter takes a block, the numbers instead of their codes:

    lane q has       of row tile i, column tile t    pair of codes 4 * t + q of the block
    lane q stores    of row tile q                   pairs 0 .. 15
"""

from max.gpu.intrinsics import AMDBufferResource, permlane_swap
from max.gpu.sync import schedule_barrier
from std.memory import bitcast
from std.sys import size_of

from ...layouts import OperandLayout, Plain
from ...numbers.floats import F32_MANTISSA_BITS, FloatBits
from ...numbers.formats import Format
from ...numbers.gates import Gate
from ...numbers.rounding import Rounding
from ...numbers.scales import E8M0_NAN
from ...tiles import RegisterTile, in_registers
from ..chip import BLOCK, LANES, LANE_BYTES, PIECE_BYTES, SUMS, TILE, TILE_BLOCKS, WORD_BYTES
from ..instructions.lds import PIECE_WORDS
from ..instructions.matrix import BlockCodes, CODE_WORDS, LAST_BYTES, PIECES, SumTile, Sums
from ..instructions.vector import chosen_bytes, encode_pair, opaque, zero_of_a_branch
from ..instructions.wave import votes
from ..operands.encode import encode_block, NOT_FINITE, Rescaling, Window, clamped, overflows
from .gate import QuickGate
from ..operands.memory import OUT_OF_RANGE, Span, quotient
from ..operands.tiles import tiled_block
from .target import Destination, Target

comptime EXCHANGED = 4
"""Tiles of rows whose lanes exchange what they have; so many tiles of columns are a block."""
comptime _LANE_NUMBERS = SUMS // 2 * EXCHANGED
"""Numbers of a block that a lane computes."""
comptime BFLOAT16_SHIFT = UInt32(F32_MANTISSA_BITS - FloatBits[DType.bfloat16].MANTISSA_BITS)
"""From the bits of bfloat16 to those of float32."""
comptime _Words = SIMD[DType.uint32, EXCHANGED]
"""A word for each of the tiles of rows; or for the lanes of a row."""


@fieldwise_init
struct Hidden[dtype: DType, bias_dtype: Optional[DType]](Destination):
    """Rows of hidden numbers, contiguous."""

    comptime Both = Target[Self.dtype, Self.bias_dtype]

    var sums: Self.Both
    """Their bias and their columns; its memory is that of the hidden numbers."""
    var gate: Gate

    @staticmethod
    @always_inline
    def of(
        values: MutPointer[Scalar[Self.dtype], _],
        bias: ImmPointer[UInt8, _],
        rows: Int32,
        n: Int32,
        gate: Gate,
    ) -> Self:
        """Describes `rows` rows of n / 2 hidden numbers."""
        var sums = Self.Both.of(values, bias, rows, n)
        sums.values = AMDBufferResource(values, Int(rows * quotient[2](n)))
        return Self(sums, gate)

    @always_inline
    def bias_of(self, first_column: Int32, lane: Int32) -> Sums:
        return self.sums.bias_of(first_column, lane)

    @always_inline
    def store(self, sums: Sums, bias: Sums, first_row: Int32, first_column: Int32, lane: Int32):
        comptime BYTES = size_of[Self.dtype]()
        var row, column = self.sums.place(first_row, first_column, lane)
        var gates, ups = self.sums.biased(sums, bias).deinterleave()
        var hidden = self.gate.of(gates, ups).cast[Self.dtype]()
        var offset = (row * quotient[2](self.sums.n) + quotient[2](column)) * Int32(BYTES)
        self.sums.values.store(
            offset if column < self.sums.n else OUT_OF_RANGE,
            bitcast[DType.uint8, SUMS // 2 * BYTES](rebind[SIMD[Self.dtype, SUMS // 2]](hidden)),
        )


@always_inline
def exchanged(words: _Words) -> _Words:
    """Returns word q of the four lanes of a row, in their order, to lane q; its own inverse."""
    comptime HALVES, ODD_ROWS = 32, 16
    var even = permlane_swap[HALVES](words[0], words[2])
    var odd = permlane_swap[HALVES](words[1], words[3])
    var first = permlane_swap[ODD_ROWS](even[0], odd[0])
    var second = permlane_swap[ODD_ROWS](even[1], odd[1])
    return _Words(first[0], first[1], second[0], second[1])


comptime _LOW_HALVES = UInt32(0x05040100)
"""Selects the low halves of two words."""
comptime _HIGH_HALVES = UInt32(0x07060302)
"""Selects the high halves of two words."""


@always_inline
def bytes_in_order(words: _Words) -> _Words:
    """Returns byte i of the words as word i."""
    comptime EVEN, ODD = UInt32(0x06020400), UInt32(0x07030501)
    # Bytes 0 and 2, then 1 and 3, of two words: a0 b0 a2 b2.
    var even = _pair(words, EVEN)
    var odd = _pair(words, ODD)
    return _Words(
        chosen_bytes([even[0], even[1]], _LOW_HALVES),
        chosen_bytes([odd[0], odd[1]], _LOW_HALVES),
        chosen_bytes([even[0], even[1]], _HIGH_HALVES),
        chosen_bytes([odd[0], odd[1]], _HIGH_HALVES),
    )


@always_inline
def halves_in_order(words: _Words) -> _Words:
    """Returns the low halves of the words as the first two, the high halves as the last two."""
    var low = _pair(words, _LOW_HALVES)
    var high = _pair(words, _HIGH_HALVES)
    return _Words(low[0], low[1], high[0], high[1])


@always_inline
def _pair(words: _Words, selector: UInt32) -> SIMD[DType.uint32, 2]:
    """Returns the chosen bytes of the first two words, and of the last two."""
    return [
        chosen_bytes([words[0], words[1]], selector),
        chosen_bytes([words[2], words[3]], selector),
    ]


@fieldwise_init
struct HiddenCodes[
    format: Format,
    rounding: Rounding,
    dtype: DType,
    bias_dtype: Optional[DType],
    Layout: OperandLayout = Plain,
    tiled_rows: Int = 1,
](TrivialRegisterPassable):
    """Rows of hidden numbers as plain codes and scales, of whole stages along the next K.

    `dtype`: What they are rounded to before.
    `tiled_rows`: Rows whose codes of 128 along K lie together; 1 if they are plain.
    """

    comptime Both = Target[DType.float32, Self.bias_dtype]

    var sums: Self.Both
    var gate: QuickGate
    var codes: AMDBufferResource
    """[rows, blocks] of codes."""
    var scales: AMDBufferResource
    """[rows, blocks] in their layout."""
    var blocks: Int32

    @staticmethod
    @always_inline
    def of(
        codes: MutPointer[UInt8, _],
        scales: MutPointer[UInt8, _],
        first_row: Int32,
        rows: Int32,
        first_scale_row: Int32,
        scale_rows: Int32,
        blocks: Int32,
        bias: ImmPointer[UInt8, _],
        n: Int32,
        gate: QuickGate,
    ) -> Self:
        """Describes `rows` rows from `first_row` on, whose scales are as many rows or more."""
        comptime BYTES = Int32(LANE_BYTES[Self.format])
        var end_scale_row = first_scale_row + scale_rows
        var end_row = first_row + rows
        comptime if Self.tiled_rows > 1:
            end_row = quotient[Self.tiled_rows](end_row + Int32(Self.tiled_rows - 1))
            end_row *= Int32(Self.tiled_rows)
        return Self(
            Self.Both.of(codes.unsafe_bitcast[Float32](), bias, 0, n),
            gate,
            Span.of(codes, end_row * blocks * BYTES).after(first_row * blocks * BYTES),
            Span.of(scales, end_scale_row * blocks).after(first_scale_row * blocks),
            blocks,
        )

    @always_inline
    def store[
        m_tiles: Int, n_tiles: Int, //, first: Int
    ](
        self,
        sums: SumTile[m_tiles, n_tiles],
        bias: SumTile[n_tiles],
        first_row: Int32,
        first_column: Int32,
        lane: Int32,
    ):
        """Stores what becomes of a wave's sums: a block of each row of the `EXCHANGED` tiles from
        `first` on, or of as many as there are."""
        comptime assert n_tiles == EXCHANGED, "a wave has whole blocks"
        comptime TILES = min(EXCHANGED, m_tiles - first)
        var block = quotient[2 * BLOCK](first_column)
        var own = quotient[TILE](lane)
        var numbers = in_registers[Self.dtype, _LANE_NUMBERS, EXCHANGED]()
        var largest = _Words(0)
        comptime for i in range(TILES, EXCHANGED):
            numbers[i] = 0
        comptime for i in range(TILES):
            numbers[i] = self._numbers[first + i](sums, bias)
            largest[i] = _largest(numbers[i])
            schedule_barrier()
        var row = first_row + (Int32(first) + own) * Int32(TILE) + lane % Int32(TILE)
        var is_there = block < self.blocks and own < Int32(m_tiles - first)
        comptime if Self.format.element.bits == 6:
            # The converter takes a block: the lane that stores it encodes it.
            var whole = encode_block[Self.format, Self.dtype, Self.rounding](_gathered(numbers))
            self._put(whole.codes, whole.scale, row, block, is_there)
        else:
            # The largest of a block, in the lane that stores it.
            var amax = exchanged(largest).reduce_max()
            var encoded: _Encoded[Self.format]
            comptime if Self.dtype == DType.bfloat16:
                comptime Usual = Window[DType.bfloat16, Self.format.element]
                if votes(not Usual.has(amax >> BFLOAT16_SHIFT)) == 0:
                    encoded = _encoded[TILES, Self.format, Self.rounding](numbers, amax)
                else:
                    encoded = _encoded_rare[TILES, Self.format, Self.rounding](numbers, amax, own)
            else:
                encoded = _encoded_rare[TILES, Self.format, Self.rounding](numbers, amax, own)
            self._put(encoded.block(), encoded.scale, row, block, is_there)

    @always_inline
    def fill(self, rows: Int32, block: Int32, lane: Int32):
        """Stores a block of zeros to each row, if rows have such a block."""
        for first in range(Int32(0), rows, LANES):
            self._put(BlockCodes[Self.format](0), 0, first + lane, block, block < self.blocks)

    @always_inline
    def _numbers[
        m_tiles: Int, n_tiles: Int, //, m_tile: Int
    ](self, sums: SumTile[m_tiles, n_tiles], bias: SumTile[n_tiles]) -> SIMD[
        Self.dtype, _LANE_NUMBERS
    ]:
        var gates = SIMD[DType.float32, _LANE_NUMBERS]()
        var ups = SIMD[DType.float32, _LANE_NUMBERS]()
        comptime for n_tile in range(EXCHANGED):
            var both = Self.Both.biased(sums[m_tile, n_tile], bias[n_tile]).deinterleave()
            gates = gates.insert[offset=n_tile * SUMS // 2](both[0])
            ups = ups.insert[offset=n_tile * SUMS // 2](both[1])
        # Other numbers than bfloat16 take more registers until they are encoded.
        comptime HAS_BRANCH = Self.dtype == DType.bfloat16
        var numbers = self.gate.of[HAS_BRANCH](gates, ups).cast[Self.dtype]()
        comptime if Self.dtype == DType.bfloat16:
            # Otherwise the compiler rounds each number again wherever its bits are wanted.
            var words = bitcast[DType.uint32, _LANE_NUMBERS // 2](numbers)
            comptime for i in range(_LANE_NUMBERS // 2):
                words[i] = opaque(words[i])
            numbers = bitcast[Self.dtype, _LANE_NUMBERS](words)
        return numbers

    @always_inline
    def _put(
        self,
        codes: BlockCodes[Self.format],
        scale: UInt32,
        row: Int32,
        block: Int32,
        is_there: Bool,
    ):
        """Stores a block; drops it unless it is there."""
        var at = (row * self.blocks + block) * Int32(LANE_BYTES[Self.format])
        comptime if Self.tiled_rows > 1:
            at = tiled_block[Self.tiled_rows](row, block, quotient[TILE_BLOCKS](self.blocks))
            at *= Int32(LANE_BYTES[Self.format])
        comptime for i in range(PIECES[Self.format]):
            comptime IS_LAST = i == PIECES[Self.format] - 1
            comptime BYTES = LAST_BYTES[Self.format] if IS_LAST else PIECE_BYTES
            var piece = codes.slice[BYTES // WORD_BYTES, offset=i * PIECE_WORDS]()
            self.codes.store(
                at + Int32(i * PIECE_BYTES) if is_there else OUT_OF_RANGE,
                bitcast[DType.uint8, BYTES](piece),
            )
        var scale_at = Int32(Self.Layout.scale_offset(Int(row), Int(block), Int(self.blocks)))
        self.scales.store(scale_at if is_there else OUT_OF_RANGE, scale.cast[DType.uint8]())


@fieldwise_init
struct _Encoded[format: Format](TrivialRegisterPassable):
    """What a lane has of encoded rows."""

    comptime WORDS = CODE_WORDS[Self.format] // EXCHANGED

    var codes: SIMD[DType.uint32, Self.WORDS * EXCHANGED]
    """The first word of each tile of rows, then the second."""
    var scale: UInt32
    """Of the row that it stores."""

    @staticmethod
    @always_inline
    def none() -> Self:
        return Self(SIMD[DType.uint32, Self.WORDS * EXCHANGED](0), 0)

    @always_inline
    def put[tile: Int](mut self, codes: SIMD[DType.uint32, Self.WORDS]):
        """Takes the codes of a tile of rows."""
        comptime for word in range(Self.WORDS):
            self.codes[word * EXCHANGED + tile] = codes[word]

    @always_inline
    def block(self) -> BlockCodes[Self.format]:
        """Returns the codes of the lane's block, from all lanes of its row."""
        comptime if Self.WORDS == 1:
            var words = rebind[_Words](self.codes)
            return rebind[BlockCodes[Self.format]](bytes_in_order(exchanged(words)))
        else:
            var block = BlockCodes[Self.format]()
            comptime for word in range(Self.WORDS):
                var words = self.codes.slice[EXCHANGED, offset=word * EXCHANGED]()
                block = block.insert[offset=word * EXCHANGED](halves_in_order(exchanged(words)))
            return block


@always_inline
def _gathered[
    dtype: DType, //
](numbers: RegisterTile[dtype, _LANE_NUMBERS, EXCHANGED]) -> SIMD[dtype, BLOCK]:
    """Returns the numbers of the lane's block, from all lanes of its row."""
    comptime assert size_of[dtype]() == WORD_BYTES // 2, "a pair of numbers is a word"
    var block = SIMD[DType.uint32, BLOCK // 2]()
    comptime for n_tile in range(EXCHANGED):
        var words = _Words()
        comptime for i in range(EXCHANGED):
            words[i] = bitcast[DType.uint32, _LANE_NUMBERS // 2](numbers[i])[n_tile]
        block = block.insert[offset=n_tile * EXCHANGED](exchanged(words))
    return bitcast[dtype, BLOCK](block)


@always_inline
def _largest[dtype: DType](numbers: SIMD[dtype, _LANE_NUMBERS]) -> UInt32:
    """Returns the float32 bits of the largest magnitude; NaN counts as larger than infinity."""
    comptime if dtype == DType.bfloat16:
        comptime PAIRS = _LANE_NUMBERS // 2
        comptime MAGNITUDES = UInt32(FloatBits[dtype].MAGNITUDE * 0x10001)
        var words = bitcast[DType.uint32, PAIRS](numbers) & MAGNITUDES
        var both = bitcast[DType.uint16, 2](words[0])
        comptime for i in range(1, PAIRS):
            both = max(both, bitcast[DType.uint16, 2](words[i]))
        return max(both[0], both[1]).cast[DType.uint32]() << BFLOAT16_SHIFT
    else:
        comptime MAGNITUDE = UInt32(FloatBits[DType.float32].MAGNITUDE)
        var bits = bitcast[DType.uint32, _LANE_NUMBERS](numbers.cast[DType.float32]())
        return (bits & MAGNITUDE).reduce_max()


@always_inline
def _encoded[
    tiles: Int, format: Format, rounding: Rounding, dtype: DType
](numbers: RegisterTile[dtype, _LANE_NUMBERS, EXCHANGED], amax: UInt32) -> _Encoded[format]:
    """Encodes what a lane has of the rows of some tiles, in blocks that are usual.

    Which scale a block has the lane finds that stores it, from its largest magnitude.
    """
    var encoded = _Encoded[format].none()
    comptime carry = UInt32(rounding.carry[F32_MANTISSA_BITS, format.element]())
    var how = Rescaling.of[format.element](amax, carry, 0)
    var divisors = exchanged(_Words(how.divisor))
    comptime for i in range(tiles):
        encoded.put[i](_lane_codes[format, rounding](numbers[i], divisors[i]))
    encoded.scale = how.scale
    return encoded


@always_inline
def _encoded_rare[
    tiles: Int, format: Format, rounding: Rounding, dtype: DType
](numbers: RegisterTile[dtype, _LANE_NUMBERS, EXCHANGED], own_amax: UInt32, own: Int32) -> _Encoded[
    format
]:
    """The same in blocks of any numbers; the lane stores that of tile `own`."""
    var encoded = _Encoded[format].none()
    var amax = exchanged(_Words(own_amax))
    # Of a branch, see `zero_of_a_branch`.
    comptime carry = UInt32(rounding.carry[F32_MANTISSA_BITS, format.element]())
    var shift = zero_of_a_branch() | Rescaling.SHIFT
    comptime for i in range(tiles):
        var how = Rescaling.of[format.element](amax[i], carry, shift)
        var is_finite = amax[i] < NOT_FINITE
        var rescaled = numbers[i].cast[DType.float32]() * how.factor
        var codes = _lane_codes[format, rounding](rescaled, how.divisor)
        encoded.put[i](codes if is_finite else type_of(codes)(0))
        var scale = how.scale if is_finite else UInt32(E8M0_NAN)
        encoded.scale = scale if own == Int32(i) else encoded.scale
    return encoded


@always_inline
def _lane_codes[
    format: Format, rounding: Rounding, dtype: DType
](numbers: SIMD[dtype, _LANE_NUMBERS], divisor: UInt32) -> SIMD[
    DType.uint32, _Encoded[format].WORDS
]:
    """Returns a lane's codes of a row: a byte or two for each tile of columns."""
    comptime WORDS = _Encoded[format].WORDS
    comptime PARTS = EXCHANGED // WORDS
    var words = SIMD[DType.uint32, WORDS](0)
    comptime for n_tile in range(EXCHANGED):
        comptime word, part = divmod(n_tile, PARTS)
        var pair = numbers.slice[2, offset=2 * n_tile]()
        comptime if overflows[format.element, rounding]():
            pair = clamped[format.element](pair, divisor)
        words[word] = encode_pair[format.element, dtype, part](
            words[word], pair, bitcast[DType.float32](divisor)
        )
    return words

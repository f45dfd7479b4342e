"""Rows of floats by chunks, and what becomes of them: codes, encoded and stored by lanes.

A lane has eight neighbours of a row at a time, a chunk; a wave has a segment of 64. A block is that
of four lanes, of a row of 16 lanes, or of a workgroup. What lies behind the end of a row reads as
zeros and is not written.
"""

from max.gpu.intrinsics import AMDBufferResource
from std.math import ceildiv
from std.memory import bitcast
from std.sys import size_of

from ...numbers.floats import round_to
from ...numbers.formats import Format
from ...numbers.norms import SEGMENT
from ...numbers.scales import E8M0_NAN, Scale
from ..chip import BLOCK, LANES, PIECE_BYTES, WORD_BYTES
from ..instructions.matrix import set_priority
from ..instructions.vector import encode_pair, encode_sixes, opaque
from ..instructions.wave import ROW_LANES, any_lane, maximum_of_quad, maximum_of_row
from ..operands.encode import NOT_FINITE, Rescaling, Window, clamped, largest_magnitude
from ..operands.memory import Bytes, OUT_OF_RANGE, Output, bytes_of, quotient, remainder
from .float_scales import CHUNK, encode, load_chunk, magnitude_of, scale_of

comptime LEVELS = 4
"""Priorities of waves."""
comptime Floats = SIMD[DType.float32, CHUNK]
"""A chunk."""
comptime _BF16_SHIFT = UInt32(16)


@always_inline
def memory_at(tensor: Bytes, offset: Int, num_bytes: Int32) -> AMDBufferResource:
    """Describes bytes of a tensor behind an offset that is the same for all lanes."""
    return AMDBufferResource(tensor.unsafe_offset(offset), Int(num_bytes))


@always_inline
def floats_of[
    dtype: DType, width: SIMDLength, //
](x: SIMD[dtype, width]) -> SIMD[DType.float32, width]:
    """Returns numbers as float32, of bfloat16 halves of words as they lie."""
    comptime if dtype == DType.bfloat16:
        var words = bitcast[DType.uint32, width // 2](x)
        return bitcast[DType.float32, width](
            (words << _BF16_SHIFT).interleave(words & UInt32(0xFFFF0000))
        )
    else:
        return x.cast[DType.float32]()


@always_inline
def rounded[dtype: DType](x: Floats) -> SIMD[dtype, CHUNK]:
    """Rounds to nearest even, subnormals kept."""
    comptime if dtype == DType.bfloat16:
        var words = bitcast[DType.uint32, CHUNK // 2](x.cast[dtype]())
        # Seen through, numbers would be rounded again wherever their bits are wanted.
        comptime for i in range(CHUNK // 2):
            words[i] = opaque(words[i])
        return bitcast[dtype, CHUNK](words)
    else:
        return round_to[dtype](x)


struct Place(TrivialRegisterPassable):
    """A chunk of a row: that of a lane in a segment of all lanes."""

    var segment: Int32
    """The same for all lanes."""
    var lane: Int32
    var ahead: Int32
    """Segments behind that one, a constant: part of an instruction."""

    @always_inline
    def __init__(out self, segment: Int32, lane: Int32, ahead: Int32 = 0):
        self.segment, self.lane, self.ahead = segment, lane, ahead

    @always_inline
    def is_before(self, k: Int32) -> Bool:
        """Says whether a row of `k` numbers has it."""
        return (self.segment + self.ahead) * Int32(SEGMENT) + self.lane * Int32(CHUNK) < k

    @always_inline
    def offset[chunk_bytes: Int](self) -> Int32:
        """Returns where the lane's chunk lies in segments of such chunks."""
        return self.lane * Int32(chunk_bytes) + self.ahead * LANES * Int32(chunk_bytes)

    @always_inline
    def scalar_offset[chunk_bytes: Int](self) -> Int32:
        """Returns where the segment lies."""
        return self.segment * LANES * Int32(chunk_bytes)


@always_inline
def load_at[dtype: DType](memory: AMDBufferResource, at: Place) -> SIMD[dtype, CHUNK]:
    """Loads a chunk of a row; zeros behind its end."""
    comptime BYTES = CHUNK * size_of[dtype]()
    return load_chunk[dtype](memory, at.offset[BYTES](), at.scalar_offset[BYTES]())


@always_inline
def store_at[
    bytes: SIMDLength, //
](memory: AMDBufferResource, at: Place, x: SIMD[DType.uint8, bytes]):
    """Stores what a chunk has become, up to 16 bytes at once; nothing behind the end of the row."""
    comptime PIECE = min(PIECE_BYTES, Int(bytes))
    comptime for i in range(Int(bytes) // PIECE):
        memory.store(
            at.offset[Int(bytes)]() + Int32(i * PIECE),
            x.slice[PIECE, offset=i * PIECE](),
            scalar_offset=at.scalar_offset[Int(bytes)](),
        )


@fieldwise_init
struct CodeRow[format: Format, dtype: DType](TrivialRegisterPassable):
    """The codes and scales of a row; chunks behind its end are dropped."""

    comptime BITS = Self.format.element.bits
    comptime WORDS = ceildiv(CHUNK * Self.BITS, 32)
    comptime Made = SIMD[Self.dtype, CHUNK]

    var codes: AMDBufferResource
    var scales: AMDBufferResource
    var rule: UInt32

    @staticmethod
    @always_inline
    def of(
        codes: Output[DType.uint8], scales: Output[DType.uint8], row: Int32, k: Int32, rule: UInt32
    ) -> Self:
        var code_bytes = quotient[8](k) * Int32(Self.BITS)
        var scale_bytes = Int32(Self.format.scale.bytes)
        comptime if not Self.format.has_row_scales():
            comptime WIDTH = Self.format.block_k
            scale_bytes *= quotient[WIDTH](k + Int32(WIDTH - 1))
        return Self(
            memory_at(bytes_of(codes), Int(row) * Int(code_bytes), code_bytes),
            memory_at(bytes_of(scales), Int(row) * Int(scale_bytes), scale_bytes),
            rule,
        )

    @always_inline
    def put(self, made: Self.Made, at: Place):
        """Encodes and stores a chunk, whose block is that of lanes beside this one."""
        comptime if Self.format.scale == Scale.FLOAT32:
            comptime CHUNKS = Self.format.block_k // CHUNK
            comptime assert CHUNKS == ROW_LANES, "a block is that of a row of lanes"
            var scale = self.scale(maximum_of_row(magnitude_of(made)))
            self.put_under(scale, made, at)
            self._put_scale[CHUNKS](bitcast[DType.uint8, WORD_BYTES](scale), at)
        else:
            comptime CHUNKS = BLOCK // CHUNK
            comptime element = Self.format.element
            var words: SIMD[DType.uint32, Self.WORDS]
            var scale: UInt32
            comptime if Self.dtype == DType.bfloat16 and Self.BITS != 6:
                var amax = maximum_of_quad(largest_magnitude(made))
                if any_lane(not Window[Self.dtype, element].has(amax)):
                    words, scale = self._encoded_rare(made)
                else:
                    var how = Rescaling.of[element](amax << _BF16_SHIFT, self.rule, 0)
                    words, scale = self._encoded(made, how.divisor), how.scale
            else:
                words, scale = self._encoded_rare(made)
            self._put_words(words, at)
            self._put_scale[CHUNKS](scale.cast[DType.uint8](), at)

    @always_inline
    def _encoded_rare(self, made: Self.Made) -> Tuple[SIMD[DType.uint32, Self.WORDS], UInt32]:
        """Returns codes and the scale of blocks of any numbers."""
        var amax = maximum_of_quad(magnitude_of(made))
        var how = Rescaling.of[Self.format.element](amax, self.rule)
        # The converter of six bits takes 32 at once: of bfloat16, in half as many registers.
        comptime IS_NARROW = Self.BITS == 6 and Self.dtype == DType.bfloat16
        comptime through = DType.bfloat16 if IS_NARROW else DType.float32
        var rescaled = floats_of(made) * how.factor
        var words = self._encoded(rescaled.cast[through](), how.divisor)
        if amax >= NOT_FINITE:
            return (type_of(words)(0), UInt32(E8M0_NAN))
        return (words, how.scale)

    @always_inline
    def scale(self, amax: UInt32) -> Float32:
        """Returns a float scale from the largest magnitude of its block."""
        return scale_of[Self.format.element](amax, self.rule != 0)

    @always_inline
    def put_under(self, scale: Float32, made: Self.Made, at: Place):
        """Encodes a chunk under a float scale and stores it."""
        store_at(self.codes, at, encode[Self.format.element](made, scale))

    @always_inline
    def put_row_scale(self, scale: Float32, is_first: Bool):
        """Stores the scale of a whole row."""
        self.scales.store(
            Int32(0) if is_first else OUT_OF_RANGE, bitcast[DType.uint8, WORD_BYTES](scale)
        )

    @staticmethod
    @always_inline
    def _encoded[
        source: DType
    ](x: SIMD[source, CHUNK], divisor: UInt32) -> SIMD[DType.uint32, Self.WORDS]:
        """Returns packed codes of numbers over an exponent field of float32."""
        comptime element = Self.format.element
        var words = SIMD[DType.uint32, Self.WORDS](divisor)
        var scale = bitcast[DType.float32](divisor)
        comptime if Self.BITS == 6:
            # The converter takes 32: the first eight count.
            var block = SIMD[source, BLOCK](0).insert[offset=0](x)
            return encode_sixes[element](block, scale).slice[Self.WORDS]()
        else:
            comptime WORD_CODES = 32 // Self.BITS
            # All parts of words are replaced: a pair's register becomes the first of them.
            comptime if source == DType.bfloat16:
                var given = bitcast[DType.uint32, CHUNK // 2](x)
                comptime for word in range(Self.WORDS):
                    words[word] = given[WORD_CODES // 2 * word]
            comptime for part in range(WORD_CODES // 2):
                comptime for word in range(Self.WORDS):
                    var pair = x.slice[2, offset=WORD_CODES * word + 2 * part]()
                    # What no rule lets overflow this leaves alone.
                    comptime if element.has_non_finite():
                        pair = clamped[element](pair, divisor)
                    words[word] = encode_pair[element, source, part](words[word], pair, scale)
            return words

    @always_inline
    def _put_words(self, words: SIMD[DType.uint32, Self.WORDS], at: Place):
        comptime if Self.BITS == 6:
            # Codes of a chunk are three halves of words.
            var halves = bitcast[DType.uint16, 2 * Self.WORDS](words)
            comptime for i in range(CHUNK * Self.BITS // 16):
                self.codes.store(
                    at.offset[Self.BITS]() + Int32(2 * i),
                    bitcast[DType.uint8, 2](halves[i]),
                    scalar_offset=at.scalar_offset[Self.BITS](),
                )
        else:
            store_at(self.codes, at, bitcast[DType.uint8, Self.WORDS * WORD_BYTES](words))

    @always_inline
    def _put_scale[
        width: SIMDLength, //, chunks: Int
    ](self, scale: SIMD[DType.uint8, width], at: Place):
        """Stores the scale of so many chunks: the lane of their first one does."""
        comptime SEGMENT_BYTES = LANES // Int32(chunks) * Int32(width)
        var offset = quotient[chunks](at.lane) * Int32(width) + at.ahead * SEGMENT_BYTES
        # Of other lanes beyond the scales of any row.
        offset += remainder[chunks](at.lane) * Int32(1 << 27)
        self.scales.store(offset, scale, scalar_offset=at.segment * SEGMENT_BYTES)


@fieldwise_init
struct InputRows(TrivialRegisterPassable):
    """Rows of floats."""

    var tensor: Bytes
    var rows: Int32
    var row_stride: Int
    var k: Int32

    @always_inline
    def at[dtype: DType](self, row: Int32, width: Int32 = 1) -> AMDBufferResource:
        """Describes a row of `width` * k floats; one behind the last is empty."""
        comptime BYTES = size_of[dtype]()
        var num_bytes = self.k * width * Int32(BYTES) if row < self.rows else 0
        return memory_at(self.tensor, Int(row) * self.row_stride * BYTES, num_bytes)


@always_inline
def set_level(level: Int32):
    """Sets a priority that is known at run time."""
    comptime for possible in range(LEVELS):
        if level == Int32(possible):
            set_priority[possible]()


@always_inline
def next_level(level: Int32) -> Int32:
    """Returns the priority of a wave's next row: who is ahead is not to be the first.

    Otherwise the oldest wave of a compute unit is, and the youngest ends alone.
    """
    return level - 1 if level > 0 else Int32(LEVELS - 1)

"""Tensors in memory, through descriptors that end where the tensor ends.

What lies beyond reads as zero, and so does a row beyond the last one. Loops run along
K in chunks of one or two tiles; where K may end within a chunk, lanes beyond it are
moved out of range.

    Span    a descriptor of its own for each place, made where there is time
    View    one descriptor for all places; the hardware adds the place
"""

from max.gpu.intrinsics import AMDBufferResource
from std.memory import bitcast
from std.sys import size_of

from ..chip import WORD_BYTES
from ..instructions.lds import Lds
from ..instructions.memory import load_to_lds

comptime Input[dtype: DType] = ImmPointer[Scalar[dtype], ImmutAnyOrigin]
"""A tensor that a kernel reads, as its argument."""
comptime Output[dtype: DType] = MutPointer[Scalar[dtype], MutAnyOrigin]
"""A tensor that a kernel writes, as its argument."""
comptime Bytes = ImmPointer[UInt8, ImmUntrackedOrigin]
"""Any tensor that is read, where an argument is kept."""
comptime OutputBytes = MutPointer[UInt8, MutUntrackedOrigin]
"""Any tensor that is written, likewise."""
comptime OUT_OF_RANGE = Int32.MIN
"""An offset beyond the end of every tensor, which has less than 2 GiB."""
comptime NO_ROW = Int32(-1)
"""Instead of a row of a list: zeros."""


@always_inline
def input[dtype: DType](address: Int) -> Input[dtype]:
    """Returns the argument for a tensor that a kernel reads."""
    return Input[dtype](unsafe_from_address=address)


@always_inline
def output[dtype: DType](address: Int) -> Output[dtype]:
    """Returns the argument for a tensor that a kernel writes."""
    return Output[dtype](unsafe_from_address=address)


@always_inline
def bytes_of(pointer: Pointer[...]) -> Bytes:
    """Returns a pointer to anything as one to bytes."""
    return Bytes(unsafe_from_address=Int(pointer))


@always_inline
def output_bytes(pointer: MutPointer[...]) -> OutputBytes:
    """Returns the same of what is written."""
    return OutputBytes(unsafe_from_address=Int(pointer))


@always_inline
def quotient[divisor: Int](x: Int32) -> Int32:
    """Divides a number that is not negative: one shift where the divisor is a power of two."""
    return (x.cast[DType.uint32]() // UInt32(divisor)).cast[DType.int32]()


@always_inline
def remainder[divisor: Int](x: Int32) -> Int32:
    """Returns what is left of such a division: one mask."""
    return (x.cast[DType.uint32]() % UInt32(divisor)).cast[DType.int32]()


@always_inline
def load_word(memory: AMDBufferResource, offset: Int32) -> Int32:
    """Loads the int32 at a lane's byte `offset`."""
    return bitcast[DType.int32, 1](memory.load[DType.uint8, WORD_BYTES](offset))[0]


@fieldwise_init
struct Span(TrivialRegisterPassable):
    """A tensor of less than 2 GiB, from a place that is the same for all lanes."""

    var start: Bytes
    var num_bytes: Int32
    """Bytes up to the end of the tensor."""

    @staticmethod
    @always_inline
    def of[dtype: DType](tensor: ImmPointer[Scalar[dtype], _], count: Int32) -> Self:
        return Self(bytes_of(tensor), count * Int32(size_of[dtype]()))

    @always_inline
    def from_offset(self, offset: Int32) -> Self:
        """Returns what lies behind `offset`; if nothing does, `num_bytes` is negative."""
        return Self(self.start.unsafe_offset(Int(offset)), self.num_bytes - offset)

    @always_inline
    def after(self, offset: Int32) -> AMDBufferResource:
        """Returns a descriptor of what lies behind `offset`: empty if nothing does."""
        var rest = self.from_offset(offset)
        return AMDBufferResource(rest.start, Int(max(rest.num_bytes, 0)))

    @always_inline
    def after_if(self, offset: Int32, condition: Bool) -> AMDBufferResource:
        """Returns a descriptor of what lies behind `offset`: empty unless `condition`."""
        var rest = self.from_offset(offset)
        var num_bytes = rest.num_bytes if condition else 0
        return AMDBufferResource(rest.start, Int(max(num_bytes, 0)))


@fieldwise_init
struct View(TrivialRegisterPassable):
    """A tensor of less than 2 GiB, as seen from a place that is the same for all lanes.

    One descriptor serves all places: the hardware adds the place to the offset of a
    lane, and checks the sum against the end of the tensor.
    """

    var tensor: AMDBufferResource
    var place: Int32
    """Bytes from its beginning."""

    @staticmethod
    @always_inline
    def of[dtype: DType](tensor: ImmPointer[Scalar[dtype], _], count: Int32) -> Self:
        return Self(AMDBufferResource(tensor, Int(count)), 0)

    @always_inline
    def moved(self, offset: Int32) -> Self:
        """Returns the view from `offset` bytes further on, within the tensor."""
        return Self(self.tensor, self.place + offset)

    @always_inline
    def moved_if(self, offset: Int32, condition: Bool) -> Self:
        """Returns the view from further on; from the end, where all is zero, if not `condition`."""
        var end = self.tensor.desc[2].cast[DType.int32]()
        return Self(self.tensor, self.place + offset if condition else end)

    @always_inline
    def load[num_bytes: Int](self, offset: Int32) -> SIMD[DType.uint8, num_bytes]:
        return self.tensor.load[DType.uint8, num_bytes](offset, scalar_offset=self.place)

    @always_inline
    def load_to_lds[num_bytes: Int](self, offset: Int32, place: Lds):
        """Starts loading the bytes at a lane's `offset` to LDS, one lane behind another."""
        load_to_lds[num_bytes](self.tensor, offset, place, self.place)


@always_inline
def listed_row(list: Input[DType.int32], index: Int32, end: Int32) -> Int32:
    """Loads which row a list names, or `NO_ROW` from `end` on."""
    var name = load_word(Span.of(list, end).after(0), index * Int32(WORD_BYTES))
    return name if index < end else NO_ROW

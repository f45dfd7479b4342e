"""What the operations beside products take: addresses, sizes, positions in the tables.

Products have `problem.mojo`. Whoever makes a call has checked it.
"""

from std.math import sqrt

from .numbers.floats import float_bytes
from .numbers.gates import Gate
from .numbers.norms import Rounds
from .numbers.rounding import Rounding


@fieldwise_init
struct QuantizeCall(TrivialRegisterPassable):
    """Floats [rows, k] to a plain operand."""

    var values: Int
    var dtype: Int
    var row_stride: Int
    var rows: Int
    var k: Int
    var format: Int
    var rounding: Rounding
    var codes: Int
    var scales: Int
    var tensor_scales: Int
    """Address of a float32 for each row, for E4M3 scales; 0 to have them from the floats."""


@fieldwise_init
struct Norm(TrivialRegisterPassable):
    """What becomes of the rows of a `QuantizeCall` first: see `numbers.norms`."""

    var is_centered: Bool
    """Whether the mean is taken off: a layer norm, else an RMS norm."""
    var rounds: Rounds
    var weight: Int
    """Address of k numbers, or 0."""
    var bias: Int
    """Address of k numbers of the weight's type, or 0."""
    var weights_are_float: Bool
    """Whether both are float32, and not of the type of the rows."""
    var offset: Float32
    """What is added to the weight."""
    var eps: Float64
    var inv_k: Float64
    var residual: Int
    """Address of rows that are added first, or 0."""
    var residual_stride: Int
    var stream: Int
    """Where those sums are written, contiguous, if there are such."""


@fieldwise_init
struct NormQuantizeCall(TrivialRegisterPassable):
    """Floats [rows, k] through a norm to a plain operand."""

    var call: QuantizeCall
    var norm: Norm

    def is_aligned(self, num_bytes: Int) -> Bool:
        """Says whether rows, weights and sums lie at multiples of so many bytes."""
        var call, norm, bytes = self.call, self.norm, float_bytes(self.call.dtype)
        var all = call.values | call.row_stride * bytes | norm.weight | norm.bias
        all |= norm.residual | norm.residual_stride * bytes | norm.stream
        return all % num_bytes == 0


@fieldwise_init
struct GateQuantizeCall(TrivialRegisterPassable):
    """Gates and ups [rows, k] to hidden numbers of their type in a plain operand."""

    var call: QuantizeCall
    """Its values are gates; both in turns, [rows, 2 * k], where these are interleaved; ups alone
    where the activation has no gate."""
    var gate: Gate
    var ups: Int
    """Address of the ups that are not among the values."""
    var up_stride: Int

    def is_aligned(self, num_bytes: Int) -> Bool:
        """Says whether gates and ups lie at multiples of so many bytes."""
        var strides = (self.call.row_stride | self.up_stride) * float_bytes(self.call.dtype)
        return (self.call.values | self.ups | strides) % num_bytes == 0


@fieldwise_init
struct HadamardQuantizeCall(TrivialRegisterPassable):
    """Floats [rows, k], rotated within blocks, to a plain operand."""

    var call: QuantizeCall
    var block: Int
    """Elements that are rotated together: a power of two from 32 to 128."""

    def factor(self) -> Float32:
        """Returns what sums and differences are multiplied by."""
        return Float32(1 / sqrt(Float64(self.block)))

    def is_aligned(self, num_bytes: Int) -> Bool:
        """Says whether rows lie at multiples of so many bytes."""
        var stride = self.call.row_stride * float_bytes(self.call.dtype)
        return (self.call.values | stride) % num_bytes == 0


@fieldwise_init
struct DequantizeCall(TrivialRegisterPassable):
    """An operand in any layout to contiguous floats [rows, k]."""

    var codes: Int
    var scales: Int
    var format: Int
    var layout: Int
    var rows: Int
    var k: Int
    var values: Int
    var dtype: Int


@fieldwise_init
struct RelayoutCall(TrivialRegisterPassable):
    """An operand [rows, k] to another layout, padding written."""

    var codes: Int
    var scales: Int
    var layout: Int
    var codes_out: Int
    var scales_out: Int
    var layout_out: Int
    var format: Int
    var rows: Int
    var k: Int

"""Activations of experts in float32: a gate and its up become one hidden number.

    silu           up * (gate * sigmoid(alpha * gate))
    swiglu_oai     (up + 1) * (gate * sigmoid(alpha * gate))
    swiglu_step    up * min(gate * sigmoid(gate), limit)
    gelu_tanh      up * (gate * sigmoid(ALPHA * (gate + CUBIC * gate**3)))
    situ           capped(up, linear_beta) * (capped(gate, beta) * sigmoid(gate))
    relu2          max(up, 0)**2, without a gate

All but situ first take a gate that is at most limit and an up within -limit .. limit; swiglu_step takes
the gate as it is. An infinite limit is none. capped(x, cap) = cap * tanh(x / cap), a limit that is smooth.
Rows of the weights that make both are neighbours, gate first, or halves, gates first: any gate takes
either order.

One arithmetic serves all that multiply by a sigmoid, and what a gate does not do costs it nothing but
a number that changes no bit: a limit of infinity, an alpha of 1, a -0 that is added. No multiplication
here feeds an addition but in a fused operation, so nothing is left for a compiler to fuse, and every
machine gives the same bits. NaN stays NaN.
"""

from std.math import isnan
from std.memory import bitcast
from std.utils.numerics import inf

from .floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS
from .quotients import divided

comptime INFINITY = inf[DType.float32]()
"""A limit that is none."""
comptime _NONE = inf[DType.float64]()
comptime MOST_CAP = Float32(1 << 64)
"""Of situ: numbers over it, and it over 1, are regular."""
comptime LARGEST_EXPONENT = Float32(87)
"""The largest x whose exp(-x) is regular; beyond, sigmoid(x) is taken for 1, and sigmoid(-x) for 0."""
comptime _TANH_EXPONENT = Float32(32)
"""From which x on exp(-x) - 1 is -1."""
comptime GELU_ALPHA = 1.5957691216057307118
"""2 * sqrt(2 / pi): 1 + tanh(y) is 2 * sigmoid(2 * y)."""
comptime GELU_CUBIC = 0.044715
"""What the cube counts, of the approximation of gelu by tanh."""
comptime _LARGEST_SQUARE = Float32(1 << 64)
"""Of a gate of gelu: beyond, its sigmoid is 0 or 1 whatever the square."""


@fieldwise_init
struct GateRow(TrivialRegisterPassable):
    """One row of the table of activations: what a call may say, and what it need not."""

    var name: StaticString
    var is_gated: Bool
    """Whether there are gates beside ups."""
    var is_interleaved: Bool
    """Whether rows are neighbours unless a call says otherwise."""
    var limit_name: StaticString
    """What `Gate.limit` is called; empty where there is none to choose."""
    var limit: Float64
    """Unless a call says otherwise."""
    var alpha_name: StaticString
    """What `Gate.alpha` is called, likewise."""
    var alpha: Float64
    var most: Float64
    """Numbers that are not infinite are from 1 / most to most; infinity for any."""


comptime GATES = [
    GateRow("swiglu_oai", True, True, "limit", 7, "alpha", 1.702, _NONE),
    GateRow("silu", True, False, "limit", _NONE, "alpha", 1, _NONE),
    GateRow("swiglu_step", True, False, "limit", 7, "", 1, _NONE),
    GateRow("gelu_tanh", True, False, "limit", _NONE, "", 1, _NONE),
    GateRow("situ", True, False, "linear_beta", 25, "beta", 4, Float64(MOST_CAP)),
    GateRow("relu2", False, False, "", _NONE, "", 1, _NONE),
]
"""The activations; the position is the code of bindings."""


@fieldwise_init
struct Gate(TrivialRegisterPassable):
    """What becomes of a gate and its up."""

    var code: Int
    """Position in `GATES`, or that of `NONE`."""
    var interleaved: Bool
    """Whether rows of gates and ups are neighbours, not halves."""
    var limit: Float32
    """Infinity for none; of situ linear_beta."""
    var alpha: Float32
    """Of situ beta."""

    comptime NONE = Self(-1, False, 0, 0)
    """No gate: sums are results."""
    comptime SWIGLU_OAI = 0
    comptime SILU = 1
    comptime SWIGLU_STEP = 2
    comptime GELU_TANH = 3
    comptime SITU = 4
    comptime RELU2 = 5

    @staticmethod
    def of_word(word: Int32, limit: Float32, alpha: Float32) -> Self:
        """Returns the gate whose `word` a kernel was told."""
        return Self(Int(word >> 1), word & 1 != 0, limit, alpha)

    def word(self) -> Int32:
        """Returns activation and order of rows, as kernels are told."""
        return Int32(2 * self.code + Int(self.interleaved))

    @always_inline
    def is_there(self) -> Bool:
        """Says whether hidden numbers are made of gates and ups."""
        return self.code != Self.NONE.code and self.code != Self.RELU2

    @always_inline
    def is_usual(self) -> Bool:
        """Says whether `of_usual` gives the hidden numbers."""
        return self.code == Self.SWIGLU_OAI or self.code == Self.SILU

    @always_inline
    def is_interleaved(self) -> Bool:
        """Says whether gates and ups are neighbours, not halves."""
        return self.is_there() and self.interleaved

    @always_inline
    def sums(self, hidden: Int) -> Int:
        """Returns how many sums make so many hidden numbers: rows of the weights."""
        return 2 * hidden if self.is_there() else hidden

    @always_inline
    def of_sums[
        width: SIMDLength, //
    ](self, sums: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
        """Returns what sums become that have no gates: themselves, or hidden numbers."""
        if self.code != Self.RELU2:
            return sums
        # A NaN is not below 0, and stays.
        var positive = sums.lt(0).select(SIMD[DType.float32, width](0), sums)
        return positive * positive

    @always_inline
    def of[
        width: SIMDLength, //
    ](self, gate: SIMD[DType.float32, width], up: SIMD[DType.float32, width]) -> SIMD[
        DType.float32, width
    ]:
        """Returns the hidden numbers."""
        comptime F32 = SIMD[DType.float32, width]
        if self.is_usual():
            return self.of_usual(gate, up)
        if self.code == Self.SITU:
            return capped(up, self.limit) * _sigmoid_times(capped(gate, self.alpha), gate)
        var limit = F32(self.limit)
        if self.code == Self.SWIGLU_STEP:
            var product = _sigmoid_times(gate, gate)
            return _clamped(up, limit) * product.gt(limit).select(limit, product)
        var low = gate.gt(limit).select(limit, gate)
        var square = low * low
        square = square.gt(_LARGEST_SQUARE).select(F32(_LARGEST_SQUARE), square)
        var z = low * square.fma(F32(GELU_ALPHA * GELU_CUBIC), F32(GELU_ALPHA))
        return _clamped(up, limit) * _sigmoid_times(low, z)

    @always_inline
    def of_usual[
        width: SIMDLength, //
    ](self, gate: SIMD[DType.float32, width], up: SIMD[DType.float32, width]) -> SIMD[
        DType.float32, width
    ]:
        """Returns those of swiglu_oai and silu."""
        var limit = SIMD[DType.float32, width](self.limit)
        # A NaN is not above a limit, and stays.
        var low = gate.gt(limit).select(limit, gate)
        return self.times_up(_sigmoid_times(low, low * self.alpha), _clamped(up, limit))

    @always_inline
    def times_up[
        width: SIMDLength, //
    ](self, gated: SIMD[DType.float32, width], up: SIMD[DType.float32, width]) -> SIMD[
        DType.float32, width
    ]:
        """Returns `gated * (up + 1)` of swiglu_oai, `gated * up` of silu, rounded once."""
        # -0 changes no number.
        var is_oai = self.code == Self.SWIGLU_OAI
        return up.fma(gated, gated if is_oai else SIMD[DType.float32, width](-0.0))


@always_inline
def _clamped[
    width: SIMDLength, //
](up: SIMD[DType.float32, width], limit: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    return up.gt(limit).select(limit, up.lt(-limit).select(-limit, up))


@always_inline
def _sigmoid_times[
    width: SIMDLength, //
](x: SIMD[DType.float32, width], z: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    """Returns `x * sigmoid(z)`: x / (1 + exp(-z)); x or 0 * x beyond `LARGEST_EXPONENT`."""
    return with_far(near_sigmoid_times(x, z), x, z)


@always_inline
def with_far[
    width: SIMDLength, //
](
    gated: SIMD[DType.float32, width], x: SIMD[DType.float32, width], z: SIMD[DType.float32, width]
) -> SIMD[DType.float32, width]:
    """Returns x or 0 * x where |z| is above `LARGEST_EXPONENT`, `gated` elsewhere and for NaN."""
    return abs(z).gt(LARGEST_EXPONENT).select(z.lt(0).select(x * 0, x), gated)


@always_inline
def near_sigmoid_times[
    width: SIMDLength, //
](x: SIMD[DType.float32, width], z: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    """Returns `x * sigmoid(z)` for |z| up to `LARGEST_EXPONENT`; anything beyond; NaN for NaN."""
    return divided(x, 1 + _near_exp_of_minus(z))


@always_inline
def _near_exp_of_minus[
    width: SIMDLength, //
](x: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    """Returns the bits of exp(-x) for |x| up to `LARGEST_EXPONENT`."""
    var slope, r, n = _exp_slope(x)
    var power = slope.fma(r, SIMD[DType.float32, width](1))
    var bits = bitcast[DType.uint32, width](power) + (n << UInt32(F32_MANTISSA_BITS))
    return bitcast[DType.float32, width](bits)


@always_inline
def exp_of_minus[width: SIMDLength](x: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    """Returns `exp(-x)` for x >= 0 to a unit in the last place; 0 beyond `LARGEST_EXPONENT`."""
    var is_far = x.gt(LARGEST_EXPONENT)
    var e = is_far.select(SIMD[DType.float32, width](0), _near_exp_of_minus(x))
    return isnan(x).select(x, e)


@always_inline
def capped[
    width: SIMDLength, //
](x: SIMD[DType.float32, width], cap: Float32) -> SIMD[DType.float32, width]:
    """Returns `cap * tanh(x / cap)`; x for an infinite cap.

    With y = 2 * |x / cap| and m = exp(-y) - 1, which keeps small y's, tanh(y / 2) is -m / (2 + m): a
    quotient by 1 to 2 of a number that is below 2**-102 for a divisor of 2 alone.
    """
    comptime F32 = SIMD[DType.float32, width]
    if cap == INFINITY:
        return x
    var y = abs(x * (2 / cap))
    y = y.gt(_TANH_EXPONENT).select(F32(_TANH_EXPONENT), y)
    var slope, r, n = _exp_slope(y)
    var scale = bitcast[DType.float32, width](
        (n + UInt32(F32_EXPONENT_BIAS)) << UInt32(F32_MANTISSA_BITS)
    )
    var m = scale.fma(slope * r, scale - 1)
    var tangent = cap * divided(-m, 2 + m)
    return x.lt(0).select(-tangent, tangent)


@always_inline
def _exp_slope[
    width: SIMDLength
](x: SIMD[DType.float32, width]) -> Tuple[
    SIMD[DType.float32, width], SIMD[DType.float32, width], SIMD[DType.uint32, width]
]:
    """Returns s, r and n, its low 9 bits alone, of exp(-x) = 2**n * (1 + s * r).

    With n = round(-x / ln 2) is |r| <= ln 2 / 2: of 1 + r + r**2 / 2 + .. to degree 6 that which is
    nearest there, within 2**-28.
    """
    comptime F32 = SIMD[DType.float32, width]
    comptime MINUS_LOG2_E = Float32(-1.44269504088896340736)
    # Its low bits are n: numbers here are a unit apart.
    comptime SHIFTER = Float32(3 << (F32_MANTISSA_BITS - 1))
    # ln 2 in two parts; the first has few bits.
    comptime LN2_HIGH = Float32(0.693145751953125)
    comptime LN2_LOW = Float32(1.42860682030941723212e-6)
    comptime OF_SLOPE = [1.3863775e-3, 8.367489e-3, 4.1667238e-2, 0.16666535, 0.5, 1.0]

    var shifted = x.fma(F32(MINUS_LOG2_E), F32(SHIFTER))
    var n = shifted - SHIFTER
    var r = n.fma(F32(-LN2_LOW), n.fma(F32(-LN2_HIGH), -x))
    var slope = F32(0)
    comptime for i in range(len(OF_SLOPE)):
        comptime coefficient = Float32(OF_SLOPE[i])
        slope = F32(coefficient) if i == 0 else slope.fma(r, F32(coefficient))
    return (slope, r, bitcast[DType.uint32, width](shifted))

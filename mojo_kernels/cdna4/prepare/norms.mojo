"""Norms to codes: a row is read once, and stays in the registers of a workgroup.

A wave adds up neighbouring segments, of which lane l has neighbours 8 * l to 8 * l + 7:

    x[i], x[i + 256]     lanes 32 apart hand each other half of their chunks: four such pairs a lane
    128 apart            neighbouring rows of 16 lanes do so: two sums a lane
    64, 32               lanes 8 and 4 apart, which keep one of two segments
    16, 8                a quad
    4, 2, 1              lanes 32 apart, 16, and 32 once more

which is the order of `numbers.norms`. The next row is on its way meanwhile.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, thread_idx
from max.gpu.intrinsics import permlane_swap
from max.gpu.sync import schedule_barrier
from std.memory import bitcast
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...calls import Norm, NormQuantizeCall
from ...launch.grid import Grid
from ...launch.queue import Queue
from ...numbers.floats import FLOAT_TYPES, float_code
from ...numbers.formats import FORMATS, Format
from ...numbers.norms import Rounds, SEGMENT, mean_of, reciprocal_of
from ...numbers.rounding import carry_of
from ...problem import ANY, may_be
from ...tiles import RegisterTile, in_registers
from ..chip import CUS, LANES, WORD_BYTES
from ..instructions.lds import Lds, allocate_lds, tile_at
from ..instructions.matrix import set_priority
from ..instructions.memory import scalar_here
from ..instructions.vector import here, unpacked_here
from ..instructions.wave import ROW_LANES, kept_halves, of_lane, sum_of_quad
from ..operands.memory import Bytes, Input, Output, bytes_of, input, output, quotient, remainder
from .chunks import CodeRow, Floats, InputRows, LEVELS, Place, floats_of, load_at
from .chunks import memory_at, next_level, rounded, set_level, store_at
from .float_scales import CHUNK, magnitude_of, maximum_of_workgroup
from .shape import HELD, WAVES, is_made, takes, waves_of

comptime Pair = SIMD[DType.float32, 2]
"""Neighbours of a chunk."""
comptime _HALVES, _ODD_ROWS = 32, 16
comptime _FLOAT_WEIGHTS = Int32(1)
"""A bit of what a norm is, and so are all that follow."""
comptime _IS_CENTERED = Int32(2)
comptime _IS_EACH = Int32(4)
comptime _HAS_RESIDUAL = Int32(8)
comptime _IS_USUAL = Int32(16)
"""An RMS norm that rounds twice, with weights of the rows' type alone."""


@always_inline
def _swapped[dtype: DType, //](x: SIMD[dtype, CHUNK]) -> SIMD[dtype, CHUNK]:
    """Returns half of a chunk and that half of one 32 lanes away; its own inverse."""
    comptime HALF = CHUNK * size_of[dtype]() // WORD_BYTES // 2
    var words = bitcast[DType.uint32, 2 * HALF](x)
    comptime for i in range(HALF):
        var both = permlane_swap[_HALVES](words[i], words[HALF + i])
        words[i], words[HALF + i] = both[0], both[1]
    return bitcast[dtype, CHUNK](words)


@always_inline
def _two_of_segment[are_squares: Bool](swapped: Floats) -> Pair:
    """Returns two of 128 sums of four of a segment, of which lanes have halves, or of squares."""
    comptime PAIRS = CHUNK // 2
    var a, b = swapped.slice[PAIRS](), swapped.slice[PAIRS, offset=PAIRS]()
    var four: SIMD[DType.float32, PAIRS]
    comptime if are_squares:
        four = b.fma(b, a * a)
    else:
        four = a + b
    var low, high = Pair(), Pair()
    comptime for i in range(2):
        var both = permlane_swap[_ODD_ROWS](
            bitcast[DType.uint32](four[i]), bitcast[DType.uint32](four[i + 2])
        )
        low[i], high[i] = bitcast[DType.float32](both[0]), bitcast[DType.float32](both[1])
    return low + high


@always_inline
def _handed[distance: Int](low: Float32, high: Float32) -> Float32:
    """Returns what two lanes have together: of `low` the lower one has it, else the upper."""
    var both = permlane_swap[distance](bitcast[DType.uint32](low), bitcast[DType.uint32](high))
    return bitcast[DType.float32](both[0]) + bitcast[DType.float32](both[1])


@fieldwise_init
struct _Segments(TrivialRegisterPassable):
    """Which segments of a row a wave has, and where their sums meet."""

    comptime LDS_BYTES = (WAVES * HELD + 1) * WORD_BYTES

    var lds: Lds
    var count: Int32
    """Of the row."""
    var wave: Int32
    var waves: Int32
    var lane: Int32
    var finisher: Int32
    """The wave that adds up a row: another one of the next, as each has a SIMD of its own."""

    @always_inline
    def turn(mut self):
        """Goes on to the next row."""
        self.finisher = self.finisher + 1 if self.finisher + 1 < self.waves else 0

    @always_inline
    def index(self, held: Int) -> Int32:
        """Returns the place of one of the wave's segments in the row."""
        return self.wave * Int32(HELD) + Int32(held)

    @always_inline
    def at(self, held: Int) -> Place:
        """Returns the lane's chunk of one."""
        return Place(self.index(0), self.lane, ahead=Int32(held))

    @always_inline
    def number[
        is_mean: Bool
    ](
        self, two: RegisterTile[DType.float32, 2, HELD], inv_k: Float64, eps: Float64, level: Int32
    ) -> Float32:
        """Returns the mean of a row, or what multiplies it, from sums of lanes; all waves call it.

        One of them adds up those of all segments.
        """
        comptime assert HELD == 4, "lanes 8 and 4 apart have four segments"
        var sums = tile_at[DType.float32, 1, WAVES * HELD](self.lds)
        var number = tile_at[DType.float32, 1, 1](self.lds, Int32(WAVES * HELD * WORD_BYTES))
        var all = Pair()
        comptime for i in range(2):
            var low = kept_halves[8](two[0][i], two[1][i])
            var high = kept_halves[8](two[2][i], two[3][i])
            all[i] = sum_of_quad(kept_halves[4](low, high))
        var one = _handed[_HALVES](all[0], all[1])
        one = _handed[_ODD_ROWS](one, one)
        one = _handed[_HALVES](one, one)
        if self.lane < ROW_LANES and remainder[4](self.lane) == 0:
            # Lane 4 * x + 8 * y has segment 2 * x + y.
            var held = quotient[8](self.lane) + quotient[2](self.lane & 4)
            sums[self.index(0) + held] = one
        barrier()
        if self.wave == self.finisher:
            # All wait for it.
            set_priority[LEVELS - 1]()
            # Behind the last segment are zeros, which change no sum.
            var of_waves = tile_at[DType.float32, HELD, WAVES](self.lds)
            var total = Float64(0)
            for wave in range(self.waves):
                comptime for i in range(HELD):
                    total += of_waves[wave][i].cast[DType.float64]()
            comptime if is_mean:
                number[0] = mean_of(total, inv_k)
            else:
                number[0] = reciprocal_of(total, inv_k, eps)
        barrier()
        set_level(level)
        return of_lane(number[0][0], 0)


@always_inline
def _load_row[
    dtype: DType, //
](rows: InputRows, row: Int32, segments: _Segments, to: RegisterTile[dtype, CHUNK, HELD]):
    """Starts loading what a wave has of a row."""
    var memory = rows.at[dtype](row)
    comptime for i in range(HELD):
        to[i] = load_at[dtype](memory, segments.at(i))


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](WAVES * LANES))
def norm_to_codes[
    format: Format, dtype: DType
](
    x: Input[dtype],
    weight: Input[DType.uint8],
    row_stride: Int32,
    rows: Int32,
    k: Int32,
    step: Int32,
    rule: UInt32,
    kind: Int32,
    codes: Output[DType.uint8],
    scales: Output[DType.uint8],
    offset: Float32,
    bias: Input[DType.uint8],
    residual: Input[dtype],
    residual_stride: Int64,
    stream: Output[dtype],
    eps: Float64,
    inv_k: Float64,
):
    """Quantizes rows behind a norm, one at a time and every `step`-th; see `calls.Norm`.

    `weight`, `bias`, `residual`, `stream`: Or no address. `rule`: The carry of float32 bits; of
    float scales whether they are powers of two. `kind`: Bits of the norm.
    """
    comptime IS_AHEAD = size_of[dtype]() == 2
    """Whether the next row is loaded before this one is done: registers are there for it."""
    comptime KEPT = dtype if format.element.bits == 6 else DType.float32
    """What rows are in registers: the converter to six bits leaves too few for float32."""
    var thread = Int32(thread_idx.x)
    var segments = _Segments(
        lds=allocate_lds[_Segments.LDS_BYTES](),
        count=quotient[SEGMENT](k + Int32(SEGMENT - 1)),
        wave=readfirstlane(quotient[LANES](thread)),
        waves=quotient[HELD * SEGMENT](k + Int32(HELD * SEGMENT - 1)),
        lane=remainder[LANES](thread),
        finisher=0,
    )
    segments.finisher = min(quotient[CUS](Int32(block_idx.x)), segments.waves - 1)
    var row = Int32(block_idx.x)
    var held = in_registers[KEPT, CHUNK, HELD]()
    var loaded = in_registers[dtype, CHUNK, HELD]()
    var of_rows = InputRows(bytes_of(x), rows, Int(row_stride), k)
    # What is usual stays in registers; else weights and biases are loaded for each row.
    var weights = in_registers[dtype, CHUNK, HELD]()
    var all_weights = _OfK[dtype](bytes_of(weight), k, kind & _FLOAT_WEIGHTS != 0)
    comptime for i in range(HELD):
        weights[i] = all_weights.bits(segments.at(i))
    # Near for most waves: behind rows they would wait for memory.
    schedule_barrier()
    comptime if IS_AHEAD:
        _load_row(of_rows, row, segments, loaded)
        schedule_barrier()

    var level = Int32(LEVELS - 1)
    while row < rows:
        set_priority[LEVELS - 1]()
        comptime if not IS_AHEAD:
            _load_row(of_rows, row, segments, loaded)
        if scalar_here(kind) & _HAS_RESIDUAL != 0:
            var added = in_registers[dtype, CHUNK, HELD]()
            var residuals = InputRows(bytes_of(residual), rows, Int(residual_stride), k)
            _load_row(residuals, row, segments, added)
            var sums = InputRows(bytes_of(stream), rows, Int(k), k).at[dtype](row)
            comptime for i in range(HELD):
                loaded[i] = rounded[dtype](floats_of(loaded[i]) + floats_of(added[i]))
                store_at(
                    sums, segments.at(i), bitcast[DType.uint8, CHUNK * size_of[dtype]()](loaded[i])
                )
        comptime for i in range(HELD):
            comptime if KEPT == dtype:
                held[i] = rebind[SIMD[KEPT, CHUNK]](_swapped(loaded[i]))
            else:
                held[i] = rebind[SIMD[KEPT, CHUNK]](floats_of(_swapped(loaded[i])))
        comptime if IS_AHEAD:
            _load_row(of_rows, row + step, segments, loaded)

        var two = in_registers[DType.float32, 2, HELD]()
        var mean = Float32(0)
        if scalar_here(kind) & _IS_CENTERED != 0:
            comptime for i in range(HELD):
                two[i] = _two_of_segment[False](floats_of(held[i]))
                schedule_barrier()
            mean = segments.number[True](two, inv_k, eps, level)
            comptime for i in range(HELD):
                var rest = floats_of(_swapped(held[i])) - mean
                var is_inside = segments.at(i).is_before(k)
                two[i] = _two_of_segment[True](_swapped(rest if is_inside else Floats(0)))
                schedule_barrier()
        else:
            comptime for i in range(HELD):
                two[i] = _two_of_segment[True](floats_of(held[i]))
                schedule_barrier()
        var reciprocal = segments.number[False](two, inv_k, eps, level)

        var of_row = CodeRow[format, dtype].of(codes, scales, row, k, rule)
        var norm = _OfRow[dtype](
            mean,
            reciprocal,
            all_weights,
            _OfK[dtype](bytes_of(bias), k, kind & _FLOAT_WEIGHTS != 0),
            offset,
            kind & _IS_EACH != 0,
        )
        if scalar_here(kind) & _IS_USUAL != 0:
            _put_row[True](of_row, norm, segments, held, weights)
        else:
            _put_row[False](of_row, norm, segments, held, weights)
        segments.turn()
        level = next_level(level)
        row += step


@fieldwise_init
struct _OfRow[dtype: DType](TrivialRegisterPassable):
    """What becomes of the numbers of a row."""

    var mean: Float32
    var reciprocal: Float32
    var weights: _OfK[Self.dtype]
    var biases: _OfK[Self.dtype]
    var offset: Float32
    var is_each: Bool
    """Whether what is normalized is rounded."""

    @always_inline
    def of(self, x: Floats, at: Place) -> SIMD[Self.dtype, CHUNK]:
        """Returns a chunk of any norm."""
        var y = (x - self.mean) * self.reciprocal
        if self.is_each:
            y = floats_of(rounded[Self.dtype](y))
        if self.weights.are_there():
            var factors = self.weights.load(at) + self.offset
            if self.biases.are_there():
                y = y.fma(factors, self.biases.load(at))
            else:
                y *= factors
        return rounded[Self.dtype](y)


@always_inline
def _put_row[
    format: Format, dtype: DType, kept: DType, //, is_usual: Bool
](
    codes: CodeRow[format, dtype],
    norm: _OfRow[dtype],
    segments: _Segments,
    held: RegisterTile[kept, CHUNK, HELD],
    weights: RegisterTile[dtype, CHUNK, HELD],
):
    """Makes a row, halves of whose chunks are swapped, and stores its codes.

    `is_usual`: Whether there is no mean and no bias, and both steps round; weights are at hand.
    """
    var amax, made = UInt32(0), in_registers[dtype, CHUNK, HELD]()
    # Seen through, pairs of registers with it would be made anew.
    var factors = bitcast[DType.float32, 2](here(bitcast[DType.uint64, 1](Pair(norm.reciprocal))))
    comptime for i in range(HELD):
        if segments.index(i) < scalar_here(segments.count):
            var x = floats_of(_swapped(held[i]))
            comptime if is_usual:
                comptime for pair in range(CHUNK // 2):
                    x = x.insert[offset=2 * pair](x.slice[2, offset=2 * pair]() * factors)
                var y = floats_of(rounded[dtype](x))
                made[i] = rounded[dtype](y * floats_of(weights[i]))
            else:
                # Anew for each row: registers are not to keep what is loaded here.
                var at, of_this = segments.at(i), norm
                at.lane = bitcast[DType.int32](unpacked_here(bitcast[DType.uint32](at.lane)))
                of_this.weights.k = scalar_here(norm.weights.k)
                of_this.biases.k = of_this.weights.k
                made[i] = of_this.of(x, at)
            comptime if format.has_row_scales():
                if segments.at(i).is_before(norm.weights.k):
                    amax = max(amax, magnitude_of(made[i]))
            else:
                codes.put(made[i], segments.at(i))
    comptime if format.has_row_scales():
        var thread = segments.wave * LANES + segments.lane
        var scale = codes.scale(maximum_of_workgroup[WAVES * LANES](amax, thread, segments.lds))
        codes.put_row_scale(scale, thread == 0)
        comptime for i in range(HELD):
            if segments.index(i) < scalar_here(segments.count):
                codes.put_under(scale, made[i], segments.at(i))
        # Before the next row's sums take their place.
        barrier()


@fieldwise_init
struct _OfK[dtype: DType](TrivialRegisterPassable):
    """Weights or biases, of the type of the rows or float32."""

    var tensor: Bytes
    """No address for none."""
    var k: Int32
    var are_float: Bool

    @always_inline
    def are_there(self) -> Bool:
        return Int(self.tensor) != 0

    @always_inline
    def bits(self, at: Place) -> SIMD[Self.dtype, CHUNK]:
        """Loads a chunk of the type of the rows; of another type nothing."""
        comptime BYTES = size_of[Self.dtype]()
        var is_that = self.are_there() and self.are_float == (Self.dtype == DType.float32)
        var memory = memory_at(self.tensor, 0, self.k * Int32(BYTES) if is_that else 0)
        return load_at[Self.dtype](memory, at)

    @always_inline
    def load(self, at: Place) -> Floats:
        """Loads a chunk of either type."""
        comptime if Self.dtype == DType.float32:
            return floats_of(self.bits(at))
        else:
            var are_floats = self.are_there() and self.are_float
            var num_bytes = self.k * Int32(WORD_BYTES) if are_floats else 0
            var memory = memory_at(self.tensor, 0, num_bytes)
            var floats = load_at[DType.float32](memory, at)
            return floats if self.are_float else floats_of(self.bits(at))


def _kind_of(norm: Norm, dtype: Int) -> Int32:
    """Returns the bits of a norm of rows of a type."""
    var kind = (
        Int32(norm.weights_are_float) * _FLOAT_WEIGHTS + Int32(norm.is_centered) * _IS_CENTERED
    )
    kind += Int32(norm.rounds == Rounds.EACH) * _IS_EACH + Int32(norm.residual != 0) * _HAS_RESIDUAL
    var of_rows = norm.weights_are_float == (dtype == float_code(DType.float32))
    var is_usual = not norm.is_centered and norm.rounds == Rounds.EACH and of_rows
    is_usual = is_usual and norm.weight != 0 and norm.bias == 0 and norm.offset == 0
    return kind + Int32(is_usual) * _IS_USUAL


def quantize_norm[
    known: Int = ANY, known_dtype: Int = ANY
](given: NormQuantizeCall, mut queue: Some[Queue]) raises -> Bool:
    """Launches the kernel for rows behind a norm; says if there is one.

    Of a format and a type that are known when it is compiled there is code alone.
    """
    if not takes(given):
        return False
    var call, norm = given.call, given.norm
    var waves = waves_of(call.k)
    var groups = min(call.rows, CUS * (WAVES // waves))
    comptime for f in range(len(FORMATS)):
        comptime format = FORMATS[f]
        comptime for i in range(len(FLOAT_TYPES)):
            comptime dtype = FLOAT_TYPES[i]
            comptime if is_made(format) and may_be(known, f) and may_be(known_dtype, i):
                if call.format == f and call.dtype == i:
                    queue.launch[norm_to_codes[format, dtype]](
                        Grid(groups, threads=waves * Int(LANES)),
                        input[dtype](call.values),
                        input[DType.uint8](norm.weight),
                        Int32(call.row_stride),
                        Int32(call.rows),
                        Int32(call.k),
                        Int32(groups),
                        carry_of(f, call.rounding),
                        _kind_of(norm, call.dtype),
                        output[DType.uint8](call.codes),
                        output[DType.uint8](call.scales),
                        norm.offset,
                        input[DType.uint8](norm.bias),
                        input[dtype](norm.residual),
                        Int64(norm.residual_stride),
                        output[dtype](norm.stream),
                        norm.eps,
                        norm.inv_k,
                    )
                    return True
    return False

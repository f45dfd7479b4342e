"""Rows that are made before they are quantized: through a norm, of gates and ups, or rotated.

A task makes a row of floats in the cache, or as many as share a scale, and the quantizers of `rows`
read it there: so codes and scales are those of the floats that another kernel would have written.

    x, residual  ->  stream  ->  sum, reciprocal  ->  a row of floats  ->  codes, scales
    gates, ups   ------------------------------------>
    x            ---------- Hadamard --------------->

A Hadamard matrix of n is that of Sylvester, over the root of n. Halves are added and subtracted
first, then halves of these, to neighbours; each result is multiplied by the float32 of n ** -0.5.
"""

from layout import Coord
from std.math import ceildiv, iota
from std.memory import bitcast
from std.sys import size_of
from std.utils import IndexList

from ..calls import GateQuantizeCall, HadamardQuantizeCall, Norm, NormQuantizeCall, QuantizeCall
from ..layouts import Plain
from ..numbers.floats import FLOAT_TYPES, float_code, round_to, rounded_in_float32
from ..numbers.formats import FORMATS, Format, block_of
from ..numbers.norms import HALF_SEGMENT, Rounds, SEGMENT, mean_of, reciprocal_of
from ..operands import Matrix, Operand, flat, matrix
from ..problem import ANY
from .quantize import even_rows_per_task
from .rows import QuantizeRows, QuantizeScaledRows
from .scratch import Scratch
from .threads import Team, Work
from .vectors import BLOCK, HAS_FMA, LANES, Sums

comptime FLOAT32 = float_code(DType.float32)
comptime MAX_TASKS = 256
"""Each has room of its own for the rows that it makes."""
comptime MAX_ROOM_BYTES = 1 << 25
"""For all of them, unless one task takes more."""


trait RowMaker(TrivialRegisterPassable):
    """Makes rows of floats of a type that only a run tells."""

    def make(self, row: Int, address: Int):
        """Writes row `row` to an address."""
        ...


def run_norm_quantize[
    T: Team, //, known: Int = ANY
](call: NormQuantizeCall, team: T) raises -> Bool:
    """Quantizes rows behind a norm; says whether the tables know the types.

    Of a format that is `known` when it is compiled there is code alone.

    Raises where `Scratch` does, before anything is written.
    """
    var dtype = FLOAT32 if call.norm.rounds == Rounds.NONE else call.call.dtype
    return _run[known](NormedRows(call.call, call.norm), call.call, dtype, team)


def run_gate_quantize[
    T: Team, //, known: Int = ANY
](call: GateQuantizeCall, team: T) raises -> Bool:
    """Quantizes hidden numbers of gates and ups, likewise."""
    return _run[known](GatedRows(call), call.call, call.call.dtype, team)


def run_hadamard_quantize[T: Team](call: HadamardQuantizeCall, team: T) raises -> Bool:
    """Quantizes rows that are rotated within blocks, likewise."""
    return _run[ANY](RotatedRows(call), call.call, call.call.dtype, team)


def _run[
    Maker: RowMaker, T: Team, //, known: Int
](maker: Maker, call: QuantizeCall, dtype: Int, team: T) raises -> Bool:
    comptime for i in range(len(FLOAT_TYPES)):
        comptime for j in range(len(FORMATS)):
            comptime if known == ANY or known == j:
                if dtype == i and call.format == j:
                    var result = Operand[Plain, FORMATS[j].kin()].at(
                        call.codes, call.scales, call.rows, call.k, block_of(j)
                    )
                    comptime kernel = _quantize[FORMATS[j].kin(), FLOAT_TYPES[i], Maker, T]
                    kernel(maker, result, call, team)
                    return True
    return False


def _quantize[
    format: Format, dtype: DType, Maker: RowMaker, T: Team
](maker: Maker, result: Operand[Plain, format], call: QuantizeCall, team: T) raises:
    var multiple = 1
    comptime if format.scale.has_float():
        multiple = 1 << result.block.row_bits
    var room_bytes = multiple * call.k * size_of[dtype]()
    var most = max(1, min(MAX_TASKS, MAX_ROOM_BYTES // room_bytes))
    var rows = even_rows_per_task(call.rows, call.k, multiple)
    rows = max(rows, ceildiv(ceildiv(call.rows, most), multiple) * multiple)
    var tasks = ceildiv(call.rows, rows)
    var scratch = Scratch(tasks * room_bytes)
    var room = Int(scratch.carve[DType.uint8](tasks * room_bytes).ptr)
    var work = QuantizeMade[format, dtype](
        maker, result, call, rows_per_task=rows, group_rows=multiple, room=room
    )
    team.run_all(work^, tasks)
    _ = scratch^


@fieldwise_init
struct QuantizeMade[format: Format, dtype: DType, Maker: RowMaker](Work):
    """Makes and quantizes rows, some a task."""

    var maker: Self.Maker
    var out: Operand[Plain, Self.format]
    var call: QuantizeCall
    var rows_per_task: Int
    """A multiple of `group_rows`."""
    var group_rows: Int
    """Rows that share a scale."""
    var room: Int
    """Address of room for a group of rows for each task."""

    def run(self, task: Int):
        """Makes and quantizes the rows of task `task`."""
        var rows, k = self.call.rows, self.call.k
        var row_bytes = k * size_of[Self.dtype]()
        var room = self.room + task * self.group_rows * row_bytes
        var end = min((task + 1) * self.rows_per_task, rows)
        for first in range(task * self.rows_per_task, end, self.group_rows):
            for row in range(first, min(first + self.group_rows, end)):
                self.maker.make(row, room + (row - first) * row_bytes)
            # Row `first` of this matrix is where the room is.
            var made = matrix[Self.dtype](room - first * row_bytes, rows, k, k)
            var group, rounding = first // self.group_rows, self.call.rounding
            comptime if Self.format.scale.has_float():
                var given = self.call.tensor_scales
                QuantizeScaledRows(made, self.out, rounding, given, self.group_rows).run(group)
            else:
                QuantizeRows(made, self.out, rounding, self.group_rows).run(group)


@fieldwise_init
struct GatedRows(RowMaker):
    """Rows of hidden numbers."""

    var call: GateQuantizeCall

    def make(self, row: Int, address: Int):
        comptime for i in range(len(FLOAT_TYPES)):
            if self.call.call.dtype == i:
                self._make[FLOAT_TYPES[i]](row, address)

    @no_inline
    def _make[dtype: DType](self, row: Int, address: Int):
        var call, gate = self.call.call, self.call.gate
        var values = matrix[dtype](call.values, call.rows, call.k, call.row_stride)
        var others = matrix[dtype](self.call.ups, call.rows, call.k, self.call.up_stride)
        var out = matrix[dtype](address, 1, call.k, call.k)
        # Numbers of bfloat16 have no longer NaNs than it has, nor has what is made of them.
        comptime APART = dtype == DType.bfloat16
        for k in range(0, call.k, BLOCK):
            if gate.is_interleaved():
                var both = _floats[width=2 * BLOCK](values, row, 2 * k).deinterleave()
                var hidden = gate.of(rebind[_Block](both[0]), rebind[_Block](both[1]))
                _store_block[False, are_nans_short=APART](out, 0, k, hidden)
            else:
                var x = _block[APART](values, row, k)
                var hidden: _Block
                if gate.is_there():
                    hidden = gate.of(x, _block[APART](others, row, k))
                else:
                    hidden = gate.of_sums(x)
                _store_block[APART, are_nans_short=APART](out, 0, k, hidden)


@fieldwise_init
struct RotatedRows(RowMaker):
    """Rows whose blocks are multiplied by a Hadamard matrix."""

    var call: HadamardQuantizeCall

    def make(self, row: Int, address: Int):
        comptime for i in range(len(FLOAT_TYPES)):
            if self.call.call.dtype == i:
                comptime for block in [32, 64, 128]:
                    if self.call.block == block:
                        self._make[FLOAT_TYPES[i], block](row, address)

    @no_inline
    def _make[dtype: DType, block: Int](self, row: Int, address: Int):
        var call = self.call.call
        var x = matrix[dtype](call.values, call.rows, call.k, call.row_stride)
        var out = flat[dtype](address, call.k)
        var factor = self.call.factor()
        for k in range(0, call.k, block):
            var rotated = _rotated(_floats[width=block](x, row, k)) * factor
            out.store[alignment=1](Coord(k), round_to[dtype](rotated))


@always_inline
def _rotated[width: SIMDLength, //](x: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    """Returns sums and differences of halves, rotated again; of few lanes in place."""
    comptime if width > LANES:
        comptime HALF = width // 2
        var low, high = x.slice[HALF](), x.slice[HALF, offset=HALF]()
        return rebind[SIMD[DType.float32, width]](_rotated(low + high).join(_rotated(low - high)))
    else:
        var y = rebind[Sums](x)
        comptime for step in [8, 4, 2, 1]:
            var is_upper = (iota[DType.int32, LANES]() & Int32(step)).ne(0)
            y = y.shuffle[_partners[step]()]() + is_upper.select(-y, y)
        return rebind[SIMD[DType.float32, width]](y)


def _partners[step: Int]() -> IndexList[LANES]:
    var lanes = IndexList[LANES]()
    for lane in range(LANES):
        lanes[lane] = lane ^ step
    return lanes


@fieldwise_init
struct NormedRows(RowMaker):
    """Rows behind a norm."""

    var call: QuantizeCall
    var norm: Norm

    def make(self, row: Int, address: Int):
        comptime for i in range(len(FLOAT_TYPES)):
            if self.call.dtype == i:
                comptime dtype = FLOAT_TYPES[i]
                var x = self._source[dtype](row)
                comptime if dtype == DType.float32:
                    self._make[dtype, dtype, dtype](x, row, address)
                else:
                    if self.norm.rounds == Rounds.NONE:
                        if self.norm.weights_are_float:
                            self._make[dtype, DType.float32, DType.float32](x, row, address)
                        else:
                            self._make[dtype, DType.float32, dtype](x, row, address)
                    elif self.norm.weights_are_float:
                        self._make[dtype, dtype, DType.float32](x, row, address)
                    else:
                        self._make[dtype, dtype, dtype](x, row, address)

    def _source[dtype: DType](self, row: Int) -> Matrix[dtype]:
        """Returns where row `row` is that is normalized: x, or sums that are written first."""
        var rows, k = self.call.rows, self.call.k
        var x = matrix[dtype](self.call.values, rows, k, self.call.row_stride)
        if self.norm.residual == 0:
            return x
        var residual = matrix[dtype](self.norm.residual, rows, k, self.norm.residual_stride)
        var stream = matrix[dtype](self.norm.stream, rows, k, k)
        comptime APART = dtype == DType.bfloat16
        for i in range(0, k, BLOCK):
            var total = _block[APART](x, row, i) + _block[APART](residual, row, i)
            _store_block[APART, are_nans_short=True](stream, row, i, total)
        return stream

    @no_inline
    def _make[
        dtype: DType, out: DType, weights: DType
    ](self, x: Matrix[dtype], row: Int, address: Int):
        """Writes a normalized row."""
        var k, norm = self.call.k, self.norm
        var mean = Float32(0)
        if norm.is_centered:
            mean = mean_of(_total[dtype, are_squares=False](x, row, k, 0), norm.inv_k)
        var total: Float64
        if norm.is_centered:
            total = _total[dtype, are_squares=True, is_centered=True](x, row, k, mean)
        else:
            total = _total[dtype, are_squares=True](x, row, k, 0)
        var reciprocal = reciprocal_of(total, norm.inv_k, norm.eps)
        var made = matrix[out](address, 1, k, k)
        # Numbers of bfloat16, and of its weights, have no longer NaNs than it has.
        comptime SHORT = weights == dtype
        comptime APART = out == DType.bfloat16 and SHORT
        for i in range(0, k, BLOCK):
            var y = _block[APART](x, row, i)
            if norm.is_centered:
                y -= mean
            y *= reciprocal
            if norm.rounds == Rounds.EACH:
                y = rounded_in_float32[dtype, are_nans_short=SHORT](y)
            if norm.weight != 0:
                var factor = _block[APART](matrix[weights](norm.weight, 1, k, k), 0, i)
                if norm.offset != 0:
                    factor += norm.offset
                if norm.bias != 0:
                    y = y.fma(factor, _block[APART](matrix[weights](norm.bias, 1, k, k), 0, i))
                else:
                    y *= factor
            _store_block[APART, are_nans_short=SHORT](made, 0, i, y)


comptime _Block = SIMD[DType.float32, BLOCK]


@always_inline
def _block[dtype: DType, //, are_apart: Bool](x: Matrix[dtype], row: Int, k: Int) -> _Block:
    """Returns a block of a row. With `are_apart`, which bfloat16 has for two operations, the even
    elements come first."""
    comptime if are_apart:
        comptime assert dtype == DType.bfloat16, "pairs that are words"
        var pairs = x.load[width=BLOCK, alignment=1](Coord(row, k))
        var words = bitcast[DType.uint32, LANES](pairs)
        var numbers = (words << 16).join(words & UInt32(0xFFFF0000))
        return rebind[_Block](bitcast[DType.float32, 2 * LANES](numbers))
    else:
        return _floats[width=BLOCK](x, row, k)


@always_inline
def _store_block[
    dtype: DType, //, are_apart: Bool, *, are_nans_short: Bool
](x: Matrix[dtype], row: Int, k: Int, y: _Block):
    """Rounds what `_block` returned, or what was made of it, and stores it."""
    comptime if are_apart:
        var rounded = rounded_in_float32[dtype, are_nans_short=are_nans_short](y)
        var words = bitcast[DType.uint32, BLOCK](rounded)
        var pairs = (words.slice[LANES]() >> 16) | words.slice[LANES, offset=LANES]()
        x.store[alignment=1](Coord(row, k), bitcast[dtype, BLOCK](pairs))
    else:
        x.store[alignment=1](Coord(row, k), round_to[dtype](y))


@always_inline
def _floats[
    dtype: DType, //, width: SIMDLength = LANES
](x: Matrix[dtype], row: Int, k: Int) -> SIMD[DType.float32, width]:
    return x.load[width=width, alignment=1](Coord(row, k)).cast[DType.float32]()


@always_inline
def _total[
    dtype: DType, *, are_squares: Bool, is_centered: Bool = False
](x: Matrix[dtype], row: Int, k: Int, mean: Float32) -> Float64:
    """Returns the sum of a row, or of the squares of what is left of it without the mean."""
    comptime Whole = _Segment[dtype, are_squares, is_centered, True]
    comptime Part = _Segment[dtype, are_squares, is_centered, False]
    var total = Float64(0)
    for first in range(0, k - SEGMENT + 1, SEGMENT):
        total += Whole(x, row, first, SEGMENT, mean).total().cast[DType.float64]()
    var rest = k % SEGMENT
    if rest > 0:
        total += Part(x, row, k - rest, rest, mean).total().cast[DType.float64]()
    return total


@fieldwise_init
struct _Segment[dtype: DType, are_squares: Bool, is_centered: Bool, is_whole: Bool](
    TrivialRegisterPassable
):
    """Neighbours of a row that are added up in float32."""

    var x: Matrix[Self.dtype]
    var row: Int
    var first: Int
    var count: Int
    var mean: Float32

    comptime ARE_APART = Self.dtype == DType.bfloat16

    @always_inline
    def total(self) -> Float32:
        """Returns the sum."""
        var sums = self._sums[0, 1]()
        comptime if Self.ARE_APART:
            var even, odd = sums.slice[LANES](), sums.slice[LANES, offset=LANES]()
            return (_halves_added(even) + _halves_added(odd))[0]
        else:
            return _halves_added(sums)[0]

    @always_inline
    def _sums[block: Int, step: Int](self) -> _Block:
        """Returns the sums of blocks `block`, `block + step`, ..., halves added first.

        Depth first, so that few of them are in registers at a time.
        """
        comptime if step * BLOCK == HALF_SEGMENT:
            var a, b = self._part(block * BLOCK), self._part(block * BLOCK + HALF_SEGMENT)
            comptime if not Self.are_squares:
                return a + b
            elif HAS_FMA or Self.dtype == DType.float32 or Self.is_centered:
                return b.fma(b, a * a)
            else:
                # Squares of two bytes are exact.
                return a * a + b * b
        else:
            return self._sums[block, 2 * step]() + self._sums[block + step, 2 * step]()

    @always_inline
    def _part(self, at: Int) -> _Block:
        comptime if not Self.is_whole:
            if at >= self.count:
                return _Block(0)
        var x = _block[Self.ARE_APART](self.x, self.row, self.first + at)
        comptime if Self.is_centered:
            x -= self.mean
        return x


@always_inline
def _halves_added[width: SIMDLength, //](x: SIMD[DType.float32, width]) -> SIMD[DType.float32, 1]:
    """Returns the sum of a vector, of which the second half is added to the first, and so on."""
    comptime if width == 1:
        return rebind[SIMD[DType.float32, 1]](x)
    else:
        comptime HALF = width // 2
        return _halves_added(x.slice[HALF]() + x.slice[HALF, offset=HALF]())

"""Gates and rotated rows to codes: waves make segments, and the next one is on its way meanwhile.

The gates of most models have few instructions, see `epilogue.gate`, others those of
`numbers.gates`. Lanes of a Hadamard matrix's block hand each other their chunks, halves of the block
first.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from std.math import ceildiv
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...calls import GateQuantizeCall, HadamardQuantizeCall
from ...launch.grid import Grid
from ...launch.queue import Queue
from ...numbers.floats import FLOAT_TYPES
from ...numbers.formats import FORMATS, Format
from ...numbers.gates import Gate, INFINITY
from ...numbers.norms import SEGMENT
from ...numbers.rounding import carry_of
from ...problem import ANY, may_be
from ..chip import CUS, LANES, WORD_BYTES
from ..epilogue.gate import QuickGate
from ..instructions.lds import allocate_lds
from ..instructions.wave import ROW_LANES, of_partner
from ..operands.memory import Input, Output, bytes_of, input, output, quotient, remainder
from .chunks import CodeRow, Floats, InputRows, LEVELS, Place, floats_of, load_at
from .chunks import next_level, rounded, set_level
from .float_scales import CHUNK, load_chunk, magnitude_of, maximum_of_workgroup
from .shape import is_made, takes

comptime GATE_THREADS = 256
"""Threads of a workgroup. Guess."""
comptime GATE_GROUPS = 4
"""Workgroups of a compute unit: by the timing model, of 4, 5 and 8."""


@fieldwise_init
struct _Sums[dtype: DType](TrivialRegisterPassable):
    """A chunk of gates and one of ups, or both in turns."""

    var first: SIMD[Self.dtype, CHUNK]
    var second: SIMD[Self.dtype, CHUNK]


trait _Rows(TrivialRegisterPassable):
    """Rows that are made of chunks."""

    comptime dtype: DType
    """What is loaded, and made."""

    def count(self) -> Int32:
        """Returns how many there are."""
        ...

    def k(self) -> Int32:
        """Returns the numbers of one."""
        ...

    def load(self, row: Int32, at: Place) -> _Sums[Self.dtype]:
        """Starts loading what a chunk is made of; rows behind the last are zeros."""
        ...

    def made(self, sums: _Sums[Self.dtype], at: Place) -> SIMD[Self.dtype, CHUNK]:
        """Returns a chunk."""
        ...


@fieldwise_init
struct _RotatedRows[of: DType, block: Int](_Rows):
    """Rows whose blocks are multiplied by a Hadamard matrix."""

    comptime dtype = Self.of

    var rows: InputRows
    var factor: Float32

    @always_inline
    def count(self) -> Int32:
        return self.rows.rows

    @always_inline
    def k(self) -> Int32:
        return self.rows.k

    @always_inline
    def load(self, row: Int32, at: Place) -> _Sums[Self.dtype]:
        return {load_at[Self.dtype](self.rows.at[Self.dtype](row), at), {}}

    @always_inline
    def made(self, sums: _Sums[Self.dtype], at: Place) -> SIMD[Self.dtype, CHUNK]:
        var y = floats_of(sums.first)
        comptime for distance in [8, 4, 2, 1]:
            comptime if distance < Self.block // CHUNK:
                var sign = Float32(1 if at.lane & Int32(distance) == 0 else -1)
                var others = Floats()
                comptime for i in range(CHUNK):
                    others[i] = of_partner[distance](y[i])
                y = y.fma(Floats(sign), others)
        comptime for distance in [4, 2, 1]:
            comptime for i in range(CHUNK):
                comptime if i & distance == 0:
                    var low, high = y[i], y[i + distance]
                    y[i], y[i + distance] = low + high, low - high
        return rounded[Self.dtype](y * self.factor)


@fieldwise_init
struct _GatedRows[of: DType, interleaved: Bool, is_usual: Bool](_Rows):
    """Rows of gates and ups."""

    comptime dtype = Self.of

    var gates: InputRows
    var ups: InputRows
    var gate: Gate

    @always_inline
    def count(self) -> Int32:
        return self.gates.rows

    @always_inline
    def k(self) -> Int32:
        return self.gates.k

    @always_inline
    def load(self, row: Int32, at: Place) -> _Sums[Self.dtype]:
        comptime BYTES = CHUNK * size_of[Self.dtype]()
        comptime if Self.interleaved:
            var both = self.gates.at[Self.dtype](row, 2)
            var offset, place = at.lane * Int32(2 * BYTES), at.segment * Int32(LANES * 2 * BYTES)
            return {
                load_chunk[Self.dtype](both, offset, place),
                load_chunk[Self.dtype](both, offset + Int32(BYTES), place),
            }
        else:
            var ups = self.ups.at[Self.dtype](row, Int32(1) if self.gate.is_there() else 0)
            return {
                load_at[Self.dtype](self.gates.at[Self.dtype](row), at),
                load_at[Self.dtype](ups, at),
            }

    @always_inline
    def made(self, sums: _Sums[Self.dtype], at: Place) -> SIMD[Self.dtype, CHUNK]:
        var gates, ups = floats_of(sums.first), floats_of(sums.second)
        comptime if Self.interleaved:
            var both = gates.join(ups).deinterleave()
            gates, ups = both[0], both[1]
        comptime if Self.is_usual:
            var quick = QuickGate(self.gate)
            if self.gate.limit == INFINITY:
                return rounded[Self.dtype](quick.of[has_limit=False](gates, ups))
            return rounded[Self.dtype](quick.of(gates, ups))
        else:
            if self.gate.is_there():
                return rounded[Self.dtype](self.gate.of(gates, ups))
            return rounded[Self.dtype](self.gate.of_sums(gates))


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(GATE_THREADS)))
def gate_to_codes[
    format: Format, dtype: DType
](
    gates: Int64,
    ups: Int64,
    row_stride: Int32,
    up_stride: Int32,
    rows: Int32,
    k: Int32,
    step_rows: Int32,
    step_segments: Int32,
    word: Int32,
    limit: Float32,
    alpha: Float32,
    codes: Output[DType.uint8],
    scales: Output[DType.uint8],
    rule: UInt32,
):
    """Quantizes hidden numbers; a row with one scale makes them twice.

    `gates`, `ups`: Addresses, perhaps in one tensor. `step_rows`, `step_segments`: From a segment
    of a wave to its next one. `word`, `limit`, `alpha`: The gate. `rule`: As of `norm_to_codes`.
    """
    var gate = Gate.of_word(word, limit, alpha)
    var of_gates = InputRows(bytes_of(input[dtype](Int(gates))), rows, Int(row_stride), k)
    var of_ups = InputRows(bytes_of(input[dtype](Int(ups))), rows, Int(up_stride), k)
    comptime for interleaved in [True, False]:
        comptime for is_usual in [True, False]:
            if gate.is_interleaved() == interleaved and gate.is_usual() == is_usual:
                var all = _GatedRows[dtype, interleaved, is_usual](of_gates, of_ups, gate)
                _put_rows[format](all, codes, scales, step_rows, step_segments, rule)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(GATE_THREADS)))
def rotated_to_codes[
    format: Format, dtype: DType
](
    x: Input[dtype],
    row_stride: Int32,
    rows: Int32,
    k: Int32,
    step_rows: Int32,
    step_segments: Int32,
    block: Int32,
    factor: Float32,
    codes: Output[DType.uint8],
    scales: Output[DType.uint8],
    rule: UInt32,
):
    """Quantizes rows that are rotated within blocks, as `gate_to_codes` does hidden numbers."""
    var of_rows = InputRows(bytes_of(x), rows, Int(row_stride), k)
    comptime for of_kernel in [32, 64, 128]:
        if block == Int32(of_kernel):
            var all = _RotatedRows[dtype, of_kernel](of_rows, factor)
            _put_rows[format](all, codes, scales, step_rows, step_segments, rule)


@always_inline
def _put_rows[
    Rows: _Rows, //, format: Format
](
    all: Rows,
    codes: Output[DType.uint8],
    scales: Output[DType.uint8],
    step_rows: Int32,
    step_segments: Int32,
    rule: UInt32,
):
    """Makes the segments of a workgroup and stores their codes."""
    comptime WAVES_OF_GATES = Int32(GATE_THREADS) // LANES
    comptime dtype = Rows.dtype
    var row, thread, k = Int32(block_idx.x), Int32(thread_idx.x), all.k()
    var wave = readfirstlane(quotient[LANES](thread))
    var at = Place(wave, remainder[LANES](thread))
    var count = quotient[SEGMENT](k + Int32(SEGMENT - 1))
    comptime if format.has_row_scales():
        var of_row = CodeRow[format, dtype].of(codes, scales, row, k, rule)
        var amax = UInt32(0)
        for segment in range(wave, count, WAVES_OF_GATES):
            at.segment = segment
            # Zeros behind the end become zeros.
            var made = all.made(all.load(row, at), at)
            amax = max(amax, magnitude_of(made))
        comptime WORDS = GATE_THREADS // ROW_LANES
        var lds = allocate_lds[WORDS * WORD_BYTES]()
        var scale = of_row.scale(maximum_of_workgroup[GATE_THREADS](amax, thread, lds))
        of_row.put_row_scale(scale, thread == 0)
        for segment in range(wave, count, WAVES_OF_GATES):
            at.segment = segment
            var made = all.made(all.load(row, at), at)
            of_row.put_under(scale, made, at)
    else:
        var unit = (Int32(block_idx.x) * WAVES_OF_GATES + wave).cast[DType.uint32]()
        row = (unit // count.cast[DType.uint32]()).cast[DType.int32]()
        at.segment = unit.cast[DType.int32]() - row * count
        var next = all.load(row, at)
        var level = Int32(LEVELS - 1)
        while row < all.count():
            set_level(level)
            level = next_level(level)
            var sums, here = next, at
            var of_row = CodeRow[format, dtype].of(codes, scales, row, k, rule)
            row += step_rows
            at.segment += step_segments
            if at.segment >= count:
                at.segment -= count
                row += 1
            next = all.load(row, at)
            of_row.put(all.made(sums, here), here)


@fieldwise_init
struct _Cut(TrivialRegisterPassable):
    """The workgroups of rows, and how far a wave's segments are from each other."""

    var groups: Int
    var step_rows: Int
    var step_segments: Int

    @staticmethod
    def of[format: Format](rows: Int, k: Int) -> Self:
        comptime WAVES = GATE_THREADS // Int(LANES)
        var groups, count = rows, ceildiv(k, SEGMENT)
        comptime if not format.has_row_scales():
            groups = min(ceildiv(groups * count, WAVES), CUS * GATE_GROUPS)
        return Self(groups, groups * WAVES // count, groups * WAVES % count)


def quantize_gate[
    known: Int = ANY, known_dtype: Int = ANY
](given: GateQuantizeCall, mut queue: Some[Queue]) raises -> Bool:
    """Launches the same for hidden numbers."""
    if not takes(given):
        return False
    var call, gate = given.call, given.gate
    comptime for f in range(len(FORMATS)):
        comptime format = FORMATS[f]
        comptime for i in range(len(FLOAT_TYPES)):
            comptime dtype = FLOAT_TYPES[i]
            comptime if is_made(format) and may_be(known, f) and may_be(known_dtype, i):
                if call.format == f and call.dtype == i:
                    var cut = _Cut.of[format](call.rows, call.k)
                    queue.launch[gate_to_codes[format, dtype]](
                        Grid(cut.groups, threads=GATE_THREADS),
                        Int64(call.values),
                        Int64(given.ups),
                        Int32(call.row_stride),
                        Int32(given.up_stride),
                        Int32(call.rows),
                        Int32(call.k),
                        Int32(cut.step_rows),
                        Int32(cut.step_segments),
                        gate.word(),
                        gate.limit,
                        gate.alpha,
                        output[DType.uint8](call.codes),
                        output[DType.uint8](call.scales),
                        carry_of(f, call.rounding),
                    )
                    return True
    return False


def quantize_rotated(given: HadamardQuantizeCall, mut queue: Some[Queue]) raises -> Bool:
    """Launches the same for rows that are rotated within blocks."""
    if not takes(given):
        return False
    var call = given.call
    comptime for f in range(len(FORMATS)):
        comptime format = FORMATS[f]
        comptime for i in range(len(FLOAT_TYPES)):
            comptime dtype = FLOAT_TYPES[i]
            comptime if is_made(format):
                if call.format == f and call.dtype == i:
                    var cut = _Cut.of[format](call.rows, call.k)
                    queue.launch[rotated_to_codes[format, dtype]](
                        Grid(cut.groups, threads=GATE_THREADS),
                        input[dtype](call.values),
                        Int32(call.row_stride),
                        Int32(call.rows),
                        Int32(call.k),
                        Int32(cut.step_rows),
                        Int32(cut.step_segments),
                        Int32(given.block),
                        given.factor(),
                        output[DType.uint8](call.codes),
                        output[DType.uint8](call.scales),
                        carry_of(f, call.rounding),
                    )
                    return True
    return False

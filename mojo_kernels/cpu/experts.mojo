"""Products of experts on the CPU: rows sorted by expert, a range of them each.

    grouped    rows come sorted: the sizes are their ranges
    experts    slots are sorted by expert; one product makes hidden numbers, another makes rows,
               and each token adds up the rows of its slots

A row is multiplied alone and rows are added up in the order of a token's slots, so a result
depends on neither the other tokens nor the number of threads.
"""

from layout import Coord
from std.math import ceildiv
from std.memory import unsafe_memset_zero

from ..calls import QuantizeCall
from ..experts import ExpertsProblem, GroupedProblem
from ..numbers.floats import FLOAT_TYPES, float_bytes, float_code, round_to
from ..numbers.formats import scale_bytes_of
from ..numbers.gates import Gate
from ..operands import Flat, flat, matrix
from ..problem import Known, Left, LeftKind
from .dispatch import left_bytes, multiply_ranges
from .quantize import ELEMENTS_PER_TASK, even_rows_per_task, run_quantize
from .ranges import RangedProblem, Ranges, RowSources
from .routing import SortedSlots
from .scratch import Scratch, padded
from .threads import Team, Work
from .vectors import LANES, Sums

comptime FLOAT32 = float_code(DType.float32)


def multiply_grouped[known: Known, T: Team](problem: GroupedProblem, team: T) raises -> Bool:
    """Computes a grouped product; says whether the sizes fit, else nothing is written.

    Raises where `Scratch` does, before anything is written.
    """
    var experts = problem.experts
    var right = experts.right
    var scratch = Scratch(
        Ranges.num_bytes(experts.count) + left_bytes(problem.left, right, problem.m, problem.k)
    )
    var ranges = Ranges.carve(experts.count, scratch)
    var sizes = flat[DType.int32](problem.sizes, experts.count)
    for expert in range(experts.count):
        var size = Int(sizes.load[width=1](Coord(expert)))
        if size < 0 or ranges.rows + size > problem.m:
            return False
        ranges.append(expert, size)
    if ranges.rows > 0 and problem.n > 0:
        var product = RangedProblem(
            problem.left,
            RowSources(0, problem.m),
            ranges,
            experts,
            problem.values,
            problem.dtype,
            Gate.NONE,
            problem.n,
            problem.k,
        )
        multiply_ranges[known](product, scratch, team)
    _clear_rows(problem, ranges.rows)
    _ = scratch^
    return True


def _clear_rows(problem: GroupedProblem, first: Int):
    """Makes the rows from `first` on zero."""
    var row_bytes = problem.n * float_bytes(problem.dtype)
    var rest = flat[DType.uint8](problem.values + first * row_bytes, 0)
    unsafe_memset_zero(rest.ptr, (problem.m - first) * row_bytes)


@fieldwise_init
struct _Room(TrivialRegisterPassable):
    """What a layer of experts keeps between its steps."""

    var codes: Flat[DType.uint8]
    """Of the tokens, if they are quantized."""
    var scales: Flat[DType.uint8]
    var hidden: Flat[DType.uint8]
    """[rows, inner], floats like the tokens."""
    var rows: Flat[DType.float32]
    """[rows, width]."""

    @staticmethod
    def num_bytes(problem: ExpertsProblem) -> Int:
        """Returns the scratch memory that `carve` and both products take."""
        var count = problem.routing.count()
        var encoded = problem.routing.tokens * problem.width if _is_quantized(problem) else 0
        var hidden = count * problem.inner * float_bytes(problem.left.dtype)
        return (
            padded[DType.uint8](encoded)
            + padded[DType.uint8](_scale_bytes(problem))
            + padded[DType.uint8](hidden)
            + padded[DType.float32](count * problem.width)
            + left_bytes(problem.left, problem.gate_up.right, count, problem.width)
            + left_bytes(problem.left, problem.down.right, count, problem.inner)
        )

    @staticmethod
    def carve(problem: ExpertsProblem, mut scratch: Scratch) -> Self:
        """Takes room from `scratch`."""
        var count = problem.routing.count()
        var encoded = problem.routing.tokens * problem.width if _is_quantized(problem) else 0
        var hidden = count * problem.inner * float_bytes(problem.left.dtype)
        return Self(
            scratch.carve[DType.uint8](encoded),
            scratch.carve[DType.uint8](_scale_bytes(problem)),
            scratch.carve[DType.uint8](hidden),
            scratch.carve[DType.float32](count * problem.width),
        )


def _is_quantized(problem: ExpertsProblem) -> Bool:
    return problem.left.kind == LeftKind.QUANTIZED


def _scale_bytes(problem: ExpertsProblem) -> Int:
    """Returns the bytes of the scales of the tokens, if they are quantized."""
    return scale_bytes_of(problem.left.format, problem.routing.tokens, problem.width)


def multiply_experts[
    known_gate_up: Known, known_down: Known, T: Team
](problem: ExpertsProblem, team: T) raises -> Bool:
    """Computes a layer of experts; says whether the ids fit, else nothing is written.

    What is known of the products: of the first one where tokens are floats, as they come.
    Raises where `Scratch` does, before anything is written.
    """
    var routing, num_experts = problem.routing, problem.gate_up.count
    var scratch = Scratch(SortedSlots.num_bytes(routing, num_experts) + _Room.num_bytes(problem))
    var slots = SortedSlots.carve(routing, num_experts, scratch)
    if not slots.sort(routing):
        return False
    var room = _Room.carve(problem, scratch)
    if slots.ranges.rows > 0:
        var hidden = RangedProblem(
            _tokens(problem, room, team),
            RowSources(Int(slots.source.ptr), routing.tokens),
            slots.ranges,
            problem.gate_up,
            Int(room.hidden.ptr),
            problem.left.dtype,
            problem.gate,
            problem.sums(),
            problem.width,
        )
        multiply_ranges[_encoded(known_gate_up)](hidden, scratch, team)
        var rows = RangedProblem(
            problem.hidden_at(Int(room.hidden.ptr)),
            RowSources(0, slots.ranges.rows),
            slots.ranges,
            problem.down,
            Int(room.rows.ptr),
            FLOAT32,
            Gate.NONE,
            problem.width,
            problem.inner,
        )
        multiply_ranges[known_down](rows, scratch, team)
    var elements = routing.count() * problem.width
    var tokens = even_rows_per_task(routing.tokens, max(1, routing.slots) * problem.width, 1)
    var add = AddSlots(problem, slots.row, room.rows, tokens)
    team.run_all(add, ceildiv(routing.tokens, tokens), elements > ELEMENTS_PER_TASK)
    _ = scratch^
    return True


def _tokens[T: Team](problem: ExpertsProblem, room: _Room, team: T) -> Left:
    """Returns the left side of the first product: tokens are encoded once for all their slots."""
    var left, rows = problem.left, problem.routing.tokens
    if not _is_quantized(problem):
        return left
    var codes, scales = Int(room.codes.ptr), Int(room.scales.ptr)
    var call = QuantizeCall(
        values=left.values,
        dtype=left.dtype,
        row_stride=left.row_stride,
        rows=rows,
        k=problem.width,
        format=left.format,
        rounding=left.rounding,
        codes=codes,
        scales=scales,
        tensor_scales=0,
    )
    _ = run_quantize(call, team)
    return Left.encoded(codes, scales, left.format)


def _encoded(known: Known) -> Known:
    """Returns what is known of the first product, for which `_tokens` encodes."""
    var result = known
    if known.kind == LeftKind.QUANTIZED.code:
        result.kind = LeftKind.ENCODED.code
    return result


@fieldwise_init
struct AddSlots(TrivialRegisterPassable, Work):
    """Adds up the rows of each token's slots, some tokens a task."""

    var problem: ExpertsProblem
    var row: Flat[DType.int32]
    """The row of each slot, negative for none."""
    var rows: Flat[DType.float32]
    """[rows, width]."""
    var tokens_per_task: Int

    def run(self, task: Int):
        """Adds up the tokens of a task."""
        var first = task * self.tokens_per_task
        var last = min(first + self.tokens_per_task, self.problem.routing.tokens)
        comptime for i in range(len(FLOAT_TYPES)):
            if self.problem.dtype == i:
                for token in range(first, last):
                    self._add[FLOAT_TYPES[i]](token)

    def _add[dtype: DType](self, token: Int):
        """Writes a row of the result; each slot's product is added in one rounding."""
        var slots, width = self.problem.routing.slots, self.problem.width
        var out = matrix[dtype](self.problem.values, token + 1, width, width)
        for column in range(0, width, LANES):
            var total = Sums(0)
            for slot in range(token * slots, (token + 1) * slots):
                var row = Int(self.row.load[width=1](Coord(slot)))
                if row >= 0:
                    var addend = self.rows.load[width=LANES](Coord(row * width + column))
                    total = addend.fma(Sums(self._weight(slot)), total)
            out.store[alignment=1](Coord(token, column), round_to[dtype](total))

    @always_inline
    def _weight(self, slot: Int) -> Float32:
        """Returns what the row of a slot counts."""
        var routing = self.problem.routing
        comptime for i in range(len(FLOAT_TYPES)):
            if routing.weights_dtype == i:
                var weights = flat[FLOAT_TYPES[i]](routing.weights, slot + 1)
                return weights.load[width=1, alignment=1](Coord(slot)).cast[DType.float32]()
        return 0

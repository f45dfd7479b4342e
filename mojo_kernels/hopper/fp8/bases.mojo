"""Where the rows of a product lie that are ready for FP8 tensor cores, and their bases.

    workspace    stages of tokens: bytes, or bfloat16 numbers if the product is computed again
                 bases of the rows of tokens, then those of the weight rows
                 a word: whether a row has no base

    prepare_rows    writes bytes and bases                     always
    matmul_fp8      multiplies bytes, looks at all bases       always
                    writes bfloat16 numbers over the bytes     if a row has no base
    matmul_many     multiplies those, stores C once more       if a row has no base
"""

from layout import Coord
from max.gpu import thread_idx
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.math import align_up

from ...launch.queue import DevicePointer, Queue, Workspace, device_pointer
from ...operands import Flat
from ...problem import Problem
from ...simt.views import flat_of
from ..instructions.wgmma import ROW_BYTES
from ..layout import BLOCK
from ..many.result import Columns
from ..staged.activations import WIDEST_TILE, num_steps_of, workspace_of as workspace_of_numbers
from ..staged.gate import Gate
from .codes import factor_of
from .result import RowFactors

comptime STEP_BLOCKS = ROW_BYTES // BLOCK
"""Blocks of K in a stage."""
comptime NO_BASE = UInt8(0)
"""Stands for the base of a row that has none."""
comptime ALIGNMENT = 256
"""Rows that the bases of a side are padded to."""
comptime VECTOR = 16
"""Bases that a thread looks at, at a time."""


@fieldwise_init
struct ByteRows(DevicePassable, RowFactors, TrivialRegisterPassable):
    """Stages of bytes, and the bases of all rows."""

    comptime device_type: AnyType = Self

    var tokens: DevicePointer[DType.uint8]
    """The stages."""
    var bases: DevicePointer[DType.uint8]
    """Those of tokens, then those of weights, each padded."""
    var weights_at: UInt32
    """Where those of weights begin."""
    var word_at: UInt32
    """Where the word begins."""

    @staticmethod
    def of(problem: Problem, mut queue: Some[Queue]) raises -> Self:
        """Finds both in the workspace of a product."""
        var space = workspace_of(problem.m, problem.n, problem.k)
        var first = queue.workspace(space)
        return Self(
            device_pointer[DType.uint8](first),
            device_pointer[DType.uint8](first + _stages_bytes(problem.m, problem.k)),
            UInt32(_padded(problem.m)),
            UInt32(_padded(problem.m) + _padded(problem.n)),
        )

    @always_inline
    def gate(self) -> Gate:
        """Returns the gate of the kernel that computes the product if bases are missing."""
        var word = self.bases.unsafe_offset(Int(self.word_at)).unsafe_bitcast[UInt32]()
        return Gate(word, True)

    @always_inline
    def misses_base[threads: Int](self, num_tokens: UInt32, num_columns: UInt32) -> Bool:
        """Says whether a row has no base that this of so many threads looks at."""
        var weights = self.bases.unsafe_offset(Int(self.weights_at))
        var first = UInt32(thread_idx.x) * UInt32(VECTOR)
        var found = False
        for i in range(first, num_tokens, UInt32(threads * VECTOR)):
            found |= _has_none(self.bases, i, num_tokens)
        for i in range(first, num_columns, UInt32(threads * VECTOR)):
            found |= _has_none(weights, i, num_columns)
        return found

    @always_inline
    def token_bases(self) -> Flat[DType.uint8]:
        """Views the bases of tokens."""
        return flat_of(self.bases)

    @always_inline
    def weight_bases(self) -> Flat[DType.uint8]:
        """Views the bases of weight rows."""
        return flat_of(self.bases.unsafe_offset(Int(self.weights_at)))

    @always_inline
    def of_weight(self, row: Int) -> Float32:
        return factor_of(self.weight_bases()[row].cast[DType.uint32]())

    @always_inline
    def scale(self, sums: Columns, token: Int, of_weights: Columns) -> Columns:
        return sums * (of_weights * factor_of(self.token_bases()[token].cast[DType.uint32]()))

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "ByteRows"


def workspace_of(m: Int, n: Int, k: Int) -> Workspace:
    """Returns the workspace that a product wants, in either way."""
    return Workspace(0, _stages_bytes(m, k) + _padded(m) + _padded(n) + ALIGNMENT)


@always_inline
def _has_none(bases: DevicePointer[DType.uint8], first: UInt32, count: UInt32) -> Bool:
    """Says whether one of a vector of rows has no base; those past the end do not count."""
    var loaded = flat_of(bases).load[width=VECTOR, alignment=VECTOR](Coord(Int(first)))
    var found = False
    comptime for j in range(VECTOR):
        found |= loaded[j] == NO_BASE and first + UInt32(j) < count
    return found


def _padded(rows: Int) -> Int:
    """Returns the bytes that the bases of some rows take."""
    return align_up(rows, ALIGNMENT)


def _stages_bytes(m: Int, k: Int) -> Int:
    """Returns the bytes of the stages of either way, at the widest tile."""
    var of_bytes = (m + WIDEST_TILE) * Int(num_steps_of[STEP_BLOCKS](UInt32(k))) * ROW_BYTES
    return _padded(max(of_bytes, workspace_of_numbers(m, k).num_bytes()))

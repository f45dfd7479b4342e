"""Where the rows of a product lie that are ready for FP8 tensor cores, and their bases.

    workspace    stages of tokens: bytes, or bfloat16 numbers if the product is computed again
                 stages of weights: bytes, of large products
                 bases of the rows of tokens, then those of the weight rows
                 a word: whether a row has no base

    prepare_rows    writes bytes and bases                     always
    matmul_dense    multiplies bytes, looks at all bases       always
                    writes bfloat16 numbers over the bytes     if a row has no base
    matmul_many     multiplies those, stores C once more       if a row has no base
"""

from layout import Coord
from max.gpu import block_idx, grid_dim, thread_idx
from std.builtin.device_passable import DeviceTypeEncoder
from std.math import align_up

from ...launch.queue import DevicePointer, Workspace, device_pointer
from ...operands import Flat
from ...simt.arguments import Activations, Result
from ...simt.views import flat_of
from ..dense.kernel import CONSUMERS
from ..dense.operands import DenseOperands
from ..dense.result import RowPair
from ..dense.stages import ALIGNMENT as SIDE_ALIGNMENT, StagedRows, WEIGHT_ROWS
from ..dense.units import StageRows, Unit
from ..direct.operands import DirectOperands, Words
from ..instructions.shared_memory import any_thread, store_word
from ..instructions.warp import keep_branch
from ..instructions.wgmma import ROW_BYTES
from ..layout import BLOCK, ROWS_PER_LANE, ROW_LANES
from ..many.kernel import TOKENS as MANY_TOKENS
from ..staged.activations import StagedTokens, expand_chunks, marks_of_row
from ..staged.activations import workspace_of as workspace_of_numbers
from ..staged.gate import Gate
from .codes import ByteTable, RowTables, factor_of, scale_at

comptime STEP_BLOCKS = ROW_BYTES // BLOCK
"""Blocks of K in a stage."""
comptime NO_BASE = UInt8(0)
"""Stands for the base of a row that has none."""
comptime ALIGNMENT = 256
"""Rows that the bases of a side are padded to."""
comptime VECTOR = 16
"""Bases that a thread looks at, at a time."""


@fieldwise_init
struct ByteRows[stages_weights: Bool](DenseOperands, DirectOperands, TrivialRegisterPassable):
    """Stages of bytes, and the bases of all rows."""

    comptime device_type: AnyType = Self
    comptime TYPE: StaticString = "e5m2"
    comptime SCALES_STAGES = False
    comptime SCALES_IN_THE_END = True
    comptime HAS_MARKS = False
    comptime STAGES_WEIGHTS = Self.stages_weights
    comptime CODE_BITS = 4
    comptime STAGE_CODES = ROW_BYTES
    comptime GRANULES = STEP_BLOCKS
    comptime BLOCKS = STEP_BLOCKS
    comptime PUT_BYTES = 4
    comptime HAS_BLOCK_SCALES = True
    comptime Rows = RowTables
    comptime Factors = UInt32

    var left: StagedRows
    """The tokens."""
    var right: StagedRows
    """The weights, where they are in the workspace."""
    var numbers: StagedTokens
    """The tokens once more, as bfloat16 numbers, in the same place."""
    var bases: DevicePointer[DType.uint8]
    """Those of tokens, then those of weights, each padded."""
    var weights_at: UInt32
    """Where those of weights begin."""
    var word_at: UInt32
    """Where the word begins."""

    @staticmethod
    def at(m: Int, n: Int, k: Int, tokens: Int, address: Int) -> Self:
        """Returns the rows of a product in a workspace, tokens in tiles of so many rows."""
        var left = StagedRows.at(address, k, tokens, False)
        var of_numbers = workspace_of_numbers(m, k).num_bytes()
        var right_at = address + max(left.num_bytes(m), align_up(of_numbers, SIDE_ALIGNMENT))
        var right = StagedRows.at(right_at, k, WEIGHT_ROWS, False)
        var bases_at = right_at
        comptime if Self.stages_weights:
            bases_at += right.num_bytes(n)
        return Self(
            left,
            right,
            StagedTokens.at(address, m, k),
            device_pointer[DType.uint8](bases_at),
            UInt32(_padded(m)),
            UInt32(_padded(m) + _padded(n)),
        )

    @always_inline
    def tokens(self) -> StagedRows:
        return self.left

    @always_inline
    def weights(self) -> StagedRows:
        return self.right

    @always_inline
    def num_steps(self) -> UInt32:
        return self.left.num_steps

    @always_inline
    def stage_factor(self, row: UInt32, step: UInt32) -> Float32:
        return 1

    @always_inline
    def put[part: Int](self, unit: Unit[Self.GRANULES, Self.BLOCKS], rows: StageRows):
        comptime for i in range(ROWS_PER_LANE):
            var table = ByteTable.of_base(scale_at(unit.rows, UInt32(i)))
            comptime for block in range(STEP_BLOCKS):
                var scale = scale_at(unit.scales[block], UInt32(i))
                var bytes = table.bytes(unit.words[ROWS_PER_LANE * block + i], scale)
                comptime for half in range(2):
                    store_word(rows.at[i, 2 * block + half](), bytes[half])

    @always_inline
    def rows_at(self, row: UInt32) -> RowTables:
        var bases = self.weight_bases()
        var base = bases[Int(row)].cast[DType.uint32]()
        var next = bases[Int(row) + ROW_LANES].cast[DType.uint32]()
        return RowTables(
            ByteTable.of_base(base),
            ByteTable.of_base(next),
            row // UInt32(ROW_LANES) % UInt32(ROWS_PER_LANE),
        )

    @staticmethod
    @always_inline
    def fragment(
        rows: RowTables, words: Words[Self.CODE_BITS], scales: UInt32
    ) -> SIMD[DType.uint32, 4]:
        return rows.fragment(words.slice[2](), scales)

    @always_inline
    def factors_at(self, row: UInt32) -> UInt32:
        return 0

    @always_inline
    def stage_factors(self, rows: UInt32, step: UInt32) -> RowPair:
        return 1

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
    def of_token(self, row: Int) -> Float32:
        return factor_of(self.token_bases()[row].cast[DType.uint32]())

    @always_inline
    def scale(self, sum: Float32, of_token: Float32, of_weight: Float32) -> Float32:
        return sum * (of_weight * of_token)

    @always_inline
    def begin(self, result: Result) -> Bool:
        return self.misses_base[CONSUMERS](result.rows, result.columns)

    @always_inline
    def mark_of_token(self, row: UInt32) -> UInt8:
        return 0

    @always_inline
    def mark_of_weights(self, row: UInt32) -> UInt8:
        return 0

    @always_inline
    def end(self, found: Bool, a: Activations, result: Result):
        """Says whether a row has no base; then writes this group's rows as bfloat16 numbers."""
        var misses = any_thread[CONSUMERS](found)
        if block_idx.x == 0 and thread_idx.x == 0:
            flat_of(self.gate().word)[0] = UInt32(1) if misses else UInt32(0)
        if misses:
            keep_branch()
            for row in range(UInt32(block_idx.x), result.rows, UInt32(grid_dim.x)):
                for mark in range(marks_of_row(UInt32(a.k))):
                    expand_chunks(a, self.numbers, row, mark, UInt32(MANY_TOKENS))

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "ByteRows"


def workspace_of(m: Int, n: Int, k: Int, tokens: Int, stages_weights: Bool) -> Workspace:
    """Returns the workspace that a product wants, in either way."""
    var num_bytes = 0
    comptime for known in [False, True]:
        if stages_weights == known:
            var rows = ByteRows[known].at(m, n, k, tokens, 0)
            num_bytes = Int(rows.bases) + Int(rows.word_at) + ALIGNMENT
    return Workspace(0, num_bytes)


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

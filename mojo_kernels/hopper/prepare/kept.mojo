"""NVFP4 as bfloat16 numbers: codes times E4M3 scales, which are exact. Tensor scales meet sums.

    Nvfp4Rows      weights, all rows for tensor maps; of a column of C the tensor scale is read where
                   it lies
    RoundedNumbers rows of A, quantized on load or codes: stages for RS main loops, or rows as they
                   lie; their tensor scales are factors of rows that are kept from then on
"""

from layout import Coord

from ...launch.queue import Argument, DevicePointer, Queue, argument, device_pointer
from ...layouts import Plain, PreshuffledCuda, RUN_BYTES
from ...numbers.floats import FLOAT_TYPES, float_code
from ...numbers.formats import Format
from ...numbers.rounding import tensor_scale_from_amax
from ...problem import Left, Problem
from ...simt.arguments import Activations, Result, Weights
from ...simt.codec import Chunk, decode_chunk, finite_magnitude_of_chunk
from ...simt.codec import rounded_under_tensor_scale
from ...simt.host import BFLOAT16, CHUNK
from ...simt.tiles.operands import packed_numbers
from ...simt.views import PackedRows, flat_of
from ..codec import pairs_of_floats
from ..decode.bf16 import SumFactor
from ..epilogue.fallback import RowOctet, compute_marked
from ..gemm_operands import SsOperands, StagedRows
from ..host.gemm import Scaling
from ..host.workspace import LANE_CHUNKS, PREPARE_WARPS as WARPS, RoundedPlaces
from ..instructions.packed import Pairs
from ..instructions.warp import keep_branch
from ..layout import NVFP4
from ..plan import OperandType
from ..shapes import LANE_BYTES, NUMBER_BYTES, PARTS, STEP
from .bf16 import in_part_order
from .exponents import SharedExponents
from .float_scales import FloatScales
from .kernel import ANY_CHUNKS, PreparedOperands, TilesOfB, launch_prepare
from .source import LaneOfRow, SourceRows, load_floats
from .weights import SHARED_BYTES as STAGES_BYTES, TileOfB


@fieldwise_init
struct Nvfp4Rows[has_factors: Bool = False](PreparedOperands, SsOperands):
    """The rows of B in the workspace; A is kept, and its rows may have factors."""

    comptime TYPE: StaticString = "bf16"
    comptime SCALING = Scaling.BOTH_ENDS if Self.has_factors else Scaling.ENDS
    comptime HAS_A = False
    comptime HAS_B = True
    comptime CLEARS_COUNTERS = False
    comptime CHUNK_COUNTS: List[Int] = [ANY_CHUNKS]
    comptime SHARED_BYTES = STAGES_BYTES

    var right: StagedRows
    var w: Weights
    var k: UInt32
    var num_b_rows: UInt32
    var factors: Argument[FloatScales, Self.has_factors]
    """Those of rows of A."""

    @staticmethod
    def at(problem: Problem, address: Int, factors: Int = 0) -> Self:
        """Returns the rows of a product in a workspace, and factors at an address."""
        var n, k = problem.n, problem.k
        var right = StagedRows.at(address, NUMBER_BYTES * k, n, 1)
        comptime ROWS = Format.FP8.block()
        var of_a = FloatScales.at(factors, problem.m, materialize[ROWS](), k)
        return Self(right, Weights(problem), UInt32(k), UInt32(n), argument[Self.has_factors](of_a))

    @always_inline
    def encode[CHUNKS: Int, is_gathered: Bool](self, a: Activations, lane: LaneOfRow):
        pass

    @always_inline
    def prepare_tile(self, b: TilesOfB, k: UInt32, tile: UInt32, cta: UInt32):
        var of_b = TileOfB[OperandType.BF16, NVFP4.element, NVFP4.scale].of(b.w, k, tile)
        of_b.store(self.right, SharedExponents(b.w.scales, 0, 0), cta, b.tile_ctas)

    @always_inline
    def scale(self, sum: Float32, of_row: Float32, of_weight: Float32) -> Float32:
        # That of the row of A last: only C itself may be too large or too small.
        return sum * of_weight * of_row

    @always_inline
    def row_place(self, row: UInt32) -> UInt32:
        comptime if Self.has_factors:
            return rebind[FloatScales](self.factors).of_row(row)
        return row

    @always_inline
    def row_factor(self, place: UInt32, step: UInt32) -> Float32:
        comptime if Self.has_factors:
            return rebind[FloatScales](self.factors).load(place, step)
        return 1

    @always_inline
    def column_place(self, column: UInt32) -> UInt32:
        return min(column, self.num_b_rows - 1)

    @always_inline
    def column_factor(self, place: UInt32, step: UInt32) -> Float32:
        var rows = PackedRows[PreshuffledCuda](self.w.codes, self.w.scales, Int(self.k))
        return rows.tensor_scale(Int(place))

    @always_inline
    def has_tiles(self) -> Bool:
        return False

    @always_inline
    def loses_row(self, factor: Float32) -> Bool:
        return False

    @always_inline
    def loses_column(self, factor: Float32) -> Bool:
        comptime if Self.has_factors:
            return SumFactor.beside_factors[0](factor).second != 1
        return False

    @always_inline
    def store_marked(
        self,
        a: Activations,
        w: Weights,
        result: Result,
        first_row: UInt32,
        end_row: UInt32,
        first_column: UInt32,
        of_rows: UInt32,
        of_columns: UInt32,
    ):
        comptime if Self.has_factors:
            var octet = RowOctet(first_row, end_row)
            compute_marked[PreshuffledCuda](a, w, result, octet, first_column, of_rows, of_columns)


@fieldwise_init
struct RoundedNumbers[in_fragments: Bool](PreparedOperands):
    """Rows of A in the workspace, and their tensor scales.

    Parts of rows of an RS main loop have the order of K that `bf16` says.
    """

    comptime HAS_A = True
    comptime HAS_B = False
    comptime CLEARS_COUNTERS = Self.in_fragments
    comptime CHUNK_COUNTS: List[Int] = [ANY_CHUNKS]
    comptime SHARED_BYTES = 4 * WARPS

    var rows: StagedRows
    var factors: DevicePointer[DType.float32]

    @staticmethod
    def at(places: RoundedPlaces, base: Int, m: Int, k: Int, tile_rows: Int = 1) -> Self:
        """Returns rows at their places in a workspace, in tiles of so many."""
        return Self(
            StagedRows.at(base + places.rows, NUMBER_BYTES * k, m, tile_rows),
            device_pointer[DType.float32](base + places.factors),
        )

    def left(self) -> Left:
        """Returns them as rows that are kept."""
        var row_stride = STEP * Int(self.rows.num_steps)
        return Left.kept(Int(self.rows.first), Int(BFLOAT16), row_stride, Int(self.factors))

    @always_inline
    def encode[CHUNKS: Int, is_gathered: Bool](self, a: Activations, lane: LaneOfRow):
        comptime if not is_gathered:
            if a.is_encoded():
                keep_branch()
                return self._decode_row(a, lane)
        comptime for dtype in FLOAT_TYPES:
            if a.dtype == Int32(float_code(dtype)):
                keep_branch()
                self._round_row[dtype](a, lane)

    @always_inline
    def _round_row[dtype: DType](self, a: Activations, lane: LaneOfRow):
        """Rounds a row of floats, and writes it."""
        var row_chunks = UInt32(a.k // CHUNK)
        var amax, index = UInt32(0), UInt32(0)
        while lane.has_any(index, row_chunks):
            var floats = load_floats[dtype](a, lane, index)
            comptime for i in range(LANE_CHUNKS):
                amax = max(amax, finite_magnitude_of_chunk(floats[i].cast[DType.float32]()))
            index += UInt32(LANE_CHUNKS)
        amax = lane.largest(SIMD[DType.uint32, 1](amax))[0]
        var tensor_scale = tensor_scale_from_amax(amax)

        # Loaded once more, from the first-level cache: registers hold few chunks.
        var last = lane.last_chunk(row_chunks)
        index = 0
        while lane.has_any(index, self._parts()):
            var at = Int(min(lane.chunk(index), last)) * CHUNK
            var row = a.floats().rows[dtype]()
            var x = row.load[width=CHUNK, alignment=LANE_BYTES](Coord(Int(lane.source), at))
            var values = rounded_under_tensor_scale(
                x.cast[DType.float32](), tensor_scale, materialize[NVFP4.element]()
            )
            self._store(lane, index, row_chunks, values)
            index += 1
        self._store_factor(lane, tensor_scale)

    @always_inline
    def _decode_row(self, a: Activations, lane: LaneOfRow):
        """Decodes a row of codes, and writes it."""
        var row_chunks = UInt32(a.k // CHUNK)
        var packed, row = PackedRows[Plain](a.values, a.scales, a.k), Int(lane.row)
        var last = lane.last_chunk(row_chunks)
        var index = UInt32(0)
        while lane.has_any(index, self._parts()):
            var chunk = Int(min(lane.chunk(index), last))
            comptime E = NVFP4.element
            var codes = packed.chunk[E.bits, RUN_BYTES](materialize[E](), row, chunk)
            var scale = packed.e4m3_scale(row, chunk * CHUNK)
            self._store(lane, index, row_chunks, decode_chunk(codes, materialize[E]()) * scale)
            index += 1
        self._store_factor(lane, packed.tensor_scale(row))

    @always_inline
    def _parts(self) -> UInt32:
        """Returns the parts of a row, a chunk each."""
        return self.rows.num_steps * UInt32(PARTS)

    @always_inline
    def _store(self, lane: LaneOfRow, index: UInt32, row_chunks: UInt32, values: Chunk):
        """Writes one of a lane's chunks, zeros past the end of K; whole warps call it."""
        var chunk = lane.chunk(index)
        var numbers = values if chunk < row_chunks else Chunk(0)
        var pairs: Pairs
        comptime if Self.in_fragments:
            pairs = in_part_order(pairs_of_floats(numbers))
        else:
            pairs = rebind[Pairs](packed_numbers(numbers))
        var step, part = divmod(chunk, UInt32(PARTS))
        if step < self.rows.num_steps and lane.is_there:
            var to = self.rows.part(lane.row, step, part).unsafe_bitcast[UInt32]()
            flat_of(to).store[alignment=LANE_BYTES](Coord(0), pairs)

    @always_inline
    def _store_factor(self, lane: LaneOfRow, tensor_scale: Float32):
        if lane.index == 0 and lane.is_there:
            flat_of(self.factors)[Int(lane.row)] = tensor_scale


def round_rows(
    left: Left, m: Int, k: Int, places: RoundedPlaces, base: Int, mut queue: Some[Queue]
) raises -> Left:
    """Launches the kernel for rows as they lie; returns them as rows that are kept."""
    var to = RoundedNumbers[False].at(places, base, m, k)
    var source = SourceRows[False].of(m, k, LANE_CHUNKS)
    launch_prepare(Activations(left, k), TilesOfB.none(), to, source, queue)
    return to.left()

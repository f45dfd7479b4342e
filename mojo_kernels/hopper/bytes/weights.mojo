"""The weights of a consumer warp: from a stage to registers, and the factors of its rows.

A warp multiplies half a tile, 16 weight rows. Of each granule of 16 steps of K a lane reads the
word of two rows, four codes each; two granules are the left operand of an instruction:

    register    0               1               2                3
    row         r               r + 8           r                r + 8
    k           4 t .. 4 t + 3  4 t .. 4 t + 3  16 + 4 t ..      16 + 4 t ..     in lane 4 r + t

Of four-bit codes a granule is a block: a lane's words are of k = 8 t .. 8 t + 7, its first four
codes become the registers 0 and 1.
"""

from layout import Coord
from max.gpu import thread_idx
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.memory import bitcast

from ...launch.queue import DevicePointer, device_pointer
from ...numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS
from ...numbers.formats import block_of
from ...problem import Problem
from ...simt.codec import f32_of_scale
from ...simt.views import flat_of
from ..fp8.bases import STEP_BLOCKS
from ..fp8.codes import pick_codes, scale_at
from ..fp8.weights import Operand
from ..instructions.shared_memory import load_pair, load_word, store_word
from ..instructions.warp import keep_branch, lane_here
from ..layout import K_LANES, ROW_LANES
from ..staged.stages import StageCodes, TILES
from ..staged.weights import ROWS, half_of
from .stages import Scales, Scaling, Stages

comptime LOW_CODES = UInt32(0x3C383000)
"""E4M3 codes of the four-bit magnitudes 0 to 3: 0, 0.5, 1, 1.5."""
comptime HIGH_CODES = UInt32(0x4C484440)
"""Those of 4 to 7: 2, 3, 4, 6."""
comptime SMALLEST_FACTOR = UInt32((F32_EXPONENT_BIAS - 116) << F32_MANTISSA_BITS)
"""The bits of the smallest factor, 2**-116, which `quantize` gives zeros: sums stay precise."""
comptime LARGEST_FACTOR = UInt32((F32_EXPONENT_BIAS + 64) << F32_MANTISSA_BITS)
"""The bits of the largest one, 2**64; sums of a row of codes are below 2**40."""
comptime INFINITY = UInt32(255 << F32_MANTISSA_BITS)
"""The bits of infinity; NaN has larger ones."""


@always_inline
def load_operand[
    scaling: Scaling
](pipeline: Stages[scaling.sets], warp: UInt32, block: UInt32) -> Operand:
    """Loads a block of 32 steps of K, of a stage that is full."""
    comptime STEP_TILES = scaling.step_tiles()
    comptime BLOCK_TILES = STEP_TILES // STEP_BLOCKS
    var codes = StageCodes[STEP_TILES](pipeline.codes().base)
    var lane = UInt32(thread_idx.x) % 32
    var operand = Operand()
    comptime for i in range(BLOCK_TILES):
        var tile = block * UInt32(BLOCK_TILES) + UInt32(i)
        var at = Coord(warp % UInt32(TILES), tile, lane, half_of(warp) * UInt32(ROWS))
        var words = load_pair(codes.at(at))
        comptime if scaling.weight_bits == 8:
            operand = operand.insert[offset=ROWS * i](words)
        else:
            var upper = pick_codes(words[0], LOW_CODES, HIGH_CODES)
            var lower = pick_codes(words[1], LOW_CODES, HIGH_CODES)
            operand = Operand(upper[0], lower[0], upper[1], lower[1])
    return operand


@always_inline
def load_operands[
    scaling: Scaling
](pipeline: Stages[scaling.sets], warp: UInt32, blocks_left: UInt32) -> Array[Operand, STEP_BLOCKS]:
    """Loads all blocks of a stage, of which so many exist."""
    var operands = Array[Operand, STEP_BLOCKS](uninitialized=True)
    comptime for block in range(STEP_BLOCKS):
        operands[block] = load_operand[scaling](pipeline, warp, UInt32(block))
    # What lies past the end may be no numbers: zeros.
    if blocks_left < UInt32(STEP_BLOCKS):
        comptime for block in range(1, STEP_BLOCKS):
            if blocks_left <= UInt32(block):
                operands[block] = Operand(0)
    return operands^


@fieldwise_init
struct WeightScales(DevicePassable, TrivialRegisterPassable):
    """The scales of all weights, blocks row by row; along K a block is a stage or a whole row."""

    comptime device_type: AnyType = Self

    var first: DevicePointer[DType.float32]
    var row_bits: UInt32
    """Rows of a block, as an exponent."""
    var row_blocks: UInt32
    """Blocks of a row."""

    @staticmethod
    def of(problem: Problem) -> Self:
        """Finds the scales of a product."""
        var block = block_of(problem.right.format)
        return Self(
            device_pointer[DType.float32](problem.right.scales),
            UInt32(block.row_bits),
            UInt32(block.k_blocks(problem.k)),
        )

    @always_inline
    def of_row(self, row: UInt32) -> UInt32:
        """Returns the place of the first block of a row."""
        return (row >> self.row_bits) * self.row_blocks

    @always_inline
    def at(self, row: UInt32, step: UInt32) -> Float32:
        """Returns the scale of a stage, of the row whose first block has a place."""
        var block = row + step if self.row_blocks > 1 else row
        return flat_of(self.first)[Int(block)]

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "WeightScales"


comptime Factors = SIMD[DType.float32, ROWS]
"""The factors of a lane's rows."""


@fieldwise_init
struct RowScales(TrivialRegisterPassable):
    """The scales of the two weight rows of a lane."""

    var scales: WeightScales
    var rows: SIMD[DType.uint32, ROWS]
    """The places of their first blocks."""

    @staticmethod
    @always_inline
    def of(scales: WeightScales, first_row: UInt32, num_rows: UInt32) -> Self:
        """Finds those of a warp whose first row is given; the last row stands in past the end."""
        var row = first_row + lane_here() // UInt32(K_LANES)
        var rows = SIMD[DType.uint32, ROWS]()
        comptime for i in range(ROWS):
            rows[i] = scales.of_row(min(row + UInt32(i * ROW_LANES), num_rows - 1))
        return Self(scales, rows)

    @always_inline
    def load(self, step: UInt32) -> Factors:
        """Loads the factors of a stage."""
        var factors = Factors()
        comptime for i in range(ROWS):
            factors[i] = self.scales.at(self.rows[i], step)
        return factors


@always_inline
def mx_factors[sets: Int](stage: Stages[sets], warp: UInt32, block: UInt32) -> Factors:
    """Loads the factors of a block of a stage."""
    var at = Coord(warp % UInt32(TILES), block, lane_here() // UInt32(K_LANES))
    var scales = load_word(Scales(stage.scales().base).at(at))
    var factors = Factors()
    comptime for i in range(ROWS):
        factors[i] = f32_of_scale(scale_at(scales, half_of(warp) * UInt32(ROWS) + UInt32(i)))
    return factors


@always_inline
def flag_large(factors: Factors, flag: UInt32):
    """Raises a flag if sums times a factor of a power of two may be too large for float32.

    None is too small: the smallest, which blocks of zeros have, costs sums what lies below 2**-150.
    """
    var magnitudes = bitcast[DType.uint32, ROWS](factors)
    comptime for i in range(ROWS):
        if magnitudes[i] > LARGEST_FACTOR and magnitudes[i] <= INFINITY:
            keep_branch()
            store_word(flag, 1)


@always_inline
def flag_extremes(factors: Factors, flag: UInt32):
    """Raises a flag if sums times a factor may leave float32 where C does not."""
    var magnitudes = bitcast[DType.uint32, ROWS](factors) & 0x7FFFFFFF
    comptime for i in range(ROWS):
        if magnitudes[i] - SMALLEST_FACTOR > LARGEST_FACTOR - SMALLEST_FACTOR:
            keep_branch()
            if magnitudes[i] != 0 and magnitudes[i] <= INFINITY:
                store_word(flag, 1)

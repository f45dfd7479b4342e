"""Quantizes rows of floats to MX formats: one pass over memory, a group of 32 rows x 256 a wave.

Waves of a workgroup are neighbours along K. Formats with float scales have `float_scales.mojo`;
`QuantizeKernel` launches either.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from std.math import ceildiv
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...launch.grid import Grid
from ...launch.queue import Argument, Queue, argument
from ...layouts import Plain
from ...numbers.formats import Format
from ...numbers.rounding import Rounding
from ...numbers.scales import Scale
from ..chip import BLOCK, GROUP_BLOCKS, LANES, QUANTIZED_ROWS, QUANTIZE_WAVES, rows_at_once
from ..instructions.lds import allocate_lds
from ..operands.memory import Input, Output, input, output, quotient
from ..operands.quantizer import GroupQuantizer
from ..types import has_quantizers
from .float_scales import grid_of, quantize_to_float_scales


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(QUANTIZE_WAVES * LANES)),
    `rocdl.waves_per_eu`=SIMDLength(1),
)
def quantize_rows[
    format: Format, dtype: DType, rounding: Rounding, is_padded: Bool = False
](
    x: Input[dtype],
    codes: Output[DType.uint8],
    scales: Output[DType.uint8],
    m: Int32,
    k: Int32,
    row_blocks: Argument[Int32, is_padded],
):
    """Quantizes [M, K] contiguous floats along K: plain codes and scales.

    `is_padded`: Whether encoded rows have `row_blocks` blocks, zeros at their end.
    """
    comptime Quantizer = GroupQuantizer[format, dtype, rounding, Plain]
    var lane = Int32(thread_idx.x) % LANES
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var group = Int32(block_idx.x) * QUANTIZE_WAVES + wave
    var pair = Int32(block_idx.y)
    var lds = allocate_lds[QUANTIZE_WAVES * Quantizer.LDS_BYTES]()

    var source = Quantizer.Source(x, m, k, pair * QUANTIZED_ROWS)
    source.settle(lane)
    source.settle_block(lane)
    var k_blocks = quotient[BLOCK](k)
    comptime if is_padded:
        k_blocks = rebind[Int32](row_blocks)
    var rows = Quantizer.Rows.at(codes, scales, m, k_blocks)
    var own_lds = lds.unsafe_offset(Int(wave) * Quantizer.LDS_BYTES)
    var quantizer = Quantizer(source, rows, own_lds, pair, lane)
    quantizer.fetch(group)
    quantizer.quantize(group)


def quantizes_to(format: Format, rounding: Rounding) -> Bool:
    """Says whether there is a kernel for a format and a rule."""
    return has_quantizers(format) and rounding.fits(format.scale)


struct QuantizeKernel[format: Format, dtype: DType, rounding: Rounding]:
    """The kernel for one type of floats."""

    @staticmethod
    def launch[Q: Queue](x: Int, codes: Int, scales: Int, rows: Int, k: Int, mut queue: Q) raises:
        """Launches as often as it takes for contiguous floats [rows, k] at address `x`."""
        comptime assert quantizes_to(Self.format, Self.rounding), String(
            "no gfx950 kernel quantizes to ", Self.format.name(), " by this rule"
        )
        comptime ELEMENT_BYTES = size_of[Self.dtype]()
        var at_once = rows_at_once(k * ELEMENT_BYTES)
        for row in range(0, rows, at_once):
            Self._launch_rows(
                x + row * k * ELEMENT_BYTES,
                codes + row * Self.format.packed_bytes(k),
                scales + Self.format.scale_bytes(row, k),
                min(at_once, rows - row),
                k,
                queue,
            )

    @staticmethod
    def _launch_rows[
        Q: Queue
    ](x: Int, codes: Int, scales: Int, rows: Int, k: Int, mut queue: Q) raises:
        comptime if Self.format.scale == Scale.FLOAT32:
            comptime kernel = quantize_to_float_scales[Self.format, Self.dtype, Self.rounding]
            queue.launch[kernel](
                grid_of(Self.format, rows, k),
                input[Self.dtype](x),
                output[DType.uint8](codes),
                output[DType.uint8](scales),
                Int32(rows),
                Int32(k),
            )
        else:
            Self.launch_blocks[False](x, codes, scales, rows, k, k // BLOCK, queue)

    @staticmethod
    def launch_blocks[
        is_padded: Bool
    ](
        x: Int, codes: Int, scales: Int, rows: Int, k: Int, row_blocks: Int, mut queue: Some[Queue]
    ) raises:
        """Launches for scales that are bytes, and encoded rows of some blocks."""
        queue.launch[quantize_rows[Self.format, Self.dtype, Self.rounding, is_padded]](
            Grid(
                ceildiv(row_blocks, QUANTIZE_WAVES * GROUP_BLOCKS),
                ceildiv(rows, QUANTIZED_ROWS),
                threads=QUANTIZE_WAVES * LANES,
            ),
            input[Self.dtype](x),
            output[DType.uint8](codes),
            output[DType.uint8](scales),
            Int32(rows),
            Int32(k),
            argument[is_padded](Int32(row_blocks)),
        )

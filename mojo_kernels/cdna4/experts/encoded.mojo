"""The products of experts for many rows each, from codes: the middle kernel on rows of a group.

    quantize_rows      rows of floats -> plain codes and scales
    experts_middle     rows of a group x the weights of its expert -> hidden numbers, or sums

Tokens are encoded once, however many experts they go to: rows of codes are gathered. Encoded rows
are filled up to whole stages, so that K may end within one. Tiles are found as in `groups.mojo`;
workgroups go through them in bands (schedule/xcd.mojo), whose order depends on how many tiles
there really are. So tiles of a large group share an L2, and no XCD gets those that are none.

There are no more workgroups than the chip has room for: each goes from tile to tile. While it
stores one, what it multiplies first of the next one is on its way. Where registers allow it, two
share a compute unit: one stores while the other multiplies. For that they take turns to go first;
equals would gate and encode at the same time, and memory would rest.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from std.math import ceildiv
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...experts import Experts
from ...launch.queue import Queue
from ...layouts import Plain
from ...numbers.formats import Format
from ...numbers.gates import Gate
from ...numbers.rounding import Rounding
from ...schedule.xcd import XcdBands
from ..chip import BLOCK, CUS, LANES, LANE_BYTES, QUANTIZED_ROWS, QUANTIZE_WAVES, TILE
from ..instructions.lds import allocate_lds
from ..instructions.memory import loaded
from ..middle.activations import listed_rows
from ..instructions.wave import lane_here
from ..instructions.matrix import set_priority
from ..middle.shape import MiddleShape, STAGE_BLOCKS, STAGE_K, THREADS, WAVES
from ..middle.walk import MiddleWalk
from ..operands.gate import QuickGate
from ..operands.memory import Input, Output, input, output, quotient
from ..operands.quantizer import GroupQuantizer
from ..operands.target import Target
from ..prefill.result import bias_of_tiles
from ..types import Formats, ProductTypes
from .groups import GroupSizes, GroupTile, GroupTiles
from .hidden import EXCHANGED, HiddenCodes
from .shape import encoded_blocks, middle_grid, quantize_grid

@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(QUANTIZE_WAVES * LANES)),
    `rocdl.waves_per_eu`=SIMDLength(1),
)
def quantize_rows[
    format: Format, dtype: DType, rounding: Rounding
](x: Input[dtype], encoded: Output[DType.uint8], m: Int32, k: Int32, k_blocks: Int32):
    """Quantizes m rows of k floats to rows of `k_blocks` blocks, zeros at their end.

    Codes come first, then plain scales.
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
    var own_lds = lds.unsafe_offset(Int(wave) * Quantizer.LDS_BYTES)
    var scales = encoded.unsafe_offset(Int(m) * Int(k_blocks) * LANE_BYTES[format])
    var rows = Quantizer.Rows.at(encoded, scales, m, k_blocks)
    var quantizer = Quantizer(source, rows, own_lds, pair, lane)
    quantizer.fetch(group)
    quantizer.quantize(group)


def launch_quantize[
    format: Format, dtype: DType, rounding: Rounding
](x: Int, encoded: Int, m: Int, k: Int, mut queue: Some[Queue]) raises:
    """Launches the quantization of m rows."""
    queue.launch[quantize_rows[format, dtype, rounding]](
        quantize_grid(m, k),
        input[dtype](x),
        output[DType.uint8](encoded),
        Int32(m),
        Int32(k),
        Int32(encoded_blocks(k)),
    )

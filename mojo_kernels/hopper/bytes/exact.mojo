"""Elements of C in float64, from stages: for weights' factors that float32 sums cannot take."""

from max.gpu.primitives.warp import sum as warp_sum
from max.gpu.sync import syncwarp

from ...layouts import PreshuffledCuda, RUN_BYTES
from ...numbers.elements import Element
from ...numbers.scales import decode_scale
from ...simt.arguments import Result, Weights
from ...simt.codec import CHUNK, Chunk, decode_chunk
from ...simt.views import PackedRows, flat_of
from ..instructions.warp import lane_here
from ..staged.stages import WARP_ROWS
from .rows import ELEMENT, STAGE_CHUNKS, load_stored
from .stages import MX_SETS, Scaling, TokenStages
from .weights import WeightScales


@always_inline
def load_weights[
    element: Element
](codes: PackedRows[PreshuffledCuda], row: UInt32, chunk: UInt32) -> Chunk:
    """Loads eight weights."""
    var loaded = codes.chunk[element.bits, RUN_BYTES](materialize[element](), Int(row), Int(chunk))
    return decode_chunk(loaded, materialize[element]())


@always_inline
def store_exactly[
    scaling: Scaling
](
    stages: TokenStages,
    w: Weights,
    scales: WeightScales,
    result: Result,
    token: UInt32,
    first_column: UInt32,
    k: UInt32,
):
    """Computes and stores a warp's columns of a row; the warp calls it."""
    # The sums that other lanes stored before are not to overtake these.
    syncwarp()
    var lane = lane_here()
    var codes = PackedRows[PreshuffledCuda](w.codes, w.scales, Int(k))
    for column in range(first_column, min(first_column + UInt32(WARP_ROWS), result.columns)):
        var sum = Float64(0)
        for chunk in range(lane, k // UInt32(CHUNK), UInt32(32)):
            var step = chunk // UInt32(STAGE_CHUNKS)
            var y: Chunk
            comptime if scaling.weight_bits == 8:
                y = load_weights[ELEMENT](codes, column, chunk)
            else:
                y = load_weights[Element.E2M1](codes, column, chunk)
            var x = decode_chunk(load_stored(stages, token, chunk), materialize[ELEMENT]())
            var set = chunk % UInt32(STAGE_CHUNKS) // (UInt32(STAGE_CHUNKS) // stages.sets)
            var factor = flat_of(stages.factor(token, step, set))[0].cast[DType.float64]()
            comptime if scaling.sets == MX_SETS:
                factor *= decode_scale(codes.scale(Int(column), Int(step * stages.sets + set)))
            else:
                factor *= scales.at(scales.of_row(column), step).cast[DType.float64]()
            sum += (x * y).reduce_add().cast[DType.float64]() * factor
        var total = warp_sum(sum).cast[DType.float32]()
        if lane == 0:
            result.store[1, 1](Int(token), Int(column), SIMD[DType.float32, 1](total))

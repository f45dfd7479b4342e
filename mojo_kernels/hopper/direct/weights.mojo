"""The weights of a consumer warp: from the codes of a stage to operands in registers.

A warp multiplies 16 weight rows, half a tile. Of each granule a lane reads eight bytes of codes, of
two rows, and of each block the word of scales that has theirs.
"""

from layout import Coord

from ..instructions.shared_memory import load_pair, load_word
from ..instructions.warp import lane_here
from ..instructions.wgmma import ROW_BYTES, STEP_BYTES
from ..layout import K_LANES
from ..staged.stages import HALVES
from .operands import DirectOperands, GRANULE_WORDS, Words, granules_of
from .stages import DirectStages

comptime INSTRUCTIONS = ROW_BYTES // STEP_BYTES
"""Instructions of a stage."""
comptime Fragments = Array[SIMD[DType.uint32, 4], INSTRUCTIONS]
"""A lane's weights in a stage, for each instruction."""


@always_inline
def fragments_of[
    Operands: DirectOperands, //
](rows: Operands.Rows, stages: DirectStages[Operands, _], warp: UInt32) -> Fragments:
    """Returns the weights of a stage that is full."""
    comptime GRANULES = granules_of(Operands.CODE_BITS)
    var lane = lane_here()
    var tile, half = divmod(warp, UInt32(HALVES))
    var words = Array[Words[Operands.CODE_BITS], INSTRUCTIONS](uninitialized=True)
    var scales = SIMD[DType.uint32, INSTRUCTIONS](0)
    comptime for i in range(INSTRUCTIONS):
        comptime for granule in range(GRANULES):
            var at = stages.codes().at(
                Coord(tile, GRANULES * i + granule, lane, half * UInt32(GRANULE_WORDS))
            )
            var pair = load_pair(at)
            comptime for word in range(GRANULE_WORDS):
                words[i][GRANULE_WORDS * granule + word] = pair[word]
        comptime if Operands.HAS_BLOCK_SCALES:
            scales[i] = load_word(stages.scales().at(Coord(tile, i, lane // UInt32(K_LANES))))
    var found = Fragments(uninitialized=True)
    comptime for i in range(INSTRUCTIONS):
        found[i] = Operands.fragment(rows, words[i], scales[i])
    return found^

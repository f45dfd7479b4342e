"""All scales of a workgroup's rows of activations, as they are in memory: one row behind another.

That is for rows whose scales end where K does. The hardware loads whole words to LDS; what is left
of the tensor behind the last one is stored where all else has come.
"""

from layout import Coord
from max.gpu.sync import s_waitcnt, s_waitcnt_barrier

from ...chip import PIECE_BYTES, WORD_BYTES
from ...instructions.lds import Lds, bytes_at, write_byte
from ...operands.memory import View, remainder
from .shape import LOAD_BYTES, InterleavedShape


@always_inline
def fetch_all[
    shape: InterleavedShape
](memory: View, k_blocks: Int32, lds: Lds, wave: Int32, lane: Int32) -> UInt8:
    """Starts loading all; returns the lane's byte of what is no whole word."""
    var last_bytes = UInt8(0)
    var count = memory.tensor.desc[2].cast[DType.int32]()
    var rest = remainder[WORD_BYTES](count)
    if rest != 0:
        var end = View(memory.tensor, count - rest)
        last_bytes = end.load[1](lane)[0]
    # What is read of the rows that are there, and behind the last one.
    var size = Int32(shape.rows()) * k_blocks + 2 * Int32(PIECE_BYTES)
    comptime STEP = shape.waves * LOAD_BYTES
    for at in range(wave * Int32(LOAD_BYTES), size, Int32(STEP)):
        var place = lds.unsafe_offset(Int(Int32(shape.scale_place()) + at))
        memory.moved(at).load_to_lds[PIECE_BYTES](lane * Int32(PIECE_BYTES), place)
    return last_bytes


@always_inline
def store_last[
    shape: InterleavedShape
](memory: View, k_blocks: Int32, lds: Lds, wave: Int32, lane: Int32, last_bytes: UInt8):
    """Stores the bytes that are no whole word, where all has come."""
    var count = memory.tensor.desc[2].cast[DType.int32]()
    var rest = remainder[WORD_BYTES](count)
    var at = count - rest - memory.place
    if rest != 0 and at < Int32(shape.rows()) * k_blocks:
        if wave == 0 and lane < rest:
            var bytes = bytes_at[WORD_BYTES](lds, at + Int32(shape.scale_place()))
            write_byte(bytes, Coord(lane), last_bytes)
        s_waitcnt[lgkmcnt=0]()
        s_waitcnt_barrier()

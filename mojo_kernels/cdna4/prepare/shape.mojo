"""Which norms, gates and rotations to codes have kernels of CDNA4's own, and what these cut: said on the host.

What they do not take, the portable kernels do, see `simt.prologue`.
"""

from std.math import ceildiv

from ...calls import GateQuantizeCall, HadamardQuantizeCall, NormQuantizeCall
from ...numbers.floats import float_code
from ...numbers.formats import FORMATS, Format
from ...numbers.norms import Rounds, SEGMENT
from ..chip import PIECE_BYTES
from ..types import has_quantizers

comptime HELD = 4
"""Segments of a wave."""
comptime WAVES = 16
"""The most waves of a workgroup: of longer rows it would not keep all."""
comptime MAX_STRIDE = 1 << 28
"""Floats from a row to the next."""


def is_made(format: Format) -> Bool:
    """Says whether there are kernels to a format."""
    return has_quantizers(format) and format.block_rows == 1


def waves_of(k: Int) -> Int:
    """Returns the waves that keep a row."""
    return ceildiv(ceildiv(k, SEGMENT), HELD)


def takes(given: NormQuantizeCall) -> Bool:
    """Says whether a kernel takes rows behind a norm."""
    var call = given.call
    var is_rounded = call.dtype == float_code(DType.float32) or given.norm.rounds != Rounds.NONE
    var fits = waves_of(call.k) <= WAVES and call.row_stride <= MAX_STRIDE
    return fits and is_rounded and _has_kernels(call.format) and given.is_aligned(PIECE_BYTES)


def takes(given: GateQuantizeCall) -> Bool:
    """Says whether a kernel takes gates and ups."""
    var call = given.call
    var fits = max(call.row_stride, given.up_stride) <= MAX_STRIDE
    return fits and _has_kernels(call.format) and given.is_aligned(PIECE_BYTES)


def takes(given: HadamardQuantizeCall) -> Bool:
    """Says whether a kernel takes rows that are rotated."""
    var call = given.call
    var fits = call.row_stride <= MAX_STRIDE and given.is_aligned(PIECE_BYTES)
    return fits and _has_kernels(call.format)


def _has_kernels(format: Int) -> Bool:
    comptime for f in range(len(FORMATS)):
        comptime if is_made(FORMATS[f]):
            if format == f:
                return True
    return False

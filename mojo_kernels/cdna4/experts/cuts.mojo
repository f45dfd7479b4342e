"""The cuts of products of encoded rows: tiles of 16 rows and columns of a wave, and stages on
their way.

Four waves share the rows of a tile. It is as high as most groups; where cuts are as high, that is
taken whose tiles keep compute units busy for the shortest time. Where hidden numbers are encoded it
has 256 columns. A stage of eight-bit codes is half as long along K as one of four-bit codes, and
there are twice as many of them on their way.
"""

from std.math import ceildiv, sqrt

from ...numbers.formats import Format
from ..chip import CUS
from ..instructions.matrix import TILE_K
from ..middle.shape import MiddleShape, slices_of
from ..prefill.shape import tile_cycles
from ..types import Formats

comptime CUTS = [
    MiddleShape(4, 3, 3, 1),
    MiddleShape(6, 3, 2, 1),
    MiddleShape(10, 3, 2, 1),
    MiddleShape(12, 3, 2, 1),
    MiddleShape(10, 4, 2, 1),
    MiddleShape(12, 4, 2, 1),
]
"""For groups of more and more rows, then wider ones."""
comptime GATED_CUTS = [
    MiddleShape(4, 4, 2, 1),
    MiddleShape(6, 4, 2, 1),
    MiddleShape(10, 4, 2, 1),
    MiddleShape(12, 4, 2, 1),
]
"""Where hidden numbers are encoded: a wave has whole blocks of them."""


def cut_of(left: Format, choice: Int, are_gated: Bool) -> MiddleShape:
    """Returns the cut in a place of one of both lists, for rows of a format."""
    var cut = materialize[GATED_CUTS]()[choice] if are_gated else materialize[CUTS]()[choice]
    var slices = slices_of(left)
    return MiddleShape(cut.m_tiles, cut.n_tiles, cut.depth * cut.slices // slices, 1, slices)


def num_cuts(are_gated: Bool) -> Int:
    """Returns how many cuts a list has."""
    return len(materialize[GATED_CUTS]()) if are_gated else len(materialize[CUTS]())


def most_rows() -> Int:
    """Returns the rows of the largest tile."""
    comptime last = len(GATED_CUTS) - 1
    comptime cut = GATED_CUTS[last]
    return cut.rows()


def usual_rows(m: Int, groups: Int) -> Int:
    """Returns how many rows few groups exceed, if m rows find their groups by chance."""
    var mean = Float64(m) / Float64(max(groups, 1))
    return Int(mean + 2 * sqrt(mean))


def choose(m: Int, n: Int, k: Int, groups: Int, left: Format, are_gated: Bool) -> Int:
    """Returns the place of the cut for a product of m rows [m, k] and experts [groups, n, k].

    Its tiles are the lowest with room for most groups, or the highest; of several, those that are
    expected to take the shortest time.
    """
    var usual = min(usual_rows(m, groups), most_rows())
    var best, least = 0, 0
    for i in range(num_cuts(are_gated)):
        var cut = cut_of(left, i, are_gated)
        if cut.rows() < usual:
            continue
        var height = cut.rows()
        var best_height = cut_of(left, best, are_gated).rows()
        var cycles = cycles_of(cut, m, n, k, groups, left)
        if least == 0 or height < best_height or (height == best_height and cycles < least):
            best, least = i, cycles
    return best


def cycles_of(cut: MiddleShape, m: Int, n: Int, k: Int, groups: Int, left: Format) -> Int:
    """Returns what the tiles of a compute unit take, one after another, in cycles.

    A tile has matrix instructions, to begin and end with something that grows with C, and loads
    that they do not hide. Read off the timing model, K = 2880, weights of MXFP4.
    """
    comptime BEGIN_AND_END, OF_SLICE, OF_TILE = 4000, 340, 90
    var slices = ceildiv(k, TILE_K)
    var matrix = tile_cycles(Formats(left, Format.MXFP4)) * slices
    var tile = BEGIN_AND_END + slices * OF_SLICE + cut.m_tiles * cut.n_tiles * (matrix + OF_TILE)
    var rows_of_tiles = groups * ceildiv(ceildiv(m, max(groups, 1)), cut.rows())
    return ceildiv(rows_of_tiles * ceildiv(n, cut.columns()), CUS) * tile

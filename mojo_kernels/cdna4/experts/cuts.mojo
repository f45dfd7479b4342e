"""The cuts of products of encoded rows: tiles of 16 rows and columns of a wave, and stages on
their way.

Four waves share the rows of a tile; it has 192 columns, or 256 where hidden numbers are encoded. A
stage of eight-bit codes is half as long along K as one of four-bit codes, and there are twice as
many of them on their way.
"""

from std.math import sqrt

from ...numbers.formats import Format
from ..middle.shape import MiddleShape, slices_of

comptime CUTS = [
    MiddleShape(4, 3, 3, 1),
    MiddleShape(6, 3, 2, 1),
    MiddleShape(10, 3, 2, 1),
    MiddleShape(12, 3, 2, 1),
]
"""For groups of more and more rows."""
comptime GATED_CUTS = [
    MiddleShape(4, 4, 2, 1),
    MiddleShape(6, 4, 2, 1),
    MiddleShape(10, 4, 2, 1),
    MiddleShape(12, 4, 2, 1),
]
"""The same where hidden numbers are encoded: a wave has whole blocks of them."""


def cut_of(left: Format, choice: Int, are_gated: Bool) -> MiddleShape:
    """Returns the cut in a place of both lists, for rows of a format."""
    var cut = materialize[GATED_CUTS]()[choice] if are_gated else materialize[CUTS]()[choice]
    var slices = slices_of(left)
    return MiddleShape(cut.m_tiles, cut.n_tiles, cut.depth * cut.slices // slices, 1, slices)


def most_rows() -> Int:
    """Returns the rows of the largest tile."""
    comptime last = len(CUTS) - 1
    comptime cut = CUTS[last]
    return cut.rows()


def usual_rows(m: Int, groups: Int) -> Int:
    """Returns how many rows few groups exceed, if m rows find their groups by chance."""
    var mean = Float64(m) / Float64(max(groups, 1))
    return Int(mean + 2 * sqrt(mean))


def choose(m: Int, groups: Int) -> Int:
    """Returns the place in `CUTS` of the first whose tile has room for most groups, or the last."""
    comptime last = len(CUTS) - 1
    comptime for i in range(last):
        comptime rows = CUTS[i].rows()
        if usual_rows(m, groups) <= rows:
            return i
    return last

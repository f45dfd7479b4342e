"""Orders of tiles reach every tile once, however many there are: quotients are taken as floats."""

from std.collections import Set
from std.testing import assert_equal, assert_false, assert_true

from mojo_kernels.schedule.xcd import XcdBands


def test_bands_have_every_tile_once() raises:
    for rows, columns in [(1, 1), (3, 43), (8, 997), (9, 101), (15, 64), (4097, 1023)]:
        var order = XcdBands(rows, columns)
        var taken = List[Bool](length=rows * columns, fill=False)
        var count = 0
        for index in range(order.num_workgroups()):
            var tile = order.tile(index)
            if tile.row < rows:
                assert_true(0 <= tile.row and 0 <= tile.column < columns)
                assert_false(taken[tile.row * columns + tile.column])
                taken[tile.row * columns + tile.column] = True
                count += 1
        assert_equal(count, rows * columns)


def test_an_xcd_has_neighbours() raises:
    """Tiles of a column of a band, one after another, as far as the share of the XCD goes."""
    var order = XcdBands(8, 64)
    for xcd in range(8):
        for i in range(64):
            var tile = order.tile(xcd + 8 * i)
            assert_equal(tile.row, i % 8)
            assert_equal(tile.column, 8 * xcd + i // 8)


def test_an_xcd_of_a_square_reads_as_many_strips_as_the_formula_says() raises:
    """Of P tiles it reads GROUP_M strips of rows and P / GROUP_M of columns."""
    assert_equal(most_strips[1](), 2 + 16)  # A row has 16 tiles, an XCD 32.
    assert_equal(most_strips[4](), 4 + 8)
    assert_equal(most_strips[8](), 8 + 4)


def most_strips[band_rows: Int]() -> Int:
    """Returns the most strips of 16 x 16 tiles that an XCD reads, of rows and columns."""
    comptime SIDE, XCDS = 16, 8
    var order = XcdBands[band_rows](SIDE, SIDE)
    var most = 0
    for xcd in range(XCDS):
        var rows = Set[Int]()
        var columns = Set[Int]()
        for index in range(xcd, SIDE * SIDE, XCDS):
            var tile = order.tile(index)
            rows.add(tile.row)
            columns.add(tile.column)
        most = max(most, len(rows) + len(columns))
    return most


comptime TESTS = __functions_in_module()

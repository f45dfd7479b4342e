"""What the host reckons for experts, and who takes which weights: counted out, on the CPU."""

from std.math import align_up, ceildiv
from std.testing import TestSuite, assert_equal, assert_true

from mojo_kernels.hopper.target import Part
from mojo_kernels.hopper.layout import TILE_ROWS as WEIGHT_ROWS
from mojo_kernels.experts import most_tiles
from mojo_kernels.hopper.host.moe import PLACE_MULTIPLE, most_places, tile_rows_of


def test_lists_have_room_for_every_way_to_deal_rows() raises:
    """Of up to three groups, one with every size, and rows behind."""
    var fullest = 0
    for tile_rows in [16, 32]:
        for rows in range(1, 41):
            for first in range(rows + 1):
                for second in range(rows - first + 1):
                    for third in range(rows - first - second + 1):
                        var left = rows - first - second - third
                        var tiles, places = 0, 0
                        for size in [first, second, third]:
                            tiles += ceildiv(size, tile_rows)
                            places += align_up(size, PLACE_MULTIPLE)
                        tiles += ceildiv(left, tile_rows)
                        var most = most_tiles(rows, 3, tile_rows)
                        assert_true(tiles <= most)
                        assert_true(places + tile_rows <= most_places(rows, 3, tile_rows))
                        fullest += 1 if tiles == most else 0
    assert_true(fullest > 0)


def test_tiles_hold_twice_an_experts_share() raises:
    for experts in [1, 8, 32, 128]:
        for share in range(1, 200):
            var tile_rows = tile_rows_of(share * experts, experts)
            assert_equal(tile_rows, tile_rows_of(share * experts - experts + 1, experts))
            var expected = 256
            for rows in [128, 64, 32, 16]:
                if 2 * share <= rows:
                    expected = rows
            assert_equal(tile_rows, expected)


def test_every_tile_of_weights_goes_to_one_group() raises:
    """Gates and their ups to the same, whether they are neighbours or halves."""
    comptime tiles_of_group = 4
    for weight_tiles in range(2, 40, 2):
        for kind in range(3):
            var is_gated, half = kind > 0, weight_tiles * WEIGHT_ROWS // 2 if kind == 2 else 0
            var columns = WEIGHT_ROWS * tiles_of_group // (2 if is_gated else 1)
            var all_columns = WEIGHT_ROWS * weight_tiles // (2 if is_gated else 1)
            var seen = List[Int](length=weight_tiles, fill=0)
            for group in range(ceildiv(all_columns, columns)):
                var part = Part(UInt32(group * columns), UInt32(half))
                for i in range(tiles_of_group):
                    var tile = Int(part.weight_tile(UInt32(i), UInt32(WEIGHT_ROWS), is_gated))
                    # Which columns of the result it makes; those behind the last are not.
                    var column = group * columns + i * WEIGHT_ROWS // (2 if kind == 1 else 1)
                    if kind == 2:
                        column -= columns if i >= tiles_of_group // 2 else 0
                    if column < all_columns:
                        assert_true(tile < weight_tiles)
                        seen[tile] += 1
                        if kind == 2:
                            var row = column + (half if i >= tiles_of_group // 2 else 0)
                            assert_equal(tile, row // WEIGHT_ROWS)
            for count in seen:
                assert_equal(count, 1)


def main() raises:
    TestSuite.discover_tests[__functions_in_module()]().run()

"""What the host reckons for experts, and who takes which weights: counted out, on the CPU."""

from std.math import align_up, ceildiv
from std.testing import TestSuite, assert_equal, assert_true

from mojo_kernels.experts import Experts, most_tiles
from mojo_kernels.hopper.host.moe import ListPlaces, PLACE_MULTIPLE, most_places, tile_rows_of
from mojo_kernels.hopper.layout import TILE_ROWS as WEIGHT_ROWS
from mojo_kernels.hopper.product import Gating, GroupedProduct
from mojo_kernels.hopper.routing import Lists
from mojo_kernels.hopper.shapes import TILES
from mojo_kernels.hopper.target import Target
from mojo_kernels.numbers.gates import Gate
from mojo_kernels.problem import NO_BIAS, Right
from mojo_kernels.simt.arguments import ExpertWeights, Result


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


def test_tiles_have_room_for_more_than_an_experts_share() raises:
    """Never less for more rows; many experts want two of the largest tile alone."""
    for experts in [1, 8, 32, 128]:
        var before = 0
        for share in range(1, 400):
            var tile_rows = tile_rows_of(share * experts, experts)
            assert_equal(tile_rows, tile_rows_of(share * experts - experts + 1, experts))
            assert_true(tile_rows in [16, 32, 128, 256])
            assert_true(tile_rows >= before)
            assert_true(tile_rows == 256 or 8 * share <= 7 * tile_rows)
            assert_true(2 * share >= tile_rows // 4 or tile_rows == 16)
            before = tile_rows
        assert_equal(before, 256)


def check_each_tile_has_one_cta[gating: Gating](gate: Gate) raises:
    """Of any number of tiles of weight rows each is some CTA's, once, for the right columns."""
    comptime Product = GroupedProduct[128, gating]
    var are_halves = gate.is_there() and not gate.is_interleaved()
    var rows_of_column = 2 if gate.is_interleaved() and gate.is_there() else 1
    for weight_tiles in range(2, 40, 2):
        var weight_rows = weight_tiles * WEIGHT_ROWS
        var columns = weight_rows // (2 if gate.is_there() else 1)
        var weights = ExpertWeights(Experts(Right(0, 0, 0, 0), 1, 0, 0, 0, NO_BIAS), weight_rows)
        var lists = Lists.at(ListPlaces(0, 0, 0, 0, 0, 0, 0), are_gathered=False)
        var product = Product(weights, Target(Result(0, 0, 1, columns), gate), UInt32(1), lists)
        var seen = List[Int](length=weight_tiles, fill=0)
        for column in range(0, columns, Product.TILE_COLUMNS):
            var tiles = product.weight_tiles(UInt32(column))
            for i in range(TILES):
                var tile = Int(tiles.tile(UInt32(i)))
                assert_equal(tile, Int(tiles.first + tiles.behind(UInt32(i))))
                assert_true(tile < weight_tiles)
                # Which columns of the result it makes; those behind the last are not.
                var is_up = are_halves and i >= TILES // 2
                var place = i - TILES // 2 if is_up else i
                var first = column + place * WEIGHT_ROWS // rows_of_column
                if first < columns:
                    seen[tile] += 1
                    var row = first * rows_of_column + (columns if is_up else 0)
                    assert_equal(tile, row // WEIGHT_ROWS)
        for count in seen:
            assert_equal(count, 1)


def test_every_tile_of_weights_goes_to_one_cta() raises:
    """Gates and their ups to the same, be they neighbours or halves, known before or not."""
    var neighbours, halves = Gate(Gate.SILU, True, 0, 0), Gate(Gate.SWIGLU_OAI, False, 0, 0)
    check_each_tile_has_one_cta[Gating.NONE](Gate.NONE)
    check_each_tile_has_one_cta[Gating.NEIGHBOURS](neighbours)
    check_each_tile_has_one_cta[Gating.HALVES](halves)
    check_each_tile_has_one_cta[Gating.EITHER](neighbours)
    check_each_tile_has_one_cta[Gating.EITHER](halves)


def main() raises:
    TestSuite.discover_tests[__functions_in_module()]().run()

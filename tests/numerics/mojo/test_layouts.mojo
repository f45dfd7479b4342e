"""Every layout is a bijection onto its storage, and keeps runs of a row together.

Claims hold for every format and every shape whose padded size is a few tiles each way, and
whose rows of codes are whole ones of what the layout keeps together. The bytes themselves are
compared with the oracle from Python.
"""

from std.testing import assert_equal, assert_true

from mojo_kernels.cpu.block_order import BlockOrder, RowGroups
from mojo_kernels.layouts import (
    LAYOUTS,
    RUN_BYTES,
    OperandLayout,
    OperandShape,
    Plain,
    PreshuffledCdna4,
    PreshuffledCpu,
    PreshuffledCuda,
    code_rows,
    scale_blocks,
    scale_rows,
)
from mojo_kernels.numbers.formats import FORMATS, Format


def shapes[format: Format]() -> List[OperandShape]:
    """Returns shapes around the tile sizes of every layout."""
    var found = List[OperandShape]()
    for rows in [1, 15, 16, 17, 32, 33, 64]:
        for k_blocks in [1, 2, 3, 7, 8, 9, 16]:
            found.append(OperandShape(rows, k_blocks * format.block_k))
    return found^


def assert_codes_are_a_bijection[Layout: OperandLayout, format: Format]() raises:
    for shape in shapes[format]():
        var rows, row_bytes = code_rows[Layout](shape), shape.row_bytes[format]()
        if row_bytes % Layout.BYTE_MULTIPLE != 0:
            continue
        var taken = List[Bool](length=rows * row_bytes, fill=False)
        for row in range(rows):
            for byte in range(row_bytes):
                var offset = Layout.code_offset(row, byte, row_bytes)
                assert_true(0 <= offset < len(taken), "inside the storage")
                assert_true(not taken[offset], "two bytes in one place")
                taken[offset] = True
                var back = Layout.code_coord(offset, row_bytes)
                assert_equal(back[0], row)
                assert_equal(back[1], byte)


def assert_scales_are_a_bijection[Layout: OperandLayout, format: Format]() raises:
    for shape in shapes[format]():
        var rows, blocks = scale_rows[Layout](shape), scale_blocks[Layout, format](shape)
        var taken = List[Bool](length=rows * blocks, fill=False)
        for row in range(rows):
            for block in range(blocks):
                var offset = Layout.scale_offset(row, block, blocks)
                assert_true(0 <= offset < len(taken), "inside the storage")
                assert_true(not taken[offset], "two scales in one place")
                taken[offset] = True
                var back = Layout.scale_coord(offset, blocks)
                assert_equal(back[0], row)
                assert_equal(back[1], block)


def assert_runs_stay_together[Layout: OperandLayout, format: Format]() raises:
    for shape in shapes[format]():
        if shape.row_bytes[format]() % Layout.BYTE_MULTIPLE != 0:
            continue
        for row in range(code_rows[Layout](shape)):
            for byte in range(shape.row_bytes[format]()):
                var run_start = Layout.code_offset(
                    row, byte // RUN_BYTES * RUN_BYTES, shape.row_bytes[format]()
                )
                assert_equal(
                    Layout.code_offset(row, byte, shape.row_bytes[format]()),
                    run_start + byte % RUN_BYTES,
                )


def test_every_layout_is_a_bijection() raises:
    comptime for i in range(len(LAYOUTS)):
        comptime for f in range(len(FORMATS)):
            assert_codes_are_a_bijection[LAYOUTS[i], FORMATS[f].kin()]()
            assert_scales_are_a_bijection[LAYOUTS[i], FORMATS[f].kin()]()


def test_no_layout_separates_a_run_of_bytes() raises:
    comptime for i in range(len(LAYOUTS)):
        comptime for f in range(len(FORMATS)):
            assert_runs_stay_together[LAYOUTS[i], FORMATS[f].kin()]()


def test_padding_is_the_least_that_fills_the_tiles() raises:
    comptime for f in range(len(FORMATS)):
        comptime format = FORMATS[f].kin()
        var shape = OperandShape(33, 9 * format.block_k)
        assert_equal(code_rows[Plain](shape), 33)
        assert_equal(code_rows[PreshuffledCdna4](shape), 48)
        assert_equal(scale_rows[PreshuffledCdna4](shape), 64)
        assert_equal(scale_blocks[PreshuffledCdna4, format](shape), 16)
        assert_equal(scale_rows[PreshuffledCpu](shape), 48)
        assert_equal(scale_blocks[PreshuffledCpu, format](shape), 9)
        assert_equal(code_rows[PreshuffledCuda](shape), 64)
        assert_equal(scale_rows[PreshuffledCuda](shape), 64)
        assert_equal(scale_blocks[PreshuffledCuda, format](shape), 9)


def test_groups_of_rows_differ_by_one_at_most_and_leave_none_out() raises:
    for max_size in range(1, 15):
        for rows in range(1, 101):
            var groups = RowGroups.of(rows, max_size, True)
            var next_row = 0
            for group in range(groups.count):
                assert_equal(groups.start(group), next_row)
                assert_true(groups.size(group) in (groups.largest(), groups.largest() - 1))
                for row in range(next_row, next_row + groups.size(group)):
                    assert_equal(groups.group_of(row), group)
                next_row += groups.size(group)
            assert_equal(next_row, rows)
            assert_equal(groups.start(groups.count), rows)
            assert_true(groups.largest() <= max_size)
            assert_true((groups.count - 1) * max_size < rows, "as few as possible")


def test_blocks_of_activations_follow_the_inner_loops() raises:
    comptime STRETCH = 4
    for rows in [1, 2, 3, 7, 12, 13]:
        for k_blocks in [1, 3, 4, 5, 8, 11]:
            var order = BlockOrder[STRETCH](RowGroups.of(rows, 3, True), k_blocks)
            var expected = 0
            for first_block in range(0, k_blocks, STRETCH):
                for group in range(order.groups.count):
                    assert_equal(order.of_group(group, first_block), expected)
                    var first_row = order.groups.start(group)
                    for block in range(first_block, min(first_block + STRETCH, k_blocks)):
                        for row in range(first_row, first_row + order.groups.size(group)):
                            assert_equal(order.index(row, block), expected)
                            expected += 1
            assert_equal(expected, rows * k_blocks)


comptime TESTS = __functions_in_module()

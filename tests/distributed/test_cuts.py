"""Cuts: which part of an axis each rank has, for every format and layout, without any ranks."""

import pytest
import torch

import cases
from mx_kernels._core.facts import facts
from mx_kernels.integrations.distributed import Cut, bounds
from mx_kernels.integrations.distributed.cuts import sizes
from tests.distributed.models import FORMATS, INNER, LAYOUTS_HERE, WIDE, weights

BLOCK = 32


def test_2880_over_4_ranks_is_cut_at_blocks():
    assert sizes(2880, 4, BLOCK) == [736, 736, 736, 672]


def test_parts_are_whole_blocks_and_together_everything():
    for blocks in range(1, 20):
        for count in range(1, 9):
            size = blocks * BLOCK - 5
            each = -(-blocks // count)
            if each * (count - 1) >= blocks:
                with pytest.raises(ValueError, match="something for each rank"):
                    bounds(size, count, BLOCK)
                continue
            at = bounds(size, count, BLOCK)
            assert at[0] == 0 and at[-1] == size and len(at) == count + 1
            assert all(begin % BLOCK == 0 for begin in at[:-1])
            assert list(at) == sorted(set(at))


CUTS = [Cut(1, 2 * BLOCK), Cut(1, BLOCK, folds=2), Cut(2, BLOCK), Cut(0, 1), Cut(-1, 3 * BLOCK)]


@pytest.mark.parametrize("layout", LAYOUTS_HERE)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_the_parts_of_all_ranks_are_the_tensor(cut, layout):
    whole = weights(4, 2 * INNER, INNER, layout=layout)
    count = 3 if cut.axis else 2
    parts = [cut.part(whole, count, rank) for rank in range(count)]
    assert {part.layout for part in parts} == {layout}
    together = cut.whole(parts)
    assert torch.equal(together.codes, whole.unshuffle().codes)
    assert torch.equal(together.scales, whole.unshuffle().scales)
    floats = whole.dequantize()
    for rank, part in enumerate(parts):
        assert torch.equal(part.dequantize(), cut.part(floats, len(parts), rank))


def test_a_block_is_never_cut():
    with pytest.raises(ValueError, match="unit: got 16 for K"):
        Cut(1, 16).part(weights(8, 64), 2, 0)


@pytest.mark.parametrize("format", cases.FORMATS + cases.FP8_FORMATS)
def test_weights_are_cut_at_their_blocks(format):
    """Rows as well, of which the next product's K is made."""
    row = facts().formats[format]
    expected = 128 if format in ("fp8_block", "fp8_block_2d") else 32
    assert (row.k_cut, row.cut) == (expected, expected)


@pytest.mark.parametrize("cut", [Cut(1, 128), Cut(0, 128), Cut(2, 128)], ids=str)
@pytest.mark.parametrize("format", FORMATS)
def test_the_parts_of_every_format_are_the_tensor(format, cut):
    whole = weights(*((512, BLOCK, 5 * BLOCK) if cut.axis == 0 else (2, WIDE, WIDE)), format=format)
    for count in (2, 4):
        parts = [cut.part(whole, count, rank) for rank in range(count)]
        floats = [part.dequantize() for part in parts]
        assert torch.equal(torch.cat(floats, cut.axis), whole.dequantize())
        together = cut.whole(parts)
        assert together.shape == whole.shape
        assert torch.equal(together.codes, whole.codes)
        assert torch.equal(together.scales, whole.scales)


def test_parts_of_a_row_with_one_scale_have_that_scale():
    whole = weights(3, 96, format="fp8")
    parts = [Cut(1, BLOCK).part(whole, 3, rank) for rank in range(3)]
    assert [list(part.shape) for part in parts] == [[3, 32]] * 3
    assert all(torch.equal(part.scales, whole.scales) for part in parts)


@pytest.mark.parametrize(
    "format, cut, error",
    [
        ("mxint8", Cut(2, 16), "unit: got 16 for K of .* multiple of 32, the block of mxint8"),
        ("fp8", Cut(2, 16), "unit: got 16 for K of .* multiple of 32, the block of fp8"),
        ("fp8_block", Cut(2, 64), "unit: got 64 for K of .* multiple of 128, the block of"),
        ("fp8_block_2d", Cut(2, 96), "unit: got 96 for K of .* multiple of 128, the block of"),
        ("fp8_block_2d", Cut(1, 64), "unit: got 64 for rows of .* multiple of 128, the block of"),
        ("fp8_block_2d", Cut(1, 128, folds=2), "2 folds of 480 rows, expected a multiple of 128"),
    ],
)
def test_what_would_cut_a_block_is_refused_by_name(format, cut, error):
    whole = weights(2, 2 * WIDE, WIDE, format=format)
    for rank in range(2):
        with pytest.raises(ValueError, match=error):
            cut.part(whole, 2, rank)


def test_halves_of_square_blocks_are_cut_if_they_are_whole_ones():
    whole = weights(2, 512, 128, format="fp8_block_2d")
    parts = [Cut(1, 128, folds=2).part(whole, 2, rank) for rank in range(2)]
    rows = whole.dequantize()
    assert torch.equal(parts[1].dequantize(), torch.cat([rows[:, 128:256], rows[:, 384:]], 1))

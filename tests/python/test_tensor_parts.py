"""Parts and wholes of an MXTensor: what torch cuts, joins and rearranges is what the numbers do.

The oracle is torch itself, on the dequantized numbers. A part of a preshuffled tensor has besides
the very bytes that preshuffling the part of the plain one gives.
"""

import pytest
import torch

import mx_kernels as mx
from cases import LAYOUTS, every_format, every_layout, on_every_device

pytestmark = on_every_device
PADDED = [name for name in LAYOUTS if name != "plain"]
UNIT = 32
"""Rows that fill whole tiles in every layout."""
K_UNIT = 256
"""Elements along K that fill whole tiles in every layout."""


def some(*shape, layout="plain", format="mxfp4"):
    torch.manual_seed(3)
    q = mx.quantize(torch.randn(*shape).bfloat16(), format=format)
    device = LAYOUTS[layout]["device"]
    return q.preshuffle(device=device) if device else q


def assert_numbers(got, q, operation):
    """Claims that `operation` gave what it gives on the numbers, and kept the bytes' meaning."""
    expected = operation(q.dequantize())
    if isinstance(expected, torch.Tensor):
        got, expected = [got], [expected]
    assert len(got) == len(expected)
    device = LAYOUTS[q.layout]["device"]
    for part, numbers in zip(got, expected, strict=True):
        assert type(part) is mx.MXTensor
        assert (part.shape, part.format, part.layout) == (numbers.shape, q.format, q.layout)
        assert part.is_contiguous() and part.codes.is_contiguous() and part.scales.is_contiguous()
        assert torch.equal(part.dequantize(), numbers)
        if device:
            alone = part.unshuffle().preshuffle(device=device)
            assert torch.equal(part.codes, alone.codes)
            assert torch.equal(part.scales, alone.scales)


LEADING = {
    "an index": lambda q: q[1],
    "the last": lambda q: q[-1],
    "a slice": lambda q: q[1:3],
    "every other": lambda q: q[::2],
    "from the end": lambda q: q[-2:],
    "nothing": lambda q: q[2:2],
    "beyond the end": lambda q: q[1:99],
    "everything": lambda q: q[:],
    "an ellipsis": lambda q: q[1, ...],
    "a new axis": lambda q: q[None, 1:2],
    "a tensor of indices": lambda q: q[torch.tensor([2, 0, 2])],
    "a mask": lambda q: q[torch.tensor([True, False, True])],
    "select": lambda q: q.select(0, 2),
    "index_select": lambda q: q.index_select(0, torch.tensor([1, 1])),
    "narrow": lambda q: q.narrow(0, 1, 2),
    "split": lambda q: q.split(2),
    "split by sizes": lambda q: q.split([1, 2]),
    "chunk": lambda q: q.chunk(2),
    "unbind": lambda q: q.unbind(),
    "iteration": list,
    "unsqueeze": lambda q: q.unsqueeze(1),
    "squeeze": lambda q: q.unsqueeze(0).squeeze(),
    "squeeze one": lambda q: q[:1].squeeze(0),
    "view": lambda q: q.view(1, 3, *q.shape[1:]),
    "view with a hole": lambda q: q.view(-1, 1, *q.shape[1:]),
    "flatten": lambda q: q[None].flatten(0, 1),
    "cat": lambda q: torch.cat([q, q[:1]]),
    "stack": lambda q: torch.stack([q, q]),
    "stack behind": lambda q: torch.stack([q, q], 1),
    "clone": lambda q: q.clone(),
}


@pytest.mark.parametrize("name", LEADING)
@every_layout
def test_leading_axes_behave_like_those_of_any_tensor(name, layout):
    q = some(3, 18, 96, layout=layout)
    assert_numbers(LEADING[name](q), q, LEADING[name])


@pytest.mark.parametrize("name", [name for name in LEADING if name != "view with a hole"])
def test_rows_of_a_plain_matrix_are_a_leading_axis_too(name):
    q = some(3, 96)
    assert_numbers(LEADING[name](q), q, LEADING[name])


ROWS = {
    "a slice": lambda q: q[..., UNIT : 2 * UNIT, :],
    "up to the end": lambda q: q[..., UNIT:, :],
    "split": lambda q: q.split(UNIT, -2),
    "split by sizes": lambda q: q.split([2 * UNIT, q.shape[-2] - 2 * UNIT], -2),
    "narrow": lambda q: q.narrow(-2, 0, UNIT),
    "cat": lambda q: torch.cat([q[..., :UNIT, :], q], -2),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("lead", [(), (2,)])
@every_layout
def test_rows_are_cut_and_joined_where_tiles_end(name, layout, lead):
    q = some(*lead, 3 * UNIT + 7, 96, layout=layout)
    assert_numbers(ROWS[name](q), q, ROWS[name])


ALONG_K = {
    "a slice": lambda q: q[..., K_UNIT : 2 * K_UNIT],
    "up to the end": lambda q: q[..., K_UNIT:],
    "split": lambda q: q.split(K_UNIT, -1),
    "narrow": lambda q: q.narrow(-1, 0, K_UNIT),
    "cat": lambda q: torch.cat([q[..., :K_UNIT], q], -1),
}


@pytest.mark.parametrize("name", ALONG_K)
@pytest.mark.parametrize("lead", [(), (2,)])
@every_layout
@every_format
def test_k_is_cut_and_joined_where_tiles_end(name, layout, lead, format):
    q = some(*lead, 18, 2 * K_UNIT + 32, layout=layout, format=format)
    assert_numbers(ALONG_K[name](q), q, ALONG_K[name])


@pytest.mark.parametrize("layout", ["plain", "preshuffled_cpu", "preshuffled_cuda"])
@pytest.mark.parametrize("start", range(0, 160, 32))
def test_a_block_is_enough_along_k_but_for_cdna4(layout, start):
    q = some(18, 160, layout=layout)
    assert_numbers(q[:, start : start + 32], q, lambda x: x[:, start : start + 32])


@pytest.mark.parametrize("cut", [lambda q: q[:2], lambda q: q[1], lambda q: q.view(1, 3, 18, 96)])
@every_layout
def test_leading_parts_share_memory(cut, layout):
    q = some(3, 18, 96, layout=layout)
    part = cut(q)
    assert part.codes.untyped_storage().data_ptr() == q.codes.untyped_storage().data_ptr()
    torch.zero_(part.codes)
    assert not q[1].codes.any() and q.codes.any() != (part.shape[:2] == (1, 3))


@every_layout
def test_assignments_write_through(layout):
    q, other = some(3, 2 * UNIT, 96, layout=layout), some(UNIT, 96, layout=layout).clone()
    expected = q.dequantize()
    q[1, UNIT:] = other
    expected[1, UNIT:] = other.dequantize()
    assert torch.equal(q.dequantize(), expected)


def test_what_cannot_be_written_through_is_refused():
    q = some(3, 2 * UNIT, 96)
    before = q.clone()
    for part in (q[:, :UNIT], q[..., :32], q[:, 1]):
        with pytest.raises(ValueError, match=r"copy_: got a part whose bytes are a copy"):
            part.copy_(part.clone())
    assert torch.equal(q.codes, before.codes)
    assert q[:, :UNIT].clone().copy_(q[:, UNIT:]).shape == (3, UNIT, 96)


REFUSED = {
    "rows within a tile": (lambda p: p[3:5], "slice: got rows 3:5 of 48"),
    "rows up to within a tile": (lambda p: p[:17], r"expected multiples of \d+; unshuffle\(\)"),
    "one row": (lambda p: p[3], r"select: got axis 0 of \[48, 96\] in layout .* unshuffle\(\)"),
    "rows by index": (lambda p: p[torch.tensor([1])], "index: got axis 0"),
    "rows of two": (
        lambda p: torch.cat([p.unshuffle()[:3].preshuffle(device=device_of(p)), p]),
        "cat: got rows 0:3 of 3",
    ),
    "within a block": (lambda p: p[:, 16:48], "slice: got K 16:48 of 96"),
    "K alone": (lambda p: p[:, 0], "got axis 1"),
    "no K": (lambda p: p[:, 32:32], "slice: got K"),
    "split within a block": (lambda p: p.split(48, 1), "split: got K 0:48 of 96"),
    "rows and columns": (lambda p: p.view(96, 48), r"view: got \[96, 48\] from \[48, 96\]"),
    "rows as batches": (lambda p: p.view(2, 24, 96), "leading axes: rows and K stay"),
    "behind K": (lambda p: p.unsqueeze(-1), "view: got"),
    "stack along K": (lambda p: torch.stack([p, p], 2), "expected one shape and a leading axis"),
    "other layouts": (lambda p: torch.cat([p, p.unshuffle()]), "cat: got layout plain beside"),
    "other sizes": (lambda p: torch.cat([p, some(48, 64, layout=p.layout)]), "cat: got .*48, 64"),
    "sizes": (lambda p: p.split([16, 16]), "sum"),
}  # fmt: skip


def device_of(p):
    return LAYOUTS[p.layout]["device"]


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("layout", PADDED)
def test_cuts_that_would_break_a_tile_are_refused(case, layout):
    call, message = REFUSED[case]
    p = some(48, 96, layout=layout)
    with pytest.raises((ValueError, RuntimeError), match=message):
        call(p)


def test_formats_and_floats_are_not_joined():
    q = some(4, 64)
    with pytest.raises(ValueError, match="cat: got format mxint8 beside mxfp4"):
        torch.cat([q, some(4, 64, format="mxint8")])
    with pytest.raises(
        NotImplementedError, match=r"stack: got an MXTensor, .* dequantize\(\) first"
    ):
        torch.stack([q, q.dequantize()])


def test_a_vector_is_cut_along_k():
    q = some(96)
    assert_numbers(q[32:], q, lambda x: x[32:])
    assert_numbers(torch.cat([q, q]), q, lambda x: torch.cat([x, x]))
    assert_numbers(torch.stack([q, q]), q, lambda x: torch.stack([x, x]))


def test_rows_of_a_plain_tensor_are_one_long_row():
    q = some(4, 96)
    assert_numbers(q.view(-1), q, lambda p: p.reshape(-1))
    assert_numbers(q.as_strided((4, 96), (96, 1)), q, lambda p: p)
    with pytest.raises(NotImplementedError, match="as_strided"):
        q.as_strided((2, 96), (192, 1))


COLUMNS = LEADING | {
    "flat": lambda q: q.flatten(),
    "flat by view": lambda q: q.view(-1),
    "reshaped": lambda q: q.reshape(3, 1, 96),
    "all": lambda q: q[:],
    "along K": lambda q: q[:, 32:64],
    "data": lambda q: q.data,
    "moved": lambda q: q.cpu(),
    "alike": torch.zeros_like,
}


@pytest.mark.parametrize("name", [name for name in COLUMNS if name != "view with a hole"])
@pytest.mark.parametrize("format", ["mxfp8", "mxint8", "fp8_block"])
def test_codes_that_lie_by_columns_are_cut_like_those_that_lie_by_rows(name, format):
    q = some(3, 96, format=format)
    columns = mx.MXTensor(q.codes.t().contiguous().t(), q.scales, format=format, dtype=q.dtype)
    if format == "fp8_block" and name in {"along K", "flat", "flat by view"}:
        for t in (q, columns):
            with pytest.raises(ValueError, match=r"(slice|view): got"):
                COLUMNS[name](t)
        return
    got, expected = COLUMNS[name](columns), COLUMNS[name](columns.dequantize())
    pairs = [(got, expected)] if isinstance(got, mx.MXTensor) else zip(got, expected, strict=True)
    assert all(torch.equal(part.dequantize(), numbers) for part, numbers in pairs)


OUT_OF_RANGE = {
    "squeeze": lambda t: t.squeeze(2),
    "unsqueeze": lambda t: t.unsqueeze(4),
    "select": lambda t: t.select(-3, 0),
    "slice": lambda t: t.narrow(2, 0, 1),
    "unbind": lambda t: t.unbind(2),
    "split": lambda t: t.split(1, -3),
    "cat": lambda t: torch.cat([t, t], 2),
    "stack": lambda t: torch.stack([t, t], -4),
    "index": lambda t: t[4],
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_an_axis_out_of_range_is_not_another_one(name):
    q = some(4, 64)
    for t in (q, q.dequantize()):
        with pytest.raises(IndexError):
            OUT_OF_RANGE[name](t)


@every_layout
def test_axes_of_one_are_dropped_or_kept_as_torch_does(layout):
    q = some(1, 1, 32, layout=layout)
    for drop in (lambda t: t.squeeze(0), lambda t: t.squeeze(), lambda t: t.squeeze((0, 1))):
        try:
            assert_numbers(drop(q), q, drop)
        except ValueError as error:
            assert "view: got" in str(error) and layout != "plain"
    with pytest.raises(ValueError, match=r"view: got \[-1, 0, 32\], expected -1 beside no 0"):
        q[:, :0].view(-1, 0, 32)

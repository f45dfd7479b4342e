"""Every layout the extension exports is the oracle's permutation, and comes back.

A layout, a rounding or a type that is added there without a row in the oracle
and in `cases` fails here.
"""

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import (
    BLOCK,
    DTYPES,
    FORMATS,
    LAYOUTS,
    ROUNDINGS,
    bytes_of,
    every_format,
    every_layout,
    layout_of_rows,
    mx_tensor,
    on_every_device,
    random_operand,
    values_of,
)
from mx_kernels._core.facts import facts
from oracle import assert_bitwise_equal

pytestmark = on_every_device

SHAPES = [(1, 32), (15, 64), (16, 32), (17, 96), (32, 256), (33, 288), (64, 512), (100, 2880)]


@pytest.mark.cpu_only
def test_the_cases_are_those_of_the_extension():
    tables = facts().native.tables()
    assert {row["name"]: {"device": row["device"]} for row in tables["layouts"]} == LAYOUTS
    assert (list(tables["roundings"]), list(tables["dtypes"])) == (ROUNDINGS, DTYPES)


@pytest.mark.cpu_only
def test_the_oracle_knows_every_layout_and_its_padding():
    columns = ("row_multiple", "byte_multiple", "scale_row_multiple", "scale_k_multiple")
    layouts = facts().native.tables()["layouts"]
    exported = {row["name"]: [row[c] for c in columns] for row in layouts}
    ours = {name: [getattr(row, c) for c in columns] for name, row in oracle.LAYOUTS.items()}
    assert exported == ours


@pytest.mark.cpu_only
def test_the_oracle_knows_every_format():
    rows = {row["name"]: row for row in facts().native.tables()["formats"]}
    ours = oracle.FORMATS
    assert list(rows) == list(ours)
    for name, format in ours.items():
        row, element = rows[name], format.element
        assert (row["element"], row["scale"]) == (element.name, format.scale)
        assert (row["element_bits"], row["emax"]) == (element.bits, element.emax)
        assert (row["block_rows"], row["block_k"]) == (format.block_rows, format.block_k)
        assert element.decode(row["largest_code"]) == element.largest
        assert row["has_non_finite"] == bool(len(element.special_codes))


@every_layout
@every_format
@pytest.mark.parametrize("rows, k", SHAPES)
def test_bytes_and_padding_are_the_oracles(rng, rows, k, format, layout):
    codes, scales = random_operand(rng, rows, k, format=format)
    q = mx_tensor(codes, scales, layout, format)
    layout = layout_of_rows(k, layout, format)
    expected_codes, expected_scales = oracle.LAYOUTS[layout].store(codes, scales)
    assert q.layout == layout
    assert tuple(q.shape) == (rows, k)
    assert_bitwise_equal(bytes_of(q.codes).ravel(), expected_codes.ravel())
    assert_bitwise_equal(bytes_of(q.scales).ravel(), expected_scales.ravel())


@every_layout
@every_format
@pytest.mark.parametrize("rows, k", SHAPES)
def test_unshuffle_undoes_preshuffle(rng, rows, k, format, layout):
    codes, scales = random_operand(rng, rows, k, 0, 255, format=format)
    back = mx.unshuffle(mx_tensor(codes, scales, layout, format))
    assert (back.layout, back.format) == ("plain", format)
    assert_bitwise_equal(bytes_of(back.codes), codes)
    assert_bitwise_equal(bytes_of(back.scales), scales)


@every_layout
@every_format
@pytest.mark.parametrize("rows, k", [(64, 512), (96, 768)])
def test_every_byte_moves_to_a_place_of_its_own(rows, k, format, layout):
    """Bytes cannot number their places, so three passes carry the digits of the number."""
    row_bytes = oracle.FORMATS[format].packed_bytes(k)
    places = np.arange(rows * row_bytes).reshape(rows, -1)
    blocks = np.arange(rows * k // BLOCK).reshape(rows, -1)
    moved_code, moved_scale = 0, 0
    for digit in (0, 8, 16):
        digits = (places >> digit).astype(np.uint8), (blocks >> digit).astype(np.uint8)
        q = mx_tensor(*digits, layout, format)
        moved_code = moved_code | bytes_of(q.codes).ravel().astype(int) << digit
        moved_scale = moved_scale | bytes_of(q.scales).ravel().astype(int) << digit
    n, kb = np.divmod(moved_code, row_bytes)
    s_row, s = np.divmod(moved_scale, k // BLOCK)
    offsets = np.arange(places.size)
    assert np.array_equal(oracle.code_offset(layout, n, kb, row_bytes), offsets)
    assert np.array_equal(oracle.scale_offset(layout, s_row, s, k // BLOCK), offsets[: blocks.size])


@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize("target", [name for name in LAYOUTS if name != "plain"])
@every_format
def test_preshuffle_reaches_every_layout_from_every_other(rng, format, source, target):
    codes, scales = random_operand(rng, 33, 192, format=format)
    stored = mx_tensor(codes, scales, source, format)
    q = mx.preshuffle(stored, device=LAYOUTS[target]["device"])
    expected = mx_tensor(codes, scales, target, format)
    assert (q.layout, q.format) == (target, format)
    assert_bitwise_equal(bytes_of(q.codes), bytes_of(expected.codes))
    assert_bitwise_equal(bytes_of(q.scales), bytes_of(expected.scales))


def with_hostile_padding(q):
    """Returns `q` with other codes and NaN scales wherever the padding is."""
    rows, k = q.shape
    real = oracle.LAYOUTS[q.layout].store(
        np.ones((rows, oracle.FORMATS[q.format].packed_bytes(k)), np.uint8),
        np.ones((rows, k // BLOCK), np.uint8),
    )
    codes = torch.where(torch.tensor(real[0] == 1).view_as(q.codes), q.codes, 0xFF)
    is_scale = torch.tensor(real[1] == 1).view_as(q.scales)
    scales = torch.where(is_scale, q.scales, oracle.NAN_SCALE)
    return mx.MXTensor(codes, scales, shape=(rows, k), layout=q.layout, format=q.format)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "plain"])
@pytest.mark.parametrize("left", FORMATS)
@every_format
@pytest.mark.parametrize("shape", [(1, 32), (17, 192), (33, 288)])
def test_padding_that_came_from_elsewhere_is_never_read(rng, shape, format, left, layout):
    codes, scales = random_operand(rng, *shape, format=format)
    q = with_hostile_padding(mx_tensor(codes, scales, layout, format))
    assert (bytes_of(q.scales) == oracle.NAN_SCALE).any() == (q.scales.numel() > scales.size)
    weights = oracle.dequantize(codes, scales, format)
    assert_bitwise_equal(values_of(mx.dequantize(q, dtype="float32")), weights)
    assert_bitwise_equal(bytes_of(mx.unshuffle(q).codes), codes)
    assert_bitwise_equal(bytes_of(mx.unshuffle(q).scales), scales)
    a = random_operand(rng, 5, shape[1], format=left)
    got = mx.matmul(mx_tensor(*a, format=left), q, out_dtype="float32")
    oracle.assert_matmul(values_of(got), oracle.dequantize(*a, left), weights)


@pytest.mark.parametrize("layout", ["preshuffled_cdna4", "preshuffled_cuda"])
@pytest.mark.parametrize("format", ["mxfp6", "mxfp6_e3m2"])
def test_rows_that_do_not_fill_tiles_are_refused(format, layout):
    """Where a layout is asked for by name; for a device they stay plain, see `layout_of_rows`."""
    q = mx.quantize(torch.randn(32, 96), format=format)
    with pytest.raises(ValueError, match=f"K = 96, expected a multiple of 64 of {format}"):
        torch.ops.mx_kernels.relayout(q.codes, q.scales, 32, format, "plain", layout)
    with pytest.raises(ValueError, match="K = 96, expected K to be a positive multiple of 64"):
        mx.MXTensor(q.codes, torch.zeros(32, 8, dtype=torch.uint8), format=format, layout=layout)

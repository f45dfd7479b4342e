"""FP8 with float scales as a tensor, in modules and in compiled graphs: what MX formats can do.

Blocks have 128 elements, or a row: they can be cut where these can.
"""

import pytest
import torch
from torch import nn

import mx_kernels as mx
from cases import FLOAT_FORMATS, FP8_FORMATS, ROW_FORMATS

every_format = pytest.mark.parametrize("format", FLOAT_FORMATS)
every_layout = pytest.mark.parametrize("target", [None, "cpu", "cuda", "gfx950"])


def some(format, *shape, device=None):
    """Returns a tensor in a layout, and its numbers."""
    q = mx.quantize(torch.randn(*shape), format=format)
    return q.preshuffle(device) if device else q, q.dequantize("float32")


def numbers(q):
    return q.dequantize("float32")


@every_layout
@every_format
def test_parts_and_wholes_have_the_numbers_of_their_rows_and_columns(format, target):
    q, x = some(format, 3, 256, 384, device=target)
    for part in (
        lambda t: t[1],
        lambda t: t[1:],
        lambda t: t[:, 128:],
        lambda t: t.split(128, 1)[0],
        lambda t: torch.stack([t, t], 1),
        lambda t: torch.cat([t, t]),
        lambda t: torch.cat([t, t], 1),
        lambda t: t.unsqueeze(1).squeeze(1),
    ):
        assert torch.equal(numbers(part(q)), part(x))


@every_layout
@every_format
def test_k_is_cut_and_joined_where_blocks_end(format, target):
    q, x = some(format, 256, 512, device=target)
    unit = 256 if target == "gfx950" else 128
    assert torch.equal(numbers(q[:, unit:]), x[:, unit:])
    assert torch.equal(numbers(q[:, :unit]), x[:, :unit])
    if format in ROW_FORMATS:
        with pytest.raises(ValueError, match=f"got {format} along K, whose rows have one scale"):
            torch.cat([q, q], 1)
    else:
        assert torch.equal(numbers(torch.cat([q, q], 1)), torch.cat([x, x], 1))
        block = 128 if format in FP8_FORMATS else 32
        if (format, target) == ("nvfp4", "gfx950"):
            block = unit  # 16 codes are a block, but not in that layout.
        with pytest.raises(ValueError, match=rf"got K 0:16 .*, expected multiples of {block}"):
            q[:, :16]


def by_columns(q):
    """Returns the same codes column by column: [K, rows] in memory."""
    return mx.MXTensor(q.codes.t().contiguous().t(), q.scales, format=q.format, dtype=q.dtype)


@pytest.mark.parametrize("format", [*FP8_FORMATS, "mxfp8", "mxint8"])
def test_codes_that_lie_by_columns_mean_what_they_mean_row_by_row(format):
    """Held as they are, and copied where a kernel wants rows; NumPy's too."""
    q, x = some(format, 48, 160)
    columns = by_columns(q)
    assert columns.codes.stride() == (1, 48)
    shared = mx.MXTensor(columns.codes.numpy(), q.scales.numpy(), format=format)
    assert shared.codes.data_ptr() == columns.codes.data_ptr()
    for same in (columns, shared, columns.clone(), columns.detach()):
        assert torch.equal(numbers(same), x)
        assert torch.equal(numbers(same.preshuffle("cpu")), x)
        assert torch.equal(numbers(same[1:]) if q.format != "fp8_block_2d" else x[1:], x[1:])
    a, a_format = torch.randn(5, 160), "fp8" if format == "fp8_block_2d" else format
    expected = mx.linear(a, q, activations=a_format)
    assert torch.equal(mx.linear(a, columns, activations=a_format), expected)
    if format != "fp8_block_2d":
        assert torch.equal(mx.matmul(columns, q), mx.matmul(q, q))
        assert torch.equal(mx.matmul(columns, columns), mx.matmul(q, q))


def test_other_gaps_and_packed_codes_by_columns_are_refused():
    q, packed = mx.quantize(torch.randn(48, 160), format="fp8"), mx.quantize(torch.randn(48, 64))
    wide = torch.empty(48, 320, dtype=torch.uint8)[:, ::2]
    with pytest.raises(ValueError, match="expected a contiguous one, or a matrix's transpose"):
        mx.MXTensor(wide, q.scales, format="fp8")
    with pytest.raises(ValueError, match=r"expected a contiguous one: codes\.contiguous"):
        by_columns(packed)


def test_rows_of_a_block_are_not_cut():
    q, _ = some("fp8_block_2d", 200, 64)
    with pytest.raises(ValueError, match=r"got rows 0:64 .*, expected multiples of 128"):
        q[:64]


@every_layout
@every_format
def test_copies_files_and_pickles_have_the_same_bytes(tmp_path, format, target):
    q, x = some(format, 2, 200, 160, device=target)
    copy = torch.empty_like(q)
    copy.copy_(q)
    torch.save(q, tmp_path / "q.pt")
    mx.save({"w": q}, tmp_path / "q.safetensors")
    again = torch.load(tmp_path / "q.pt", weights_only=True)
    loaded = mx.load(tmp_path / "q.safetensors", preshuffle=False)["w"]
    for other in (copy, again, loaded, q.clone(), q.unshuffle()):
        assert (other.format, other.scales.dtype) == (format, q.scales.dtype)
        assert torch.equal(numbers(other), x)


@pytest.mark.parametrize(
    "format, weights, error",
    [("fp8", "fp8", 0.1), ("fp8_e5m2", "fp8_e5m2", 0.2), ("fp8_block", "fp8_block_2d", 0.1)],
)
def test_a_converted_model_multiplies_as_its_checkpoints_mean(format, weights, error):
    model = nn.Sequential(nn.Linear(288, 224), nn.ReLU(), nn.Linear(224, 64))
    x = torch.randn(5, 288)
    expected = model(x)
    converted = mx.convert(model, format=format)
    for layer in (converted[0], converted[2]):
        assert (layer.format, layer.activations) == (weights, format)
    got = converted(x)
    assert 0 < (got - expected).norm() / expected.norm() < error
    again = mx.convert(nn.Sequential(nn.Linear(288, 224), nn.ReLU(), nn.Linear(224, 64)),
                       format=format)  # fmt: skip
    again.load_state_dict(converted.state_dict())
    assert torch.equal(again(x), got)


@every_format
def test_a_compiled_graph_has_the_bits_of_eager_calls(format):
    w, _ = some(format, 64, 288, device="cpu")
    x = torch.randn(4, 288, requires_grad=True)

    def product(x, w):
        return mx.linear(x, w, activations="fp8_block")

    def there_and_back(x):
        return mx.quantize(x, format=format).dequantize("float32")

    compiled = torch.compile(product, backend="aot_eager", fullgraph=True)(x, w)
    assert torch.equal(compiled, product(x, w))
    compiled.sum().backward()
    torch.testing.assert_close(x.grad, numbers(w).sum(0).expand(4, -1), rtol=1e-4, atol=1e-3)
    x = x.detach()
    compiled = torch.compile(there_and_back, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), there_and_back(x))


WRONG = {
    "no rows": (lambda: mx.quantize(torch.ones(64), format="fp8_block_2d"), "expected matrices"),
    "another rule": (
        lambda: mx.quantize(torch.ones(2, 64), format="fp8", scale_rule="floor"),
        "got 'floor' with format='fp8', whose scales are float32, expected 'even'",
    ),
    "another rule of activations": (
        lambda: mx.linear(torch.ones(2, 64), some("fp8", 4, 64)[0], activations="fp8_block",
                          scale_rule="ceil"),
        "got 'ceil' with activations='fp8_block'",
    ),
    "blocks of many rows as activations": (
        lambda: mx.linear(torch.ones(2, 64), some("fp8", 4, 64)[0], activations="fp8_block_2d"),
        "activations: got 'fp8_block_2d', expected",
    ),
    "K of no thirty-twos": (lambda: mx.quantize(torch.ones(2, 40), format="fp8"), "multiple of 32"),
    "scales of another shape": (
        lambda: mx.MXTensor(torch.zeros(4, 64).byte(), torch.ones(4, 2), format="fp8_block"),
        r"scales: got \[4, 2\], expected \[4, 1\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls_are_sentences(case):
    call, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_scales_of_another_dtype_are_a_type_error():
    with pytest.raises(TypeError, match="scales: got dtype uint8, expected float32 for fp8"):
        mx.MXTensor(torch.zeros(4, 64).byte(), torch.ones(4, 1).byte(), format="fp8")

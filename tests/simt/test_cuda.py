"""Experts on a CUDA device: what sizes and ids may hold there, streams, graphs, no waits.

What both devices share is claimed beside the CPU's, see `numerics/test_experts.py`.
"""

import numpy as np
import pytest
import torch

import mx_kernels as mx
from cases import same_bits

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device on this machine"
)

H, INNER = 96, 64
GARBAGE = [0, 1, 2, -1, 3, 4, 2**31 - 1, -(2**31), 77, 1024]
WIDE = [*GARBAGE, 2**63 - 1, -(2**63), 2**32, 2**32 + 1, -(2**32)]


@pytest.fixture(autouse=True)
def _on_the_device():
    torch.set_default_device("cuda")
    torch.manual_seed(5)
    yield
    torch.set_default_device(None)


def weights(count, n, k, layout=None):
    q = mx.quantize(torch.randn(count, n, k) / 8)
    return q.preshuffle(device=layout) if layout else q


def ids_of(values, dtype, tokens=30, slots=3):
    rng = np.random.default_rng(2)
    return torch.tensor(rng.choice(np.array(values), (tokens, slots)), dtype=dtype)


def fitting(sizes, rows):
    """Returns the rows of each group, and those that are left, as a GPU cuts sizes."""
    found, left = [], rows
    for size in sizes:
        found.append(min(max(size, 0), left))
        left -= found[-1]
    return found, left


@pytest.mark.parametrize(
    "sizes",
    [
        [5, -3, 4, 0, 2],
        [40, 40, 40, 1, 2],
        [-1] * 5,
        [2**31 - 1] * 5,
        [-(2**31)] * 5,
        [3, 2**31 - 1, -(2**31), 7, 7],
        [*([0] * 40), 7, *([1] * 30), -5, 2**31 - 1, 3],
    ],
    ids=str,
)
def test_cuda_sizes_that_do_not_fit_are_cut(sizes):
    rows = 33
    w, x = weights(len(sizes), 40, H), torch.randn(rows, H)

    def grouped(sizes):
        return mx.grouped_linear(x, w, torch.tensor(sizes, dtype=torch.int32), activations="mxfp4")

    got = grouped(sizes)
    cut, left = fitting(sizes, rows)
    expected = grouped(cut)
    same_bits(got, expected)
    first = 0
    for expert, size in enumerate(cut):
        if size:
            part = slice(first, first + size)
            same_bits(got[part], mx.linear(x[part], w[expert], activations="mxfp4"))
        first += size
    assert left == rows - first
    assert (got[first:] == 0).all()


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 65, 1000, 1024])
def test_cuda_a_row_finds_its_expert_among_many(count):
    rng = np.random.default_rng(count)
    sizes = torch.tensor(rng.integers(0, 3, count), dtype=torch.int32)
    w, rows = weights(count, 8, 32), int(sizes.sum())
    x = torch.randn(rows + 2, 32)
    got = mx.grouped_linear(x, w, sizes, activations="bf16", out_dtype="float32")
    expert = torch.repeat_interleave(torch.arange(count), sizes)
    dense = w.dequantize("float32").double()[expert]
    expected = (dense @ x[:rows].bfloat16().double()[..., None])[..., 0]
    torch.testing.assert_close(got[:rows].double(), expected, rtol=1e-6, atol=1e-6)
    assert (got[rows:] == 0).all()


@pytest.mark.parametrize("dtype, values", [(torch.int32, GARBAGE), (torch.int64, WIDE)], ids=str)
@pytest.mark.parametrize("layout", [None, "cuda"])
def test_cuda_an_id_of_no_expert_makes_its_token_nan_and_no_other(dtype, values, layout):
    gate_up, down = weights(4, 2 * INNER, H, layout), weights(4, H, INNER, layout)
    ids, x = ids_of(values, dtype), torch.randn(30, H)
    counts = torch.rand(ids.shape)
    got = mx.moe(x, gate_up, down, ids, counts)
    is_bad = (ids >= 4).any(1)
    assert got[is_bad].isnan().all()
    assert is_bad.any()
    assert not is_bad.all()
    expected = mx.moe(x, gate_up, down, torch.where(ids < 4, ids, -1), counts)
    same_bits(got[~is_bad], expected[~is_bad])
    assert expected.isfinite().all()


def test_cuda_experts_agree_with_the_cpu():
    gate_up, down = weights(4, 2 * INNER, H), weights(4, H, INNER)
    x, counts, ids = torch.randn(50, H), torch.rand(50, 2), torch.randint(-1, 4, (50, 2))
    biases = {"bias_gate_up": torch.randn(4, 2 * INNER), "bias_down": torch.randn(4, H)}
    for hidden_act in ("swiglu_oai", "silu"):
        for mode in ("bf16", "mxint8"):
            rules = {"hidden_act": hidden_act, "activations": mode}
            got = mx.moe(x, gate_up, down, ids, counts, **biases, **rules).cpu()
            there = {name: bias.cpu() for name, bias in biases.items()}
            arguments = (part.cpu() for part in (x, gate_up, down, ids, counts))
            expected = mx.moe(*arguments, **there, **rules)
            # Sums in another order may round a hidden number to a neighbour.
            scale = expected.abs().max()
            assert (got - expected).abs().max() <= scale * 2.0**-8
            assert ((got - expected).abs() <= scale * 2.0**-20).float().mean() > 0.5


def test_cuda_calls_can_be_captured_and_follow_the_numbers_in_memory():
    gate_up, down, w = weights(4, 2 * INNER, H), weights(4, H, INNER), weights(4, 40, H)
    x, counts = torch.randn(20, H), torch.rand(20, 2)
    ids, sizes = torch.zeros(20, 2, dtype=torch.int64), torch.zeros(4, dtype=torch.int32)
    run = {
        "moe": lambda: mx.moe(x, gate_up, down, ids, counts),
        "grouped": lambda: mx.grouped_linear(x, w, sizes),
    }
    for call in run.values():
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = {name: call() for name, call in run.items()}
    for values in ([1, 0, 3, 4], [20, 0, 0, 0], [7, 7, 7, 7]):
        sizes.copy_(torch.tensor(values, dtype=torch.int32))
        ids.copy_(torch.randint(-1, 5, (20, 2)))
        x.copy_(torch.randn(20, H))
        graph.replay()
        for name, call in run.items():
            same_bits(results[name], call())


def test_cuda_nothing_waits_for_the_device():
    gate_up, down, w = weights(4, 2 * INNER, H), weights(4, H, INNER), weights(4, 40, H)
    x, counts, ids = torch.randn(20, H), torch.rand(20, 2), torch.randint(-1, 5, (20, 2))
    sizes = torch.tensor([4, 4, 4, 4], dtype=torch.int32)
    torch.cuda.set_sync_debug_mode("error")
    try:
        mx.moe(x, gate_up, down, ids, counts)
        mx.grouped_linear(x, w, sizes)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_cuda_work_goes_to_the_current_stream():
    gate_up, down = weights(4, 2 * INNER, H), weights(4, H, INNER)
    x, counts, ids = torch.randn(20, H), torch.rand(20, 2), torch.randint(-1, 4, (20, 2))
    expected = mx.moe(x, gate_up, down, ids, counts)
    torch.cuda.synchronize()
    stream, later = torch.cuda.Stream(), torch.zeros_like(x)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        later.copy_(x)
        got = mx.moe(later, gate_up, down, ids, counts)
    stream.synchronize()
    same_bits(got, expected)


@pytest.mark.parametrize("offset", [1, 2, 5])
def test_cuda_activations_at_odd_addresses_give_the_same_bits(offset):
    gate_up, down, w = weights(4, 2 * INNER, H), weights(4, H, INNER), weights(4, 40, H)
    x, counts, ids = torch.randn(20, H), torch.rand(20, 2), torch.randint(-1, 4, (20, 2))
    sizes = torch.tensor([4, 4, 4, 4], dtype=torch.int32)
    for dtype in (torch.bfloat16, torch.float32):
        straight = x.to(dtype)
        moved = torch.zeros(20 * H + offset, dtype=dtype)[offset:].view(20, H).copy_(straight)
        assert moved.data_ptr() % 16
        same_bits(mx.moe(moved, gate_up, down, ids, counts),
                  mx.moe(straight, gate_up, down, ids, counts))  # fmt: skip
        same_bits(mx.grouped_linear(moved, w, sizes), mx.grouped_linear(straight, w, sizes))


def test_cuda_gradients_refuse_an_id_of_no_expert():
    gate_up, down = weights(4, 2 * INNER, H), weights(4, H, INNER)
    x, counts = torch.randn(2, H, requires_grad=True), torch.rand(2, 1)
    out = mx.moe(x, gate_up, down, torch.tensor([[1], [4]]), counts)
    with pytest.raises(ValueError, match="expert_ids: got 4, expected at most 3"):
        out.sum().backward()


def test_cuda_a_layer_of_the_size_of_gpt_oss():
    tokens, slots, count, width = 3, 4, 32, 2880
    gate_up, down = weights(count, 2 * width, width), weights(count, width, width)
    x = torch.randn(tokens, width).bfloat16()
    ids = torch.stack([torch.randperm(count)[:slots] for _ in range(tokens)])
    counts = torch.rand(tokens, slots)
    got = mx.moe(x, gate_up, down, ids, counts, activations="bf16", out_dtype="float32").double()
    expected = torch.zeros(tokens, width).double()
    for t in range(tokens):
        for j in range(slots):
            e = int(ids[t, j])
            sums = gate_up[e].dequantize("float32").double() @ x[t].double()
            gate, up = sums[::2].clamp(max=7.0), sums[1::2].clamp(-7.0, 7.0)
            hidden = ((up + 1) * gate * torch.sigmoid(1.702 * gate)).bfloat16().double()
            row = down[e].dequantize("float32").double() @ hidden
            expected[t] += counts[t, j].double() * row
    assert (got - expected).abs().max() <= 2.0**-8 * expected.abs().max()

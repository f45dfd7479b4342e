"""NVFP4 weights under activations that are kept, or NVFP4 too, on a device: the claims of
`nvfp4_claims` at sizes of models, and those of experts. `test_cuda` has MXFP4's plans.
"""

import pytest
import torch

import mx_kernels as mx
from cases import same_bits
from mx_kernels._core.cuda import CUDA
from tests.hopper import nvfp4_claims as claims
from tests.hopper.expert_claims import assert_is_layer, assert_is_product, experts

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="no Hopper GPU on this machine",
)


@pytest.fixture
def product(monkeypatch):
    """Returns what computes a product with a plan, or with what dispatch chooses."""

    def compute(x, w, plan, **rules):
        monkeypatch.setattr(CUDA, "plan", plan)
        weights, bias = w.cuda().preshuffle(), rules.pop("bias", None)
        assert weights.byte_layout == "preshuffled_cuda"
        bias = None if bias is None else bias.cuda()
        if isinstance(x, mx.MXTensor):
            return mx.matmul(x.cuda(), weights, bias=bias, **rules).cpu()
        rules.setdefault("activations", "bf16")
        return mx.linear(x.cuda(), weights, bias=bias, **rules).cpu()

    return compute


every_mode = pytest.mark.parametrize("mode", ["bf16", "nvfp4"])
SHAPES = [
    (1, 4096, 4096), (7, 257, 160), (9, 2880, 512), (33, 100, 96), (64, 2048, 7168),
    (70, 40, 32), (130, 1000, 2080), (600, 4096, 512), (1500, 640, 4096),
]  # fmt: skip


@pytest.mark.parametrize("plan", ["", *claims.PLANS])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_within_the_derived_bound(shape, plan, product):
    claims.check(product, *shape, plan)


@pytest.mark.parametrize("m", [1, 24, 33, 65, 128])
def test_short_k_is_read_up_to_its_end(m, product):
    for k in range(288, 1569, 32):
        claims.check(product, m, 256 if k % 64 else 1000, k, "")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("m", [3, 40, 300])
def test_other_floats_are_kept_as_bfloat16(dtype, m, product):
    claims.check(product, m, 72, 160, "", dtype=dtype, out=dtype)


@pytest.mark.parametrize("plan", claims.PLANS)
def test_every_code_under_every_scale_is_exact(plan, product):
    claims.check_every_number(product, plan, [1, 0.0123, 3e-39, 2.0**120, 77.7])


@pytest.mark.parametrize("plan", ["", *claims.PLANS])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nvfp4_activations_have_the_bits_of_codes(shape, plan, product):
    claims.check_both_sides(product, *shape, plan)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("m, k", [(3, 160), (40, 9984), (3000, 2080)])
def test_rows_of_any_floats_are_rounded_in_the_call(dtype, m, k, product):
    claims.check_both_sides(product, m, 72, k, "", dtype=dtype, out=dtype)


@pytest.mark.parametrize("plan", claims.PLANS)
def test_tensor_scales_of_both_sides_at_the_ends_of_the_range(plan, product):
    claims.check_every_pair_of_tensor_scales(product, plan)


@pytest.mark.parametrize("plan", claims.PLANS)
def test_tensor_scales_at_the_ends_of_the_range(plan, product):
    claims.check_tensor_scales_at_the_ends(product, plan)


@every_mode
def test_a_product_gives_the_same_bits_every_time_and_in_a_graph(product, mode):
    w = claims.weights(4096, 2048).cuda().preshuffle()
    for m in (1, 40, 700):
        x = torch.randn(m, 2048, device="cuda").bfloat16()
        first = mx.linear(x, w, activations=mode)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = mx.linear(x, w, activations=mode)
        for _ in range(5):
            graph.replay()
            same_bits(captured, first)
            same_bits(mx.linear(x, w, activations=mode), first)


@every_mode
@pytest.mark.parametrize(
    "sizes, n, k",
    [([0, 1, 7, 8, 9, 16, 17], 72, 96), ([24, 3, 25, 0, 8], 2880, 2880), ([55, 0, 32], 100, 160),
     ([90, 66], 72, 4096), ([700, 3, 0, 200], 512, 2080)],
    ids=str,
)  # fmt: skip
def test_a_grouped_product_is_within_the_derived_bound(sizes, n, k, mode):
    with torch.device("cuda"):
        plain, shuffled = experts(len(sizes), n, k, format="nvfp4")
        x, bias = torch.randn(sum(sizes) + 1, k).bfloat16(), torch.randn(len(sizes), n)
        given = torch.tensor(sizes, dtype=torch.int32)
    got = mx.grouped_linear(
        x, shuffled, given, bias=bias, activations=mode, out_dtype=torch.float32
    )
    assert_is_product(got, x, plain, sizes, mode, bias)


@every_mode
@pytest.mark.parametrize("gate", ["swiglu_oai", "silu", "relu2"])
@pytest.mark.parametrize("tokens", [1, 9, 60, 200])
def test_a_layer_is_near_what_its_parts_are_exactly(tokens, gate, mode):
    count, width, inner = 4, 160, 96
    sums = inner if gate == "relu2" else 2 * inner
    with torch.device("cuda"):
        gate_up, shuffled_up = experts(count, sums, width, width**-0.5, "nvfp4")
        down, shuffled_down = experts(count, width, inner, inner**-0.5, "nvfp4")
        ids, counts = torch.randint(-1, count, (tokens, 3)), torch.rand(tokens, 3)
        x = torch.randn(tokens, width).bfloat16()
    got = mx.moe(
        x, shuffled_up, shuffled_down, ids, counts, hidden_act=gate, activations=mode,
        out_dtype=torch.float32,
    )  # fmt: skip
    assert_is_layer(got, x, gate_up, down, ids, counts, (None, None), gate, mode)

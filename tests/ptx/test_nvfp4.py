"""Products with NVFP4 weights as compiled for Hopper: the claims of `hopper/nvfp4_claims`, run by
the interpreter, and its experts. `test_products` and `test_experts` have other weights and claims.
"""

import pytest
import torch

import mx_kernels as mx
import oracle
from cases import numbers_of, same_bits, values_of
from tests.hopper import nvfp4_claims as claims
from tests.hopper.expert_claims import assert_is_product, experts
from tests.ptx import calls, device
from tests.ptx.test_experts import FEW, MANY, MORE, composed, grouped, layer, layer_of

pytestmark = pytest.mark.deep

ENTRIES = {"stream": "hopper_streaming", "rs_bf16": "hopper_gemm_rs_b", "ss_bf16": "hopper_gemm_ss"}
"""How entries of kernels begin."""


def product(x, w, plan, seed=0, **rules):
    """Returns a product by the kernel that a plan names."""
    if not isinstance(x, mx.MXTensor):
        rules.setdefault("activations", "bf16")
    recorded = calls.multiply(x, w.preshuffle("cuda"), plan=plan, **rules)
    assert ENTRIES[plan.split()[0]] in recorded.launches[-1].entry
    return device.run(recorded, seed)


@pytest.mark.parametrize("plan", claims.PLANS)
def test_every_plan_is_within_the_derived_bound(plan):
    index = claims.PLANS.index(plan)
    n, k = [(40, 96), (257, 544), (100, 1056)][index % 3]
    claims.check(product, [7, 20, 70][index % 3], n, k, plan)


@pytest.mark.parametrize("plan", ["stream 32x64", "rs_bf16 64x128", "rs_bf16 256x128",
                                  "ss_bf16 128x128 prepared"])  # fmt: skip
def test_every_code_under_every_scale_is_exact(plan):
    """Also where a tensor scale is small, or leaves float32 with what is under it."""
    claims.check_every_number(product, plan, [1, 0.0123, 3e-39, 2.0**120, 77.7])


@pytest.mark.parametrize("plan", ["stream 8x32 splitK2", "rs_bf16 64x128 streamK"])
def test_tensor_scales_at_the_ends_of_the_range(plan):
    claims.check_tensor_scales_at_the_ends(product, plan)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("m", [3, 40])
def test_other_floats_are_kept_as_bfloat16(dtype, m):
    plan = "stream 8x64" if m == 3 else "rs_bf16 64x128"
    claims.check(product, m, 72, 160, plan, dtype=dtype, out=dtype)


@pytest.mark.parametrize("plan", claims.PLANS)
def test_nvfp4_activations_have_the_bits_of_codes_in_every_plan(plan):
    index = claims.PLANS.index(plan)
    n, k = [(40, 96), (257, 544), (100, 1056)][index % 3]
    claims.check_both_sides(product, [70, 7, 20][index % 3], n, k, plan)


@pytest.mark.parametrize("plan", ["stream 8x64", "rs_bf16 64x128", "ss_bf16 128x128 prepared"])
def test_tensor_scales_of_both_sides_at_the_ends_of_the_range(plan):
    claims.check_every_pair_of_tensor_scales(product, plan)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("m, k", [(3, 160), (9, 4160), (1101, 96)])
def test_rows_of_any_floats_are_rounded_in_the_call(dtype, m, k):
    """One row a CTA or several, a chunk a lane or more, loaded once or twice."""
    plan = "rs_bf16 256x128" if m > 256 else "stream 16x32"
    claims.check_both_sides(product, m, 8, k, plan, dtype=dtype, out=torch.float32)


# Experts


def nvfp4_experts(count, n, k, scale=0.05):
    """Returns plain weights, and the same as the kernels want them."""
    return experts(count, n, k, scale, format="nvfp4")


every_mode = pytest.mark.parametrize("mode", ["bf16", "nvfp4"])


@every_mode
@pytest.mark.parametrize(
    "sizes, behind, n, k, kernel",
    [
        ([0, 1, 7, 8, 9, 16, 17], 3, 72, 96, FEW),
        ([1, 0, 2], 0, 40, 2880, FEW),
        ([24, 3, 25, 0, 8], 1, 72, 96, FEW),
        ([32, 33, 0, 7, 24, 8], 2, 100, 96, FEW),
        ([35, 0, 32], 1, 100, 160, MORE),
        ([90, 66], 3, 72, 96, MANY),
    ],
    ids=str,
)
def test_a_grouped_product_is_within_the_derived_bound(sizes, behind, n, k, kernel, mode):
    torch.manual_seed(5)
    plain, shuffled = nvfp4_experts(len(sizes), n, k)
    x, bias = torch.randn(sum(sizes) + behind, k).bfloat16(), torch.randn(len(sizes), n)
    got = grouped(x, shuffled, sizes, activations=mode, bias=bias, kernel=kernel)
    assert_is_product(got, x, plain, sizes, mode, bias)


@every_mode
@pytest.mark.parametrize("hidden_act", ["swiglu_oai", "silu", "relu2"])
@pytest.mark.parametrize(
    "shape, kernel",
    [((9, 3, 4, 160, 96), FEW), ((26, 2, 3, 96, 64), FEW), ((22, 2, 2, 96, 96), MORE),
     ((60, 2, 2, 96, 96), MANY)],
    ids=str,
)  # fmt: skip
def test_a_layer_is_made_of_its_parts(shape, kernel, hidden_act, mode):
    tokens, slots, count, width, inner = shape
    torch.manual_seed(6)
    gate_up, down = layer(count, width, inner, hidden_act, format="nvfp4")
    first = 0 if kernel == MORE else -1
    ids, counts = torch.randint(first, count, (tokens, slots)), torch.rand(tokens, slots)
    x = torch.randn(tokens, width).bfloat16()
    rules = {"hidden_act": hidden_act}
    got = layer_of(x, gate_up, down, ids, counts, out_dtype="float32", activations=mode,
                   kernel=kernel, **rules)  # fmt: skip
    expected, decided = composed(x, gate_up, down, ids, counts, mode=mode, kernel=kernel, **rules)
    assert decided.float().mean() > 0.2
    same_bits(got[decided], expected[decided])


def test_experts_of_other_activations_or_of_two_formats_are_for_portable_kernels():
    plain, shuffled = nvfp4_experts(2, 128, 96)
    x, sizes = torch.randn(9, 96).bfloat16(), torch.tensor([4, 5], dtype=torch.int32)
    for mode in ("mxfp6", "fp8"):
        recorded = calls.grouped_linear(x, shuffled, sizes, activations=mode)
        assert "simt" in recorded.launches[-1].entry
        got, left = device.run(recorded), numbers_of(mx.quantize(x, format=mode))
        for rows, expert in ((slice(0, 4), 0), (slice(4, 9), 1)):
            oracle.assert_matmul(
                values_of(got[rows]), left[rows], numbers_of(plain[expert]), "bfloat16",
                scale_roundings=2,
            )  # fmt: skip
    down = experts(2, 96, 64)[1]
    ids, counts = torch.randint(2, (3, 2)), torch.rand(3, 2)
    recorded = calls.moe(x[:3], shuffled, down, ids, counts, hidden_act="silu", activations="bf16")
    assert all("hopper" not in launch.entry for launch in recorded.launches)

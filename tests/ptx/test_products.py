"""Products of Hopper's tensor cores, run by the interpreter: what the compiler made, instruction by
instruction, in odd orders. The claims are those of `hopper/test_cuda_fp8` and `test_cuda_bytes`.

Plans are those of `hopper/plan.mojo`.
"""

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from bench import cuda_tune
from cases import codes_far_below, far_blocks, numbers_of, ones_there, values_of
from mx_kernels._core import native
from tests.ptx import calls, device

pytestmark = pytest.mark.deep

PREPARED = "ss_e5m2 128x128 prepared"
SCALE_ROUNDINGS = 2
PAIRS = [
    ("fp8", "fp8"), ("fp8_block", "fp8_block_2d"), ("fp8_block", "fp8_block"), ("mxfp8", "mxfp8"),
    ("mxfp8", "mxfp4"), ("mxfp6", "mxfp4"),
]  # fmt: skip
SIXES = [
    ("mxfp8", "mxfp6"), ("mxfp6", "mxfp6"), ("mxfp8", "mxfp6_e3m2"), ("mxfp6_e3m2", "mxfp6_e3m2")
]  # fmt: skip
"""Weights of six bits on FP8 tensor cores."""


PLANS = [
    PREPARED, "rs_e5m2 64x128", "rs_e5m2 128x128", "rs_e5m2 64x128 splitK2",
    "rs_e5m2 128x128 splitK4", "rs_e5m2 64x128 splitK8", "rs_e5m2 64x128 streamK",
    "rs_e5m2 128x128 streamK", "rs_e5m2 256x128", "rs_e5m2 256x128 streamK",
]  # fmt: skip


def coded(rows, k, format, seed, spread=3):
    """Returns random codes, under scales of many exponents."""
    generator = torch.Generator().manual_seed(rows + 3 * k + seed)
    q = mx.quantize(torch.randn(rows, k, generator=generator), format=format)
    exponents = 2 * spread * torch.rand(q.scales.shape, generator=generator) - spread
    floats = q.scales.is_floating_point()
    q.scales.copy_(2.0 ** (exponents - 6) if floats else 127 + exponents.round())
    return q


def multiplied(a, w, plan, seed=0, **kwargs):
    """Returns the product as the kernels of a plan make it, and their launches."""
    kwargs.setdefault("out_dtype", torch.bfloat16)
    recorded = calls.multiply(a, w.preshuffle(device="cuda"), plan=plan, **kwargs)
    return device.run(recorded, seed), recorded.launches


def check(a, w, plan, *, bias=None, seed=0, more_error=0.0):
    """Compares a product with the oracle."""
    got, launches = multiplied(a, w, plan, seed, bias=bias)
    x, y = numbers_of(a), numbers_of(w)
    lost = oracle.fp8_cutoff_bound(x, y) + more_error
    added = None if bias is None else values_of(bias)
    oracle.assert_matmul(values_of(got), x, y, "bfloat16", added,
                         scale_roundings=SCALE_ROUNDINGS, more_error=lost)  # fmt: skip
    return launches


@pytest.mark.parametrize("seed, plan", list(enumerate(PLANS)))
def test_mxfp4_on_fp8_tensor_cores(plan, seed):
    launches = check(coded(67, 1056, "mxfp4", 1), coded(130, 1056, "mxfp4", 2), plan, seed=seed)
    _, _, ranks = plan.partition(" splitK")
    assert ("gemm_ss" if plan == PREPARED else "gemm_rs") in launches[1].entry
    assert launches[1].cluster == int(ranks or 0)


@pytest.mark.parametrize("seed, pair", list(enumerate(PAIRS)))
def test_eight_bits_in_every_plan(pair, seed):
    plans = [
        "ss_e4m3 128x128 prepared", "rs_e4m3 64x128", "rs_e4m3 128x128 splitK2",
        "ss_e4m3 64x256 splitK2 prepared",
    ]  # fmt: skip
    if not pair[0].startswith("mx"):
        plans = [
            "ss_e4m3 128x128",
            "ss_e4m3 64x64",
            "ss_e4m3 128x128 splitK4",
            "ss_e4m3 64x128 splitK2",
        ]
    shapes = [(33, 100, 288), (7, 35, 416), (130, 40, 672), (70, 264, 416)]
    for plan, (m, n, k) in zip(plans, shapes, strict=False):
        bias = torch.randn(n).bfloat16()
        check(coded(m, k, pair[0], 1), coded(n, k, pair[1], 2), plan, bias=bias, seed=seed)


@pytest.mark.parametrize("seed, pair", list(enumerate(SIXES)))
def test_weights_of_six_bits_become_bytes_in_every_plan(pair, seed):
    """Of K that ends within a stage, and activations that are rounded in the call."""
    plans = ["ss_e4m3 128x128 prepared", "ss_e4m3 64x256 splitK2 prepared"]
    for plan, (m, n, k) in zip(plans, [(33, 100, 448), (70, 264, 192)], strict=True):
        x, w, bias = torch.randn(m, k).bfloat16(), coded(n, k, pair[1], 2), torch.randn(n)
        x[1], x[2, 5] = 0, torch.inf
        a = mx.quantize(x, format=pair[0])
        launches = check(a, w, plan, bias=bias.bfloat16(), seed=seed)
        assert ["prepare" in launch.entry for launch in launches] == [True, False]
        got, same = multiplied(x, w, plan, activations=pair[0])[0], multiplied(a, w, plan)[0]
        assert got[2].isnan().all() and np.array_equal(
            values_of(got), values_of(same), equal_nan=True
        )


@pytest.mark.parametrize("pair", [("fp8", "fp8_block_2d"), ("fp8_block", "fp8")])
def test_one_side_may_have_a_scale_a_row_and_the_other_one_blocks(pair):
    for plan in ("ss_e4m3 64x64", "ss_e4m3 128x128 splitK2"):
        check(coded(20, 288, pair[0], 1), coded(130, 288, pair[1], 2), plan)


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("plan", ["rs_e5m2 256x128", "rs_e5m2 256x128 streamK"])
def test_wide_tiles_of_any_number_of_rows_and_stages(plan, stages):
    """Two stages at a time, and one that is left; half of the rows at a time, some or none."""
    for m, n, seed in [(300, 40, 0), (129, 264, 1)]:
        a, w = coded(m, 128 * stages - 32, "mxfp4", 1), coded(n, 128 * stages - 32, "mxfp4", 2)
        check(a, w, plan, bias=torch.randn(n).bfloat16(), seed=seed)


@pytest.mark.parametrize(
    "plan",
    [
        PREPARED,
        "rs_e5m2 64x128",
        "rs_e5m2 64x128 splitK2",
        "rs_e5m2 64x128 streamK",
        "rs_e5m2 256x128 streamK",
    ],
)
def test_a_row_that_bytes_cannot_hold_is_computed_another_way(plan):
    a, w = coded(20, 288, "mxfp4", 1), coded(40, 288, "mxfp4", 2)
    a.scales[3, 2], w.scales[33, 0] = 80, 190
    check(a, w, plan)


@pytest.mark.parametrize("plan", ["ss_e4m3 64x64", "ss_e4m3 64x128 splitK2"])
@pytest.mark.parametrize(
    "pair", [("fp8", "fp8"), ("fp8_block", "fp8_block_2d"), ("fp8", "fp8_block")]
)
def test_scales_beyond_float32_sums_are_computed_another_way(pair, plan):
    a, w = coded(5, 288, pair[0], 1), coded(40, 288, pair[1], 2)
    a.scales.mul_(2.0**20)
    w.scales[0] = 2.0**-140
    check(a, w, plan)


@pytest.mark.parametrize("plan", ["ss_e4m3 64x64", "ss_e4m3 64x128 splitK2"])
def test_a_row_whose_factors_are_too_large_for_sums_is_computed_another_way(plan):
    """In its second block only: of two ranks, the other one finds it."""
    a, w = coded(5, 288, "fp8_block", 1), coded(40, 288, "fp8_block_2d", 2)
    a.scales[3, 1], w.scales[0] = 2.0**70, 2.0**-20
    check(a, w, plan)


@pytest.mark.parametrize("plan", ["ss_e4m3 128x128 prepared", "rs_e4m3 64x128 splitK2"])
def test_scales_that_no_base_can_be_are_computed_another_way(plan):
    a, w = coded(5, 288, "mxfp8", 1), coded(40, 288, "mxfp8", 2)
    a.scales[3], w.scales[:] = 250, 4
    w.scales[7, 3] = 0
    check(a, w, plan)


@pytest.mark.parametrize("weights", ["mxfp8", "mxfp4"])
@pytest.mark.parametrize("plan", ["rs_e4m3 64x128", "ss_e4m3 128x128 prepared"])
def test_codes_below_the_largest_scale_of_their_stage_are_rounded_once_more(plan, weights):
    a, expected = codes_far_below(step=13)
    got, _ = multiplied(a, ones_there(weights), plan)
    assert torch.equal(got.float(), expected)


@pytest.mark.parametrize("plan", ["rs_e4m3 64x128", "ss_e4m3 128x128 prepared"])
def test_codes_of_six_bits_are_exact_however_far_below_the_largest_scale_of_their_stage(plan):
    """To eleven powers of two below it as E4M3, and others in another way."""
    codes = np.zeros((64, 192), np.uint8)
    codes[:, 0], codes[:, 32] = 0x1F, np.arange(64)
    rows = torch.from_numpy(oracle.pack(codes, 6))
    for below in (0, 6, 11, 12, 15, 40):
        scales = torch.full((64, 6), 130, dtype=torch.uint8)
        scales[:, 1] -= below
        a = mx.MXTensor(rows, scales, format="mxfp6")
        got, _ = multiplied(a, ones_there("mxfp4"), plan)
        expected = oracle.ELEMENTS["e2m3"].values * 2.0 ** (3 - below)
        oracle.assert_bitwise_equal(values_of(got[:, 0]), np.full(64, 60.0))
        oracle.assert_bitwise_equal(values_of(got[:, 1]), expected + 0.0)


@pytest.mark.parametrize("activations", ["mxfp8", "bf16"])
@pytest.mark.parametrize("format", ["mxfp6", "mxfp6_e3m2"])
def test_every_weight_of_six_bits_is_exact_under_any_scale(format, activations):
    """Also where a row's scales are so far apart, or from one, that another way computes it."""
    scales = np.r_[:8, 60:68, 120:136, 186:194, 248:256]
    codes, rows = np.tile(np.arange(64, dtype=np.uint8), (len(scales), 1)), np.arange(len(scales))
    blocks = torch.from_numpy(np.stack([scales, scales], 1).astype(np.uint8))
    if activations == "mxfp8":
        # The second block of a row is far below the first one, which is the largest number.
        codes[:, :32], blocks[:, 0] = 0x1F, 140
        blocks[:, 1] = torch.from_numpy((140 - rows % 32).astype(np.uint8))
        codes[:, 32:] = np.where(rows[:, None] < 32, codes[:, 32:], np.arange(32))
    w = mx.MXTensor(torch.from_numpy(oracle.pack(codes, 6)), blocks, format=format)
    x, rules = torch.eye(64).bfloat16(), {"activations": activations}
    if activations == "bf16":
        rules["out_dtype"] = torch.float32
    kind = "ss_bf16" if activations == "bf16" else "ss_e4m3"
    got = values_of(multiplied(x, w, f"{kind} 128x128 prepared", **rules)[0]).T
    with np.errstate(over="ignore"):
        expected = np.float64(np.float32(numbers_of(w)))
    assert np.isnan(expected).sum() == (64 if activations == "bf16" else 0)
    # Sums begin with zero: none is minus zero.
    assert np.array_equal(got + 0.0, expected + 0.0, equal_nan=True)


@pytest.mark.parametrize("plan", ["rs_e4m3 64x128 splitK2", "ss_e4m3 128x128 prepared"])
def test_small_blocks_beside_large_ones_are_within_the_bound_of_a_common_scale(plan):
    a, w = far_blocks()
    check(a, w, plan, more_error=oracle.common_scale_bound(numbers_of(a), numbers_of(w)))


@pytest.mark.parametrize(
    "plan, m, k, scale, format",
    [
        ("ss_bf16 128x128 prepared", 130, 416, 130, "mxfp4"),
        ("ss_bf16 128x128 splitK2 prepared", 130, 96, 130, "mxfp4"),
        ("ss_bf16 128x128 splitK4 prepared", 130, 288, 130, "mxfp4"),
        ("ss_bf16 128x128 prepared", 20, 416, 253, "mxfp4"),
        ("ss_bf16 128x128 splitK2 prepared", 70, 96, 253, "mxfp4"),
        ("ss_bf16 128x128 splitK4 prepared", 20, 288, 253, "mxfp4"),
        ("", 130, 448, 130, "mxfp6"),
        ("ss_bf16 128x128 splitK2 prepared", 70, 192, 253, "mxfp6"),
        ("ss_bf16 128x128 splitK4 prepared", 20, 320, 253, "mxfp6_e3m2"),
    ],
)
def test_bfloat16_activations_are_multiplied_as_they_lie(plan, m, k, scale, format):
    """With a scale of 253 weights are too large for bfloat16: their column is computed slowly."""
    x, w = torch.randn(m, k).bfloat16(), coded(70, k, format, 2)
    x = torch.nn.functional.pad(x, (8, 24))[:, 8 : k + 8]
    assert x.stride(0) == k + 32
    x[:, 32:64] *= 2.0**-120
    w.scales[33, 1] = scale
    bias = torch.randn(70).bfloat16()
    got, launches = multiplied(x, w, plan, activations="bf16", bias=bias)
    # Weights alone become numbers: 32 rows a tile.
    assert launches[0].grid[0] % 3 == 0 and "gemm_ss" in launches[1].entry
    oracle.assert_matmul(values_of(got), values_of(x), numbers_of(w), "bfloat16", values_of(bias))


@pytest.mark.parametrize("m", [8, 12, 40])
@pytest.mark.parametrize("activations", ["bf16", "mxfp4"])
def test_activations_at_an_odd_address_are_multiplied_without_a_workspace(activations, m):
    """Fast kernels for few rows want none, and nobody knows addresses when it is asked for."""
    x, w = torch.randn(m, 288).bfloat16(), coded(72, 288, "mxfp4", 2)
    x = torch.nn.functional.pad(x.flatten(), (1, 0))[1:].view(m, 288)
    assert x.data_ptr() % 16
    facts = [native.gpu_plans().explain_cuda((m, 72, 288, of, 0)) for of in (-1, 0)]
    assert all(found["workspace_bytes"] == 0 for found in facts)
    got, launches = multiplied(x, w, "", activations=activations)
    assert ["simt" in launch.entry for launch in launches] == [True]
    left = values_of(x) if activations == "bf16" else numbers_of(mx.quantize(x))
    roundings = 0 if activations == "bf16" else SCALE_ROUNDINGS
    oracle.assert_matmul(values_of(got), left, numbers_of(w), "bfloat16", scale_roundings=roundings)


MAPPED = [
    ("rs_bf16 64x64", 70, 416, 130), ("rs_bf16 64x64 splitK4", 20, 544, 130),
    ("rs_bf16 128x64", 130, 416, 130), ("rs_bf16 128x64 splitK2", 20, 288, 253),
    ("rs_bf16 128x64 splitK4", 20, 96, 130), ("rs_bf16 256x64", 260, 160, 130),
    ("rs_bf16 256x64 splitK2", 70, 288, 130), ("rs_bf16 256x64 splitK4", 20, 544, 253),
]  # fmt: skip


@pytest.mark.parametrize("plan, m, k, scale", MAPPED)
def test_rows_that_are_mapped_meet_weights_in_their_order(plan, m, k, scale):
    """Nothing is prepared. K ends within a stage, and rows and columns within a tile."""
    x, w = torch.randn(m, k).bfloat16(), coded(200, k, "mxfp4", 2)
    x = torch.nn.functional.pad(x, (8, 24))[:, 8 : k + 8]
    x[:, 32:64] *= 2.0**-120
    w.scales[33, 1] = scale
    bias = torch.randn(200).bfloat16()
    recorded = calls.multiply(
        x, w.preshuffle(device="cuda"), plan=plan, activations="bf16", bias=bias
    )
    assert len(recorded.launches) == 1
    got = values_of(device.run(recorded, m))
    oracle.assert_matmul(got, values_of(x), numbers_of(w), "bfloat16", values_of(bias))


@pytest.mark.parametrize("plan", ["rs_bf16 64x64", "rs_bf16 256x64"])
def test_every_code_is_exact_beside_rows_that_are_mapped(plan):
    """Every code at every place of a stage, no two places alike, under all scales."""
    rows, places = np.arange(256)[:, None], np.arange(64)
    codes = ((rows * (2 * places + 1) + places // 8) % 16).astype(np.uint8)
    blocks = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 2)
    w = mx.MXTensor(torch.from_numpy(oracle.pack(codes, 4)), blocks, format="mxfp4")
    got = multiplied(torch.eye(64).bfloat16(), w, plan, activations="bf16", out_dtype=torch.float32)
    with np.errstate(over="ignore"):
        expected = np.float64(np.float32(numbers_of(w)))
    assert np.array_equal(values_of(got[0]).T + 0.0, expected + 0.0, equal_nan=True)


FEW_BLOCKS = [(33, 256, 288, ""), (65, 256, 640, ""), (70, 256, 1056, "")]
"""Shapes of which a plan for few rows once had more groups in a cluster than shares of K."""
FEW_BLOCKS += [
    (3, 40, 32 * blocks, f"stream 8x{columns} splitK{ranks}")
    for blocks, columns, ranks in [(1, 32, 8), (3, 256, 4), (5, 64, 4), (9, 32, 4), (9, 128, 8),
                                   (12, 64, 8), (17, 32, 8), (33, 64, 8), (49, 32, 8)]
]  # fmt: skip
FEW_BLOCKS += [(20, 40, 64 * steps - 32, "rs_bf16 64x128 splitK8") for steps in (1, 5, 9, 10)]
"""CTAs of a cluster have nothing to do there, and no harm is done."""


@pytest.mark.parametrize("m, n, k, plan", FEW_BLOCKS)
@pytest.mark.parametrize("activations", ["bf16", "mxfp4"])
def test_groups_of_a_cluster_read_what_there_is_of_few_blocks(m, n, k, plan, activations):
    x, w = torch.randn(m, k).bfloat16(), coded(n, k, "mxfp4", 2)
    got, launches = multiplied(x, w, plan, activations=activations)
    if "streaming" in launches[-1].entry:
        ranks, blocks = launches[-1].cluster, k // 32
        assert -(-blocks // ranks) * (ranks - 1) < blocks
    left = values_of(x) if activations == "bf16" else numbers_of(mx.quantize(x))
    oracle.assert_matmul(values_of(got), left, numbers_of(w), "bfloat16")


@pytest.mark.parametrize(
    "plan",
    [
        "stream 8x32 splitK0", "stream 8x32 splitK3", "stream 8x32 splitK16", "stream 64x32",
        "rs_e5m2 64x128 splitK6", "rs_bf16 256x128 splitK2", "rs_e4m3 64x128 streamK",
        "rs_e5m2 32x128", "ss_bf16 64x256 prepared", "rs_bf16 32x64", "rs_bf16 128x32",
        "rs_bf16 128x64 streamK", "rs_bf16 128x64 splitK8", "rs_e5m2 128x64", "stream",
        "ss_e5m2 64x128 prepared", "tiles 64x64", "portable 64x64", "1048576", " portable",
    ],
)  # fmt: skip
def test_a_text_that_is_no_plan_is_refused(plan):
    x, w = torch.randn(3, 96).bfloat16(), coded(40, 96, "mxfp4", 2)
    with pytest.raises(ValueError, match=f"plan: got '{plan}', expected .*'?portable"):
        multiplied(x, w, plan)


def test_every_plan_that_was_measured_is_one():
    found = cuda_tune.read()
    plans = {plan for times in found.values() for of_shape in times.values() for plan in of_shape}
    assert len(plans) > 100
    keep = calls.module_of("sm_90a").plan
    assert all(keep(plan) for plan in plans - {cuda_tune.CUBLAS})


@pytest.mark.parametrize("plan", ["ss_bf16 128x128 prepared", "rs_bf16 128x64"])
def test_plans_for_kept_activations_refuse_others(plan):
    with pytest.raises(Exception, match="bfloat16 activations that are kept"):
        multiplied(coded(70, 96, "mxfp4", 1), coded(40, 96, "mxfp4", 2), plan)


FEW_ROWS = [
    (21, 96, 32, torch.float16), (21, 416, 64, torch.float32), (5, 2112, 256, torch.bfloat16),
    (4, 10400, 256, torch.bfloat16),
]  # fmt: skip
"""Rows, K, the lanes of a row, and the type of floats."""
SOME = ("mxfp4", "mxfp6", "mxfp8", "fp8", "fp8_block")
ROWS = [(x, *case) for x in SOME for case in FEW_ROWS]
ROWS += [(x, 4, 16416, 256, torch.bfloat16) for x in ("mxfp4", "mxfp8")]
ROWS += [("fp8_block", 4, 14400, 256, torch.bfloat16)]
ROWS += [(x, 1101, 768, 64, torch.bfloat16) for x in ("mxfp4", "fp8")]
DISTINCT = 61
"""Rows that differ; further ones repeat those from the fourth on."""


@pytest.mark.parametrize("activations, m, k, lanes, dtype", ROWS)
def test_activations_become_codes_in_the_call(activations, m, k, lanes, dtype):
    """One row a group or several, a chunk a lane or more: any number of rows that are left over."""
    weights = activations.replace("block", "block_2d").replace("mxfp6", "mxfp4")
    x, w = torch.randn(min(m, DISTINCT), k), coded(8, k, weights, 2)
    x[0, 32:64], x[1], x[2, 5] = 0, 0, torch.nan
    x[-1] *= 2.0**-14
    x, row_of = x.to(dtype), torch.arange(m)
    row_of[DISTINCT:] = 3 + row_of[DISTINCT:] % (DISTINCT - 3)
    is_mapped = "fp8" in activations and "mx" not in activations
    rows = 128 if m > 128 else 64
    plan = f"rs_{'e5m2' if activations == 'mxfp4' else 'e4m3'} {rows}x128"
    if is_mapped:
        plan = f"ss_e4m3 {rows}x{rows}"
    got, launches = multiplied(x[row_of], w, plan, activations=activations)
    same, _ = multiplied(mx.quantize(x, format=activations), w, plan)
    assert np.array_equal(values_of(got), values_of(same)[row_of], equal_nan=True)
    assert got.isfinite().sum() == got.numel() - 8 and got[3:].any(1).all()
    assert (got[1] == 0).all()
    # Weights that are looked at before have groups, too: here one.
    of_weights = 0 if is_mapped else 1
    assert launches[0].grid[0] == of_weights + -(-m * lanes // launches[0].threads)


@pytest.mark.parametrize("pair", [("mxfp4", "mxfp4"), ("fp8", "fp8"), ("mxfp8", "mxfp4")])
def test_a_cluster_has_no_more_groups_than_there_are_steps_of_k(pair):
    """A group without one would wait for ever."""
    small, large = {
        "mxfp4": ("rs_e5m2 64x128", "rs_e5m2 128x128"),
        "fp8": ("ss_e4m3 64x64", "ss_e4m3 128x128"),
        "mxfp8": ("rs_e4m3 64x128", "rs_e4m3 128x128"),
    }[pair[0]]
    for plan, k, ranks in ((f"{small} splitK4", 32, 1), (f"{large} splitK8", 416, 4)):
        launches = check(coded(7, k, pair[0], 1), coded(33, k, pair[1], 2), plan)
        assert launches[-1].cluster == (ranks if ranks > 1 else 0)


@pytest.mark.parametrize("groups, seed", [(1, 0), (5, 2), (7, 3), (36, 5)])
def test_groups_meet_where_their_shares_end(groups, seed):
    """Of nine tiles of four stages: whoever is last adds up, in the order of the stages."""
    a, w, bias = coded(130, 416, "mxfp4", 1), coded(300, 416, "mxfp4", 2), torch.randn(300)
    a.scales[3, 2], w.scales[33, 0] = 80, 190
    x, y = numbers_of(a), numbers_of(w)
    of_seeds = []
    for order in (seed, seed + 10):
        recorded = calls.multiply(
            a,
            w.preshuffle(device="cuda"),
            plan="rs_e5m2 64x128 streamK",
            out_dtype=torch.bfloat16,
            bias=bias,
        )
        prepared, product = recorded.launches
        assert product.grid == (9, 1, 1)
        launches = [prepared, product._replace(grid=(groups, 1, 1))]
        of_seeds.append(values_of(device.run(recorded._replace(launches=launches), order)))
    assert np.array_equal(*of_seeds)
    oracle.assert_matmul(
        of_seeds[0], x, y, "bfloat16", values_of(bias),
        scale_roundings=SCALE_ROUNDINGS, more_error=oracle.fp8_cutoff_bound(x, y),
    )  # fmt: skip


@pytest.mark.parametrize(
    "tokens, groups, seed, activations",
    [(64, 3, 0, "bf16"), (64, 9, 1, "mxfp4"), (128, 3, 2, "mxfp4"), (256, 3, 3, "bf16")],
)
def test_groups_that_multiply_numbers_meet_too(tokens, groups, seed, activations):
    """Of tiles of seven stages: what one group's weights lose, whoever is last computes, as what a
    row of tokens loses."""
    m, n, k = 70, 132, 416
    w, bias = coded(n, k, "mxfp4", 2), torch.randn(n).bfloat16()
    w.scales[130, 1], w.scales[129, 12] = 253, 254
    kept = {"activations": "bf16"} if activations == "bf16" else {}
    if kept:
        a = torch.randn(m, k).bfloat16()
        a[:, 32:64] *= 2.0**-120
        a[:, 384:] *= 2.0**-120
    else:
        a = coded(m, k, "mxfp4", 1)
        a.scales[:, 1], a.scales[:, 12], a.scales[67, 7] = 3, 2, 254
        w.scales[:, 7] = 60
    recorded = calls.multiply(
        a, w.preshuffle(device="cuda"), plan=f"rs_bf16 {tokens}x128 streamK",
        out_dtype=torch.bfloat16, bias=bias, **kept,
    )  # fmt: skip
    expanded, product = recorded.launches
    tiles = -(-m // tokens) * -(-n // 128)
    assert "hopper_gemm_rs_b" in product.entry and product.grid == (7 * tiles // 4, 1, 1)
    launches = [expanded, product._replace(grid=(groups, 1, 1))]
    of_seeds = [
        values_of(device.run(recorded._replace(launches=launches), order))
        for order in (seed, seed + 10)
    ]
    assert np.array_equal(*of_seeds)
    x = values_of(a) if kept else numbers_of(a)
    oracle.assert_matmul(of_seeds[0], x, numbers_of(w), "bfloat16", values_of(bias))


@pytest.mark.parametrize(
    "format, plan, tile, n",
    [
        ("mxfp8", "ss_e4m3 128x128 prepared", (128, 128), 300),
        ("mxfp8", "ss_e4m3 64x256 prepared", (64, 256), 300),
        ("mxfp8", "rs_e4m3 128x128", (128, 128), 300), ("mxfp4", PREPARED, (128, 128), 500),
        ("fp8", "ss_e4m3 128x128", (128, 128), 300), ("fp8", "ss_e4m3 64x64", (64, 64), 300),
        ("fp8_block", "ss_e4m3 128x128", (128, 128), 300),
        ("fp8_block", "ss_e4m3 64x64", (64, 64), 300),
    ],
)  # fmt: skip
def test_tiles_go_on_from_one_to_the_next_through_all_stages(format, plan, tile, n):
    # Tiles are taken in turns by as many groups as there are: by two, then.
    a, w = coded(130, 416, format, 1), coded(n, 416, format.replace("block", "block_2d"), 2)
    recorded = calls.multiply(a, w.preshuffle(device="cuda"), plan=plan, out_dtype=torch.bfloat16)
    *prepared, product = recorded.launches
    tiles = -(-130 // tile[0]) * -(-n // tile[1])
    assert product.grid == (tiles, 1, 1) and product.cluster == 0
    two = recorded._replace(launches=[*prepared, product._replace(grid=(2, 1, 1))])
    x, y = numbers_of(a), numbers_of(w)
    oracle.assert_matmul(
        values_of(device.run(two)), x, y, "bfloat16", None,
        scale_roundings=SCALE_ROUNDINGS, more_error=oracle.fp8_cutoff_bound(x, y),
    )  # fmt: skip

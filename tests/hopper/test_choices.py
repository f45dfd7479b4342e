"""Hopper's choice of kernel and plan for a shape, asked without a GPU.

`bench/results/cuda_tune.csv` has what every plan took on the device; costs are fitted to it, see
`bench.cuda_fit`.
"""

import re
from itertools import product
from statistics import mean
from types import SimpleNamespace
from typing import get_args

import pytest
import torch

import mx_kernels as mx
from bench import cuda_fit, cuda_tune
from cases import E4M3_FORMATS
from mx_kernels._core import cuda as _cuda
from mx_kernels._core import products as _products
from mx_kernels._core.facts import KEPT_FLOATS, facts
from mx_kernels._core.native import gpu_plans
from mx_kernels.hints import RowFormatName

MXFP4, KEPT = 0, -1
PAIRS = cuda_tune.MXFP4, cuda_tune.KEPT, *cuda_tune.EIGHT_BITS
MAX_FEW_ROWS = 8
"""Up to this many rows no product of MXFP4 weights wants a workspace."""
MAX_BEHIND = 1.1
"""A choice takes at most this times what the fastest plan takes."""
MAX_BEHIND_EIGHT_BITS = 1.12
"""The same of eight-bit codes, whose costs are for two measurements, which differ by more."""
MAX_BEHIND_UNSEEN, MEAN_BEHIND_UNSEEN = 1.27, 1.012
"""The same for shapes that costs were not fitted to."""


@pytest.fixture(scope="module")
def found():
    return cuda_tune.read()


@pytest.fixture(scope="module")
def samples(found):
    return {pair: cuda_fit.Samples(pair, times) for pair, times in found.items() if pair in PAIRS}


@pytest.mark.parametrize("pair", PAIRS, ids=" x ".join)
def test_no_choice_is_far_behind_the_fastest_plan_that_was_measured(found, pair):
    is_eight_bits = pair in cuda_tune.EIGHT_BITS
    assert len(found[pair]) > (20 if is_eight_bits else 700)
    most = MAX_BEHIND_EIGHT_BITS if is_eight_bits else MAX_BEHIND
    for shape, times in found[pair].items():
        decision = mx.explain(*shape, device="cuda", activations=pair[0], format=pair[1])
        assert times[decision.cut] <= most * min(times.values()), shape


def test_the_table_is_what_the_measurement_makes_of_it(found):
    text, said = cuda_fit.table(found)
    assert text == cuda_fit.TABLE.read_text()
    # Of eight bits, what stands is as good as what would be fitted.
    assert said.count("stay") == len(cuda_tune.EIGHT_BITS)


@pytest.mark.parametrize("pair", cuda_tune.EIGHT_BITS, ids=" x ".join)
def test_costs_of_eight_bits_can_be_fitted_anew(samples, pair):
    """Without those that stand: choices lose a hundredth on average, and a tenth at most."""
    mean_behind, most_behind = samples[pair].behind(samples[pair].best_choosing())
    assert mean_behind < 1.01
    assert most_behind < 1.1


def test_costs_that_choose_worse_than_noise_go(samples):
    of_pair = samples[cuda_tune.EIGHT_BITS[0]]
    stands = cuda_fit.standing()
    for family in of_pair.families():
        stands[family] = stands[family] * 0 + 1
    costs, said = cuda_fit.eight_bits(of_pair, stands)
    assert said.endswith("which go")
    assert of_pair.behind(costs) < of_pair.behind(stands)


@pytest.mark.parametrize("pair", PAIRS, ids=" x ".join)
def test_every_plan_for_a_shape_was_measured(found, pair):
    for shape, times in found[pair].items():
        assert {plan.name for plan in cuda_tune.plans(shape, pair)} == times.keys(), shape
    if pair in cuda_tune.EIGHT_BITS:
        assert found[pair].keys() == set(cuda_tune.shapes_of(pair))
    else:
        assert found[pair].keys() == found[cuda_tune.FLOATS].keys()


@pytest.mark.parametrize(
    "axes, left_out",
    [
        (slice(1, 3), sorted(cuda_tune.WEIGHTS)),
        (slice(0, 1), [(rows,) for rows in cuda_tune.ROWS[1:-1]]),
    ],
    ids=["weights", "rows"],
)
def test_what_was_not_measured_loses_a_hundredth_on_average_and_little_more_than_a_quarter(
    found, samples, axes, left_out
):
    behind = {}
    for part in left_out:
        costs = {}
        for pair in (cuda_tune.KEPT, cuda_tune.MXFP4):
            costs |= samples[pair].closest(lambda shape, part=part: shape[axes] != part)
        for pair in (cuda_tune.KEPT, cuda_tune.MXFP4):
            for shape in (shape for shape in found[pair] if shape[axes] == part):
                times = found[pair][shape]
                chosen = times[samples[pair].cheapest(shape, costs)]
                behind[pair, shape] = chosen / min(times.values())
    for pair in (cuda_tune.KEPT, cuda_tune.MXFP4):
        of_pair = [ratio for (of, _), ratio in behind.items() if of == pair]
        assert len(of_pair) > 650
        assert max(of_pair) < MAX_BEHIND_UNSEEN, max(behind, key=behind.get)
        assert mean(of_pair) < MEAN_BEHIND_UNSEEN


def test_every_shape_gets_the_plan_of_the_least_cost_and_each_of_its_ranks_has_blocks():
    for m, n, k in product(
        (1, 9, 17, 64, 65, 513, 8193, 100_000), (32, 160, 4097, 151_936), (32, 96, 2944, 28_672)
    ):
        plans = cuda_tune.plans((m, n, k))
        row = gpu_plans().explain_cuda((m, n, k, MXFP4, MXFP4))
        assert "the least cost of all plans" in row["reason"]
        assert row["cut"] == min(plans, key=lambda plan: plan.us).name
        assert 0 < min(plan.us for plan in plans) < 1e6
        assert row["splits"] <= k // 32


STEPS = {"streaming": 32, "rs_bf16": 64, "rs_fp8": 128, "gemm_ss": 128, "tiles": 128}
"""Elements of K that groups of a cluster take at a time, by kernel: of those that split K."""


def fewest_steps(row, k):
    """Returns the steps of K of the group that has the fewest: of shares rounded up, the last."""
    kernel, ranks = next(name for name in STEPS if name in row["kernel"]), row["splits"]
    steps = -(-k // STEPS[kernel])
    if kernel in ("streaming", "rs_bf16"):
        return steps - min(-(-steps // ranks) * (ranks - 1), steps)
    return steps // ranks


@pytest.mark.parametrize("pair", [*PAIRS, ("mxint8", "mxint8")], ids=" x ".join)
def test_no_choice_leaves_a_group_of_a_cluster_without_k(pair):
    """A group that has none would read behind the activations."""
    formats = [KEPT if x == KEPT_FLOATS else facts().formats[x].code for x in pair]
    split = 0
    for m, n, k in product(range(1, 129), (32, 256, 2880), range(32, 1569, 32)):
        row = gpu_plans().explain_cuda((m, n, k, *formats))
        if row["splits"] > 1:
            split += 1
            assert fewest_steps(row, k) > 0, (m, n, k, row)
    assert split


def test_no_plan_for_few_rows_leaves_a_group_of_a_cluster_without_k(found):
    shapes = product((1, 9, 17, 33, 65, 128), (32, 2880), range(32, 3201, 32))
    for m, n, k in (*shapes, *found[cuda_tune.MXFP4]):
        plans = [plan.name for plan in cuda_tune.plans((m, n, k))]
        chosen = gpu_plans().explain_cuda((m, n, k, KEPT, MXFP4))
        for plan in (*plans, chosen["cut"]):
            if plan.startswith("stream"):
                _, _, ranks = plan.partition(" splitK")
                row = {"kernel": "streaming", "splits": int(ranks or 1)}
                assert fewest_steps(row, k) > 0, (m, n, k, plan)


def test_the_check_says_how_far_the_choice_is_behind(found):
    """Of the shape whose costs are furthest behind; exceptions are not the check's."""

    def times_of(shape):
        chosen = min(cuda_tune.plans(shape), key=lambda plan: plan.us).name
        best = cuda_tune.fastest(times[shape])
        return chosen, best, times[shape][chosen] / times[shape][best]

    times = found[cuda_tune.MXFP4]
    shape = max(times, key=lambda shape: times_of(shape)[2])
    chosen, best, behind = times_of(shape)
    _, line = cuda_tune.check({shape: times[shape]}).splitlines()
    of_both = times[shape][chosen], times[shape][best]
    assert line.split()[:3] == ["x".join(map(str, shape)), *map(str, of_both)]
    assert float(line.split()[3]) == round(behind, 3) > 1.01
    assert line.endswith(f"  {chosen}, {best}")


def test_shapes_of_the_check_were_not_measured(found):
    assert not cuda_tune.UNSEEN.keys() & set(cuda_tune.WEIGHTS)
    assert not {m for rows in cuda_tune.UNSEEN.values() for m in rows} & set(cuda_tune.ROWS)


@pytest.mark.parametrize("shape", [(16384, 57344, 8192), (65536, 4096, 4096), (8192, 28672, 16384)])
def test_beyond_the_largest_shapes_measured_fp8_tensor_cores_compute(shape):
    assert mx.explain(*shape, device="cuda", activations="mxfp4").cut.startswith("ss_e5m2")


@pytest.mark.parametrize(
    "shape, activations, kernel",
    [
        ((1, 14336, 4096), "mxfp4", "streaming/kernel"),
        ((64, 7168, 2048), "bf16", "gemm_rs_bf16"),
        ((64, 4096, 14336), "bf16", "gemm_rs_bf16"),
        ((256, 7168, 2048), "mxfp4", "gemm_rs_fp8"),
        ((8192, 8192, 8192), "mxfp4", "gemm_ss"),
    ],
)
def test_the_kernel_follows_the_rows_and_the_reason_names_the_cost(shape, activations, kernel):
    decision = mx.explain(*shape, device="cuda", activations=activations)
    assert decision.kernel == f"hopper/{kernel}.mojo"
    assert decision.reason.startswith("the least cost of all plans: ")
    assert decision.reason in str(decision)


def test_where_costs_are_wrong_the_reason_names_the_measurement():
    exceptions = re.findall(
        r'^    Fastest\((\d+), (\d+), (\d+), "(.*)", "(.*)"\),$',
        cuda_fit.TABLE.read_text(),
        re.M,
    )
    assert len(exceptions) > 100
    for *shape, of_mxfp4, of_kept in exceptions:
        for activations, plan in (("mxfp4", of_mxfp4), ("bf16", of_kept)):
            decision = mx.explain(*map(int, shape), device="cuda", activations=activations)
            assert "measured for this shape" in decision.reason
            assert decision.cut == plan


def test_activations_that_stay_bfloat16_have_no_bytes():
    decision = mx.explain(8192, 8192, 8192, device="cuda", activations="bf16")
    assert decision.kernel == "hopper/gemm_rs_bf16.mojo"


def nvfp4_and_mxfp4(shape):
    """Returns what explains NVFP4 on both sides, NVFP4 weights alone, and MXFP4 weights alone."""
    return (
        mx.explain(*shape, device="cuda", activations=left, format=right)
        for left, right in (("nvfp4", "nvfp4"), ("bf16", "nvfp4"), ("bf16", "mxfp4"))
    )


@pytest.mark.parametrize("shape", [(200, 640, 4096), (64, 4096, 4096), (500, 1536, 2048)])
def test_tiles_of_64_columns_are_for_mxfp4_weights_and_kept_activations(shape):
    """Others get the cheapest of the other plans, whatever is measured to be fastest."""
    both, kept, of_mxfp4 = nvfp4_and_mxfp4(shape)
    assert of_mxfp4.kernel == "hopper/gemm_rs_bf16.mojo" and of_mxfp4.tile[1] == 64
    mapped = re.compile(r"rs_bf16 \d+x64\b")
    others = [p for p in cuda_tune.plans(shape, cuda_tune.KEPT) if not mapped.match(p.name)]
    cheapest = min(others, key=lambda plan: plan.us).name
    assert both.cut == kept.cut == cheapest
    assert mx.explain(*shape, device="cuda", activations="mxfp4").tile[1] == 128


@pytest.mark.parametrize("shape", [(1, 512, 2880), (16, 4096, 4096), (300, 11008, 4096),
                                   (4096, 8192, 8192), (8192, 512, 2880)])  # fmt: skip
def test_nvfp4_weights_get_the_plans_of_mxfp4_and_kept_activations(shape):
    """Also where activations are NVFP4: the numbers that they become take memory, and factors."""
    both, kept, expected = nvfp4_and_mxfp4(shape)
    for found in (both, kept):
        assert (found.kernel, found.cut, found.reason, found.grid) == (
            expected.kernel, expected.cut, expected.reason, expected.grid,
        )  # fmt: skip
    assert both.kernel.startswith("hopper/")
    m, _, k = shape
    assert both.workspace_bytes >= m * (2 * k + 4)


@pytest.mark.parametrize(
    "activations, format",
    [("mxint8", "mxfp4"), ("bf16", "mxfp8"), ("nvfp4", "mxfp4"), ("mxfp4", "nvfp4")],
)
def test_other_formats_go_to_the_portable_kernel_and_it_says_why(activations, format):
    asked = {"device": "cuda", "activations": activations, "format": format}
    for m, kernel in ((16, "matmul"), (17, "tiles/kernel")):
        decision = mx.explain(m, 128, 256, **asked)
        assert decision.kernel == f"simt/{kernel}.mojo"
        assert "fast kernels take MXFP4 weights" in decision.reason
    few, many = (mx.explain(m, 4096, 256, **asked) for m in (64, 4096))
    assert few.tile == (64, 128)
    assert many.tile == (128, 128)
    assert many.workspace_bytes > 2 * 4096 * 256


def staged_rows(m, decision):
    """Returns the rows that are in the workspace, of a product with 4096 columns, in whole tiles.

    Weights are there for many rows; for fewer, they become what tensor cores take as they go.
    """
    tokens, columns = decision.tile
    assert decision.cut.endswith("prepared") == (m == 8192)
    of_weights = -(-4096 // columns) * columns if m == 8192 else 0
    return -(-m // tokens) * tokens + of_weights


@pytest.mark.parametrize("format", E4M3_FORMATS)
@pytest.mark.parametrize("activations", ["fp8", "fp8_block"])
@pytest.mark.parametrize("m", [1, 16, 200, 8192])
def test_fp8_on_both_sides_has_one_kernel_for_any_rows(m, activations, format):
    decision = mx.explain(m, 4096, 4096, device="cuda", activations=activations, format=format)
    assert decision.kernel == "hopper/gemm_ss.mojo"
    assert "rows as they lie" in decision.reason
    assert decision.tile in ((64, 64), (64, 128), (128, 128))
    assert m < 8192 or decision.tile == (128, 128)
    # For floats, which become codes and scales: weights take none.
    assert decision.workspace_bytes == m * (4096 + 4 * 4096 // 128)


@pytest.mark.parametrize("format", ["mxfp6", "mxfp6_e3m2"])
def test_weights_of_six_bits_are_prepared_for_bytes_and_for_many_rows_of_bfloat16(format):
    """Of K that is no multiple of 64, weights stay plain."""
    for m, k in product((1, 16, 127, 128, 200, 8192), (4096, 4128)):
        decisions = {
            left: mx.explain(m, 4096, k, device="cuda", activations=left, format=format)
            for left in ("bf16", "mxfp8", format, "mxint8")
        }
        for left, decision in decisions.items():
            is_fast = k == 4096 and (left in ("mxfp8", format) or (left == "bf16" and m >= 128))
            assert decision.kernel.startswith("hopper/gemm_ss" if is_fast else "simt/"), (m, left)
            if is_fast:
                assert decision.workspace_bytes >= 4096 * k * (2 if left == "bf16" else 1)
            elif k != 4096 or left == "mxint8":
                assert "fast kernels take MXFP4 weights" in decision.reason


@pytest.mark.parametrize("m", [1, 16, 200, 8192])
@pytest.mark.parametrize("format", ["mxfp8", "mxfp4"])
def test_mxfp8_has_it_too_by_weights_of_eight_or_four_bits(m, format):
    decision = mx.explain(m, 4096, 4096, device="cuda", activations="mxfp8", format=format)
    main_loop = "ss" if m == 8192 else "rs_fp8"
    assert decision.kernel == f"hopper/gemm_{main_loop}.mojo"
    assert decision.reason.startswith("MXFP8 or MXFP6 activations: FP8 tensor cores")
    stages = staged_rows(m, decision) * 4096
    # Exponents of both sides, and factors of A in stages, in whole 256 rows.
    small = 2 * (m + 256) + 2 * 4096 + 4 * (m + 256) * 4096 // 128
    assert stages < decision.workspace_bytes < stages + small


@pytest.mark.parametrize(
    "activations, format",
    [("fp8", "mxfp8"), ("bf16", "fp8"), ("fp8_e5m2", "fp8_e5m2"), ("fp8", "fp8_e5m2")],
)
def test_other_fp8_goes_to_the_portable_kernel(activations, format):
    decision = mx.explain(64, 128, 256, device="cuda", activations=activations, format=format)
    assert decision.kernel == "simt/tiles/kernel.mojo" and decision.tile == (64, 128)
    assert "E4M3 with float32 scales, on both sides" in decision.reason


@pytest.mark.parametrize("activations, columns", [("fp8_block", 64), ("fp8", 128)])
def test_a_large_tile_has_half_of_the_columns_where_sums_are_there_twice(activations, columns):
    m, n = 1500, 2500
    decision = mx.explain(m, n, 256, device="cuda", activations=activations, format="mxint8")
    assert decision.tile == (128, columns)
    assert decision.grid == (-(-m // 128) * -(-n // columns), 1, 1)


@pytest.mark.parametrize("n, columns", [(704, 64), (1408, 128), (1409, 64), (4096, 128)])
def test_tiles_are_narrow_where_large_ones_leave_places_of_a_gpu_empty(n, columns):
    """Of 264 places 24 rows of 6 tiles take half, of 11 all, and of 12 take two rounds."""
    decision = mx.explain(3000, n, 4096, device="cuda", activations="fp8", format="mxint8")
    assert decision.tile == (128, columns)


def test_a_product_that_wants_no_workspace_wants_none_whatever_activations_become(found):
    """Of so few rows nobody asks."""
    few = 0
    for shape in (shape for shape in found[cuda_tune.MXFP4] if shape[0] <= MAX_FEW_ROWS):
        rounded, kept = (gpu_plans().explain_cuda((*shape, x, MXFP4)) for x in (MXFP4, KEPT))
        few += 1
        assert rounded["workspace_bytes"] == kept["workspace_bytes"] == 0
        assert "streaming" in kept["kernel"]
    rows = sum(m <= MAX_FEW_ROWS for m in cuda_tune.ROWS)
    assert few == rows * len(cuda_tune.WEIGHTS)


def test_kernels_for_few_rows_want_no_workspace_and_others_do():
    for m, n, k in product((1, 16, 17, 40, 64, 128, 500), (512, 2880, 7168), (512, 2048)):
        decision = mx.explain(m, n, k, device="cuda", activations="mxfp4")
        if "streaming" in decision.kernel:
            assert decision.workspace_bytes == 0
        else:
            assert m > 16
            # Numbers of bfloat16, for a result of float32 if not for this one. It has the plans
            # of NVFP4 weights: others are for bfloat16 activations.
            other = mx.explain(m, n, k, device="cuda", activations="bf16", format="nvfp4")
            is_few = "streaming" in other.kernel
            assert decision.workspace_bytes > (1 if is_few else 2) * m * k
    assert "streaming" in mx.explain(32, 4096, 512, device="cuda", activations="mxfp4").kernel


@pytest.mark.parametrize("plan", ["", _cuda.PORTABLE])
def test_each_product_gets_its_own_plan_and_the_memory_that_it_wants(monkeypatch, plan):
    """Nothing else knows: not the rows, the formats or the layout alone."""
    cuda, asked, calls, freed = _cuda.Cuda(), [], [], []
    cuda.plan = plan

    def plan_for(question):
        asked.append(question)
        return sum(question[:-1]) % 5, sum(question[:-1]) % 3

    stand_ins = {
        "current_device": lambda: -1,
        "_current_stream": lambda index: 5,
        "_allocate": lambda num_bytes, stream: 1000 + num_bytes,
        "_free": freed.append,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(_cuda, name, stand_in)
    native = SimpleNamespace(multiply=calls.append)
    cuda._devices[-1] = _cuda._Device(native, 7, plan_for)
    rows = facts().formats.values()
    for left, right, layout, m, k in product(
        [KEPT_FLOATS, *get_args(RowFormatName)], rows, facts().layouts.values(),
        (1, 8, 9, 300), (32, 256, 288),
    ):  # fmt: skip
        mode = facts().modes[left, "even"]
        call = _products.question((m, 64, k), mode, right, layout)
        cuda.multiply(call, torch.empty(0))
        bfloat16 = facts().dtypes["bfloat16"]
        of_left = mode.kind, bfloat16, k, mode.format
        question = (m, 64, k, *of_left, right.code, layout.code, bfloat16, plan)
        handle, num_bytes = sum(question[:-1]) % 5, sum(question[:-1]) % 3
        assert asked.pop() == question
        assert calls.pop() == (*call, 7, 5, 1000 + num_bytes if num_bytes else 0, handle)
        assert [freed.pop()] == [1000 + num_bytes] if num_bytes else not freed


@pytest.mark.parametrize("named", [True, False])
def test_a_text_that_is_no_plan_is_refused_with_what_is_one(monkeypatch, named):
    """By whoever asks first; the variable is read once, where the process begins."""
    if named:
        monkeypatch.setenv("MX_KERNELS_CUDA_PLAN", "rs_bf16")
    cuda = _cuda.Cuda()
    assert cuda.plan == ("rs_bf16" if named else "")
    cuda.plan = "rs_bf16"

    def plan_for(question):
        raise Exception(f"plan: got '{question[-1]}', expected another")

    cuda._devices[-1] = _cuda._Device(SimpleNamespace(multiply=None), 7, plan_for)
    mode, layout = facts().modes["mxfp4", "even"], facts().layout_for("cuda")
    call = _products.question((9, 64, 32), mode, facts().formats["mxfp4"], layout)
    prefix = "MX_KERNELS_CUDA_PLAN: " if named else ""
    with pytest.raises(ValueError, match=f"^{prefix}plan: got 'rs_bf16', expected another$"):
        cuda.multiply(call, torch.empty(0))

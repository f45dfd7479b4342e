"""Hopper's table of choices: which kernel and plan a shape gets, asked without a GPU.

`bench/results/cuda_tune.csv` has what every plan took on the device.
"""

from math import log2

import pytest

import mx_kernels as mx
from bench import cuda_tune
from mx_kernels._facts import facts

MXFP4, KEPT = 0, -1
MAX_BEHIND = 1.1
"""A choice takes at most this times what the fastest plan takes."""


@pytest.fixture(scope="module")
def found():
    return cuda_tune.read()


def code(row):
    """Returns the code of a plan, see `hopper/plan.mojo`."""
    tokens, columns, ranks = row["tile_m"], row["tile_n"], row["splits"]
    if "fp8" in row["kernel"]:
        return cuda_tune.BYTES
    if "many" in row["kernel"]:
        return cuda_tune.MANY
    if "middle" in row["kernel"]:
        return cuda_tune.MIDDLE + 256 * tokens + ranks
    return 32 * tokens + columns // 2 + ranks


@pytest.mark.parametrize("activations", [MXFP4, KEPT])
def test_no_choice_is_a_tenth_behind_the_fastest_plan_that_was_measured(found, activations):
    explain, takes_bytes = facts().native.explain_cuda, activations == MXFP4
    assert len(found) > 700
    for shape, times in found.items():
        chosen = times[code(explain((*shape, activations, MXFP4)))]
        fastest = times[cuda_tune.fastest(times, takes_bytes=takes_bytes)]
        assert chosen <= MAX_BEHIND * fastest, shape


def test_the_table_is_what_the_measurement_makes_of_it():
    assert cuda_tune.table(cuda_tune.RESULT) == cuda_tune.TABLE.read_text()


def test_weights_left_out_of_the_table_lose_a_tenth_on_average(found):
    loss = []
    for (m, n, k), times in found.items():
        others = [weight for weight in cuda_tune.WEIGHTS if weight != (n, k)]
        nearest = min(others, key=lambda w: abs(log2(n / w[0])) + abs(log2(k / w[1])))
        plan = cuda_tune.fastest(found[cuda_tune.nearest_rows(m, nearest, found)], takes_bytes=True)
        if plan in times:
            loss.append(times[plan] / times[cuda_tune.fastest(times, takes_bytes=True)])
    assert len(loss) > 0.9 * len(found)
    assert sum(loss) / len(loss) < MAX_BEHIND


@pytest.mark.parametrize(
    "shape, kernel",
    [((1, 4096, 4096), "few"), ((64, 7168, 2048), "middle"), ((8192, 8192, 8192), "fp8")],
)
def test_the_kernel_follows_the_rows_and_the_reason_names_what_was_measured(shape, kernel):
    decision = mx.explain(*shape, device="cuda")
    assert decision.kernel == f"hopper/{kernel}/kernel.mojo"
    assert decision.reason.startswith("the fastest plan measured for ")
    assert decision.reason in str(decision)


def test_activations_that_stay_bfloat16_have_no_bytes():
    decision = mx.explain(8192, 8192, 8192, device="cuda", activations="bf16")
    assert decision.kernel == "hopper/many/kernel.mojo"


@pytest.mark.parametrize("activations, format", [("mxfp8", "mxfp4"), ("bf16", "mxfp8")])
def test_other_formats_go_to_the_portable_kernel_and_it_says_why(activations, format):
    decision = mx.explain(64, 128, 256, device="cuda", activations=activations, format=format)
    assert decision.kernel == "simt/matmul.mojo"
    assert "fast kernels take MXFP4 weights" in decision.reason


def test_few_rows_want_no_workspace_and_more_do():
    assert mx.explain(16, 4096, 4096, device="cuda").workspace_bytes == 0
    assert mx.explain(17, 4096, 4096, device="cuda").workspace_bytes > 17 * 4096 * 2

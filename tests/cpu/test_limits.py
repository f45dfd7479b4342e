"""How many rows the CPU's kernels take at once: no bit depends on it, and no time is far off."""

import statistics

import pytest
import torch

import mx_kernels as mx
from bench.targets.cpu_limits import (
    ALL,
    KERNELS,
    ROWS,
    Limits,
    LimitsRow,
    best,
    limits,
    timed,
    told,
)
from tests.tiers import deep

MOST_BEHIND = 1.10
TRIES = 3
"""Of a time that another program disturbs."""


@pytest.fixture
def kept():
    """Leaves the limits as they were."""
    before = {kernel: limits(kernel) for kernel in KERNELS}
    yield
    for kernel, found in before.items():
        limits(kernel, found)


@pytest.mark.parametrize("activations", ["mxint8", "mxint16", "mxfp4", "bf16", "mxfp8"])
@pytest.mark.parametrize("weights", ["mxfp4", "mxint8", "nvfp4"])
def test_limits_change_no_bits(kept, activations, weights):
    torch.manual_seed(0)
    w = mx.quantize(torch.randn(50, 544), format=weights)
    most = {kernel: limits(kernel) for kernel in KERNELS}
    for m in (1, 5, 17, 40):
        x = torch.randn(m, 544)
        for layout in (w, w.preshuffle()):
            expected = mx.linear(x, layout, activations=activations)
            assert expected.any()
            for kernel, largest in most.items():
                for new in (
                    Limits(1, 0, ALL, 1), Limits(1, ALL, 0, 1), Limits(2, 16, 5, 3),
                    Limits(largest.in_registers, ALL, ALL, largest.decoded),
                    Limits(largest.in_registers, 0, 0, largest.decoded),
                ):  # fmt: skip
                    limits(kernel, new)
                    got = mx.linear(x, layout, activations=activations)
                    assert torch.equal(got, expected), (m, kernel, new)
                limits(kernel, largest)


@pytest.mark.parametrize("new", [(0, 1, 1, 1), (1, 1, 1, 0), (15, 1, 1, 1), (1, 1, 1, 9)])
def test_groups_that_no_kernel_is_compiled_for_are_refused(kept, new):
    before = limits("floats")
    with pytest.raises(Exception, match=r"limits: got groups of .* expected 1 to"):
        limits("floats", Limits(*new))
    assert limits("floats") == before


def test_the_best_limits_have_the_least_times():
    """Groups of 12 in registers are best up to 16 rows of four bits and 5 of eight, else 5."""

    def us(weights, m, form, size):
        is_better = (form == "in registers") == (m <= (16 if weights == "mxfp4" else 5))
        return (1.0 if is_better else 1.3) * (1 + abs(size - (12 if form == "in registers" else 5)))

    origin = {"level": "", "device": "", "commit": "", "date": "", "is_chosen": False}
    rows = [
        LimitsRow(kernel="bytes", weights=weights, m=m, form=form, size=size,
                  time_us_median=us(weights, m, form, size), **origin)
        for weights in ("mxfp4", "mxint8") for m in ROWS
        for form, sizes in (("in registers", (12, 11, 10)), ("decoded", (6, 5, 4)))
        for size in sizes
    ]  # fmt: skip
    assert best(rows, "bytes") == (12, 16, 5, 5)


@deep
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("weights", ["mxfp4", "mxint8"])
def test_no_choice_of_the_table_is_far_behind_the_best(kernel, weights):
    """Paired with the best of the same round, so that a slow round counts for neither."""
    if not told(kernel)["are_measured"]:
        pytest.skip("this processor is not in the table of mojo_kernels/cpu/limits.mojo")
    torch.set_num_threads(1)
    behind = {}
    for m in (8, 16, 24, 36, 37, 64, 128):
        for _ in range(TRIES):
            found = timed(kernel, weights, m, 0.5)
            now = found[limits(kernel).form(weights, m)].samples_s
            behind[m] = max(
                statistics.median(a / b for a, b in zip(now, other.samples_s, strict=True))
                for other in found.values()
            )
            if behind[m] <= MOST_BEHIND:
                break
    assert max(behind.values()) <= MOST_BEHIND, behind

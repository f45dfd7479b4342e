"""The benchmark of experts measures the layer it says, and finds who is behind."""

from __future__ import annotations

import pytest
import torch

from bench import experts, targets
from bench.rows import OURS, Row, read_csv
from tests.bench.commands import run_bench

ORIGIN = {"device": "a CPU, AVX2, 2 cores", "commit": "abc1234", "date": "2026-11-22"}


def make_row(system: str, us: float, ours_us: float = 100.0, m: int = 1) -> Row:
    return Row(
        op="moe mxint8", m=m, n=2880, k=2880, system=system, computes="", threads=2,
        time_us_median=us, time_us_best=us, rate=1.0, rate_unit="GOP/s",
        times_ours=us / ours_us, times_roofline=None, **ORIGIN,
    )  # fmt: skip


def goals(*peers: Row, m: int = 1) -> dict[str, bool]:
    rows = [make_row(OURS, 100.0, m=m), *peers]
    return {goal.text.partition(": ")[2]: goal.reached for goal in experts.check_goals(rows)}


def test_a_faster_peer_is_a_goal_missed():
    slow, fast = make_row(experts.LLAMA_CPP, 101.0), make_row(experts.LLAMA_CPP, 99.0)
    assert goals(slow) == {f"times faster than {experts.LLAMA_CPP}": True}
    assert goals(fast) == {f"times faster than {experts.LLAMA_CPP}": False}


@pytest.mark.parametrize(("read_us", "reached"), [(70.0, True), (60.0, False)])
def test_one_token_is_held_to_one_read_of_its_weights(read_us, reached):
    found = goals(make_row(experts.READ, read_us))
    assert found == {f"times as long as {experts.READ}": reached}
    assert goals(make_row(experts.READ, read_us, m=4), m=4) == {}


def test_a_loop_of_products_computes_the_same_layer():
    layer = experts.Layer(experts.SMALL)
    x, routings = layer.tokens(5), layer.routings(5)
    for routing in routings:
        looped = layer.looped(x, *routing, "bf16").float()
        whole = layer.ours(x, *routing, "bf16").float()
        # The loop rounds the hidden numbers' parts to bfloat16.
        assert torch.linalg.norm(looped - whole) <= 2**-6 * torch.linalg.norm(whole)


def test_routings_differ_and_are_valid():
    layer = experts.Layer(experts.SMALL)
    routings = layer.routings(3)
    assert len({tuple(ids.flatten().tolist()) for ids, _ in routings}) > 1
    for ids, weights in routings:
        assert ids.shape == weights.shape == (3, experts.SMALL.active)
        assert 0 <= ids.min() <= ids.max() < experts.SMALL.experts
        assert all(len(set(row)) == len(row) for row in ids.tolist())


@pytest.mark.deep
def test_a_quick_run_measures_every_mode_and_peer(tmp_path):
    run_bench("--target", targets.EXPERTS, "--quick", "--threads", "1", "--results", str(tmp_path))
    rows = read_csv(tmp_path / f"{targets.EXPERTS}.csv", Row)
    assert {row.op for row in rows} == set(experts.MODES)
    assert {experts.LOOP, experts.READ, experts.TRANSFORMERS, OURS} <= {r.system for r in rows}
    assert {row.m for row in rows} == set(experts.QUICK_TOKENS)
    assert all(row.time_us_median > 0 for row in rows)

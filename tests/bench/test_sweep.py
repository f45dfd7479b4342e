"""A sweep finds the steps that are there, and none that are not."""

from __future__ import annotations

import pytest

from bench import run, sweep, targets
from bench.goals import BF16_PEAK, INT8_PEAK
from bench.rows import OURS, Row, read_csv
from bench.targets import cpu_sweep
from tests.bench.commands import run_bench

ORIGIN = {"device": "a CPU, AVX2, 2 cores", "commit": "abc1234", "date": "2026-11-22"}
N, K = 2880, 2880


def make_peak(system: str = INT8_PEAK, rate: float = 1000.0, threads: int = 1) -> Row:
    return Row(
        op="machine", m=0, n=0, k=0, system=system, computes="", threads=threads,
        time_us_median=None, time_us_best=None, rate=rate, rate_unit="GOP/s", times_ours=None,
        times_roofline=None, **ORIGIN,
    )  # fmt: skip


def make_curve(us_of_a_row, op="linear mxint8", rows=20, **changes) -> list[Row]:
    """Returns points of a curve from the time of each row among M rows."""
    return [
        Row(
            op=op, m=m, system=OURS, computes="",
            time_us_median=m * us_of_a_row(m) * 1.1, time_us_best=m * us_of_a_row(m),
            rate=2 * N * K / us_of_a_row(m) / 1e3, rate_unit="GOP/s", times_ours=1.0,
            times_roofline=None, **{"n": N, "k": K, "threads": 1, **ORIGIN, **changes},
        )
        for m in range(1, rows + 1)
    ]  # fmt: skip


def summary(*curves: list[Row], **changes) -> sweep.SweepRow:
    (found,) = sweep.summarize([make_peak(**changes), *(row for rows in curves for row in rows)])
    return found


def test_a_flat_curve_has_neither_rise_nor_step():
    found = summary(make_curve(lambda m: 20.0))
    assert (found.rise, found.step) == (pytest.approx(1), pytest.approx(1))
    assert found.rate == pytest.approx(2 * N * K / 20e3)
    assert found.share == pytest.approx(found.rate / 1000)


def test_a_switch_of_kernels_is_a_step_and_a_rise():
    found = summary(make_curve(lambda m: 28.0 if m < 7 else 38.0))
    assert (found.step, found.step_rows) == (pytest.approx(38 / 28), 6)
    assert (found.rise, found.rise_rows) == (pytest.approx(38 / 28), 7)


def test_a_slow_climb_is_a_rise_and_no_step():
    found = summary(make_curve(lambda m: 20.0 + m))
    assert (found.rise, found.rise_rows) == (pytest.approx(40 / 21), 20)
    assert found.step == pytest.approx(22 / 21)


def test_only_many_rows_are_compared_with_the_peak():
    found = summary(make_curve(lambda m: 100.0 if m < 16 else 20.0 + (m == 18)))
    assert found.rate_rows == 18
    assert found.rate == pytest.approx(2 * N * K / 21e3)


def test_each_mode_has_the_peak_of_its_dot_product():
    rows = [make_peak(rate=1000.0), make_peak(BF16_PEAK, rate=500.0)]
    for op in sweep.ACTIVATIONS:
        rows += make_curve(lambda m: 20.0, op=op)
    shares = {row.op: row.rate / row.share for row in sweep.summarize(rows)}
    assert shares == pytest.approx({"linear": 1000, "linear mxint8": 1000, "linear bf16": 500})
    with pytest.raises(ValueError, match="int8 dot product: no row, expected one for 1 threads"):
        sweep.summarize(rows[1:])


def test_a_goal_is_that_of_the_worst_size():
    rows = [make_peak(), *make_curve(lambda m: 20.0), *make_curve(lambda m: 22.0 + m // 9, n=4096)]
    found = {goal.text: goal.reached for goal in sweep.check_goals(sweep.summarize(rows))}
    assert found == {
        "linear mxint8: worst rise of a row's time (4096 x 2880, 18 rows)": False,
        "linear mxint8: worst step (4096 x 2880, 8 to 9 rows)": True,
        "linear mxint8: share of the int8 dot product's peak from 16 rows on "
        "(4096 x 2880, 18 rows)": True,
    }


@pytest.mark.parametrize("threads, reached", [(1, True), (2, False)])
def test_zen_5_has_a_rate_to_reach_instead_of_a_share(threads, reached):
    changes = {"device": "AMD EPYC (family 26 model 2), 2 cores", "threads": threads}
    rows = [make_peak(rate=1e6, threads=threads), *make_curve(lambda m: 20.0, **changes)]
    *_, goal = sweep.check_goals(sweep.summarize(rows))
    assert "GOP/s a thread" in goal.text
    assert (goal.measured, goal.reached) == (pytest.approx(2 * N * K / 20e3 / threads), reached)


def test_a_sweep_is_drawn_and_kept_without_its_points(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "TRIAL_RESULTS", tmp_path / "build")
    rows = [make_peak(), make_peak(BF16_PEAK), *make_curve(lambda m: 20.0)]
    rows += make_curve(lambda m: 19.0, op="linear")
    written = run.save_sweep(rows, targets.SWEEP, tmp_path / "kept")
    points = read_csv(tmp_path / "build" / "cpu-sweep-points.csv", Row)
    assert [row.rate for row in points] == pytest.approx([row.rate for row in rows], rel=1e-5)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "cpu-sweep.csv", "cpu-sweep.md", "cpu-sweep.png",
    ]  # fmt: skip
    assert len(read_csv(tmp_path / "kept" / "cpu-sweep.csv", sweep.SweepRow)) == 2
    assert "| 2880 x 2880 | mxint8 | 1 | 1.000" in (tmp_path / "kept" / "cpu-sweep.md").read_text()
    assert all(path.exists() for path in written)


def test_a_sweep_needs_no_encoder_to_be_complete():
    plans = run.make_plans(targets.SWEEP, "", "", model=True, quick=False)
    assert not any(plan.model for plan in plans)
    assert run.is_complete(plans)
    assert not run.is_complete(run.make_plans(targets.SWEEP, "1", "", model=True, quick=True))


@pytest.mark.deep
def test_the_quick_sweep_measures_every_mode_and_number_of_rows(tmp_path):
    run_bench("--target", "cpu-sweep", "--quick", "--threads", "1", "--results", str(tmp_path))
    rows = read_csv(tmp_path / "cpu-sweep.csv", sweep.SweepRow)
    assert [(row.op, row.n, row.k) for row in rows] == [
        (op, *size) for size in cpu_sweep.QUICK_SIZES for op in sweep.ACTIVATIONS
    ]
    assert all(row.rise > 0 and row.step > 0 and row.share > 0 for row in rows)
    points = read_csv(run.TRIAL_RESULTS / "cpu-sweep-points.csv", Row)
    numbers = {(row.op, row.n, row.m) for row in points if row.op != "machine"}
    assert len(numbers) == 2 * 3 * cpu_sweep.QUICK_MAX_ROWS

"""The benchmark's own claims: what it times, what it keeps, what it refuses."""

from __future__ import annotations

import dataclasses
import itertools
import os

import pytest
import torch
from typer.testing import CliRunner

from bench import device, goals, plot, report, roofline, run, targets, timing, worker
from bench.peers import LIKE_FLOAT, LIKE_INT8, Prepared, check, torch_low_bit, torch_peers
from bench.problem import Problem
from bench.rows import OURS, ModelRow, Row, read_csv, write_csv
from bench.shapes import QUICK_SHAPES, Shape
from bench.timing import Competitor, Timing
from tests.bench.commands import run_bench

ORIGIN = {"device": "a CPU, AVX2, 2 cores", "commit": "abc1234", "date": "2026-11-21"}


def make_row(**changes) -> Row:
    row = Row(
        op="linear", m=64, n=7168, k=2048, system=OURS, computes="MXFP4", threads=1,
        time_us_median=100.0, time_us_best=90.0, rate=18.8, rate_unit="GOP/s",
        times_ours=1.0, times_roofline=1.25, error_own_weights=0.112, error_float_weights=0.158,
        **ORIGIN,
    )  # fmt: skip
    return dataclasses.replace(row, **changes)


def make_mxint8_row(**changes) -> Row:
    errors = {"error_own_weights": 0.0088, "error_float_weights": 0.112}
    return make_row(**{"op": "linear mxint8", **errors, **changes})


def make_model_row(**changes) -> ModelRow:
    row = ModelRow(
        variant="W4A4", threads=2, sentences=300, cosine_mean=0.93, cosine_worst=0.87,
        top1_agreement=0.7, top5_overlap=0.8, linear_weight_bytes=5_640_000,
        model_bytes=53_400_000, sentences_per_s=361.5, **ORIGIN,
    )  # fmt: skip
    return dataclasses.replace(row, **changes)


class FakeTime:
    """A clock that only competitors move, and a diary of who did."""

    def __init__(self, seconds: dict[str, list[float]]):
        self.now, self.diary = 0.0, []
        self.competitors = [Competitor(name, self.call(name, of)) for name, of in seconds.items()]

    def call(self, name: str, seconds: list[float]):
        def spend():
            self.now += seconds[len([who for who in self.diary if who == name]) % len(seconds)]
            self.diary.append(name)

        return spend

    def interleave(self, **arguments) -> dict[str, Timing]:
        return timing.interleave(self.competitors, clock=lambda: self.now, **arguments)


def test_every_competitor_gets_its_own_time():
    found = FakeTime({"slow": [3.0], "fast": [0.25]}).interleave(budget_s=0)
    assert found["slow"].median_us == pytest.approx(3e6)
    assert found["fast"].median_us == pytest.approx(0.25e6)


def test_competitors_take_turns_and_the_first_of_a_round_changes():
    time = FakeTime({"a": [1.0], "b": [1.0], "c": [1.0]})
    time.interleave(budget_s=0, min_rounds=3)
    calibration, turns = time.diary[:6], time.diary[6:]
    assert sorted(calibration) == ["a", "a", "b", "b", "c", "c"]
    # One warm-up and one timed call a turn.
    assert turns == [who for turn in "abcbcacab" for who in (turn, turn)]


def test_a_burst_fills_its_span_so_that_a_clock_tick_does_not_matter():
    time = FakeTime({"tiny": [timing.BURST_S / 64]})
    time.interleave(budget_s=0, min_rounds=1)
    warm_up = round(timing.WARM_UP_S / (timing.BURST_S / 64) + 0.5)
    assert len(time.diary) == 2 + warm_up + 64


def test_rounds_end_with_the_budget_but_never_before_the_least():
    assert len(FakeTime({"a": [1.0]}).interleave(budget_s=0)["a"].samples_s) == timing.MIN_ROUNDS
    assert len(FakeTime({"a": [1.0]}).interleave(budget_s=40)["a"].samples_s) == 20
    rounds = len(FakeTime({"a": [1.0]}).interleave(budget_s=1e9)["a"].samples_s)
    assert rounds == timing.MAX_ROUNDS


def test_the_median_ignores_a_disturbed_round():
    assert Timing((1e-6, 1e-6, 900e-6)).median_us == pytest.approx(1.0)
    assert Timing((3e-6, 1e-6, 2e-6)).best_us == pytest.approx(1.0)


def test_two_competitors_of_one_name_are_refused():
    with pytest.raises(ValueError, match="distinct names"):
        timing.interleave([Competitor("a", int), Competitor("a", int)], budget_s=0)


def test_the_roofline_is_the_slower_of_memory_and_arithmetic():
    limits = roofline.Roofline(1e12, 1e11, 1e11, 1e10, 1e10, _bandwidth_at={1000: 1e9})
    assert limits.least_us(num_bytes=1000) == pytest.approx(1.0)
    assert limits.least_us(num_bytes=1000, int8_ops=5_000_000) == pytest.approx(5.0)
    assert limits.least_us(num_bytes=1000, bf16_ops=5_000_000) == pytest.approx(50.0)


def test_rows_survive_the_csv_file(tmp_path):
    machine = make_row(
        op="machine", time_us_median=None, time_us_best=None, times_ours=None, times_roofline=None
    )
    rows = [make_row(), machine, make_row(system="torch, quoted", threads=2)]
    write_csv(tmp_path / "new" / "cpu.csv", rows)
    assert read_csv(tmp_path / "new" / "cpu.csv", Row) == rows


def test_model_rows_survive_the_csv_file(tmp_path):
    rows = [make_model_row(), make_model_row(variant="float32", cosine_worst=1.0)]
    write_csv(tmp_path / "model.csv", rows)
    assert read_csv(tmp_path / "model.csv", ModelRow) == rows


def test_an_empty_result_is_no_file(tmp_path):
    with pytest.raises(ValueError, match="no rows"):
        write_csv(tmp_path / "cpu.csv", [])


def test_a_page_keeps_everything_outside_the_markers(tmp_path):
    page = tmp_path / "cpu.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    for _ in range(2):
        report.update_page(page, "| new |")
        assert page.read_text() == f"before\n{report.BEGIN}\n| new |\n{report.END}\nafter\n"


@pytest.mark.parametrize(
    "text",
    [
        "no markers",
        f"{report.BEGIN} only the first",
        f"{report.END} {report.BEGIN}",
        f"{report.BEGIN} {report.BEGIN} {report.END}",
    ],
)
def test_a_page_without_a_clear_place_is_refused_and_left_alone(tmp_path, text):
    page = tmp_path / "cpu.md"
    page.write_text(text)
    with pytest.raises(ValueError, match="once each"):
        report.update_page(page, "| new |")
    assert page.read_text() == text


@pytest.mark.parametrize("render", [report.page_text, report.full_text])
def test_a_report_states_times_ratios_and_origin(render):
    ours, peer = make_mxint8_row(), make_mxint8_row(system="MAX Q4_0", times_ours=2.5)
    peer = dataclasses.replace(peer, time_us_median=250.0, error_own_weights=0.005)
    text = render([make_row(time_us_median=96.0), ours, peer], [make_model_row()])
    assert "| M x N x K | linear mxint8, us | GOP/s | x roofline | mxfp4 | MAX Q4_0 |" in text
    assert "| error, dequantized weights | 0.88% |  |  | 11.20% | 0.50% |" in text
    assert "| 64 x 7168 x 2048 | 100 | 18.8 | 1.25 | 96.0 (0.96) | 250 (2.50) |" in text
    assert "| W4A4 | 0.9300 | 0.8700 | 70.0% | 80.0% | 5.64 | 53.4 | 362 |" in text
    assert all(fact in text for fact in ORIGIN.values())


def test_an_error_is_the_worst_over_the_shapes():
    rows = [make_mxint8_row(), make_mxint8_row(m=1, error_own_weights=0.0095)]
    (table,) = report.operation_tables(rows)
    assert [line[:2] for line in table.rows[:2]] == [
        ["error, dequantized weights", "0.95%"], ["error, float weights", "11.20%"],
    ]  # fmt: skip


def test_a_page_keeps_to_modes_with_peers_and_the_full_report_has_every_operation():
    rows = [make_row(op=op) for op in targets.OPS]
    for op in targets.OPS:
        assert f"| {op}, us" in report.full_text(rows, [])
    short = report.page_text(rows, [])
    assert "| linear mxint8, us" in short and "| linear bf16, us" in short
    assert "| quantize, us" not in short and "| linear, us" not in short


def test_a_terminal_gets_one_line_a_product_with_the_peer_that_comes_nearest():
    rows = [
        make_mxint8_row(),
        *(make_mxint8_row(system=f"peer {t}", times_ours=t) for t in (2.5, 0.9, 1.0)),
        make_mxint8_row(threads=2, system="peer of two threads", times_ours=0.1),
        make_row(op="quantize", n=0, m=1, rate_unit="GB/s", error_own_weights=None),
        make_row(op="machine"),
    ]
    first = ["linear mxint8 64 x 7168 x 2048", "1", "100", "18.8 GOP/s", "1.25", "0.88%"]
    second = ["quantize 1 x 2048", "1", "100", "18.8 GB/s", "1.25", ""]
    assert report.nearest_table(rows).rows == [
        [*first, "0.90", "peer 0.9", "0.88%", "2 of 3"],
        [*second, "", "", "", ""],
    ]


def test_goals_that_are_missed_are_shown_and_the_others_counted():
    kept, missed = goals.Goal("a", 1, 1.0, 1.0), goals.Goal("b", 2, 0.5, 1.0)
    table = report.goal_table([kept, missed], goals.MADE_ON)
    assert table.title == f"Goals, made on {goals.MADE_ON}: 1 of 2 reached; missed:"
    assert table.rows == [["b", "2", "0.50", ">= 1"]]
    assert report.goal_table([kept]).title == "Goals: 1 of 1 reached"


def test_a_large_rate_is_written_out():
    (table,) = report.operation_tables([make_row(rate=1432.1)])
    assert table.rows[-1][2] == "1432"


def test_every_markdown_row_has_as_many_cells_as_its_heading():
    rows = [make_row(), make_row(m=1, system=OURS), make_row(system="MAX Q4_0", times_ours=2.0)]
    for table in report.operation_tables(rows):
        assert {len(line) for line in table.rows} == {len(table.headings)}


def test_goals_compare_with_what_the_shape_asks_for():
    small, one = {"m": 4, "n": 2880, "k": 512}, {"m": 1, "n": 4096, "k": 4096}
    bf16 = {"op": "linear bf16"}
    rows = [
        make_mxint8_row(**small),
        make_mxint8_row(**small, system="MAX Q4_0", times_ours=1.4),
        make_mxint8_row(**one, times_roofline=1.5),
        make_mxint8_row(),
        make_mxint8_row(system="MAX Q4_0", times_ours=1.1),
        make_mxint8_row(system="torch int8", times_ours=0.9),
        make_row(**bf16),
        make_row(**bf16, system="torch bf16", times_ours=0.98),
        make_row(**bf16, **one),
        make_row(**bf16, **one, system="torch bf16", times_ours=3.9),
    ]
    reached = {
        goal.text: goal.reached for goal in goals.check_goals(rows) if "error" not in goal.text
    }
    assert reached == {
        "linear mxint8 4 x 2880 x 512: times faster than MAX Q4_0": False,
        "linear mxint8 1 x 4096 x 4096: times the memory roofline": False,
        "linear mxint8 64 x 7168 x 2048: times faster than MAX Q4_0": True,
        "linear mxint8 64 x 7168 x 2048: times faster than torch int8": False,
        "linear bf16 64 x 7168 x 2048: times faster than torch bf16": True,
        "linear bf16 1 x 4096 x 4096: times faster than torch bf16": False,
    }


@pytest.mark.parametrize("error, time_us, reached", [(0.0099, 107, True), (0.011, 109, False)])
def test_mxint8_is_exact_and_as_fast_as_mxfp4(error, time_us, reached):
    rows = [make_row(), make_mxint8_row(error_own_weights=error, time_us_median=time_us)]
    found = {goal.text.partition(": ")[2]: goal.reached for goal in goals.check_goals(rows)}
    assert found == {
        "error against its weights, %": reached, "times as long as MXFP4 activations": reached,
    }  # fmt: skip


@pytest.mark.parametrize("error, reached", [(0.113, True), (0.087, False)])
def test_a_better_format_of_weights_shows_in_the_goals(error, reached):
    rows = [make_mxint8_row(), make_mxint8_row(system="MAX Q4_0", error_float_weights=error)]
    (goal,) = (goal for goal in goals.check_goals(rows) if "float weights" in goal.text)
    assert (goal.measured, goal.reached) == (pytest.approx(100 * (0.112 - error)), reached)


@pytest.mark.parametrize("m, shares", [(16, {"linear": 0.6, "linear mxint8": 0.5}), (15, {})])
def test_many_rows_reach_a_share_of_the_measured_peak(m, shares):
    peak = make_row(op="machine", m=0, n=0, k=0, system=goals.INT8_PEAK, rate=1000.0)
    rows = [peak, make_row(m=m, rate=600.0), make_mxint8_row(m=m, rate=500.0)]
    found = [goal for goal in goals.check_goals(rows) if "peak" in goal.text]
    assert {goal.text.partition(f" {m} ")[0]: goal.measured for goal in found} == shares
    assert [goal.reached for goal in found] == [share >= 0.6 for share in shares.values()]


def test_goals_compare_thread_counts():
    floats = {"op": "linear bf16", "system": "torch f32", "times_ours": 9.0}
    rows = [
        make_row(time_us_median=100.0),
        make_row(time_us_median=50.0, threads=2, times_one_thread=1.9),
        make_row(m=4, threads=2, times_one_thread=0.91),
        make_row(**floats, time_us_median=900.0),
        make_row(**floats, time_us_median=300.0, threads=2),
    ]
    found = {goal.text: goal for goal in goals.check_goals(rows)}
    slower = found["linear: times as fast as one thread, at least (4 x 7168 x 2048)"]
    assert (slower.measured, slower.reached) == (0.91, False)
    ratio = found["linear 64 x 7168 x 2048: speed-up over that of torch f32"].measured
    assert ratio == pytest.approx(2 / 3)


def test_the_encoder_is_compared_with_four_bits_and_with_floats():
    rows = [
        make_model_row(),
        make_model_row(variant="W4A8 mxint8", sentences_per_s=350.0, cosine_mean=0.9625),
        make_model_row(variant="W4 only", cosine_mean=0.963),
    ]
    share, cosine = goals.check_model_goals(rows)
    assert (share.measured, share.reached) == (pytest.approx(350 / 361.5), True)
    assert (cosine.measured, cosine.reached) == (pytest.approx(-0.0005), True)


def test_a_picture_is_drawn_only_of_linear(tmp_path):
    picture = tmp_path / "cpu.png"
    quantizer = make_row(op="quantize", system="llama.cpp MXFP4", times_ours=9.0)
    assert not plot.plot_linear([make_row(), quantizer], picture)
    assert not picture.exists()
    assert plot.plot_linear([make_row(), make_row(system="torch f32", times_ours=9.0)], picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_device_is_named_with_its_level_and_cores(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: A CPU\nflags\t\t: sse avx2 avx_vnni\n\nmodel name\t: B\n")
    assert device.describe_cpu(cpuinfo, cores=8) == "A CPU, AVX-VNNI, 8 cores"


def test_outside_a_checkout_the_commit_is_unknown(tmp_path):
    assert device.describe_commit(tmp_path) == "unknown"


@pytest.fixture(scope="module")
def small_problem() -> Problem:
    return Problem(Shape(3, 64, 96))


MOST_ERROR = {LIKE_INT8: 0.01, LIKE_FLOAT: 0.003}
"""With a peer's own weights: what rounding to eight bits, or to bfloat16, costs."""


@pytest.mark.parametrize(
    "peer",
    [*torch_peers.PEERS, *torch_low_bit.PEERS, torch_peers.int8_peer(seven_bits=True)],
    ids=lambda peer: f"{peer.name}, {peer.computes}",
)
def test_the_torch_peers_are_as_exact_as_the_mode_they_compare_with_or_say_so(peer, small_problem):
    prepared = peer.prepare(small_problem)
    prepared.call()
    errors = check(peer.name, prepared, small_problem)
    most = MOST_ERROR[peer.like]
    assert errors.own_weights < (2 * most if torch_peers.SEVEN_BITS in peer.computes else most)
    assert errors.own_weights <= errors.float_weights < 0.1


def test_errors_are_those_of_the_arithmetic_and_of_the_weights(small_problem):
    weights = 1.25 * small_problem.weight
    off = 1.5 * small_problem.reference
    assert small_problem.errors(off, weights) == pytest.approx((0.2, 0.5), rel=1e-5)


def test_a_peer_that_computes_something_else_is_refused(small_problem):
    def check_product(got: torch.Tensor):
        check(
            "wrong",
            Prepared(lambda: None, lambda: got, lambda: small_problem.weight),
            small_problem,
        )

    with pytest.raises(RuntimeError, match=r"wrong does not compute x @ w.T at 3 x 64 x 96"):
        check_product(small_problem.reference.roll(1, dims=1))
    with pytest.raises(RuntimeError, match="relative error nan"):
        check_product(small_problem.reference * torch.nan)


def test_q4_0_bytes_decode_to_the_nearest_weights(small_problem):
    blocks = torch.from_numpy(small_problem.weight_q4.to_gguf()).view(64, 3, 18)
    scales = blocks[..., :2].contiguous().view(torch.float16).float()
    codes = torch.cat([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], dim=-1)
    values = ((codes.float() - 8) * scales).flatten(1)
    assert torch.equal(values, small_problem.weight_q4.dequantize())
    error = values - small_problem.weight
    # Half a step inside the range, a whole one where the positive end clips at 7.
    assert (error.view(64, 3, 32).abs() <= scales.abs() * 1.001).all()
    assert error.square().mean().sqrt() < 0.5 * scales.abs().mean()


def test_a_plan_reaches_the_worker_unchanged():
    plan = run.make_plans("cpu", "1", "linear", model=False, quick=True)[0]
    assert worker.plan_from_json(worker.plan_to_json(plan)) == plan


def test_thread_counts_are_ascending_and_default_to_two_at_most():
    assert run.parse_threads("2,1,2", cores=4) == (1, 2)
    assert run.parse_threads("", cores=1) == (1,)
    assert run.parse_threads("", cores=16) == (1, 2)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--target", "abacus"], "unknown target 'abacus', expected one of: cpu"),
        (["--threads", "0"], "threads: got '0', expected 1 to"),
        (["--threads", "two"], "threads: got 'two', expected numbers"),
        (["--only", "linear,sort"], "expected some of quantize, quantize mxfp8,"),
        (["--quick", "--record"], "--record takes a complete run"),
        (["--record", "--results", "there"], "--record says where results go"),
        (["--target", "gfx950", "--quick", "--record"], "--record takes a complete run"),
    ],
)
def test_a_wrong_command_says_what_is_expected(arguments, sentence):
    outcome = CliRunner().invoke(run.app, arguments, env={"COLUMNS": "200"})
    assert outcome.exit_code == 2
    assert sentence in " ".join(outcome.output.replace("│", " ").split())


@pytest.mark.parametrize("options", [[], ["--record"]], ids=["trial", "recorded"])
def test_only_recording_touches_tracked_files(options, tmp_path, monkeypatch):
    kept, trial, page = (tmp_path / name for name in ("kept", "trial", "cpu.md"))
    page.write_text(f"{report.BEGIN}\nold\n{report.END}\n")
    for name, path in (("RESULTS", kept), ("TRIAL_RESULTS", trial), ("PAGES", tmp_path)):
        monkeypatch.setattr(run, name, path)
    monkeypatch.setattr(run, "worker_events", lambda _: [("row", dataclasses.asdict(make_row()))])
    outcome = CliRunner().invoke(run.app, options)
    assert outcome.exit_code == 0, outcome.output
    written, other = (kept, trial) if options else (trial, kept)
    assert (written / "cpu.csv").exists() and not other.exists()
    assert ("old" in page.read_text()) == (not options)


def test_a_failing_worker_fails_the_run():
    plan = run.make_plans("cpu", "1", "", model=False, quick=True)[0]
    broken = dataclasses.replace(plan, target="abacus")
    with pytest.raises(RuntimeError, match="worker for abacus, 1 thread failed"):
        list(run.worker_events(broken))


def test_an_unknown_target_is_not_imported():
    with pytest.raises(ValueError, match="unknown target 'abacus'"):
        targets.load("abacus")


def make_gpu_rows(times: dict[str, float], op="linear", **changes) -> list[Row]:
    ours_us = times[OURS]
    return [
        make_row(op=op, threads=0, system=system, time_us_median=time_us,
                 times_ours=time_us / ours_us, **changes)
        for system, time_us in times.items()
    ]  # fmt: skip


def test_a_gpu_is_measured_by_one_worker_without_the_encoder():
    plans = run.make_plans("cuda", "", "", model=True, quick=False)
    cores = len(os.sched_getaffinity(0))
    assert [(plan.threads, plan.model) for plan in plans] == [(cores, False)]
    assert run.is_complete(plans)
    assert not run.is_complete(run.make_plans("cuda", "", "quantize", model=True, quick=False))
    with pytest.raises(ValueError, match="threads: got '2', but they mean nothing to cuda"):
        run.make_plans("cuda", "2", "", model=True, quick=False)


def test_the_page_of_a_gpu_has_both_kinds_of_linear_and_each_peer_once():
    rows = make_gpu_rows({OURS: 12.1, "cuBLAS bf16": 10.3}, device="NVIDIA H200")
    rows += make_gpu_rows({OURS: 11.9, "cuBLAS bf16": 10.3}, op="linear bf16")
    text = report.gpu_text(rows)
    assert text.startswith("*hardware*, NVIDIA H200; commit abc1234, 2026-11-21.")
    assert "| M x N x K | bf16 x MXFP4 | quantize + MXFP4 x MXFP4 | cuBLAS bf16 |" in text
    assert text.endswith("| 64 x 7168 x 2048 | 11.9 | 12.1 | 10.3 |")


def test_a_peer_that_refuses_a_shape_leaves_its_cell_empty():
    rows = make_gpu_rows({OURS: 12.0, "humming": 13.0})
    rows += make_gpu_rows({OURS: 3.0}, m=4, n=2880, k=512)
    rows += [dataclasses.replace(row, op="linear bf16") for row in rows]
    assert report.gpu_text(rows).splitlines()[-1] == "| 4 x 2880 x 512 | 3.0 | 3.0 |  |"


@pytest.mark.parametrize(
    "shape, wanted", [((64, 7168, 2048), 1.0), ((4096, 4096, 4096), 0.85)], ids=str
)
def test_a_gpu_goal_is_the_ratio_to_cublas(shape, wanted):
    sizes = dict(zip("mnk", shape, strict=True))
    rows = make_gpu_rows({OURS: 10.0, "cuBLAS bf16": 9.0}, **sizes)
    (goal,) = goals.check_goals(rows)
    assert (goal.measured, goal.wanted, goal.reached) == (0.9, wanted, wanted < 0.9)


@pytest.mark.deep
def test_the_quick_run_measures_all_operations_and_the_model(tmp_path):
    run_bench("--quick", "--threads", "1", "--results", str(tmp_path))
    rows = read_csv(tmp_path / "cpu.csv", Row)
    assert {row.op for row in rows} == {"machine", "overhead", *targets.OPS}
    found = {(row.op, row.shape, row.system): row for row in rows}
    for op, systems in {
        "linear": {OURS}, "linear mxfp8": {OURS}, LIKE_INT8: {OURS, "torch int8", "MAX Q4_0"},
        LIKE_FLOAT: {OURS, "torch f32", "torch bf16"},
    }.items():  # fmt: skip
        for shape, system in itertools.product(QUICK_SHAPES, systems):
            assert 0 <= found[op, tuple(shape), system].error_own_weights < 0.2
    assert all(row.time_us_median > 0 for row in rows if row.op != "machine")
    variants = {row.variant: row for row in read_csv(tmp_path / "cpu_model.csv", ModelRow)}
    assert variants["float32"].cosine_worst == pytest.approx(1.0, abs=1e-5)
    assert variants["W4A4"].linear_weight_bytes * 7 < variants["float32"].linear_weight_bytes
    assert (tmp_path / "cpu.png").exists() and (tmp_path / "cpu.md").exists()
    kept = (tmp_path / "cpu.csv").read_text() + (tmp_path / "cpu_model.csv").read_text()
    assert str(device.REPOSITORY) not in kept

"""The gfx950 benchmark's own claims: what it launches, what it compares, what it says of it."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import mx_kernels as mx
from bench import device, graph_timing, report, run
from bench.rows import OURS, Origin, read_csv, write_csv
from bench.shapes import Shape
from bench.simulated import aiter, eight_bits, kept, kernels, launches, systems, tune, tuned_tiles
from bench.simulated import report as simulated
from bench.simulated.launches import Launch, Operands, last_workgroup
from bench.targets import gfx950 as target
from bench.targets import gfx950_hardware as hardware
from gfx950.timing.parameters import Machine
from mx_kernels._core.native import gpu_plans
from tests.cdna4 import support as cdna4
from tests.tiers import deep

ORIGIN = Origin("gfx950, simulated", "abc1234", "2026-11-21")
SMALL = Shape(3, 256, 512)
CHOSEN = {
    "linear_m1n1w4u": f"{cdna4.LINEAR}m1n1w4u",
    "matmul_m1n1w4u": f"{cdna4.MATMUL}m1n1w4u",
    "quantize": "bfloat16_even",
}
"""The kernels for it, by what they are called here and by the tests of CDNA4."""
WORST_CHOICE, USUAL_CHOICE = 1.12, 1.05
"""Times the fastest cut."""


def make_row(**changes) -> simulated.SimulatedRow:
    row = simulated.SimulatedRow(
        op="linear", m=4, n=2880, k=512, system=OURS, computes="fused", kernels="linear_m1",
        launches=1, time_us=3.25, kernel_us=1.05, times_ours=1.0, least_us=0.1, times_floor=1.3,
        mfma_utilisation=0.01, loop_utilisation=None, hbm_bytes=8.5e5, waves_per_simd=6.0,
        lds_conflict_share=0.0, source="model", commit="abc1234", date="2026-11-21",
    )  # fmt: skip
    return dataclasses.replace(row, **changes)


@pytest.fixture(scope="module")
def found() -> dict:
    """The rows of one small shape, by operation and system; AITER's kernels are in few places.

    Ours are those that the dispatch chooses for the shape; the tests of CDNA4 have them.
    """
    kernels_here = cdna4.compile_kernels("decode") | cdna4.compile_kernels("quantize")
    small = SimpleNamespace(
        kernels={name: kernels_here[theirs] for name, theirs in CHOSEN.items()},
        launch=lambda name, *shape: cdna4.described(CHOSEN[name], *shape),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(aiter.VARIABLE, raising=False)
        patch.setattr(kernels, "catalogue_of", {"ours": small}.__getitem__)
        return timed_rows(target.FOUR_BIT_OPS)


def timed_rows(ops) -> dict:
    operands, stopwatch = Operands(SMALL), systems.Stopwatch(SMALL)
    rows = {}
    for op in ops:
        timed = [(offer, stopwatch.time(offer)) for offer in systems.offers(operands, op)]
        for row in target.rows(op, SMALL, target.fastest(timed), ORIGIN):
            rows[op, row.system] = row
    return rows


def test_every_system_is_timed_on_the_same_shape(found):
    assert [system for op, system in found if op == "linear"] == [
        OURS,
        "MAX",
        "Triton mxfp4",
        "Triton bf16 x mxfp4",
    ]
    assert [system for op, system in found if op == "matmul"] == [OURS, "MAX", "Triton mxfp4"]
    assert [system for op, system in found if op == "quantize"] == [OURS, "MAX"]
    assert {row.source for row in found.values()} == {"model"}


def test_the_last_workgroup_is_one_with_a_tile():
    """256 columns are three tiles of 96, of which a grid of eight leaves five without work."""
    assert last_workgroup((8, 2, 4), "linear_m2n6w8s4", SMALL) == 8 * 7 + 2


def test_a_profile_is_kept_for_the_same_launch_only(monkeypatch, tmp_path):
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    kernel, row = kernels.triton(systems.TRITON_MXFP4)
    computed = []

    def profile_of(value, grid):
        def compute():
            computed.append(value)
            return dataclasses.replace(found_once, cycles=float(len(computed)))

        launch = Launch("a", kernel, grid, row["block"][0], [np.full(4, value), (np.int32(1),)])
        return kept.kept_profile(launch, {"whole_grid": True}, compute).cycles

    operands = Operands(SMALL)
    offer = systems.triton(operands, systems.TRITON_MXFP4, "", "")
    found_once = offer.launches[0].profile(whole_grid=False)
    assert [profile_of(0, (1, 1)), profile_of(0, (1, 1))] == [1, 1]
    assert [profile_of(1, (1, 1)), profile_of(0, (2, 1)), profile_of(0, (1, 1))] == [2, 3, 1]


def test_a_launch_costs_once(found):
    launch_us = Machine().launch_us
    for row in found.values():
        assert row.launches == row.kernels.count("+") + 1
        assert row.time_us == pytest.approx(row.kernel_us + row.launches * launch_us)
    assert found["linear", OURS].launches == 1
    assert found["linear", "MAX"].launches >= 2


def test_what_is_unfused_takes_its_parts_together(found):
    parts = found["matmul", "MAX"], found["quantize", "MAX"]
    assert found["linear", "MAX"].time_us == pytest.approx(sum(row.time_us for row in parts))


def test_the_fastest_offer_of_a_system_counts():
    def timed(system, *times):
        return SimpleNamespace(system=system), [SimpleNamespace(time_us=time) for time in times]

    slow, fast, other = timed("a", 2.0, 2.0), timed("a", 3.0), timed("b", 9.0)
    assert target.fastest([slow, other, fast]) == [fast, other]


@pytest.mark.parametrize(
    "op, shape, least",
    [
        ("quantize", Shape(1000, 0, 3200), 1000 * (6400 + 1700) / 8e6),
        ("matmul", Shape(100, 200, 3200), (300 * 1700 + 40000) / 8e6),
        ("linear", Shape(100, 200, 3200), (100 * 6400 + 200 * 1700 + 40000) / 8e6),
        ("linear", Shape(8192, 8192, 8192), 2 * 8192**3 / 10.066e9),
    ],
)
def test_the_least_time_is_that_of_bytes_or_of_operations(op, shape, least):
    assert target.least_us(op, shape, Machine()) == pytest.approx(least, rel=1e-3)


def test_a_shape_without_an_emitted_kernel_is_refused():
    with pytest.raises(ValueError, match="K = 544 ends within a step of 128"):
        systems.ours(Operands(Shape(4, 64, 544)), "linear_bf16")
    with pytest.raises(ValueError, match="op: got 'sort'"):
        systems.offers(Operands(SMALL), "sort")


@deep
def test_no_kernel_that_the_dispatch_can_choose_uses_scratch():
    found = {name: k.scratch_bytes for name, k in kernels.ours().kernels.items()}
    assert found
    assert not any(found.values()), found


@deep
@pytest.mark.parametrize("m, n", [(512, 5120), (1024, 2880), (2048, 512)])
def test_a_k_that_ends_within_a_stage_is_no_cliff(m, n):
    """Rows of 1440 bytes begin within lines of memory: 2880 takes a little longer than 3072."""

    def matmul_us(k: int) -> float:
        catalogue, label = systems.chosen(Shape(m, n, k), "matmul")
        launch = launches.ours(catalogue, label, Operands(Shape(m, n, k)))
        return launch.profile(whole_grid=False).time_us

    assert matmul_us(2880) <= 1.2 * matmul_us(3072)


@deep
def test_no_kernel_for_a_tail_of_k_uses_scratch():
    found = {name: k.scratch_bytes for name, k in kernels.ours(k_tail=True).kernels.items()}
    assert found and not any(found.values()), found


@deep
def test_activations_of_more_bits_are_timed_by_kernels_without_scratch():
    catalogue = kernels.ours("linear_bf16")
    assert not any(kernel.scratch_bytes for kernel in catalogue.kernels.values())
    rows = timed_rows(kernels.WIDE)
    kept, eight = rows["linear_bf16", OURS], rows["linear_mxfp8", OURS]
    assert kept.kernels.startswith("linear_bf16_m") and eight.kernels.startswith("linear_mxfp8_m")
    assert rows["linear_bf16", "Triton bf16 x mxfp4"].times_ours > 1


def test_rows_survive_the_csv_file(tmp_path):
    rows = [make_row(), make_row(system="MAX", loop_utilisation=0.5, times_ours=2.5)]
    write_csv(tmp_path / "gfx950.csv", rows)
    assert read_csv(tmp_path / "gfx950.csv", simulated.SimulatedRow) == rows


def test_every_text_says_that_it_is_simulated(tmp_path):
    rows = [make_row(), make_row(system="MAX", time_us=7.75, times_ours=2.38)]
    (table,) = simulated.tables(rows)
    text = simulated.page_text(rows)
    assert "*simulated*" in table.title and "*simulated*" in text
    assert "| 4 x 2880 x 512 | 0.10 | 3.25 | 1.30 | 1% | 0.85 | 6 | 0% | 7.75 (2.38) |" in text
    page = tmp_path / "gfx950.md"
    page.write_text(f"{simulated.BEGIN}\nold\n{simulated.END}\n{report.BEGIN}{report.END}\n")
    report.update_page(page, text, (simulated.BEGIN, simulated.END))
    assert text in page.read_text() and "old" not in page.read_text()


def test_a_range_is_between_the_readings_and_ratios_are_within_one():
    ours = make_row(time_us=4.0, clock_us=4.0, latency_us=5.0)
    slow = make_row(system="MAX", time_us=12.0, clock_us=12.0, latency_us=10.0, times_ours=3.0)
    fast = make_row(system="AITER", time_us=6.0, clock_us=6.0, latency_us=6.0, times_ours=1.5)
    text = simulated.page_text([ours, slow, fast])
    assert "| 4.00 .. 5.00 | 1.30 |" in text
    assert "10.00 .. 12.00 (2.00 .. 3.00) | 6.00 (1.20 .. 1.50) |" in text
    assert "takes 1.20 .. 1.50 times as long as `linear`" in text
    assert "least at 4 x 2880 x 512: 1.20 .. 1.50 (AITER)" in text


def test_a_peer_that_is_not_here_keeps_its_rows_and_their_date(monkeypatch, tmp_path):
    old = make_row(system="AITER", time_us=6.5, times_ours=9.0, date="2026-01-02", commit="old")
    monkeypatch.setattr(kept, "RECORD", tmp_path / "gfx950.csv")
    write_csv(kept.RECORD, [make_row(), make_row(system="MAX"), old, make_row(m=5)])
    ours, peer = make_row(time_us=3.25), make_row(system="MAX")
    found = list(kept.recorded([ours, peer]))
    assert found == [dataclasses.replace(old, times_ours=2.0)]
    assert "AITER as of 2026-01-02" in simulated.page_text([ours, peer, *found])
    assert list(kept.recorded([ours, make_row(system="AITER")])) == []
    assert list(kept.recorded([make_row(m=5)])) == []


@pytest.mark.parametrize("option", [["--threads", "1"], ["--only", "linear"], ["--no-model"]])
def test_options_of_a_real_machine_are_refused(option):
    outcome = CliRunner().invoke(run.app, ["--target", "gfx950", *option], env={"COLUMNS": "200"})
    assert outcome.exit_code == 2
    assert "mean nothing to gfx950" in outcome.output


def pretend_gpu(monkeypatch, name: str) -> None:
    properties = SimpleNamespace(gcnArchName=name, name="a GPU")
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


def test_a_gpu_that_is_here_is_timed_instead_of_the_model(monkeypatch):
    asked = []
    monkeypatch.setattr(hardware, "measure", lambda *a, **kw: asked.append(a) or iter([]))
    pretend_gpu(monkeypatch, "gfx950:sramecc+:xnack-")
    assert list(target.measure_rows(ORIGIN, print)) == []
    ((origin, shapes, _),) = asked
    assert origin.device == "a GPU" and shapes == target.SHAPES
    pretend_gpu(monkeypatch, "gfx942")
    assert hardware.device_name() is None


class CountedCalls(graph_timing.Graph):
    """On a CPU: calls everything in each replay and counts."""

    def __init__(self, calls):
        self.calls, self.times = calls, []

    def replay(self):
        for call in self.calls:
            call()
        self.times.append(float(len(self.calls)))


def gemm_a4w4(a, b, of_a, of_b, out, *, bpreshuffle):
    """Stands in for AITER's: multiplies what the bytes mean in the layout that it takes."""
    assert bpreshuffle and len(out) % 256 == 0
    (m, half), n = a.shape, out.shape[1]
    a, b, of_a, of_b = (part.view(torch.uint8) for part in (a, b, of_a, of_b))
    layout = {"layout": "preshuffled_cdna4"}
    ones = torch.full((m, half // 16), 127, dtype=torch.uint8)
    codes = mx.MXTensor(a, ones).preshuffle(device="gfx950").codes
    left = mx.MXTensor(codes, of_a, shape=(m, 2 * half), **layout).unshuffle()
    right = mx.MXTensor(b, of_b, shape=(n, 2 * half), **layout).unshuffle()
    out[:m] = mx.matmul(left, right, out_dtype="bfloat16")


def test_the_way_to_hardware_computes_what_it_times(monkeypatch):
    """Over copies that are fewer than the calls; the model's numbers are those of its record."""
    monkeypatch.setitem(sys.modules, "aiter", SimpleNamespace(gemm_a4w4=gemm_a4w4))
    monkeypatch.setattr(hardware, "predicted", lambda op, shape: {"clock": 10.0, "latency": 30.0})
    rows = list(
        hardware.measure(
            Origin("a GPU", "abc1234", "2026-11-21"), [SMALL], lambda _: None,
            least_us=target.least_us, device="cpu", cold_bytes=10**6, capture=CountedCalls,
            peers={"aiter": True, "triton": False},
        )
    )  # fmt: skip
    fused = (OURS, "hipBLASLt bf16")
    modelled = {f"{OURS}, modelled, clock": 0.5, f"{OURS}, modelled, latency": 1.5}
    systems = {
        **dict.fromkeys(("linear", "linear_bf16", "linear_mxfp8"), fused),
        "matmul": (OURS, "AITER", "hipBLASLt bf16"),
        "quantize": (OURS, "torch copy"),
    }
    assert [(row.op, row.system) for row in rows] == [
        (op, system) for op, of_op in systems.items() for system in (*of_op, *modelled)
    ]
    assert {row.source for row in rows} == {"hardware, a GPU"}
    times = {row.time_us for row in rows if row.system not in modelled}
    assert times == {graph_timing.MIN_CALLS}
    for row in rows:
        assert row.times_ours == modelled.get(row.system, 1)
    assert {row.mfma_utilisation for row in rows} == {None}
    texts = [table.title for table in simulated.tables(rows)] + [simulated.page_text(rows)]
    assert all("hardware, a GPU" in text and "simulated" not in text for text in texts)


def test_a_wrong_result_is_not_timed():
    with pytest.raises(ValueError, match="relative error"):
        graph_timing.checked(lambda w: 2 * w, [torch.ones(2, 2)], torch.ones(2, 2))


@pytest.fixture(scope="module")
def tuned() -> list[tune.TunedRow]:
    return read_csv(tune.RESULT, tune.TunedRow)


def test_the_table_chooses_what_was_measured(tuned):
    """`python -m bench.simulated.tune --table` measures again, after any change of `CHOICES`."""
    assert {(row.op, row.shape) for row in tuned} == set(tune.classes())
    for row in tuned:
        plan = mx.explain(*row.shape, device="gfx950", op=getattr(mx, row.op), activations="mxfp4")
        assert plan.cut == row.chosen, (row.op, row.shape)


def test_no_other_cut_is_much_faster_than_the_choice(tuned):
    """By more than a tenth for no class, by more than a few percent for few."""
    behind = sorted(row.times_fastest for row in tuned)
    assert behind[-1] <= WORST_CHOICE
    assert behind[len(behind) * 9 // 10] <= USUAL_CHOICE
    assert all(row.cuts > 1 for row in tuned)


def test_costs_are_near_the_times_that_were_measured(tuned):
    """And `python -m bench.simulated.tune --fit` finds constants that are nearer."""
    fit = tune.Fit(tuned)
    off = sorted(map(abs, fit.errors(fit.begin)))
    assert len(off) > 100
    assert off[len(off) // 2] <= 0.12 and off[len(off) * 9 // 10] <= 0.33
    assert fit.loss(fit.fitted()) < fit.loss(fit.begin)


def test_a_plan_that_nobody_has_is_an_error(tuned):
    fit = tune.Fit(tuned)
    with pytest.raises(Exception, match="got the plan middle64x999"):
        fit.plans.cycles_gfx950("middle64x999", (64, 4096, 4096, 1, *fit.begin.values()))


def test_every_row_of_the_table_is_the_choice_of_a_class():
    """A row is its cut and its reason; the last one is for what no class has."""
    shapes = {shape for _, shape in tune.classes()}
    products = {Shape(m, n, k) for (n, k), m in product(eight_bits.WEIGHTS, eight_bits.ROWS)}
    asked = [
        *(
            {"shape": shape, "op": getattr(mx, op), "activations": "mxfp4"}
            for op, shape in tune.classes()
        ),
        *({"shape": shape, "activations": mode} for shape in shapes for mode in ("bf16", "mxfp8")),
        *(
            {"shape": shape, "op": mx.matmul, "activations": "mxfp8", "format": "mxfp8"}
            for shape in shapes | products
        ),
        *(
            {"shape": row.shape, "op": mx.matmul, "activations": "fp8_block",
             "format": "fp8_block_2d"}
            for row in read_csv(tuned_tiles.BLOCKSCALE, tuned_tiles.BlockscaleRow)
        ),
    ]  # fmt: skip
    plans = (mx.explain(*ask.pop("shape"), device="gfx950", **ask) for ask in asked)
    *rows, _ = gpu_plans().table_gfx950(())
    assert {(p.cut, p.reason) for p in plans} == {(row["cut"], row["reason"]) for row in rows}


def test_the_make_command_reaches_the_target():
    done = subprocess.run(
        ["make", "--dry-run", "bench", "TARGET=gfx950", f"PYTHON={sys.executable}"],
        cwd=device.REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "bench.run --target gfx950" in done.stdout

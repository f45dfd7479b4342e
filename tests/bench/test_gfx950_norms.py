"""The benchmark of norms before products on the timing model: what it adds up, and what it says."""

from bench import targets
from bench.rows import read_csv, write_csv
from bench.simulated.norms import StepRow, times_of

US = {"norm": (4.0, 5.0), "linear": (6.0, 6.5), "matmul": (5.0, 5.5), "quantize": (3.0, 3.5)}


def rows_of(m, k):
    return [
        StepRow(m, 64, k, step, "kernel", *us, "model", "abc1234", "2026-11-30")
        for step, us in US.items()
    ]


def test_a_norm_of_floats_takes_what_one_to_codes_does_or_its_bytes():
    few = times_of({row.step: row for row in rows_of(1, 256)})
    assert few == {"norm, `linear`": (10, 11.5), "codes": (9, 10.5), "three": (12, 14)}
    many = times_of({row.step: row for row in rows_of(8192, 8192)})
    norm_us = 2.2 + 2 * 2 * 8192 * 8192 / 8e6
    assert many["codes"] == few["codes"]
    assert many["norm, `linear`"] == (norm_us + 6, norm_us + 6.5)


def test_norms_before_products_are_a_target_of_their_own(tmp_path):
    module, rows = targets.load(targets.SIMULATED_NORMS), rows_of(16, 256)
    write_csv(tmp_path / "rows.csv", rows)
    assert read_csv(tmp_path / "rows.csv", StepRow) == rows
    page = module.text(rows)
    assert "*simulated*" in page and "| 16 | 10.0 .. 11.5 | 9.0 .. 10.5 | 12.0 .. 14.0 |" in page

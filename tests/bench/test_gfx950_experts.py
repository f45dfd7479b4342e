"""The benchmark of experts on the timing model: its routes, its floors and what it says."""

import numpy as np
import pytest

from bench import targets
from bench.rows import read_csv, write_csv
from bench.simulated import experts
from bench.simulated.experts import LayerRow, Routes
from gfx950.timing.parameters import Machine

ROW = LayerRow(
    "gpt-oss-20b", "mxfp4", 64, 4, 80.0, 81.0, 52.9, 1.3, 1.5, None, "route 3.4", "model",
    "abc1234", "2026-11-23",
)  # fmt: skip


@pytest.mark.parametrize("tokens", [1, 16, 64])
def test_a_token_goes_to_four_different_experts(tokens):
    routes = Routes.random(tokens, 32)
    assert routes.ids.shape == (tokens, 4)
    assert all(len(set(ids)) == 4 for ids in routes.ids.tolist())
    assert routes.sizes().sum() == routes.ids.size
    assert (np.diff(routes.ids.reshape(-1)[routes.order()]) >= 0).all()


def test_tiles_have_rows_of_one_expert():
    routes = Routes(np.array([[0], [2], [2], [2]], np.int32), 4)
    assert [routes.tiles(rows) for rows in (1, 2, 4)] == [4, 3, 2]


def test_one_token_reads_the_weights_of_its_experts_alone():
    weights, flops = experts.floors_us(Routes.random(1, 32), Machine(), "mxfp4")
    of_four = 4 * 3 * 2880 * 2880 * (0.5 + 1 / 32)
    assert weights == pytest.approx(of_four / 8e6)
    assert flops == pytest.approx(2 * 4 * 3 * 2880 * 2880 / 10.066e9, rel=1e-3)


def test_eight_bits_take_twice_as_long_as_four_or_six():
    routes = Routes.random(1, 32)
    four, six, eight = (
        experts.floors_us(routes, Machine(), activations) for activations in experts.ACTIVATIONS
    )
    assert six == four and eight == (four[0], pytest.approx(2 * four[1]))


def test_a_layer_of_experts_is_a_target_of_its_own(tmp_path):
    module = targets.load(targets.SIMULATED_EXPERTS)
    write_csv(tmp_path / "rows.csv", [ROW])
    assert read_csv(tmp_path / "rows.csv", LayerRow) == [ROW]
    page = module.text([ROW])
    assert "*simulated*" in page and "80.0 .. 81.0" in page and "abc1234" in page

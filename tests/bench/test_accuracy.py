"""What formats cost a language model: what is counted, and how it is shown."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench import accuracy
from bench.accuracy import FLOAT, RULED, AccuracyRow
from bench.rows import read_csv
from mx_kernels._core.facts import facts
from tests.bench.commands import run_bench

ORIGIN = {"device": "a CPU", "commit": "abc1234", "date": "2026-11-29"}


class Certain(nn.Module):
    """After each token that one plus `step`, with odds of `odds` to 1 against each other one."""

    def __init__(self, tokens: int, odds: float, step: int = 1):
        super().__init__()
        self.tokens, self.odds, self.step = tokens, odds, step

    def forward(self, ids):
        logits = torch.zeros(*ids.shape, self.tokens)
        logits.scatter_(2, ((ids + self.step) % self.tokens)[..., None], math.log(self.odds))
        return SimpleNamespace(logits=logits)


def test_perplexity_is_that_of_the_odds_and_next_tokens_are_those_of_the_first_model():
    blocks = torch.arange(20).view(2, 10)
    reference = []
    loss, same, seconds = accuracy.read(Certain(24, odds=8.0), blocks, reference)
    assert math.exp(loss / 18) == pytest.approx((8 + 23) / 8, rel=1e-5)
    assert same == 18 and seconds > 0
    assert accuracy.read(Certain(24, 8.0, step=2), blocks, reference)[1] == 0
    loss, same, _ = accuracy.read(Certain(24, odds=2.0), blocks, reference)
    assert math.exp(loss / 18) == pytest.approx((2 + 23) / 2, rel=1e-5)
    assert same == 18


def test_every_weight_format_meets_all_activations_and_every_rule_is_there():
    found = accuracy.choices(quick=False)
    weights = {w for w, _, _ in found}
    assert weights == {f.name for f in facts().formats.values()} - {"fp8_block"}
    for w in weights:
        assert {a for of, a, rule in found if of == w and rule == "even"} == {*facts().activations}
    assert {rule for _, _, rule in found} == set(facts().formats[RULED].roundings)
    assert len(found) == len(set(found))


def make_row(weights, activations, rounding="even", perplexity=20.0) -> AccuracyRow:
    return AccuracyRow(
        weights, activations, rounding, perplexity, 0.68, 170_000_000, 300.0, 4096, **ORIGIN
    )


def test_a_grid_has_weights_below_and_activations_across_and_rules_have_a_table_of_their_own():
    rows = [
        make_row(FLOAT, FLOAT, "", 14.7), make_row("mxfp8", "mxfp8", perplexity=15.7),
        make_row(RULED, "mxfp8", perplexity=22.5), make_row(RULED, "mxfp4", perplexity=46.8),
        make_row(RULED, "mxfp4", "ceil", 51.2),
    ]  # fmt: skip
    page = accuracy.text(rows)
    assert "a CPU; commit abc1234, 2026-11-29; 4096 tokens." in page
    assert "| 14.70 | 300 | 170 |" in page
    assert "| weights | MB | mxfp8 | mxfp4 |" in page
    assert "| mxfp8 | 170 | 15.70 |  |" in page and "| mxfp4 | 170 | 22.50 | 46.80 |" in page
    assert "| ceil | mxfp4 | 51.20 | 0.680 |" in page


@pytest.mark.deep
def test_the_model_loses_little_by_eight_bit_activations_and_much_by_four(tmp_path):
    run_bench("--target", "accuracy", "--quick", "--results", str(tmp_path))
    rows = read_csv(tmp_path / "accuracy.csv", AccuracyRow)
    floats, eight, four = (row.perplexity for row in rows)
    assert 1.2 < eight / floats < 1.7
    assert 2.5 < four / floats

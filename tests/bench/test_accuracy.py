"""What formats cost a language model: what is counted, and how it is shown."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

import mx_kernels as mx
from bench import accuracy
from bench.accuracy import FLOAT, FLOATS, AccuracyRow
from bench.rows import Origin, read_csv
from mx_kernels._core.facts import facts, weights_format
from tests.bench.commands import run_bench
from tests.house.test_project import ROOT

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
    losses, same = accuracy.read(Certain(24, odds=8.0), blocks, reference)
    assert [math.exp(loss / 9) for loss in losses] == pytest.approx([(8 + 23) / 8] * 2, rel=1e-5)
    assert same == 18
    assert accuracy.read(Certain(24, 8.0, step=2), blocks, reference)[1] == 0
    losses, same = accuracy.read(Certain(24, odds=2.0), blocks, reference)
    assert [math.exp(loss / 9) for loss in losses] == pytest.approx([(2 + 23) / 2] * 2, rel=1e-5)
    assert same == 18


def accepts(weights, activations, rounding):
    """Whether `convert` takes a choice, and the layer it makes multiplies."""
    floats = nn.Sequential(nn.Linear(128, 128))
    try:
        made = mx.convert(floats, format=weights, activations=activations, scale_rule=rounding)
        made(torch.ones(2, 128))
    except ValueError:
        return False
    return True


def test_all_that_convert_accepts_is_measured_the_rule_even_first():
    found = accuracy.choices()
    weights = [name for name in facts().formats if weights_format(name) == name]
    assert weights == [name for name in facts().formats if name != "fp8_block"]
    every = [(w, a, r) for r in accuracy.RULES for w in weights for a in facts().activations]
    assert found == [choice for choice in every if accepts(*choice)]
    assert {r for _, _, r in found} == {r for f in facts().formats.values() for r in f.roundings}


class Tiny(nn.Module):
    """A model of two layers, of which `convert` takes the first; tokens are 0 .. 63."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.up = nn.Embedding(64, 64), nn.Linear(64, 64)
        self.lm_head = nn.Linear(64, 64)
        nn.init.normal_(self.up.weight, std=0.1)

    def forward(self, ids):
        return SimpleNamespace(logits=4 * self.lm_head(torch.tanh(self.up(self.embed(ids)))))


def test_a_row_is_of_the_model_that_convert_makes_and_rules_are_compared_on_the_same_text(
    monkeypatch,
):
    """Also where only the activations of the model before it were changed."""
    text = torch.randint(64, (2, accuracy.BLOCK_TOKENS), generator=torch.Generator().manual_seed(1))
    choices = [
        ("mxfp4", "mxfp4", "even"), ("mxfp4", "bf16", "even"), ("mxint8", "mxfp4", "even"),
        ("mxfp4", "mxfp4", "ceil"), ("mxfp4", "bf16", "ceil"), ("mxint8", "mxfp4", "ceil"),
    ]  # fmt: skip
    monkeypatch.setattr(accuracy, "load_model", Tiny)
    monkeypatch.setattr(accuracy, "load_text", lambda count: text[:count])
    monkeypatch.setattr(accuracy, "choices", lambda: choices)
    said = []
    options = {"blocks": 2, "ruled_blocks": 1}
    rows = list(accuracy.measure_rows(Origin(**ORIGIN), said.append, **options))
    assert [(row.weights, row.activations, row.rounding) for row in rows] == [FLOATS, *choices]
    assert len(said) == len(rows) + 1
    alone = {FLOATS: [accuracy.read(Tiny(), text[:n], [])[0] for n in (1, 2)]}
    for choice in choices:
        names = dict(zip(("format", "activations", "scale_rule"), choice, strict=True))
        made = mx.convert(Tiny(), **names)
        alone[choice] = [accuracy.read(made, text[:n], [])[0] for n in (1, 2)]
    assert len({losses[0][0] for losses in alone.values()}) == len(rows)
    for row in rows:
        choice = row.weights, row.activations, row.rounding
        is_even = row.rounding != "ceil"
        first, losses = alone[choice][0], alone[choice][is_even]
        assert row.perplexity == pytest.approx(accuracy.perplexity(losses))
        assert row.tokens == 512 * len(losses) and (row.tokens_per_s is not None) == is_even
        even = alone.get((*choice[:2], "even"))
        times = even and accuracy.perplexity(first) / accuracy.perplexity(even[0])
        assert row.times_even == (times and pytest.approx(times))
    assert rows[0].same_next == 1 and all(0 < row.same_next < 1 for row in rows[1:])


def test_passes_take_turns_and_the_first_of_each_does_not_count(monkeypatch):
    ran, clock = [], iter([0.0, 90.0, 0.0, 90.0] + [0.0, 1.0, 0.0, 7.0] * 2 + [0.0, 4.0, 0.0, 2.0])
    monkeypatch.setattr(accuracy.time, "perf_counter", lambda: next(clock))
    passes = {name: lambda name=name: ran.append(name) for name in "ab"}
    assert accuracy.in_turns(passes, rounds=3) == {"a": 1.0, "b": 7.0}
    assert ran == list("abababab")


def make_row(choice, perplexity, speed=300.0, times=1.0, tokens=4096, load=1.0) -> AccuracyRow:
    size = 170_000_000
    return AccuracyRow(*choice, perplexity, 0.68, times, size, speed, tokens, load, **ORIGIN)


def test_a_grid_has_weights_below_and_activations_across_and_each_rule_has_one():
    rows = [
        make_row((FLOAT, FLOAT, ""), 14.7), make_row(("mxfp8", "mxfp8", "even"), 15.7),
        make_row(("mxfp4", "mxfp8", "even"), 22.5, 450.0),
        make_row(("mxfp4", "mxfp4", "even"), 46.8),
        make_row(("mxfp4", "mxfp4", "ceil"), 51.2, None, 1.125, 512),
    ]  # fmt: skip
    page = accuracy.text(rows)
    assert "a CPU; commit abc1234, 2026-11-29. Text: 4096 tokens, 512 of them for scale" in page
    assert "| 14.70 | 300 | 170 |" in page
    assert "| weights | MB | mxfp8 | mxfp4 |" in page
    assert "| mxfp8 | 170 | 15.70 |  |" in page and "| mxfp4 | 170 | 22.50 | 46.80 |" in page
    assert "| mxfp4 | 170 | 1.50 | 1.00 |" in page
    of_rule = page[page.index('scale rule "ceil"') :]
    assert "| mxfp4 | 170 | 1.125 |" in of_rule and "mxfp8" not in of_rule
    assert "51.2" not in page, "it is of another text"
    assert "busy" not in page
    busy = make_row((FLOAT, FLOAT, ""), 14.7, load=9.25)
    assert "load average 9.2; a busy machine" in accuracy.text([busy, *rows[1:]])


@pytest.mark.deep
def test_the_model_loses_little_by_eight_bit_activations_and_much_by_four(tmp_path):
    run_bench("--target", "accuracy", "--quick", "--results", str(tmp_path))
    rows = read_csv(tmp_path / "accuracy.csv", AccuracyRow)
    floats, eight, four = (row.perplexity for row in rows)
    assert 1.2 < eight / floats < 1.7
    assert 2.5 < four / floats


@pytest.mark.deep
def test_what_is_written_to_calibrate_is_the_model_that_is_measured_and_other_text(tmp_path):
    (folder := tmp_path / "floats").mkdir()
    called = [sys.executable, "-m", "bench.accuracy"]
    subprocess.run([*called, "write", folder], check=True, cwd=ROOT)
    command = [*called, "perplexity", folder, "--blocks", "1"]
    run = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
    losses, _ = accuracy.read(accuracy.load_model(), text := accuracy.load_text(1), [])
    assert float(run.stdout) == pytest.approx(accuracy.perplexity(losses), abs=0.01)
    assert torch.equal(accuracy.tokens_of(folder, 1), text)
    measured = transformers.AutoTokenizer.from_pretrained(folder).decode(
        accuracy.load_text(accuracy.BLOCKS).flatten()
    )
    assert accuracy.help_text().startswith(measured)
    kept = (folder / "text.txt").read_text()
    assert accuracy.help_text().endswith(kept)
    assert len(measured) + len(kept) < len(accuracy.help_text())
    command = [*called, "perplexity", folder, "--activations", "mxint8"]
    run = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    # In a box, in lines.
    said = re.sub(r"[\s│]+", " ", run.stderr)
    assert run.returncode == 2 and "is in floats, expected codes" in said

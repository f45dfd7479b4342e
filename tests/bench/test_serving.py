"""The bench of vLLM without vLLM: variants take turns, and medians of what was asked are shown."""

import pytest

from bench.rows import read_csv, write_csv
from bench.serving.__main__ import (
    CLIENTS,
    NEW,
    PROMPT,
    VARIANTS,
    ServingRow,
    measure,
    row_of,
    table_of,
)


class Engine:
    """Takes a second longer each time, and notes who was asked."""

    def __init__(self, name, asked, missing=0):
        self.name, self.requests, self.missing = name, asked, missing

    def asked(self, prompts, new):
        assert {len(prompt) for prompt in prompts} == {PROMPT}
        self.requests.append((self.name, len(prompts)))
        return float(len(self.requests)), len(prompts) * new - self.missing


def test_variants_take_turns_and_the_first_round_does_not_count():
    asked = []
    found = measure({name: Engine(name, asked) for name in VARIANTS}, rounds=3)
    turns = [(name, requests) for requests in CLIENTS for name in VARIANTS]
    assert asked == turns * 4
    expected = {
        turn: [float(len(turns) * r + i + 1) for r in (1, 2, 3)] for i, turn in enumerate(turns)
    }
    assert found == expected


def test_lost_tokens_are_an_error():
    with pytest.raises(RuntimeError, match="got 31 tokens, expected 32"):
        measure({"one": Engine("one", [], missing=1)}, rounds=1)


def test_a_row_has_medians_and_what_was_measured_where(tmp_path):
    row = row_of("one", 8, [2.0, 8.0, 4.0])
    assert (row.requests_per_s, row.tokens_per_s) == (2.0, 8 * NEW / 4)
    assert (row.slowest_tokens_per_s, row.fastest_tokens_per_s) == (8 * NEW / 8, 8 * NEW / 2)
    assert row.device and row.commit and row.date
    write_csv(tmp_path / "serving.csv", [row])
    assert read_csv(tmp_path / "serving.csv", ServingRow) == [row]
    table = table_of([row])
    assert row.device in table.caption and table.row_count == 1

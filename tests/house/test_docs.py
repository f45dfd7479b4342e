"""The documentation builds without a warning, and its pictures and tables are what they show."""

import csv
import itertools
import re
import sys
from doctest import ELLIPSIS, OutputChecker
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import gfx950
import mx_kernels
import oracle
from cases import random_operand
from examples.ladder import rungs
from mx_kernels._core import builds, levels
from mx_kernels.integrations.distributed import cuts
from tests.house.test_project import PIXI, ROOT, run
from tests.tiers import tiered

sys.path.append(str(ROOT / "docs"))
from made import blocks, errors, layouts, pictures, texts

PAGES = sorted((ROOT / "docs" / "pages").rglob("*.md"))


READ = [ROOT / "README.md", *PAGES]
MOST_WORDS = 26
NOT_OURS = re.compile(
    r"\b(sf|descale|handover|fillers?|crew|tickets?|even shares|who copies|add(s|ed|ing)? up"
    r"|times of ours|begins? anew)\b"
)
"""What the field calls otherwise: scale, epilogue, producer, stream-K, sum, times as fast."""


def sentences_of(markdown: str) -> list[str]:
    """Returns the sentences of a page without its code; colons and semicolons end one."""
    prose = re.sub(r"^---.*?^---$|^ *```.*?^ *```$|<!--.*?-->", "\n\n", markdown, flags=re.S | re.M)
    prose = re.sub(r"^(#|!\[).*$", "", prose, flags=re.M)
    prose = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "X", prose))
    prose = re.sub(r"^ *([*-]|\d+\.) |(?<!\\)\|", "\n\n", prose, flags=re.M)
    return [
        one for part in re.split(r"\n\s*\n", prose) for one in re.split(r"(?<=[.!?:;])\s+", part)
    ]


@pytest.mark.parametrize("page", READ, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_sentences_of_a_page_are_short_and_in_the_words_of_the_field(page):
    sentences = sentences_of(page.read_text())
    assert not [one for one in sentences if len(one.split()) > MOST_WORDS]
    assert not [one for one in sentences if NOT_OURS.search(one)]


def test_pictures_show_the_layouts_that_the_oracle_knows():
    assert layouts.names() == tuple(oracle.LAYOUTS)


@pytest.mark.parametrize("part", layouts.PARTS)
@pytest.mark.parametrize("name", oracle.LAYOUTS)
def test_a_picture_shows_where_the_oracle_puts_each_byte(rng, name, part):
    codes, scales = random_operand(rng, layouts.ROWS, layouts.K)
    expected = oracle.LAYOUTS[name].store(codes, scales)[layouts.PARTS.index(part)].ravel()
    rows, places = layouts.stored(name, part)
    oracle.assert_bitwise_equal((codes if part == "codes" else scales)[rows, places], expected)


@pytest.mark.parametrize("name", oracle.LAYOUTS)
def test_a_page_shows_what_the_source_says_of_a_layout(name):
    section = re.split(r"^## ", layouts.sections(), flags=re.MULTILINE)
    (found,) = (text for text in section if text.startswith(f"{name}\n"))
    assert found.count("](../pictures/") == len(layouts.PARTS)
    assert len(found) > 150


@pytest.mark.parametrize("rule", blocks.RULES)
def test_a_curve_is_the_oracles_scale(rule):
    largest, exponents = blocks.exponents(rule)
    x = np.zeros((len(largest), blocks.BLOCK), np.float32)
    x[:, 0] = largest
    _, scales = oracle.quantize(x, scale_rule=rule)
    assert np.array_equal(exponents + blocks.BIAS, scales[:, 0])


def test_of_the_four_rules_even_has_the_least_error_on_average_as_the_page_says():
    found = {rule: blocks.errors(rule)[1].mean() for rule in blocks.RULES}
    assert min(found, key=found.get) == "even"


def test_every_page_is_in_the_navigation_and_every_number_of_the_ladder_in_a_table():
    listed = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "docs/mkdocs.yml").read_text(), re.M))
    assert listed == {path.relative_to(ROOT / "docs/pages").as_posix() for path in PAGES}
    ladders = "many_rows", "few_rows", "contest", "fp8_ladder", "f16_ladder", "bf8_ladder"
    shown = "".join(texts.TEXTS[name]() for name in ladders)
    assert all(f"| `{row['rung']}` |" in shown for row in texts.ladder_rows())


def test_every_public_name_has_a_place_in_the_reference():
    shown = re.findall(r"^::: mx_kernels\.([\w.]+)$", texts.python_api(), re.MULTILINE)
    assert [path.split(".")[-1] for path in shown] == mx_kernels.__all__


@pytest.mark.deep
def test_the_site_builds_without_a_warning(tmp_path):
    assert not run(f"{PIXI['tasks']['docs']} --site-dir {tmp_path} 2>&1")
    for page in PAGES:
        html = tmp_path / page.relative_to(ROOT / "docs/pages").with_suffix(".html")
        assert "<!-- made:" not in html.read_text()
    drawn = {path.stem for path in (tmp_path / "pictures").glob("*.svg")}
    assert drawn == set(pictures.every())


# The simulator


@pytest.mark.parametrize("name", ["gfx950_hip", "gfx950_triton"])
def test_the_page_shows_what_a_kernel_of_another_compiler_prints(name):
    page, main = (ROOT / "docs/pages/cdna4/simulator.md").read_text(), "__main__"
    (shown,) = re.findall(rf"^python examples/{name}.py.*\n```\n\n```text\n([^`]*)```", page, re.M)
    # Triton, where it is installed, would compile the kernel anew: other lines, perhaps.
    hide = "import sys, runpy; sys.modules['triton'] = None; sys.path.append('examples')"
    printed = run(f'python -c "{hide}; runpy.run_module({name!r}, run_name={main!r})"')
    assert OutputChecker().check_output(shown, printed, ELLIPSIS), printed


# Errors


NAMED = re.compile(r"troubles\([\"'](.*?)[\"']\)")
TROUBLES = (ROOT / "docs/pages/troubleshooting.md").read_text()


def test_every_sentence_of_an_error_is_on_the_page_of_troubles_in_one_group():
    parts = re.findall(r"^## [^\n]* \{ #(\w+) \}$(.*?)(?=^## |\Z)", TROUBLES, re.M | re.S)
    assert sorted(name for name, _ in parts) == sorted(errors.GROUPS)
    assert all(f"<!-- made: errors_{name} -->" in part for name, part in parts)


@pytest.mark.parametrize("group", errors.GROUPS)
def test_what_the_page_of_troubles_quotes_is_said(group):
    part = TROUBLES.partition(f"{{ #{group} }}")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?`(?:, `.*?`)*) \|", part, flags=re.M)
    quotes = [quote for cell in cells for quote in re.findall(r"`(.*?)`", cell)]
    assert len(quotes) > 2
    said = errors.sentences()[group]
    missing = [quote for quote in quotes if not any(quote in sentence for sentence in said)]
    assert not missing


PROVOKED = {
    "build": lambda: levels.by_name("avx9"),
    "tensors": lambda: mx_kernels.quantize(torch.zeros(2, 31)),
    "checkpoints": lambda: mx_kernels.load("/nowhere"),
    "models": lambda: mx_kernels.convert(torch.nn.ReLU()),
    "ranks": lambda: cuts.bounds(64, 3, 32),
    "simulator": lambda: gfx950.parse("gibberish ,"),
}


@pytest.mark.parametrize("group", PROVOKED)
def test_what_a_user_reads_is_among_the_sentences_of_its_group(group):
    with pytest.raises((ValueError, OSError)) as raised:
        PROVOKED[group]()
    fit = [
        name
        for name, said in errors.sentences().items()
        if any(sentence_pattern(one).fullmatch(str(raised.value)) for one in said)
    ]
    assert group in fit


def sentence_pattern(sentence: str) -> re.Pattern:
    return re.compile(".*".join(map(re.escape, sentence.split("..."))), re.DOTALL)


def test_errors_that_name_the_page_of_troubles_name_a_heading_of_it():
    sources = (ROOT / "python/mx_kernels").rglob("*.py")
    named = {part for path in sources for part in NAMED.findall(path.read_text())}
    headings = re.findall(r"^## ([^{]*) \{", TROUBLES, flags=re.M)
    assert len(named) > 2 and named <= set(headings)


@pytest.mark.parametrize(
    ("links", "page"),
    [
        (None, "docs/pages/troubleshooting.md"),
        (["Repository, https://x.example/r"], "docs/pages/troubleshooting.md"),
        (["Documentation, https://x.example/index.md"], "https://x.example/troubleshooting.md"),
    ],
)
def test_where_a_release_has_an_address_errors_link_to_it(monkeypatch, links, page):
    found = SimpleNamespace(get_all={"Project-URL": links}.get)
    monkeypatch.setattr(builds.importlib.metadata, "metadata", lambda name: found)
    assert builds.troubles("X") == f"{page} has more, under 'X'"


# The ladders


def test_each_rung_of_hoppers_ladder_is_a_plan_that_was_measured_and_faster_than_the_one_before():
    tables = re.split("^## ", texts.hopper_ladder(), flags=re.MULTILINE)[1:]
    for steps, table in zip(texts.HOPPER_LADDER.values(), tables, strict=True):
        assert len(steps) == 6
        shown = re.findall(r"^\| `(.*)` \|.*\| ([\d.]+) \| \d+ \|$", table, re.MULTILINE)
        assert [plan for plan, _ in shown] == [*steps, "cublas"]
        us = [float(us) for _, us in shown[:-1]]
        assert us == sorted(us, reverse=True)


def test_every_published_rate_belongs_to_a_rung_and_one_that_the_model_misses_has_a_paragraph():
    ratios = {row["rung"]: texts.ladder_ratios(row) for row in texts.ladder_rows()}
    assert [name for name, ratio in ratios.items() if ratio] == list(rungs.PUBLISHED)
    missed = [name for name, ratio in ratios.items() if ratio and not within(1.3, ratio)]
    page = (ROOT / "docs/pages/cdna4/ladder.md").read_text()
    heads = " ".join(re.findall(r"^\*\*([\w, ]+)\.\*\*", page, re.MULTILINE))
    assert missed and set(missed) <= set(re.findall(r"\w+", heads))


def within(factor: float, ratio: tuple[float, float]) -> bool:
    """Says whether both ends of a ratio are at most so far from 1."""
    return 1 / factor <= ratio[0] and ratio[1] <= factor


SLOW = [rungs.BY_NAME[name] for name in ("fp8_bytes", "fp8_ping_pong_8192")]
"""Rungs whose kernels others of theirs have but for the width of a load, or the shape."""


@pytest.mark.parametrize(
    "case",
    tiered(
        list(itertools.product(rungs.RUNGS, (False, True))),
        first=[(rung, False) for rung in rungs.RUNGS if rung.ladder == "fp8" and rung not in SLOW],
    ),
    ids=lambda case: f"{case[0].name}-{'late' if case[1] else 'at once'}",
)
def test_a_rung_computes_the_product_whenever_memory_answers(case):
    rung, late = case
    got, expected, hazards = rungs.run(rung, rung.small, late=late)
    assert not hazards
    assert np.abs(expected).max() > 1
    # The rounding of C to bfloat16, and float32 sums in another order.
    assert np.allclose(got, expected, rtol=2**-8, atol=2**-10)


@pytest.mark.deep
@pytest.mark.parametrize("name", ["split_k", "fused", "contest_up_front"])
def test_shared_sums_do_not_depend_on_who_comes_last(name):
    rung = rungs.BY_NAME[name]
    results = [rungs.run(rung, rung.small, order=order)[0] for order in (None, "reverse", 3)]
    assert all(np.array_equal(results[0], other) for other in results[1:])


@pytest.mark.deep
def test_the_table_of_the_ladder_is_what_the_model_says():
    with (Path(rungs.__file__).parent / "results.csv").open() as file:
        kept = {row["rung"]: row for row in csv.DictReader(file)}
    assert list(kept) == [rung.name for rung in rungs.RUNGS]
    for rung in rungs.RUNGS:
        found = rungs.timing(rung)
        row = kept[rung.name]
        assert (found.clock_us, found.latency_us) == pytest.approx(
            (float(row["clock_us"]), float(row["latency_us"])), rel=0.02
        )

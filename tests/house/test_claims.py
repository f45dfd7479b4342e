"""No claim is lost or leaves the first tier, unless the diff of `tests/claims.txt` says so."""

from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

from tests import claims, tiers

ROOT = Path(__file__).resolve().parents[2]


def test_the_list_has_the_tier_of_every_test(request):
    """Of the files that this run collected as a whole: in `make test` of all."""
    names_of_tests = (argument.split("::") for argument in request.config.args if "::" in argument)
    in_part = {Path(file).resolve() for file, *_ in names_of_tests}
    listed = claims.listed()
    for file, found in request.config.pluginmanager.get_plugin("claims").by_file.items():
        if ROOT / file not in in_part:
            message = f"{file}: is this meant? then `python -m tests.claims`"
            assert listed.get(file) == found, message


def test_the_list_has_the_files_that_there_are():
    files = (path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
    assert sorted(claims.listed()) == sorted(files)


def test_every_two_values_meet_in_the_first_tier():
    axes = [[(axis, value) for value in range(n)] for axis, n in enumerate((8, 7, 5, 2))]
    every = [set(cells) for cells in product(*axes)]
    kept = tiers.pairwise(every)
    assert {frozenset(p) for i in kept for p in combinations(every[i], 2)} == {
        frozenset(p) for cells in every for p in combinations(cells, 2)
    }
    assert 8 * 7 <= len(kept) <= 2 * 8 * 7
    assert tiers.pairwise(every) == kept


def test_of_one_axis_or_two_nothing_is_spared():
    assert len(tiers.pairwise([{("x", i)} for i in range(40)])) == 40
    assert len(tiers.pairwise([{("x", i), ("y", j)} for i in range(8) for j in range(7)])) == 56


def test_of_a_function_that_is_skipped_one_test_says_so_and_all_others_stay():
    def item(nodeid, is_skipped):
        marks = [SimpleNamespace(args=(is_skipped,))]
        return SimpleNamespace(nodeid=nodeid, iter_markers=lambda name: marks)

    items = [item(f"{f}[{i}]", is_skipped=f == "f") for f in "gf" for i in range(3)]
    taken = tiers.leave_one_of_skipped(items)
    assert [item.nodeid for item in items] == ["g[0]", "g[1]", "g[2]", "f[0]"]
    assert [item.nodeid for item in taken] == ["f[1]", "f[2]"]

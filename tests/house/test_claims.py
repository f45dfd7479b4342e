"""No claim is lost or leaves the first tier, unless the diff of `tests/claims.txt` says so."""

from pathlib import Path

from tests import claims

ROOT = Path(__file__).resolve().parents[2]


def test_the_list_has_the_tier_of_every_test(request):
    """Of the files that this run collected as a whole: in `make test` of all."""
    names_of_tests = (argument.split("::") for argument in request.config.args if "::" in argument)
    in_part = {Path(file).resolve() for file, *_ in names_of_tests}
    listed = claims.listed()
    for file, tiers in request.config.pluginmanager.get_plugin("claims").by_file.items():
        if ROOT / file not in in_part:
            message = f"{file}: is this meant? then `python -m tests.claims`"
            assert listed.get(file) == tiers, message


def test_the_list_has_the_files_that_there_are():
    files = (path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
    assert sorted(claims.listed()) == sorted(files)

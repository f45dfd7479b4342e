"""The claims by tier: `claims.txt` lists every test function of every file, and where it runs.

    first    in the first tier, with all its parameters
    both     some of its parameters are deep
    deep     in the deep tier alone

A test compares the list with what pytest collects: a claim that is added, lost or moved to another
tier shows in the diff of a commit. `python -m tests.claims` writes the list anew.
"""

import contextlib
import io
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

LIST = Path(__file__).with_suffix(".txt")


class Claims:
    """A pytest plugin that sees what is collected, before a tier is selected."""

    def __init__(self):
        self.by_file: dict[str, dict[str, str]] = {}
        """The tier of each function, by file."""

    def pytest_collection_modifyitems(self, items: Iterable[pytest.Item]) -> None:
        """Notes the tests' functions."""
        tiers: dict[tuple[str, str], set[bool]] = {}
        for item in items:
            file, _, name = item.nodeid.partition("::")
            is_deep = item.get_closest_marker("deep") is not None
            tiers.setdefault((file, name.partition("[")[0]), set()).add(is_deep)
        for (file, name), deep in sorted(tiers.items()):
            tier = "both" if len(deep) == 2 else "deep" if deep == {True} else "first"
            self.by_file.setdefault(file, {})[name] = tier


def lines_of(by_file: dict[str, dict[str, str]]) -> Iterator[str]:
    """Yields the lines of the list."""
    for file, names in sorted(by_file.items()):
        yield file
        yield from (f"  {tier:5}  {name}" for name, tier in sorted(names.items()))


def listed() -> dict[str, dict[str, str]]:
    """Returns the tier of each function by file, as the list says."""
    found: dict[str, dict[str, str]] = {}
    names: dict[str, str] = {}
    for line in LIST.read_text("utf-8").splitlines():
        if line.startswith(" "):
            tier, name = line.split()
            names[name] = tier
        else:
            names = found[line] = {}
    return found


def main() -> int:
    """Writes the list."""
    claims = Claims()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        status = pytest.main(["--collect-only", "-qq"], [claims])
    if status != pytest.ExitCode.OK:
        print(said.getvalue().partition("= ERRORS =")[2])
    else:
        LIST.write_text("".join(f"{line}\n" for line in lines_of(claims.by_file)), "utf-8")
        tiers = [tier for names in claims.by_file.values() for tier in names.values()]
        print({tier: tiers.count(tier) for tier in ("first", "both", "deep")})
    return status


if __name__ == "__main__":
    sys.exit(main())

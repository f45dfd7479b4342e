"""What hangs is ended and named: a test, and the whole run."""

import os
import subprocess
import sys

import pytest

from tests.house.test_project import ROOT
from tests.tiers import tiered

TESTS = """
import ctypes, time, pytest

@pytest.mark.parametrize("index", range(4))
def test_before(index): pass

def test_that_hangs_in_c_with_the_lock_of_python(): ctypes.PyDLL(None).sleep(1000)

@pytest.mark.parametrize("index", range(4))
def test_after(index): pass
"""


def run(folder, *options):
    """Runs `TESTS` beside other files there; returns the exit status and what was printed."""
    (folder / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "xdist.plugin", "-p", "tests.watchdog"]
    done = subprocess.run(
        [*command, *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("way", tiered(["worksteal", "loadfile"], first=["worksteal"]))
def test_a_test_that_hangs_fails_by_name_and_the_others_go_on(way, tmp_path):
    """Those of its file, which come in two halves, and of files before and behind."""
    before, after = TESTS.partition("def test_that_hangs")[0], "def test_it(): pass"
    for name, text in {"a": before, "b": before, "z": after}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    status, said = run(tmp_path, "-n", "2", "--dist", way, "--test-limit", "2")
    assert status == 1
    assert "crashed while running 'test_it.py::test_that_hangs_in_c" in said
    assert "in test_that_hangs_in_c_with_the_lock_of_python" in said  # Its stack.
    assert "1 failed, 17 passed" in said


@pytest.mark.deep
def test_a_run_that_takes_too_long_fails_and_says_where_it_was(tmp_path):
    status, said = run(tmp_path, "-n", "2", "--limit", "0.4", "test_it.py")
    assert status == 1
    assert "longer than 0.4 minutes; running were: test_it.py::test_that_hangs_in_c" in said
    assert "in test_that_hangs_in_c_with_the_lock_of_python" in said

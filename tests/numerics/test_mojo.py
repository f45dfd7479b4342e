"""Runs the Mojo unit tests, one process for each file, and the extension beside other processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import artefacts

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tests" / "numerics" / "mojo").glob("test_*.mojo"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_mojo_file(file):
    artefacts.run_mojo_tests("numerics/main", file.stem)


def test_every_file_is_run():
    assert {"test_numbers", "test_layouts"} <= {file.stem for file in FILES}
    assert len(FILES) + 1 == len(list((ROOT / "tests" / "numerics" / "mojo").glob("*.mojo")))


def test_loading_the_kernels_leaves_the_environment_of_child_processes_alone():
    """Mojo's runtime sets PYTHONEXECUTABLE and PYTHONPATH behind Python's back."""
    script = """if True:
        import subprocess
        child = lambda: sorted(subprocess.check_output(["env"], text=True).splitlines())
        before = child()
        import torch, mx_kernels
        mx_kernels.quantize(torch.ones(1, 32))
        after = child()
        assert before == after, set(before) ^ set(after)
    """
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    run = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr

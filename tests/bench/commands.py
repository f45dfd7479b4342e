"""The benchmark as its users call it: a command."""

import os
import subprocess
import sys

from bench import device


def run_bench(*arguments: str) -> None:
    """Runs `python -m bench.run`, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.run", *arguments],
        check=False, cwd=device.REPOSITORY, env=dict(os.environ),
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

"""The codec of a GPU thread has the bits of the CPU's: a Mojo program, run on the CPU."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOJO = Path(sys.executable).with_name("mojo")


def test_a_gpu_threads_codec_is_the_cpus():
    program = Path(__file__).with_name("programs") / "test_codec.mojo"
    command = [MOJO, "run", "-I", ROOT, program]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "0 failed , 0 skipped" in run.stdout, run.stdout
    assert " 0 tests run" not in run.stdout, run.stdout

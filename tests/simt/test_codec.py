"""The codec of a GPU thread has the bits of the CPU's: a Mojo program, run on the CPU."""

import subprocess

from tests import artefacts


def test_a_gpu_threads_codec_is_the_cpus():
    program = artefacts.path("simt/codec")
    run = subprocess.run([program], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "0 failed , 0 skipped" in run.stdout, run.stdout
    assert " 0 tests run" not in run.stdout, run.stdout

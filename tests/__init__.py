"""Claims, by room; every room may use the helpers that lie here.

    oracle/        what is right, from the OCP text, in NumPy alone
    cases.py       inputs that several rooms share
    tiers.py       what each of `make test`, `test-deep` and `test-nightly` runs
    claims.py      every test function by tier, as claims.txt lists them
    watchdog.py    ends what hangs: a test, a build, a run
    artefacts/     everything that is compiled for tests, listed once
    numerics/      every operation against the oracle; mojo/ are tests in Mojo
    cpu/           threads, instruction levels, memory
    cdna4/         our gfx950 machine code in the simulator; programs/ print it
    hip/           what is launched on AMD's runtime, which a stand-in answers
    simt/          the codec of any GPU
    hopper/        kernels on a CUDA device
    ptx/           what such a device would be told, and its machine code on the CPU
    gfx950/        the simulator itself: programs/ and data/ are other people's kernels
    python/        tensors, torch, errors, builds
    max_graph/     the operations in MAX graphs
    bench/         the tables and where they come from
    house/         the repository's own promises

The same file name in two rooms is the same job.
"""

from pathlib import Path

CORE_ALONE = f"""
import sys
sys.modules["mx_kernels"] = type(sys)("mx_kernels")
sys.modules["mx_kernels"].__path__ = [{str(Path(__file__).parents[1] / "python" / "mx_kernels")!r}]
"""
"""How a program begins that imports modules of `_core` alone: torch would take it 1.5 seconds."""

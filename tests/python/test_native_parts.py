"""The module of the CPU in parts: each compiled when it is needed, all with the same results."""

import os
import runpy
import subprocess
import sys

import pytest
import torch

from mx_kernels import _builds
from mx_kernels._facts import facts
from tests.tiers import deep

pytestmark = pytest.mark.compiles

# The first program of a user, then one with every kind of product; says what was compiled for each.
PROGRAM = """
import sys
from pathlib import Path
import torch
import mx_kernels as mx
from mx_kernels._facts import facts

cache = Path(sys.argv[1])

def say_parts():
    print(*sorted(path.stem for path in cache.glob("*/*.so")))

torch.manual_seed(0)
x, floats = torch.randn(5, 64), torch.randn(3, 64, 64)
results = {"first": mx.linear(x, mx.quantize(floats[0]), activations="mxint8")}
say_parts()
modes = facts().activations
weights = {name: mx.quantize(floats, format=name).preshuffle() for name in facts().formats}
sizes = torch.tensor([2, 0, 3], dtype=torch.int32)
ids = torch.tensor([[0, 1], [2, 0], [1, 1], [2, 1], [0, 2]])
for mode in modes:
    for name, w in weights.items():
        results[name, mode] = mx.linear(x, w[0], activations=mode)
        results["grouped", name, mode] = mx.grouped_linear(x, w, sizes, activations=mode)
        for other in {name, "mxint8"}:
            down = mx.quantize(floats[:, :, :32].contiguous(), format=other)
            layer = mx.moe(x, w, down, ids, torch.ones(5, 2), activations=mode)
            results["moe", name, other, mode] = layer
say_parts()
torch.save(results, sys.argv[2])
"""


@deep
def test_parts_are_compiled_when_they_are_needed_and_give_the_bits_of_the_whole(
    tmp_path, monkeypatch
):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    cache, found = tmp_path / "cache", tmp_path / "results.pt"
    run = subprocess.run(
        [sys.executable, script, cache, found],
        env={**os.environ, "MX_KERNELS_CACHE": str(cache), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    first, every = (line.split() for line in run.stdout.splitlines())
    name = "_mx_kernels_native"
    base, integers = f"{name}-KERNEL=0", f"{name}-KERNEL=1-RIGHT=0"
    assert first == [base, integers]
    floats = [f"{name}-KERNEL=2-RIGHT={code}" for code in range(len(facts().formats))]
    int8 = f"{name}-KERNEL=1-RIGHT={facts().formats['mxint8'].code}"
    assert every == sorted([name, base, integers, int8, *floats])

    expected = tmp_path / "expected.pt"
    monkeypatch.setattr(sys, "argv", ["", str(_builds.cache_folder()), str(expected)])
    assert isinstance(facts().native, type(sys)), "these tests compute with the whole module"
    runpy.run_path(str(script))
    results, wanted = (torch.load(path, weights_only=True) for path in (found, expected))
    assert results.keys() == wanted.keys()
    for key, result in results.items():
        assert torch.equal(result, wanted[key]), key

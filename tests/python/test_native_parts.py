"""The module of the CPU in parts: each compiled when it is needed, all with the same results.

That every format has a part is known without a compiler. Compiled are the first program's parts
and, of those for floats, one of codes of four bits and one of eight under scales in float32.
"""

import os
import runpy
import subprocess
import sys

import pytest
import torch

from mx_kernels._core import builds, native
from mx_kernels._core.facts import facts
from mx_kernels._core.protocol import ENCODED, INTEGERS, KEPT, NO_CODE, QUANTIZED
from tests.tiers import deep

pytestmark = pytest.mark.compiles

NAME = "_mx_kernels_native"
# The first program of a user, then products of two formats with every kind of left side, then
# layers whose two weights differ; says what was compiled for each. The last needs the whole
# module, whose folder is put into the cache before, as it takes a minute to compile.
PROGRAM = """
import shutil, sys
from pathlib import Path
import torch
import mx_kernels as mx
from mx_kernels._core.facts import facts

cache, whole = Path(sys.argv[1]), Path(sys.argv[3])

def say_parts():
    print(*sorted(path.stem for path in cache.glob("*/*.so")))

torch.manual_seed(0)
x, floats = torch.randn(5, 64), torch.randn(3, 64, 64)
results = {"first": mx.linear(x, mx.quantize(floats[0]), activations="mxint8")}
say_parts()
modes = [mode for mode in facts().activations if mode != "mxint16"]
formats = "mxfp4", "fp8_block_2d"
weights = {name: mx.quantize(floats, format=name).preshuffle() for name in formats}
sizes = torch.tensor([2, 0, 3], dtype=torch.int32)
ids = torch.tensor([[0, 1], [2, 0], [1, 1], [2, 1], [0, 2]])

def layers(others):
    for mode in modes:
        for name, other in others.items():
            down = mx.quantize(floats[:, :, :32].contiguous(), format=other)
            layer = mx.moe(x, weights[name], down, ids, torch.ones(5, 2), activations=mode)
            results["moe", name, other, mode] = layer

for mode in modes:
    for name, w in weights.items():
        results[name, mode] = mx.linear(x, w[0], activations=mode)
        results["grouped", name, mode] = mx.grouped_linear(x, w, sizes, activations=mode)
layers({name: name for name in formats})
results["mxint16"] = mx.linear(x, weights["mxfp4"][0], activations="mxint16")
say_parts()
if not (cache / whole.name).exists():
    shutil.copytree(whole, cache / whole.name)
layers(dict.fromkeys(formats, "mxint8"))
say_parts()
torch.save(results, sys.argv[2])
"""


def part(kernel, right):
    return f"{NAME}-KERNEL={kernel}-RIGHT={right}"


def test_every_format_has_a_part_and_two_formats_need_the_whole(monkeypatch):
    parts, formats, found = native.Parts(facts().native), facts().formats, []
    monkeypatch.setattr(native, "load_extension", lambda e: found.append(e.file_name))
    for right in formats.values():
        parts._of(KEPT, NO_CODE, right.code)
        if right.has_integers:
            parts._of(INTEGERS, NO_CODE, right.code)
        for left in formats.values():
            for kind in (QUANTIZED, ENCODED):
                parts._of(kind, left.code, right.code)
    floats = {part(2, code) for code in range(len(formats))}
    of_integers = [formats[name].code for name in ("mxfp4", "mxfp6", "mxint8", "nvfp4")]
    integers = {part(kernel, code) for kernel in (1, 3) for code in of_integers}
    assert formats["mxfp4"].code == 0, "what is compiled beside the first part"
    assert set(found) == {f"{name}.so" for name in floats | integers}
    assert len(found) == len(set(found)), "each is loaded once"
    found.clear()
    parts._of(KEPT, NO_CODE, formats["mxfp4"].code, formats["mxint8"].code)
    assert found == [f"{NAME}.so"]


@deep
def test_parts_are_compiled_when_they_are_needed_and_give_the_bits_of_the_whole(
    tmp_path, monkeypatch
):
    whole = native.cpu_extension().build().path().parent
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    cache, found = tmp_path / "cache", tmp_path / "results.pt"
    run = subprocess.run(
        [sys.executable, script, cache, found, whole],
        env={**os.environ, "MX_KERNELS_CACHE": str(cache), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    first, products, every = (line.split() for line in run.stdout.splitlines())
    base, integers = f"{NAME}-KERNEL=0", part(1, 0)
    assert first == [base, integers]
    formats = facts().formats
    floats = [part(2, formats[name].code) for name in ("mxfp4", "fp8_block_2d")]
    assert products == sorted([base, integers, part(3, 0), *floats])
    assert every == sorted([NAME, *products])

    expected = tmp_path / "expected.pt"
    cache = builds.cache_folder()
    monkeypatch.setattr(sys, "argv", ["", str(cache), str(expected), str(whole)])
    assert isinstance(facts().native, type(sys)), "these tests compute with the whole module"
    runpy.run_path(str(script))
    results, wanted = (torch.load(path, weights_only=True) for path in (found, expected))
    assert results.keys() == wanted.keys()
    for key, result in results.items():
        assert torch.equal(result, wanted[key]), key


# Threads of torch's pool are lost by a fork, and who waits for them waits for ever.
FORKED = """
import os, signal, threading, torch
import mx_kernels as mx
from mx_kernels._core.builds import Build

torch.set_num_threads(2)
x = torch.ones(2048, 4096)  # By two threads.

def status_of_a_child():
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        mx.quantize(x)
        os._exit(0)
    return os.waitpid(child, 0)[1]

print("before a call", status_of_a_child())
real, begun, forked = Build.find_or_make, threading.Event(), threading.Event()
def slow(*args, **options):
    begun.set()
    forked.wait()
    return real(*args, **options)
Build.find_or_make = slow
first = threading.Thread(target=lambda: mx.quantize(x[:1]))
first.start()
begun.wait()
Build.find_or_make = real
print("in the first call", status_of_a_child())
forked.set()
first.join()
mx.quantize(x)
print("after a call", status_of_a_child())
"""


def test_a_forked_child_computes_whenever_it_was_forked():
    run = subprocess.run(
        [sys.executable, "-c", FORKED],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    assert run.stdout == "before a call 0\nin the first call 0\nafter a call 0\n", run.stderr

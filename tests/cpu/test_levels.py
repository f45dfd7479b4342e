"""Every instruction level that this machine runs gives the same bits; ARM64 compiles.

Each level is a library of its own, so each runs in a process of its own. The problems reach
every kernel path: one row, one group of rows, several groups, ragged columns and stretches of
K, every layout, and scales whose products leave the float32 range.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mx_kernels._core import levels
from tests import artefacts

ROOT = Path(__file__).resolve().parents[2]
HERE, BEST = levels.here(), levels.pick()
OTHERS = [level for level in HERE if level is not BEST]

PROGRAM = """
import hashlib, sys
import torch
import mx_kernels as mx
from mx_kernels._core.facts import facts

FORMATS = [row.name for row in facts().formats.values() if not row.has_float_scales]
INTEGERS = ("mxfp4", "mxfp6", "mxint8")
SHAPES = [(1, 16, 32), (3, 100, 544), (6, 64, 1056), (7, 33, 96), (40, 48, 640), (130, 80, 512)]
digest = hashlib.sha256()
torch.manual_seed(0)


def add(values):
    # Any NaN is any NaN.
    digest.update(values.nan_to_num(nan=0.5).numpy().tobytes())


def wide(w):
    return ["mxint16"] if facts().formats[w.format].has_integers else []


def add_products(x, plain):
    add(mx.dequantize(plain, dtype="float32"))
    for w in (plain, mx.preshuffle(plain), mx.preshuffle(plain, device="gfx950")):
        for activations in (*FORMATS, *wide(plain), "bf16"):
            y = mx.linear(x, w, out_dtype="float32", activations=activations)
            assert y.isfinite().any() and (y != 0).any()
            add(y)


def add_largest():
    # The largest integers of both sides, which fill the narrowest sums; exact, whatever the level.
    corners = [0x00, 0x77, 0xFF, 0x7F, 0xF7, 0x80, 0x81, 0x1F, 0x3F, 0xDF]
    for left in INTEGERS:
        for right in INTEGERS:
            a, b = (mx.quantize(torch.zeros(len(corners), 64), format=f) for f in (left, right))
            for operand in (a, b):
                operand.codes[:] = torch.tensor(corners).byte()[:, None]
                operand.scales[:] = 127
            y = mx.matmul(a, b, out_dtype="float32")
            exact = (mx.dequantize(q, dtype="float32").double() for q in (a, b))
            assert (y.double() == next(exact) @ next(exact).T).all(), (left, right)
            add(y)


def add_experts(x, w, down):
    sizes = torch.tensor([len(x) // 2, 0, len(x) - len(x) // 2]).int()
    ids = torch.randint(-1, 3, (len(x), 2))
    ids[:, 0].abs_()
    for activations in (*FORMATS, *wide(w), "bf16"):
        rules = {"activations": activations, "out_dtype": "float32"}
        add(mx.grouped_linear(x, w, sizes, **rules))
        for activation in ("swiglu_oai", "silu"):
            y = mx.moe(x, w, down, ids, torch.randn(ids.shape), hidden_act=activation, **rules)
            assert y.isfinite().any() and (y != 0).any()
            add(y)


def add_codes(x, weight):
    for format in facts().formats:
        for q in (
            mx.rms_norm_quantize(x, weight, format=format),
            mx.layer_norm_quantize(x, weight.float(), weight.float(), format=format, rounds="none"),
            *(mx.gate_quantize(x, x.flip(1), hidden_act=gate, format=format)
              for gate in ("silu", "gelu_tanh", "situ")),
        ):
            digest.update(q.codes.numpy().tobytes())
            add(q.scales.float())


add_largest()
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for k in (32, 544, 1056):
        x = torch.randn(5, k) * torch.exp2(torch.randint(-9, 9, (5, k)))
        add_codes(x.to(dtype), torch.randn(k).to(dtype))
for m, width, inner in [(1, 64, 32), (7, 96, 64), (40, 160, 96)]:
    x = torch.randn(m, width) * torch.exp2(torch.randint(-3, 4, (m, 1)))
    for format in FORMATS:
        w = mx.quantize(torch.randn(3, 2 * inner, width), format=format)
        down = mx.quantize(torch.randn(3, width, inner), format=format)
        add_experts(x, w, down)
        add_experts(x.bfloat16(), w.preshuffle(), down.preshuffle())
for m, n, k in SHAPES:
    exponents = torch.randint(-60, 60, (m, k // 32)).repeat_interleave(32, 1)
    x = torch.randn(m, k) * torch.exp2(exponents)
    weight = torch.randn(n, k) * torch.exp2(torch.randint(-90, 60, (n, 1)))
    for format in FORMATS:
        for dtype in (torch.float32, torch.bfloat16):
            for rounding in facts().formats[format].roundings:
                plain = mx.quantize(weight.to(dtype), format=format, scale_rule=rounding)
                digest.update(plain.codes.numpy().tobytes() + plain.scales.numpy().tobytes())
            add_products(x.to(dtype), plain)
        # Infinities, NaN and scales of every size among them.
        codes = torch.randint(256, plain.codes.shape).byte()
        scales = torch.randint(256, plain.scales.shape).byte()
        codes[:2], scales[:2] = 1, plain.scales[:2]
        add_products(x, mx.MXTensor(codes, scales, format=format))
print(digest.hexdigest())
"""


@pytest.fixture(scope="module")
def of_best():
    """What the best level computes, as a digest of all its results."""
    digest = run(BEST, artefacts.CPU_LEVEL)
    assert digest != hashlib.sha256().hexdigest()
    return digest


def run(level, artefact):
    # Made here, or left where it is too late: the process would compile parts whatever the time.
    artefacts.path(artefact)
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "MX_KERNELS_CPU": level.name, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


@pytest.mark.deep
@pytest.mark.parametrize(
    "level", [level for level in HERE if level != BEST], ids=lambda level: level.name
)
def test_a_level_gives_the_bits_of_the_best(level, of_best):
    assert run(level, f"cpu/{level.name}") == of_best


def test_several_levels_run_here():
    assert len(HERE) > 1, f"only {HERE} runs on this machine: the comparison says nothing"


@pytest.mark.deep
def test_arm64_compiles():
    elf_machine = int.from_bytes(artefacts.path("cpu/arm64").read_bytes()[18:20], "little")
    assert elf_machine == 183, "EM_AARCH64"

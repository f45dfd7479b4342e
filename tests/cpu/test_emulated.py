"""The kernels on ARM64, under emulation: every bit as here.

The kernels are compiled for three kinds of ARM64 processors, whose instructions for dot products
of bytes differ, linked to a C program, and run by QEMU on the very calls that the extension
module takes. What QEMU emulates for a kind refuses the dot products of the kinds below. Debian
and Ubuntu have what this takes, and tests are skipped without:

    apt install qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross
"""

import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import mx_kernels as mx
from cases import (
    BLOCK,
    DTYPES,
    FORMATS,
    INTEGER_FORMATS,
    LAYOUTS,
    NUMPY_DTYPES,
    PAIRS,
    ROUNDINGS,
    every_value,
    float32_corners,
    mx_tensor,
    random_operand,
    turns_under_every_scale,
)
from mx_kernels._core.facts import facts
from mx_kernels._core.protocol import ENCODED, INTEGERS, KEPT, NO_CODE, QUANTIZED
from tests import artefacts
from tests.cpu.emulated.image import Image

FOLDER = Path(__file__).parent / "emulated"
QEMU, GCC, OBJDUMP = "qemu-aarch64", "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-objdump"
PROCESSORS = {"generic": "cortex-a57", "dotprod": "neoverse-n1", "i8mm": "max"}
"""What QEMU emulates for each kind of processor."""
DOTS = {"generic": set(), "dotprod": {"sdot"}, "i8mm": {"usdot"}}
"""The instructions for dot products of bytes that each kind uses."""
E8M0_NAN = 255
every_kind = pytest.mark.parametrize("kind", PROCESSORS)
# One row, a group of rows, several; ragged columns and stretches of K.
SHAPES = [(1, 16, 32), (3, 50, 544), (7, 33, 96), (12, 48, 640)]
# Exponents of the first row of activations and scales of the weights: all products are regular
# in float32; those of a row are not; most are not, and there are infinities and NaN.
RANGES = {
    "regular": ((-3, 3), (97, 117)),
    "one irregular row": ((-100, 20), (60, 130)),
    "irregular": ((-3, 3), (0, 190)),
}

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Returns what links the program of a kind and says which command runs it."""
    need(QEMU, "qemu-user")
    need(GCC, "gcc-aarch64-linux-gnu")
    folder = tmp_path_factory.mktemp("emulated")
    has_library = subprocess.run(
        [GCC, "-E", "-include", "stdlib.h", "-xc", os.devnull], capture_output=True, check=False
    )
    if has_library.returncode:
        pytest.skip("no C library for ARM64 (Debian, Ubuntu: apt install libc6-dev-arm64-cross)")
    known = subprocess.run([QEMU, "-cpu", "help"], capture_output=True, text=True, check=False)

    def command(kind):
        processor = PROCESSORS[kind]
        if processor not in known.stdout.split():
            pytest.skip(f"{QEMU} does not know {processor}, version 7.0 does")
        program = folder / kind
        if not program.exists():
            sources = FOLDER / "main.c", artefacts.path(f"cpu/arm64_{kind}")
            subprocess.run([GCC, "-O1", "-static", "-o", program, *sources], check=True)
        return [QEMU, "-cpu", processor, program]

    return command


def need(tool, package):
    """Skips a test where there is no such tool."""
    if not shutil.which(tool):
        pytest.skip(f"no {tool} on PATH (Debian, Ubuntu: apt install {package})")


@every_kind
def test_the_dot_product_is_one_instruction(kind):
    need(OBJDUMP, "binutils-aarch64-linux-gnu")
    command = [OBJDUMP, "--disassemble", "--no-show-raw-insn", artefacts.path(f"cpu/arm64_{kind}")]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"\t((?:us|su|s|u)dot)\t", text)) == DOTS[kind]


NO_TENSOR_SCALES = 0
"""Their address: formats of `FORMATS` have none."""


def some_floats(rng, format, dtype, scale_rule):
    """Values on which a quantizer may go wrong, as blocks."""
    if dtype == "float32":
        values = float32_corners(format)
        values = np.concatenate([values, [np.inf, np.nan], rng.standard_normal(62)])
    else:
        values = every_value(dtype)
    turns, _ = turns_under_every_scale(format, dtype, scale_rule)
    values = np.resize(values, -(-values.size // BLOCK) * BLOCK)
    return np.concatenate([values, turns.ravel()]).astype(NUMPY_DTYPES[dtype])


@every_kind
@pytest.mark.parametrize("dtype", DTYPES)
def test_quantize(programs, tmp_path, rng, kind, dtype):
    image, table = Image(), facts()
    for name in FORMATS:
        fmt = table.formats[name]
        for scale_rule in ROUNDINGS:
            x = image.place(some_floats(rng, name, dtype, scale_rule).reshape(-1, BLOCK))
            rows, k = x.shape
            label = f"{name}, {scale_rule}"
            out = [image.result(f"codes, {label}", (rows, fmt.packed_bytes(k)))]
            out.append(image.result(f"scales, {label}", (rows, 1)))
            source = (x, table.dtypes[dtype], k, rows, k)
            image.call(
                "quantize", *source, fmt.code, table.roundings[scale_rule], *out, NO_TENSOR_SCALES
            )
    image.agree(programs(kind), tmp_path / "image")


def stored(image, rng, rows, k, format, layout, range_of_scales=(0, 255)):
    """Places a random operand; returns codes, scales, and the codes of format and layout."""
    codes, scales = random_operand(rng, rows, k, *range_of_scales, format=format)
    if min(range_of_scales) == 0:
        scales[0, -1] = E8M0_NAN
    q = mx_tensor(codes, scales, layout, format)
    return image.place(q.codes.numpy()), image.place(q.scales.numpy()), *q._native


@every_kind
def test_dequantize(programs, tmp_path, rng, kind):
    image, table = Image(), facts()
    for format in FORMATS:
        for layout in LAYOUTS:
            for dtype in DTYPES:
                operand = stored(image, rng, 50, 576, format, layout)
                label = f"{format}, {layout}, {dtype}"
                out = image.result(label, (50, 576), NUMPY_DTYPES[dtype])
                image.call("dequantize", *operand, 50, 576, out, table.dtypes[dtype])
    image.agree(programs(kind), tmp_path / "image")


@every_kind
def test_relayout(programs, tmp_path, rng, kind):
    image, table = Image(), facts()
    for format in FORMATS:
        fmt = table.formats[format]
        for layout in LAYOUTS:
            for target in table.layouts.values():
                codes, scales, *_ = stored(image, rng, 50, 576, format, layout)
                source = (codes, scales, table.layouts[layout].code)
                label = f"{format}, {layout} to {target.name}"
                shapes = zip(("codes", "scales"), target.storage(50, 576, fmt), strict=True)
                out = [image.result(f"{what} of {label}", shape) for what, shape in shapes]
                image.call("relayout", *source, *out, target.code, fmt.code, 50, 576)
    image.agree(programs(kind), tmp_path / "image")


def some_activations(rng, m, k, dtype, range_of_exponents):
    """Returns random activations; the first row has an exponent from a range for each block."""
    exponents = rng.integers(-3, 4, (m, k))
    exponents[0] += rng.integers(*range_of_exponents, k // BLOCK).repeat(BLOCK)
    if dtype == "float16":
        exponents = exponents.clip(-20, 12)
    return np.ldexp(rng.standard_normal((m, k)), exponents).astype(NUMPY_DTYPES[dtype])


def left_sides(image, x, format):
    """Yields the left sides that a call may have of floats: their name and what stands for them."""
    dtype, k = facts().dtypes[x.dtype.name], x.shape[1]
    if format is None:
        yield "kept", (KEPT, x, 0, dtype, k, NO_CODE, 0)
        return
    if format == "mxint16":
        yield "integers", (INTEGERS, x, 0, dtype, k, NO_CODE, 0)
        return
    code = facts().formats[format].code
    yield "quantized", (QUANTIZED, x, 0, dtype, k, code, facts().roundings["even"])
    q = mx.quantize(np.ascontiguousarray(x), format=format)
    codes, scales = (image.place(part.numpy()) for part in (q.codes, q.scales))
    yield "encoded", (ENCODED, codes, scales, 0, 0, code, 0)


def add_product(image, rng, label, left, right, shape, scene):
    """Adds a call; result and bias are of random types, and one call of three has no bias."""
    (m, n, k), codes = shape, facts().dtypes
    bias_dtype = str(rng.choice(DTYPES))
    bias = image.place(rng.standard_normal(n).astype(NUMPY_DTYPES[bias_dtype]), shift=2)
    addend = (bias, codes[bias_dtype]) if rng.integers(3) else (0, NO_CODE)
    # What is not regular would all be infinite in float16.
    dtype = str(rng.choice(DTYPES if scene == "regular" else ["bfloat16", "float32"]))
    out = image.result(f"{label} to {dtype}", (m, n), NUMPY_DTYPES[dtype])
    image.call("multiply", *left, *right, out, codes[dtype], *addend, m, n, k)


@every_kind
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(programs, tmp_path, rng, kind, shape):
    image, (m, n, k) = Image(), shape
    kept = [(None, right) for right in FORMATS]
    wide = [("mxint16", right) for right in INTEGER_FORMATS if right in FORMATS]
    for left_format, right_format in [*PAIRS, *kept, *wide]:
        for layout, (scene, (exponents, scales)) in itertools.product(LAYOUTS, RANGES.items()):
            dtype = str(rng.choice(DTYPES))
            x = image.place(some_activations(rng, m, k, dtype, exponents), shift=2)
            if scene == "irregular" and m > 2:
                x[1, 0], x[2, -1] = np.inf, np.nan
            right = stored(image, rng, n, k, right_format, layout, scales)
            for what, left in left_sides(image, x, left_format):
                label = f"{what} {left_format or dtype} x {right_format}, {layout}, {scene}"
                add_product(image, rng, label, left, right, shape, scene)
    image.agree(programs(kind), tmp_path / "image")

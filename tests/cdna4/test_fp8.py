"""FP8 with float32 scales on CDNA4: of rows, and of 1 x 128 by 128 x 128; against the oracle.

Every launch executes every workgroup and is checked for hazards and for accesses beyond the
operands. Scales are numbers of any mantissa: a product is rounded twice more than one of MX formats.
"""

import re

import numpy as np
import pytest

import gfx950
import oracle
from tests.cdna4 import support as cdna4
from tests.cdna4.support import NUMPY_DTYPES

NAME = re.compile(
    r"(\w+)-(\w+)/matmul_(?:m\d_)?([a-z\d]+)_(none|[a-z]+\d+)(?:_m\d+n\d+k\d+w\w+|t?)"
)
ROWS, BLOCKS = "fp8-fp8/", "fp8_block-fp8_block_2d/"
SPLIT = "matmul_bfloat16_bfloat16_m1n4k1w4d1s3a1t"
SHARED = "matmul_float32_none_m2n4k2w4d2s2a2t"
DECODE_SHAPES = [(1, 17, 32), (3, 140, 96), (20, 33, 160), (5, 300, 544), (33, 40, 1056)]
WHOLE_SHAPES = [(5, 130, 512), (20, 40, 1024)]
SCALE_ROUNDINGS = 2
MODES = pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def kernels():
    return cdna4.compile_kernels("fp8")


def operand(rng, rows, k, name, exponents=(-12, -4)):
    """Draws codes of all numbers, and scales of any mantissa."""
    found = oracle.FORMATS[name]
    codes = rng.integers(0, 256, (rows, k), np.uint8)
    codes[np.isin(codes, found.element.special_codes)] = 1
    shape = oracle.quantize(np.zeros((rows, k)), format=name)[1].shape
    return codes, np.float32(2.0 ** rng.uniform(*exponents, shape))


def stored(codes, scales):
    """Returns weights as stored for CDNA4: scales stay plain."""
    blocks = np.zeros((len(codes), codes.shape[1] // oracle.BLOCK), np.uint8)
    return oracle.LAYOUTS["preshuffled_cdna4"].store(codes, blocks)[0], scales


def multiply(kernels, name, shape, rng, *, a=None, b=None, **options):
    """Launches a kernel; compares C with the oracle's bound and returns it."""
    (m, n, k), (left, right, out, bias_name) = shape, NAME.fullmatch(name).groups()
    a = operand(rng, m, k, left) if a is None else a
    b = operand(rng, n, k, right) if b is None else b
    has_bias = bias_name != "none"
    bias = rng.standard_normal(n).astype(NUMPY_DTYPES[bias_name]) if has_bias else None
    c = np.full((m, n), np.nan, NUMPY_DTYPES[out])
    found = cdna4.described(name, m, n, k)
    workspace = found.workspace()
    w_codes, w_scales = stored(*b)
    args = found.bind(
        a=a[0], a_scales=a[1], w_codes=w_codes, w_scales=w_scales, c=c, workspace=workspace,
        bias=bias if has_bias else np.zeros(0, np.uint8), none=np.zeros(0, np.uint8),
    )  # fmt: skip
    gfx950.run(kernels[name], found.grid, found.threads, args, **options).raise_on_hazards()
    assert not workspace.any(), "the workspace is zero after a launch"
    oracle.assert_matmul(
        c.astype(np.float64),
        oracle.dequantize(*a, left),
        oracle.dequantize(*b, right),
        out,
        bias.astype(np.float64) if has_bias else None,
        scale_roundings=SCALE_ROUNDINGS,
    )
    return c


@MODES
@pytest.mark.parametrize("share", range(len(DECODE_SHAPES)))
def test_ragged_shapes_are_within_the_bound(kernels, rng, share, late):
    for index, name in enumerate(kernels):
        shapes = DECODE_SHAPES if name.endswith("t") else WHOLE_SHAPES
        multiply(kernels, name, shapes[(share + index) % len(shapes)], rng, late=late)

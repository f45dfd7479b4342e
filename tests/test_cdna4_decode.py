"""The CDNA4 decode kernels, compiled and run in the simulator, against the oracle.

Every launch executes every workgroup and is checked for hazards and for accesses beyond the
operands, whose padding is poisoned. By default each kernel meets a share of the ragged shapes
and of the contest shapes; CDNA4_FULL=1 in the environment runs all pairs.
"""

import itertools
import os

import numpy as np
import pytest

import cdna4_support as cdna4
import oracle
from cdna4_support import Decode, Problem

FULL = bool(os.environ.get("CDNA4_FULL"))
RAGGED = list(itertools.product((1, 3, 15, 17, 33, 100), (1, 17, 100, 2115), (32, 96, 160, 544, 7200)))
SMALL = [shape for shape in RAGGED if np.prod(shape) < 20_000_000]
SHARES = 12
MODES = pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])


@pytest.fixture(scope="module")
def kernels():
    return cdna4.compile_kernels("decode")


def some_of(shapes, index: int):
    """Returns all shapes, or every twelfth one from `index` on; the largest ones only if all."""
    return shapes if FULL else [s for s in shapes if s in SMALL][index % SHARES :: SHARES]


@MODES
@pytest.mark.parametrize("share", range(SHARES))
def test_ragged_shapes_are_within_the_bound(kernels, rng, share, late):
    for index, (name, kernel) in enumerate(kernels.items()):
        decode = Decode.named(name)
        shapes = RAGGED[share::SHARES] if FULL else SMALL[(share + 5 * index) % len(SMALL) :][:1]
        for m, n, k in shapes:
            problem = Problem.random(rng, m, n, k, decode.x or "bfloat16", decode.bias)
            cdna4.assert_multiplies(kernel, decode, problem, late=late)

"""Finds the launches of experts on gfx950 and runs them in the simulator.

`Launches` asks `programs/experts.mojo`, whose launches are those of the dispatch. Every launch is
checked for hazards, and arrays are exactly as long as the operands.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
from dataclasses import dataclass
from functools import cache

import numpy as np

import gfx950
import oracle
from tests import artefacts
from tests.cdna4.support import NUMPY_DTYPES, poisoned_weights


@cache
def program():
    """Returns the module that knows the launches."""
    path = artefacts.path("cdna4/experts")
    loader = importlib.machinery.ExtensionFileLoader("experts", str(path))
    spec = importlib.util.spec_from_file_location("experts", path, loader=loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@cache
def kernel(text: str) -> gfx950.Kernel:
    """Returns a kernel for the simulator."""
    return gfx950.parse(text)


def run(launches, operands: dict, workspace: np.ndarray | None = None, **options) -> list:
    """Runs launches one after another; raises on hazards."""
    found = []
    for launch in launches:
        args = []
        for argument in launch["arguments"]:
            if isinstance(argument, tuple):
                args.append(workspace[argument[0] :])
            elif isinstance(argument, str):
                args.append(operands[argument])
            else:
                args.append(np.int32(argument))
        run = gfx950.run(kernel(launch["text"]), launch["grid"], launch["threads"], args, **options)
        found.append(run.raise_on_hazards())
    return found


@dataclass
class Experts:
    """Weights of all experts, as parts of plain MXFP4 and as stored."""

    codes: np.ndarray
    """[E, N, K / 2]."""
    scales: np.ndarray
    """[E, N, K / 32]."""
    bias: np.ndarray | None
    """[E, N]."""

    @classmethod
    def random(cls, rng, count, n, k, bias="none", top=127) -> Experts:
        """Draws weights; the largest scale is that of `top`."""
        codes = rng.integers(0, 256, (count, n, k // 2), np.uint8)
        scales = rng.integers(top - 9, top, (count, n, k // oracle.BLOCK)).astype(np.uint8)
        addend = None
        if bias != "none":
            addend = rng.standard_normal((count, n)).astype(NUMPY_DTYPES[bias])
        return cls(codes, scales, addend)

    def stored(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns codes, scales and bias in memory; scales in the padding are NaN."""
        pairs = [poisoned_weights(*pair) for pair in zip(self.codes, self.scales, strict=True)]
        codes, scales = map(np.stack, zip(*pairs, strict=True))
        return codes, scales, np.zeros(0, np.uint8) if self.bias is None else self.bias

    def matrix(self, expert: int) -> np.ndarray:
        """Returns what the weights of an expert stand for."""
        return oracle.dequantize(self.codes[expert], self.scales[expert])


def grouped(name: str, x, experts: Experts, sizes, **options) -> np.ndarray:
    """Runs a grouped product; returns C, which begins as NaN."""
    (m, k), (count, n, _) = x.shape, experts.codes.shape
    w_codes, w_scales, bias = experts.stored()
    c = np.full((m, n), np.nan, NUMPY_DTYPES[name.split("_")[2]])
    operands = {
        "x": x, "w_codes": w_codes, "w_scales": w_scales, "bias": bias, "c": c,
        "sizes": np.asarray(sizes, np.int32), "none": np.zeros(0, np.uint8),
    }  # fmt: skip
    launches = program().grouped(name, (m, n, k, count))
    assert len(launches) == (1 if m * n else 0)
    run(launches, operands, **options)
    return c

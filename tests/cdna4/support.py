"""Finds our gfx950 kernels and launches them in the simulator.

`compile_kernels(program)` returns the kernels that a catalogue of `programs` lists, by name.
`quantize`, `linear` and `matmul` make operands; grid, arguments and workspace are what the
kernel's own host code says. Every launch is checked for hazards, and arrays are exactly as long
as the operands, so that the simulator faults on any access beyond.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

import gfx950
import mx_kernels as mx
import oracle
from bench.simulated.catalogue import Catalogue, Described
from tests import artefacts

CONTEST = [
    (4, 2880, 512),
    (16, 2112, 7168),
    (32, 4096, 512),
    (32, 2880, 512),
    (64, 7168, 2048),
    (256, 3072, 1536),
]
"""(M, N, K) of the products that CDNA4 is measured by."""
LINEAR, MATMUL = "linear_bfloat16_even_bfloat16_none_", "matmul_bfloat16_none_"
"""How the names of decode kernels begin that the dispatch chooses from; a cut follows."""
LANES = 64
NUMPY_DTYPES = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}


CATALOGUE_OF: dict[str, Catalogue] = {}
"""Where the launches of a kernel are known, by its name."""


@cache
def catalogue(program: str) -> Catalogue:
    """Returns the catalogue of a program."""
    found = Catalogue.load(artefacts.path(f"cdna4/{program}"), program)
    CATALOGUE_OF.update(dict.fromkeys(found.texts, found))
    return found


def compile_texts(program: str) -> dict[str, str]:
    """Returns the assembly texts of the kernels of a program, by name."""
    return catalogue(program).texts


def compile_kernels(program: str) -> dict[str, gfx950.Kernel]:
    """Returns the kernels of a program, by name."""
    return catalogue(program).kernels


def described(name: str, m: int, n: int, k: int) -> Described | None:
    """Returns the launch of a kernel that was compiled, None if it does not take the shape."""
    return CATALOGUE_OF[name].launch(name, m, n, k)


def ceildiv(a: int, b: int) -> int:
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    return ceildiv(a, b) * b


@dataclass(frozen=True)
class Launch:
    """What a launch takes besides the kernel; `results` are those arguments that it writes."""

    grid: tuple[int, ...]
    block: int
    args: list
    results: tuple[np.ndarray, ...]

    def run(self, kernel, **options):
        """Runs a kernel and raises on hazards."""
        return gfx950.run(kernel, self.grid, self.block, self.args, **options).raise_on_hazards()


def quantize_launch(x, scale_rule: str = "even") -> Launch:
    """Returns a launch of the quantize kernel; its outputs begin poisoned."""
    rows, k = x.shape
    found = described(f"{x.dtype}_{scale_rule}", rows, 0, k)
    codes = np.full((rows, k // 2), 0xA5, np.uint8)
    scales = np.full((rows, k // oracle.BLOCK), 0xA5, np.uint8)
    args = found.bind(a=np.ascontiguousarray(x), codes=codes, scales=scales)
    return Launch(found.grid, found.threads, args, (codes, scales))


def quantize(kernel, x, **options):
    """Launches the quantize kernel; returns codes and scales."""
    launch = quantize_launch(x)
    launch.run(kernel, **options)
    return launch.results


@dataclass(frozen=True)
class Decode:
    """A decode kernel, from its name: what it computes and how it cuts its work."""

    name: str
    left: str
    right: str
    op: str
    x: str
    scale_rule: str
    result: str
    bias: str
    m_tiles: int
    n_tiles: int
    waves: int
    splits: int
    k_tiles: int
    depth: int
    sharers: int
    up_front: bool
    k_tail: bool

    NAME = re.compile(
        r"(?:(\w+)-(\w+)/)?(?:(linear)_(\w+?)_(\w+?)|matmul)_(\w+?)_(\w+?)_"
        r"m(\d+)n(\d+)w(\d+)(?:s(\d+))?(?:k(\d+))?(?:d(\d+))?(?:h(\d+))?(u?)(t?)"
    )

    @classmethod
    def named(cls, name: str) -> Decode:
        """Parses a name of `programs/named.mojo`."""
        match = cls.NAME.fullmatch(name)
        left, right, op, x, scale_rule, result, bias, *cut = match.groups()
        counts, marks = (int(count or 1) for count in cut[:-2]), map(bool, cut[-2:])
        formats = left or "mxfp4", right or "mxfp4"
        kind = op or "matmul", x or "", scale_rule or "", result, bias
        return cls(name, *formats, *kind, *counts, *marks)

    def supports(self, k: int) -> bool:
        """Says whether the kernel may be launched for K."""
        return described(self.name, 1, 1, k) is not None

    def workspace(self, m: int, n: int, k: int) -> np.ndarray:
        """Returns the nodes where sums meet, which are zero between launches."""
        return described(self.name, m, n, k).workspace()


@dataclass
class Problem:
    """Operands of one product, and what their encoded forms stand for."""

    x: np.ndarray
    weights: tuple[np.ndarray, np.ndarray]
    """Plain codes and scales [N, bytes of K codes], [N, K / 32], or of "nvfp4" [N, K / 16 + 4]."""
    bias: np.ndarray | None
    right: str = "mxfp4"
    """The format of the weights."""

    @classmethod
    def random(
        cls, rng, shape, x: str = "bfloat16", bias: str = "none", right: str = "mxfp4"
    ) -> Problem:
        """Draws operands; the scales of neighbouring blocks differ by up to 2**9."""
        m, n, k = shape
        exponents = np.repeat(rng.integers(-4, 5, (m, k // oracle.BLOCK)), oracle.BLOCK, 1)
        values = (rng.standard_normal((m, k)) * np.exp2(exponents)).astype(NUMPY_DTYPES[x])
        fmt = oracle.FORMATS[right]
        codes = rng.integers(0, 256, (n, fmt.packed_bytes(k)), np.uint8)
        if fmt.element.bits == 8:
            codes[np.isin(codes, fmt.element.special_codes)] = 0
        scales = random_scales(rng, n, k, right)
        addend = None if bias == "none" else rng.standard_normal(n).astype(NUMPY_DTYPES[bias])
        return cls(values, (codes, scales), addend, right)


def random_scales(rng, rows: int, k: int, name: str) -> np.ndarray:
    """Draws plain scales of a format; neighbours differ by up to 2**9."""
    if oracle.FORMATS[name].scale != "e4m3":
        return rng.integers(118, 127, (rows, k // oracle.BLOCK)).astype(np.uint8)
    scales = rng.integers(0, 0x7F, (rows, k // 16), np.uint8)
    tensor = np.float32(np.exp2(rng.uniform(-12, -4, (rows, 1))))
    return np.concatenate([scales, tensor.view(np.uint8)], 1)


def multiply_launch(decode: Decode, problem: Problem, workspace=None) -> Launch:
    """Returns a launch of a decode kernel; scales in the padding of the weights are NaN."""
    (m, k), n = problem.x.shape, len(problem.weights[0])
    found = described(decode.name, m, n, k)
    a, a_scales = problem.x, None
    if decode.op == "matmul":
        a, a_scales = oracle.quantize(problem.x.astype(np.float64), format=decode.left)
    w_codes, w_scales = poisoned_weights(*problem.weights, problem.right)
    c = np.full((m, n), np.nan, NUMPY_DTYPES[decode.result])
    workspace = found.workspace() if workspace is None else workspace
    bias = np.zeros(0, np.uint8) if problem.bias is None else problem.bias
    args = found.bind(
        a=a, a_scales=a_scales, w_codes=w_codes, w_scales=w_scales, c=c, bias=bias,
        workspace=workspace, none=np.zeros(0, np.uint8),
    )  # fmt: skip
    return Launch(found.grid, found.threads, args, (c, workspace))


def multiply(kernel, decode: Decode, problem: Problem, *, workspace=None, **options):
    """Launches a decode kernel; returns C."""
    launch = multiply_launch(decode, problem, workspace)
    launch.run(kernel, **options)
    c, workspace = launch.results
    assert not workspace.any(), "the workspace is zero after a launch"
    return c


def contest_kernel(shape: tuple[int, int, int], op: str = "linear") -> tuple:
    """Returns the kernel whose cut is chosen for floats of a contest shape, and its name."""
    cut = mx.explain(*shape, device="gfx950", activations="mxfp4").cut
    name = (LINEAR if op == "linear" else MATMUL) + cut
    kernels = compile_kernels("decode")
    if shape != CONTEST[0]:
        kernels = kernels | compile_kernels("choices")
    return kernels[name], Decode.named(name)


def poisoned_weights(codes, scales, name="mxfp4"):
    """Returns the weights as stored for CDNA4, with NaN in all padding of the scales."""
    stored = oracle.LAYOUTS["preshuffled_cdna4"]
    if oracle.FORMATS[name].scale == "e4m3":
        return stored.store(codes, scales)[0], stored.store_e4m3(scales, fill=oracle.NAN_SCALE)
    inside = stored.store(codes, np.zeros_like(scales))[1] == 0
    codes, scales = stored.store(codes, scales)
    return codes, np.where(inside, scales, np.uint8(oracle.NAN_SCALE))


def activations(decode: Decode, problem: Problem) -> np.ndarray:
    """Returns what a kernel multiplies: activations rounded to its left format."""
    if decode.left == "bf16":
        return problem.x.astype(NUMPY_DTYPES["bfloat16"]).astype(np.float64)
    encoded = oracle.quantize(
        problem.x.astype(np.float64), decode.scale_rule or "even", decode.left
    )
    return oracle.dequantize(*encoded, decode.left)


def assert_multiplies(kernel, decode: Decode, problem: Problem, **options):
    """Launches a decode kernel and compares C with the oracle's bound; returns C."""
    c = multiply(kernel, decode, problem, **options)
    a = activations(decode, problem)
    b = oracle.dequantize(*problem.weights, decode.right)
    bias = None if problem.bias is None else problem.bias.astype(np.float64)
    roundings = int(oracle.FORMATS[decode.right].scale == "e4m3")
    oracle.assert_matmul(c.astype(np.float64), a, b, decode.result, bias, scale_roundings=roundings)
    return c


def loop_of(kernel):
    """Returns the instructions of the innermost loop with most matrix instructions.

    A loop is what lies on a way from a jump back's target to the jump, wherever the compiler has
    put it, but for what is before the target.
    """
    code = kernel.instructions
    after = {i.pc: [] for i in code}
    for i in code:
        if i.name not in ("s_branch", "s_endpgm") and i.pc + 1 in after:
            after[i.pc].append(i.pc + 1)
        if i.target is not None:
            after[i.pc].append(i.target)
    before = {i.pc: [] for i in code}
    for pc, others in after.items():
        for other in others:
            before[other].append(pc)

    def reached(start, ways, first):
        found, waiting = set(), [start]
        while waiting:
            pc = waiting.pop()
            if pc >= first and pc not in found:
                found.add(pc)
                waiting += ways[pc] if pc != first or start == first else []
        return found

    loops = {}
    for i in code:
        if i.target is not None and i.target <= i.pc:
            body = reached(i.target, after, i.target) & reached(i.pc, before, i.target)
            loops[i.target] = loops.get(i.target, set()) | body
    mfma = {i.pc for i in code if i.name.startswith("v_mfma")}
    loops = [body for body in loops.values() if body & mfma]
    inner = [body for body in loops if not any(other < body for other in loops)]
    most = max(inner, key=lambda body: len(body & mfma))
    return [i for i in code if i.pc in most]

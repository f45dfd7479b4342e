"""Launches prefill kernels in the simulator: operands, and what workgroups share.

The names of kernels are those of `programs/named_prefill.mojo`. Every launch executes every
workgroup, is checked for hazards and for accesses beyond the operands, and finds NaN in all
padding of scales; what workgroups handed over is compared with the oracle's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import numpy as np

import gfx950
import gfx950.timing
import oracle
from tests.cdna4 import support as cdna4

COLUMNS = 256
"""Of C, of a workgroup."""
PAIR_ROWS = 32
TILED_ROWS, TILE_K = 8, 128
"""Rows and elements whose six-bit codes lie together where workgroups hand them over."""
NAME = re.compile(
    r"(?:(\w+)-(\w+)/)?(linear|matmul)_m(\d)_(?:([a-z\d]+)_)?([a-z\d]+)_(none|[a-z]+\d+)t?"
)


@dataclass(frozen=True)
class Prefill:
    """A prefill kernel, from its name."""

    name: str
    left: str
    right: str
    op: str
    rows: int
    """Of C, of a workgroup."""
    x: str | None
    out: str
    bias: str

    @classmethod
    @cache
    def named(cls, name: str) -> Prefill:
        """Parses a name."""
        left, right, op, m_tiles, x, out, bias = NAME.fullmatch(name).groups()
        formats = left or "mxfp4", right or "mxfp4"
        return cls(name, *formats, op, PAIR_ROWS * int(m_tiles), x, out, bias)

    @property
    def is_kept(self) -> bool:
        """Whether activations stay bfloat16."""
        return self.left == "bf16"

    @property
    def has_tiles(self) -> bool:
        """Whether workgroups hand over codes by tiles, of floats or of plain codes."""
        return self.left.startswith("mxfp6")

    @property
    def k_bytes(self) -> tuple[int, int]:
        """The bytes of 32 codes of either side, or of 32 floats."""
        right = oracle.FORMATS[self.right].packed_bytes(oracle.BLOCK)
        if self.is_kept:
            return 2 * oracle.BLOCK, right
        return oracle.FORMATS[self.left].packed_bytes(oracle.BLOCK), right


def rows_of(name):
    """Returns the rows of C of a workgroup."""
    return Prefill.named(name).rows


def launch_of(name, m, n, k):
    """Returns what the kernel's host code launches."""
    return cdna4.described(name, m, n, k)


@dataclass
class Workspace:
    """What a launch meets in; counters are words, a row for each cooperative."""

    memory: np.ndarray
    counters: np.ndarray
    scales: np.ndarray
    codes: np.ndarray
    left: str

    @classmethod
    def of(cls, name, m, n, k, *, finished=0):
        """Returns a workspace whose first `finished` parts of each pair others have prepared."""
        found, cooperative = launch_of(name, m, n, k), cdna4.CATALOGUE_OF[name].cooperative
        kernel = Prefill.named(name)
        memory = found.workspace()
        memory[found.cleared_bytes :] = 0xA5
        counters = memory[: found.cleared_bytes].view(np.uint32).reshape(-1, cooperative["words"])
        pairs = kernel.rows // cooperative["pair_rows"]
        counters[:, :pairs] = finished
        counters[:, cooperative["finished_word"]] = pairs * finished
        scale_bytes = cdna4.round_up(m, PAIR_ROWS) * cdna4.round_up(k // oracle.BLOCK, 8)
        scales = memory[found.cleared_bytes :][:scale_bytes]
        code_bytes = m * k // oracle.BLOCK * kernel.k_bytes[0] if kernel.op == "linear" else 0
        if kernel.has_tiles:
            blocks = cdna4.round_up(k, TILE_K) // oracle.BLOCK
            code_bytes = cdna4.round_up(m, TILED_ROWS) * blocks * kernel.k_bytes[0]
        codes = memory[len(memory) - code_bytes :]
        return cls(memory, counters, scales, codes, kernel.left)

    def check(self, a):
        """Compares what workgroups handed over with plain codes and scales of activations."""
        stored = oracle.LAYOUTS["preshuffled_cdna4"]
        # Plain codes of six bits may have no place in the layout: any others will do.
        no_codes = np.zeros((len(a[1]), 16 * a[1].shape[1]), np.uint8)
        inside = stored.store(no_codes, np.zeros_like(a[1]))[1].ravel() == 0
        expected = stored.store(no_codes, a[1])[1].ravel()
        assert not self.counters.any(), "counters are zero after a launch"
        np.testing.assert_array_equal(self.scales[inside], expected[inside])
        codes = self.codes
        if codes.size and self.left.startswith("mxfp6"):
            (m, row_bytes), tile_bytes = a[0].shape, TILE_K * 6 // 8
            tiles = codes.reshape(-(-m // TILED_ROWS), -1, TILED_ROWS, tile_bytes)
            codes = np.moveaxis(tiles, 1, 2).reshape(len(tiles) * TILED_ROWS, -1)
            codes = codes[:m, :row_bytes].ravel()
        if codes.size:
            np.testing.assert_array_equal(codes, a[0].ravel())


@dataclass
class Product:
    """What a launch computed, from what."""

    c: np.ndarray
    a: np.ndarray
    """What is multiplied, as numbers."""
    b: tuple[np.ndarray, np.ndarray]
    bias: np.ndarray | None
    kernel: Prefill
    run: gfx950.Result

    def check(self):
        """Compares C with the oracle's bound."""
        b = oracle.dequantize(*self.b, self.kernel.right)
        roundings, kernel = int(self.kernel.right == "nvfp4"), self.kernel
        oracle.assert_matmul(
            self.c.astype(np.float64), self.a, b, kernel.out, self.bias, scale_roundings=roundings
        )


def multiply(kernel, name, rng, shape, *, x=None, a=None, **options):
    """Launches a kernel on random operands, on floats `x` or on codes and scales `a`."""
    m, n, k = shape
    made = Prefill.named(name)
    if made.op == "linear":
        x = random_floats(rng, m, k) if x is None else x
        stored_a = [x.astype(cdna4.NUMPY_DTYPES[made.x])]
        values = stored_a[0].astype(np.float64)
        a = None if made.is_kept else oracle.quantize(values, format=made.left)
    else:
        stored_a = a = random_operand(rng, m, k, made.left) if a is None else a
    values = values if made.is_kept else oracle.dequantize(*a, made.left)
    b = random_operand(rng, n, k, made.right)
    bias = np.zeros(0, np.uint8)
    if made.bias != "none":
        bias = rng.standard_normal(n).astype(cdna4.NUMPY_DTYPES[made.bias])
    c = np.full((m, n), np.nan, cdna4.NUMPY_DTYPES[made.out])
    found = launch_of(name, m, n, k)
    workspace = None if made.is_kept else Workspace.of(name, m, n, k)
    args = found.bind(
        **dict(zip(("a", "a_scales"), stored_a, strict=False)),
        **dict(zip(("w_codes", "w_scales"), cdna4.poisoned_weights(*b, made.right), strict=True)),
        c=c, bias=bias, workspace=workspace and workspace.memory,
    )  # fmt: skip
    run = gfx950.run(kernel, found.grid, found.threads, args, **options).raise_on_hazards()
    if workspace:
        workspace.check(a)
    return Product(c, values, b, bias.astype(np.float64) if bias.size else None, made, run)


def random_floats(rng, rows, k):
    """Draws floats; neighbouring blocks differ by up to 2**8."""
    exponents = np.repeat(rng.integers(-4, 5, (rows, k // oracle.BLOCK)), oracle.BLOCK, 1)
    return rng.standard_normal((rows, k)) * np.exp2(exponents)


def random_operand(rng, rows, k, name="mxfp4"):
    """Draws plain codes and scales; the scales of neighbouring blocks differ by up to 2**8."""
    found = oracle.FORMATS[name]
    codes = rng.integers(0, 256, (rows, found.packed_bytes(k)), np.uint8)
    if found.element.bits == 8:
        codes[np.isin(codes, found.element.special_codes)] = 0
    return codes, cdna4.random_scales(rng, rows, k, name)


def loop_of(kernel):
    """Returns the instructions of the loop that holds the matrix instructions."""
    loops = [
        kernel.instructions[i.target : i.pc + 1]
        for i in kernel.instructions
        if i.target is not None and i.target <= i.pc
    ]
    return max(loops, key=lambda loop: sum(i.name.startswith("v_mfma") for i in loop))


def model(kernel, name, m, n, k, **options):
    """Times a launch whose workgroups do equal shares of what their teams prepare."""
    made = Prefill.named(name)
    blocks, (a_bytes, b_bytes) = k // oracle.BLOCK, made.k_bytes
    if made.op == "linear":
        a_bytes = oracle.BLOCK * cdna4.NUMPY_DTYPES[made.x].itemsize
    sizes = {
        "a": m * blocks * a_bytes, "a_scales": m * blocks, "w_codes": n * blocks * b_bytes,
        "w_scales": n * blocks if made.right != "nvfp4" else n * (2 * blocks + 4),
        "c": 2 * m * n, "bias": 0,
    }  # fmt: skip
    operands = {operand: np.zeros(size, np.uint8) for operand, size in sizes.items()}
    found, workspace = launch_of(name, m, n, k), None
    if not made.is_kept:
        op = f"{made.op}_by_tiles" if made.has_tiles and made.op == "matmul" else made.op
        parts = cdna4.ceildiv(k, cdna4.CATALOGUE_OF[name].cooperative["part_k"][op])
        own = cdna4.ceildiv(parts, cdna4.ceildiv(n, COLUMNS))
        workspace = Workspace.of(name, m, n, k, finished=parts - own).memory
    args = found.bind(**operands, workspace=workspace)
    return gfx950.timing.profile(kernel, found.grid, found.threads, args, **options)

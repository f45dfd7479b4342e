"""What each system launches to compute bf16 x MXFP4 weights, as launches of the simulator.

    mx_kernels      linear: activations rounded to four bits, fused, or by a launch of its own;
                    linear_mxfp8: to eight; linear_bf16: kept, linear_nvfp4: by NVFP4 weights;
                    matmul: activations quantized before
    MAX             its quantizer, its matmul, and where it splits K the sum of the parts
    Triton mxfp4    `dot_scaled`; Triton's corpus has no quantizer, MAX's goes before it
    Triton bf16     weights decoded to bf16, activations not quantized
    AITER           AMD's hand-written FP4 product, where AITER_HSA names its folder; it has no
                    quantizer of floats among its assembly, MAX's goes before it

MAX and AITER may pick among several tiles; each is an `Offer` and the fastest on the model counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

import mx_kernels as mx
from bench.shapes import Shape
from bench.simulated import aiter, kernels, launches
from bench.simulated.catalogue import Catalogue
from bench.simulated.launches import Launch, Operands, zeros
from gfx950.timing import Profile

LANES = 64
MULTIPLY = "multiply, x quantized before"
DECODE = "decode weights, multiply in bf16"
MAX_QUANTIZE_THREADS = 512
MAX_QUANTIZE_ELEMENTS = 8
MAX_REDUCE_THREADS = 256
TRITON_MXFP4 = "triton_mxfp4_mxfp4_64x64x256_w4_s2"
TRITON_BF16 = "triton_bf16_mxfp4_32x32x64_w2_s2"
WHOLE_GRID_WORK = 2e9
"""Multiplications and additions, of padded tiles, up to which every workgroup is executed."""
PADDED_ROWS = 64
"""Rows of the largest tile that a few rows are padded to."""


@dataclass(frozen=True)
class Offer:
    """One way of a system to compute a product: launches, one after another."""

    system: str
    computes: str
    launches: tuple[Launch, ...]


def ours(operands: Operands, op: str) -> Offer:
    """Returns the launches that the dispatch chooses for `linear` or `matmul`."""
    catalogue, label = chosen(operands.shape, op)
    product = Offer("mx_kernels", MULTIPLY, (launches.ours(catalogue, label, operands),))
    if not label.startswith(op):
        return after(our_quantizer(operands), product)
    computes = MULTIPLY if op == "matmul" else "quantize and multiply, fused"
    is_kept = kernels.WIDE.get(op, ("", ""))[0] == "bf16"
    return replace(product, computes=DECODE if is_kept else computes)


def chosen(shape: Shape, op: str) -> tuple[Catalogue, str]:
    """Returns the kernel that the dispatch chooses: its catalogue, and its name, `<op>_<cut>`.

    It is one of `matmul` if activations of `linear` are quantized by a launch before.

    Raises:
        ValueError: if K ends within a step and activations have more than four bits; kernels
            for that are not compiled.
    """
    activations, fmt = kernels.WIDE.get(op, ("mxfp4", "mxfp4"))
    op_of_table = "linear" if op in kernels.WIDE else op
    asked = {"op": getattr(mx, op_of_table), "activations": activations, "format": fmt}
    plan = mx.explain(*shape, device="gfx950", **asked)
    if plan.k_tail and op in kernels.WIDE:
        raise ValueError(
            f"K = {shape.k} ends within a step of {plan.chunk_k}: no kernel is compiled"
        )
    label = f"{'matmul' if plan.quantizes_first else op}_{plan.cut}"
    return kernels.ours(op, k_tail=plan.k_tail), label


def our_quantizer(operands: Operands) -> Offer:
    """Returns the launch of our stand-alone quantizer."""
    found, kernel = (
        kernels.ours().launch("quantize", *operands.shape),
        kernels.ours().kernels["quantize"],
    )
    args = found.bind(a=operands.x, codes=operands.x_codes, scales=operands.x_scales)
    launch = Launch("quantize", kernel, found.grid, found.threads, args)
    return Offer("mx_kernels", "quantize", (launch,))


def max_quantizer(operands: Operands) -> Offer:
    """Returns the launch of MAX's quantizer."""
    m, n, k = operands.shape
    groups = -(-m * k // (MAX_QUANTIZE_ELEMENTS * MAX_QUANTIZE_THREADS))
    args = [operands.x_codes, operands.x_scales, operands.x, np.int32(m * k)]
    kernel = kernels.max_kernels(n, k)["quantize"]
    launch = Launch("max_quantize", kernel, (groups,), MAX_QUANTIZE_THREADS, args)
    return Offer("MAX", "quantize", (launch,))


def max_matmuls(operands: Operands) -> Iterator[Offer]:
    """Yields MAX's matmul in every tile."""
    m, n, k = operands.shape
    compiled = kernels.max_kernels(n, k)
    for name, kernel in compiled.items():
        if not name.startswith("matmul"):
            continue
        tile_m, tile_n, _, waves, splits = map(int, re.findall(r"\d+", name))
        parts = zeros(splits * m, n, np.float32) if splits > 1 else operands.c
        rows = np.int64(m)
        args = [
            (parts, np.int64(splits * m)), (operands.x_codes, rows), operands.codes,
            (operands.x_scales, rows), operands.scales,
        ]  # fmt: skip
        grid = (-(-n // tile_n), -(-m // tile_m), splits)
        steps = [Launch(f"max_{name}", kernel, grid, waves * LANES, args)]
        if splits > 1:
            counts = [np.int32(count) for count in (m * n, m * n, n)]
            args = [parts, operands.c, *counts]
            reduce = f"reduce_s{splits}"
            groups = (-(-m * n // MAX_REDUCE_THREADS),)
            steps.append(
                Launch(f"max_{reduce}", compiled[reduce], groups, MAX_REDUCE_THREADS, args)
            )
        yield Offer("MAX", MULTIPLY, tuple(steps))


def triton(operands: Operands, name: str, system: str, computes: str) -> Offer:
    """Returns the launch of a kernel of Triton's corpus."""
    kernel, row = kernels.triton(name)
    m, n, k = operands.shape
    is_mxfp4 = row["a"] == "mxfp4"
    named = {
        "a": operands.x_codes if is_mxfp4 else operands.x, "a_scales": operands.x_scales,
        "b": operands.codes, "b_scales": operands.scales, "c": operands.c,
        "m": np.int32(m), "n": np.int32(n), "k": np.int32(k),
        "scratch_0": np.uint64(0), "scratch_1": np.uint64(0),
    }  # fmt: skip
    tile_m, tile_n, _ = row["tile"]
    args = [named[entry["name"]] for entry in row["args"]]
    grid = (-(-m // tile_m), -(-n // tile_n))
    return Offer(system, computes, (Launch(name, kernel, grid, row["block"][0], args),))


def aiter_matmuls(operands: Operands) -> Iterator[Offer]:
    """Yields AITER's product in the tiles that its tuned table prefers, as far as they are here."""
    m, n, k = operands.shape
    args = aiter.arguments(
        (operands.x_codes, aiter_scales(operands.x_codes, k)), operands.preshuffled,
        operands.c, operands.shape,
    )  # fmt: skip
    here = set(aiter.tiles())
    for tile in aiter.preferred(m, n):
        if tile in here:
            step = Launch(f"aiter_{tile}", tile.kernel(), tile.grid(m, n), aiter.THREADS, args)
            yield Offer("AITER", MULTIPLY, (step,))


def aiter_scales(codes: np.ndarray, k: int) -> np.ndarray:
    """Returns scales of activations as AITER stores them, padded."""
    return zeros(-(-len(codes) // aiter.BLOCK) * aiter.BLOCK, aiter.padded_blocks(k))


def after(first: Offer, second: Offer) -> Offer:
    """Returns `second` with the launches of `first` before it."""
    steps = (*first.launches, *second.launches)
    return Offer(second.system, "quantize, then multiply", steps)


def offers(operands: Operands, op: str) -> list[Offer]:
    """Returns every way to compute an operation of the target, ours first.

    Raises:
        ValueError: if the operation is unknown, or no kernel was emitted for the shape.
    """
    if op in kernels.WIDE:
        peers = [decoding(operands)] if op == "linear_bf16" else []
        return [ours(operands, op), *peers]
    quantizer = max_quantizer(operands)
    if op == "quantize":
        return [our_quantizer(operands), quantizer]
    unfused = [
        *max_matmuls(operands),
        triton(operands, TRITON_MXFP4, "Triton mxfp4", MULTIPLY),
        *aiter_matmuls(operands),
    ]
    if op == "matmul":
        return [ours(operands, op), *unfused]
    if op != "linear":
        known = ", ".join(["linear", "matmul", "quantize", *kernels.WIDE])
        raise ValueError(f"op: got {op!r}, expected one of {known}")
    fused = [after(quantizer, offer) for offer in unfused]
    return [ours(operands, op), *fused, decoding(operands)]


def decoding(operands: Operands) -> Offer:
    """Returns Triton's product with weights that are decoded to bfloat16."""
    return triton(operands, TRITON_BF16, "Triton bf16 x mxfp4", DECODE)


def executes_whole_grid(shape: Shape) -> bool:
    """Says whether every workgroup is executed; else those that share a compute unit are."""
    m, n, k = shape
    return 2 * max(m, PADDED_ROWS) * n * k <= WHOLE_GRID_WORK


class Stopwatch:
    """Times launches of one shape, each kernel once."""

    def __init__(self, shape: Shape):
        self._whole_grid = executes_whole_grid(shape)
        self._done: dict[str, Profile] = {}

    def time(self, offer: Offer) -> list[Profile]:
        """Returns what the model says about each launch of an offer."""
        for launch in offer.launches:
            if launch.name not in self._done:
                self._done[launch.name] = launch.profile(self._whole_grid)
        return [self._done[launch.name] for launch in offer.launches]

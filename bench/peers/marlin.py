"""Marlin (vLLM's kernels of experts for four-bit weights): a layer of experts, on the GPU.

Tokens are sorted, then come two products with a gate of Triton between them, and the sums of slots.
`MARLIN` names `_moe_C.abi3.so` of an unpacked wheel of vLLM for this torch: 0.20 for 2.11. Weights
are random words in its own layout, so results are compared with nobody's.
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl

NAME = "Marlin"
E2M1 = 562949953487106
"""vLLM's number of the type of codes."""
SCALE_BITS = range(116, 122)
TILE_ROWS = 8, 16, 32, 48, 64
MOST_OF_A_TILE = 0.9
"""Rows of an expert, on average, that vLLM puts into a tile."""
SIZES = 128
"""Hidden and inner sizes are multiples of it; vLLM pads others."""
GATED = 1024
"""Hidden numbers of a group of the gate."""


@triton.jit
def _gate(sums, gated, inner, block: tl.constexpr):
    """Writes silu(gate) * up [rows, inner] of gates and ups [rows, 2 * inner], halves."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    is_there = at < inner
    gates = tl.load(sums + row * 2 * inner + at, mask=is_there).to(tl.float32)
    ups = tl.load(sums + row * 2 * inner + inner + at, mask=is_there).to(tl.float32)
    hidden = gates * tl.sigmoid(gates) * ups
    tl.store(gated + row * inner + at, hidden.to(tl.bfloat16), mask=is_there)


class Layer:
    """A layer of experts of random weights, of tokens [M, H] whose experts are chosen."""

    def __init__(self, experts: int, hidden: int, inner: int):
        if hidden % SIZES or inner % SIZES:
            raise ValueError(f"sizes: got {hidden} and {inner}, expected multiples of {SIZES}")
        torch.ops.load_library(os.environ["MARLIN"])
        self._experts, self._hidden, self._inner = experts, hidden, inner
        self._gate_up = self._random(hidden, 2 * self._inner)
        self._down = self._random(self._inner, hidden)
        processors = torch.cuda.get_device_properties(0).multi_processor_count
        self._locks = torch.zeros(4 * processors, dtype=torch.int32, device="cuda")

    def _random(self, k: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns words of codes and scales of [n, k] of each expert."""
        shape, ends = (self._experts, k // 16, 2 * n), torch.iinfo(torch.int32)
        codes = torch.randint(ends.min, ends.max, shape, dtype=torch.int32, device="cuda")
        scales = torch.randint(
            SCALE_BITS.start, SCALE_BITS.stop, (self._experts, k // 32, n), dtype=torch.uint8,
            device="cuda",
        )  # fmt: skip
        return codes, scales.view(torch.float8_e8m0fnu)

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Returns [M, H], of int32 experts and float32 weights of tokens [M, K]."""
        (tokens, active), inner, hidden = ids.shape, self._inner, self._hidden
        order = self._sorted(ids)
        sums = x.new_empty(tokens * active, 2 * inner)
        self._multiply(x, sums, self._gate_up, order, weights)
        gated = x.new_empty(tokens * active, inner)
        _gate[(len(gated), -(-inner // GATED))](sums, gated, inner, GATED)
        rows = x.new_empty(tokens * active, hidden)
        self._multiply(gated, rows, self._down, order, weights)
        out = torch.empty_like(x)
        torch.ops._moe_C.moe_sum(rows.view(tokens, active, hidden), out)
        return out

    def _sorted(self, ids: torch.Tensor) -> tuple:
        """Returns rows of a tile, the slots of all tiles, their experts, and how many there are."""
        share = ids.numel() / self._experts
        rows = next((n for n in TILE_ROWS if share / n < MOST_OF_A_TILE), TILE_ROWS[-1])
        most = ids.numel() + self._experts * (rows - 1)
        if ids.numel() < self._experts:
            most = min(ids.numel() * rows, most)
        tiles = -(-most // rows)
        slots, experts, count = (ids.new_empty(n) for n in (tiles * rows, tiles, 1))
        torch.ops._moe_C.moe_align_block_size(ids, self._experts, rows, slots, experts, count, None)
        return rows, slots, experts, count

    def _multiply(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        matrices: tuple[torch.Tensor, torch.Tensor],
        order: tuple,
        weights: torch.Tensor,
    ) -> None:
        """Writes the products of sorted rows: of tokens by the first matrices, or of slots."""
        (codes, scales), (rows, *lists) = matrices, order
        is_first = matrices is self._gate_up
        active = weights.shape[1] if is_first else 1
        torch.ops._moe_C.moe_wna16_marlin_gemm(
            x, out, codes, None, scales, None, None, None, None, None, self._locks, *lists, weights,
            rows, active, not is_first, E2M1, len(x), out.shape[1], x.shape[1], True, False, True,
            False, -1, -1, -1,
        )  # fmt: skip

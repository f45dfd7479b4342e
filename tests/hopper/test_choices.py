"""Hopper's table of choices: which kernel and plan a shape gets, asked without a GPU.

The table replaced a formula, which stays here as a witness: both give every shape the same plan.
"""

import itertools
from math import ceil

import pytest

import mx_kernels as mx
from mx_kernels._facts import facts

MULTIPROCESSORS = 132
FEW_ROWS = 32
MXFP4, KEPT = 0, -1

M = [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257, 384,
     512, 600, 1000, 1024, 1536, 2048, 3000, 4096, 8192, 16384]  # fmt: skip
N = [1, 31, 32, 33, 64, 96, 128, 129, 256, 257, 512, 1000, 1024, 1536, 2112, 2880, 3072, 4096,
     4197, 5120, 7168, 8192, 8384, 8385, 8416, 8448, 12288, 14336, 16384, 25344, 25345,
     28672]  # fmt: skip
K = [32, 64, 96, 128, 160, 256, 480, 512, 544, 992, 1024, 1536, 2048, 2080, 2880, 4096, 7168, 8192,
     14336, 16384, 28672, 32768]  # fmt: skip


def few_rows(m, n, k):
    """The formula for few rows: rows and columns of a group, groups of a cluster."""
    tiles, blocks = ceil(n / 32), k // 32
    token_tiles = next(count for count in (1, 2, 4, 8) if m <= 8 * count or count == 8)
    if m * blocks < 1024 and ceil(tiles / 2) < MULTIPROCESSORS:
        return 8 * token_tiles, 32 * max(token_tiles * 8 // 32, 1), 1
    resident = 1 if token_tiles >= 4 else 2
    ranks = 1
    while (
        ranks < 8
        and ceil(tiles / 8) * ranks < resident * MULTIPROCESSORS * 3 // 4
        and blocks >= 2 * ranks
    ):
        ranks *= 2
    return 8 * token_tiles, 256, ranks


def more_rows(m, n):
    """The formula for more rows; `many` is told by its rows of a group."""
    columns = ceil(n / 128)
    if columns * ceil(m / 256) >= MULTIPROCESSORS * 3 // 4:
        return 256, 128, 1
    tokens = 128 if columns * ceil(m / 128) > MULTIPROCESSORS * 3 // 4 else 64
    groups = columns * ceil(m / tokens)
    ranks = 1
    while ranks < 8 and 2 * groups * ranks <= MULTIPROCESSORS:
        ranks *= 2
    return tokens, 128, ranks


def plan(row):
    return row["tile_m"], row["tile_n"], row["splits"]


def test_the_table_gives_every_shape_the_plan_of_the_formula():
    explain = facts().native.explain_cuda
    for m, n, k in itertools.product(M, N, K):
        expected = few_rows(m, n, k) if m <= FEW_ROWS else more_rows(m, n)
        assert plan(explain((m, n, k, MXFP4, MXFP4))) == expected, (m, n, k)


def test_every_row_of_the_table_is_some_shapes_choice():
    explain = facts().native.explain_cuda
    rows = {explain((m, n, k, KEPT, MXFP4))["row"] for m, n, k in itertools.product(M, N, K)}
    assert rows == set(range(max(rows) + 1))


@pytest.mark.parametrize(
    "shape, kernel, cut",
    [
        ((1, 4096, 4096), "few", "8x32"),
        ((16, 2112, 7168), "few", "16x256r8"),
        ((64, 7168, 2048), "middle", "64x128r2"),
        ((4096, 4096, 4096), "many", "256x128"),
    ],
)
def test_the_kernel_follows_the_rows(shape, kernel, cut):
    decision = mx.explain(*shape, device="cuda")
    assert decision.kernel == f"hopper/{kernel}/kernel.mojo"
    assert decision.cut == cut
    assert decision.reason in str(decision)


@pytest.mark.parametrize("activations, format", [("mxfp8", "mxfp4"), ("bf16", "mxfp8")])
def test_other_formats_go_to_the_portable_kernel_and_it_says_why(activations, format):
    decision = mx.explain(64, 128, 256, device="cuda", activations=activations, format=format)
    assert decision.kernel == "simt/matmul.mojo"
    assert "fast kernels take MXFP4 weights" in decision.reason


def test_few_rows_want_no_workspace_and_more_do():
    assert mx.explain(32, 4096, 4096, device="cuda").workspace_bytes == 0
    assert mx.explain(33, 4096, 4096, device="cuda").workspace_bytes > 33 * 4096 * 2

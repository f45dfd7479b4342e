"""Experts on Hopper, as compiled: the kernel for few rows of each, and some cases of wgmma.

Claims, bounds and oracle are those of `hopper/test_cuda_experts.py`, which needs a device. Groups
of the kernel for few rows share all items, however many groups there are: most products run with a
few, each of which has many items then.
"""

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import GATES, OTHER_GATES, USUAL_GATES, same_bits, sums_of, values_of
from tests.hopper.expert_claims import (
    DTYPES,
    LONG_LAYERS,
    assert_is_layer,
    assert_is_product,
    assert_stays_in_its_row,
    experts,
    long_layer,
    sizes_cut,
)
from tests.ptx import calls, device

pytestmark = pytest.mark.deep

FEW = "hopper_streaming", (256, 512)
MORE, MANY = ("hopper_gemm_rs_b", (640,)), ("hopper_gemm_rs_b", (384,))
"""How a kernel's entry begins, and the threads of its CTAs: with more rows, consumers split K."""
MODES = ["bf16", "mxfp4", "mxfp8"]
TYPES = [
    (torch.bfloat16, torch.float16),
    (torch.float16, torch.float32),
    (torch.float32, torch.bfloat16),
]
SEEDS = [0, 1]
EIGHT_ROWS, SIXTEEN_ROWS = 256, 512
"""Threads of a group whose tiles have so many rows, if it has no gate."""
every_mode = pytest.mark.parametrize("mode", MODES)


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(11)


def is_of(kernel, launch):
    """Says whether a launch is one of a kernel."""
    entry, threads = kernel
    return entry in launch.entry and launch.threads in threads


def run(recorded, *, groups=None, seed=0):
    """Runs a call, products for few rows with up to `groups` groups, if it is said."""

    def cut(launch):
        if groups is None or not is_of(FEW, launch):
            return launch
        return launch._replace(grid=(min(groups, launch.grid[0]), 1, 1))

    return device.run(recorded._replace(launches=list(map(cut, recorded.launches))), seed)


def grouped(x, w, sizes, *, kernel=FEW, groups=3, seed=0, threads=None, **rules):
    """Returns a grouped product in float32, unless it is said, by one of the kernels."""
    given = torch.tensor(sizes, dtype=torch.int32)
    recorded = calls.grouped_linear(x, w, given, **{"out_dtype": torch.float32, **rules})
    launch = recorded.launches[-1]
    assert is_of(kernel, launch)
    assert threads in (None, launch.threads)
    return run(recorded, groups=groups, seed=seed)


def layer_of(x, gate_up, down, ids, counts, *, kernel=FEW, groups=3, seed=0, **rules):
    """Returns a layer by one of the kernels; a launch activates the sums of rarer gates.

    Rows of NVFP4 become numbers in launches of their own for few rows, too.
    """
    recorded = calls.moe(x, gate_up, down, ids, counts, **rules)
    assert sum(is_of(kernel, launch) for launch in recorded.launches) == 2
    is_fused = rules.get("hidden_act") in (None, *USUAL_GATES)
    rounds = 2 if rules.get("activations") == "nvfp4" else 0
    assert len(recorded.launches) == (3 + rounds if kernel == FEW else 6) + (not is_fused)
    return run(recorded, groups=groups, seed=seed)


# Few rows of each expert

SIZES = [0, 1, 7, 8, 9, 16, 17]
# Rows of each expert, rows behind them, n, k, threads of a group: tiles of 8 and of 16 rows, all
# rows to one of the experts, more blocks of K than a warp has on the way, once and twice. For
# activations that are kept, tiles of 24 rows too.
GROUPS = [
    ([*SIZES, *([0] * 20)], 3, 72, 96, EIGHT_ROWS),
    (SIZES, 9, 72, 96, SIXTEEN_ROWS),
    ([*([0] * 30), 20, 0], 0, 100, 32, EIGHT_ROWS),
    ([0, 0, 40, 0], 1, 100, 32, SIXTEEN_ROWS),
    ([1, 0, 2], 0, 40, 2880, EIGHT_ROWS),
    ([1, 0, 12], 0, 40, 4128, SIXTEEN_ROWS),
]


KEPT_GROUPS = [
    ([24, 3, 25, 0, 8], 1, 72, 96, SIXTEEN_ROWS),
    ([16, 17, 9, 23], 0, 40, 2880, SIXTEEN_ROWS),
    ([32, 33, 0, 7, 24, 8], 2, 100, 96, SIXTEEN_ROWS),
    ([0, 36], 0, 40, 2880, SIXTEEN_ROWS),
]


@pytest.mark.parametrize(
    ("group", "mode"),
    [
        *((group, mode) for group in GROUPS for mode in MODES),
        *((group, "bf16") for group in KEPT_GROUPS),
    ],
    ids=lambda g: g if isinstance(g, str) else f"{sum(g[0])} rows, {g[2]} x {g[3]}",
)
def test_a_grouped_product_is_within_the_derived_bound(group, mode):
    sizes, behind, n, k, threads = group
    plain, shuffled = experts(len(sizes), n, k)
    x = torch.randn(sum(sizes) + behind, k).bfloat16()
    got = grouped(x, shuffled, sizes, activations=mode, threads=threads)
    assert_is_product(got, x, plain, sizes, mode)


# Experts, rows, n, k, and groups of groups that 132 multiprocessors hold at once.
GRIDS = [
    ((32, 40, 2880, 64), (264, EIGHT_ROWS)),
    ((32, 40, 2880, 6144), (132, EIGHT_ROWS)),
    ((32, 129, 2880, 64), (132, SIXTEEN_ROWS)),
    ((32, 3, 64, 64), (3 * 2, EIGHT_ROWS)),
]


@pytest.mark.parametrize(("shape", "grid"), GRIDS, ids=str)
def test_groups_are_as_many_as_a_device_holds_or_as_can_have_items(shape, grid):
    count, rows, n, k = shape
    codes = torch.zeros(count, n, k // 2, dtype=torch.uint8)
    w = mx.MXTensor(codes, torch.full((count, n, k // 32), 127, dtype=torch.uint8))
    sizes = torch.zeros(count, dtype=torch.int32)
    x = torch.zeros(rows, k, dtype=torch.bfloat16)
    (launch,) = calls.grouped_linear(x, w.preshuffle(device="cuda"), sizes).launches
    assert (launch.grid, launch.threads) == ((grid[0], 1, 1), grid[1])


def test_the_grid_of_a_device_gives_the_same_bits_as_few_groups():
    """Rows make fewer items than the host must expect: most groups have none."""
    sizes = [0, 0, 11, *([0] * 29)]
    plain, shuffled = experts(len(sizes), 512, 32)
    x = torch.randn(11, 32).bfloat16()
    got = grouped(x, shuffled, sizes, groups=None, activations="bf16")
    assert_is_product(got, x, plain, sizes, "bf16")
    for groups, seed in ((1, 5), (7, 6)):
        same_bits(grouped(x, shuffled, sizes, groups=groups, seed=seed, activations="bf16"), got)


@every_mode
def test_tiles_of_any_height_and_any_order_of_warps_give_the_same_bits(mode):
    plain, shuffled = experts(27, 72, 352)
    x = torch.randn(58, 352).bfloat16()
    expected = grouped(x, shuffled, [*SIZES, *([0] * 20)], activations=mode, threads=EIGHT_ROWS)
    some = plain[:7].preshuffle(device="cuda")
    for seed in SEEDS:
        got = grouped(x, some, SIZES, seed=seed, activations=mode, threads=SIXTEEN_ROWS)
        same_bits(got, expected)
    if mode == "bf16":
        for count, sizes in ((3, SIZES[4:]), (2, SIZES[5:])):
            few = plain[7 - count : 7].preshuffle(device="cuda")
            of_these = x[sum(SIZES) - sum(sizes) :]
            got = grouped(of_these, few, sizes, activations=mode, threads=SIXTEEN_ROWS)
            same_bits(got, expected[-len(of_these) :])


@pytest.mark.parametrize("count", [5, 8])
@pytest.mark.parametrize(("x_dtype", "dtype"), TYPES, ids=str)
def test_bias_and_every_type(dtype, x_dtype, count):
    plain, shuffled = experts(count, 100, 96)
    x, sizes = torch.randn(30, 96).to(x_dtype), [7, 0, 21, *([0] * (count - 3))]
    bias = torch.randn(count, 100).to(x_dtype)
    for mode in MODES:
        got = grouped(x, shuffled, sizes, activations=mode, bias=bias, out_dtype=dtype)
        assert got.dtype == dtype
        assert_is_product(got, x, plain, sizes, mode, bias)


@every_mode
@pytest.mark.parametrize("count", [4, 12])
def test_rows_and_scales_at_the_ends_of_the_range(count, mode):
    """Numbers that bfloat16 cannot hold, on either side, are computed another way."""
    plain, _ = experts(count, 40, 96)
    plain.scales[0, 5, 0], plain.scales[1, 7, -1], plain.scales[2, 9], plain.scales[3, 3] = (
        254,
        253,
        0,
        200,
    )
    x = torch.randn(20, 96) * 2.0**-80
    x[1, :32], x[10, 32:64] = 2.0**-140, 0
    sizes = [6, 3, 9, 2, *([0] * (count - 4))]
    got = grouped(x, plain.preshuffle(device="cuda"), sizes, activations=mode)
    assert_is_product(got, x, plain, sizes, mode)
    plain, shuffled = experts(count, 40, 96, 2.0**-60)
    huge = torch.randn(20, 96)
    huge[3, :32], huge[11, -32:] = 3.3e38, 3.0e38
    sizes = [10, 10, *([0] * (count - 2))]
    got = grouped(huge, shuffled, sizes, activations=mode)
    assert_is_product(got, huge, plain, sizes, mode)


@pytest.mark.parametrize(("rows", "sizes"), [(34, [3, 31]), (36, [25, 11])], ids=str)
def test_tiles_of_more_rows_and_scales_at_the_ends_of_the_range(rows, sizes):
    """Of 24 rows: what is computed another way is in each of their parts."""
    plain, _ = experts(2, 40, 96)
    plain.scales[1, 5, 0], plain.scales[1, 7, -1], plain.scales[0, 9] = 254, 253, 0
    x = torch.randn(rows, 96) * 2.0**-80
    x[1, :32], x[12, 32:64], x[rows - 5, :9] = 2.0**-140, 0, 2.0**-133
    got = grouped(x, plain.preshuffle(device="cuda"), sizes, activations="bf16")
    assert_is_product(got, x, plain, sizes, "bf16")
    plain, shuffled = experts(2, 40, 96, 2.0**-60)
    huge = torch.randn(rows, 96)
    huge[3, :32], huge[20, :32], huge[rows - 1, -32:] = 3.3e38, 3.2e38, 3.0e38
    got = grouped(huge, shuffled, sizes, activations="bf16")
    assert_is_product(got, huge, plain, sizes, "bf16")


@every_mode
def test_nan_and_infinity_reach_their_row_and_no_other(mode):
    _, shuffled = experts(2, 40, 96)
    x, sizes = torch.randn(20, 96).bfloat16(), [12, 8]
    assert_stays_in_its_row(lambda x: grouped(x, shuffled, sizes, activations=mode), x, 3, 15)


ODD_SIZES = [
    [5, -3, 4, 0, 2],
    [3, 2**31 - 1, -(2**31), 7, 7],
    [-1] * 5,
    [*([0] * 300), 7, *([1] * 10), -5, 2**31 - 1, 3],
]


@pytest.mark.parametrize("sizes", ODD_SIZES, ids=lambda sizes: f"{len(sizes)} sizes, {sizes[:5]}")
def test_sizes_that_do_not_fit_are_cut(sizes):
    plain, shuffled = experts(len(sizes), 40, 32)
    x = torch.randn(33, 32)
    got = grouped(x, shuffled, sizes, groups=7, activations="mxfp4")
    assert_is_product(got, x, plain, sizes_cut(sizes, 33), "mxfp4")


@every_mode
def test_activations_at_odd_addresses_give_the_same_bits(mode):
    _, shuffled = experts(4, 40, 96)
    for dtype in (torch.bfloat16, torch.float32):
        straight = torch.randn(9, 96).to(dtype)
        moved = torch.zeros(9 * 96 + 1, dtype=dtype)[1:].view(9, 96).copy_(straight)
        assert moved.data_ptr() % 16
        expected = grouped(straight, shuffled, [1, 0, 8, 0], activations=mode)
        same_bits(grouped(moved, shuffled, [1, 0, 8, 0], activations=mode), expected)


# Layers


def layer(count, width, inner, gate="silu", format="mxfp4"):
    """Returns gate-up and down weights, with hidden numbers about one."""
    return (
        experts(count, sums_of(gate, inner), width, width**-0.5, format)[1],
        experts(count, width, inner, inner**-0.5, format)[1],
    )


def composed(x, gate_up, down, ids, counts, biases=(None, None), *, mode, kernel=FEW, **gate):
    """Returns a layer made of grouped products, and which of its tokens the oracle decides."""
    tokens, slots = ids.shape
    flat = ids.reshape(-1)
    order = torch.argsort(flat, stable=True)
    order = order[flat[order] >= 0]
    sizes = torch.bincount(flat[order], minlength=down.shape[0]).tolist()
    rules = {"activations": mode, "kernel": kernel, "seed": 9}
    sums = grouped(x[order // slots], gate_up, sizes, bias=biases[0], **rules)
    exact, error = oracle.gated(values_of(sums), **gate)
    name = DTYPES[x.dtype]
    low, high = (oracle.round_to(exact + e, name) for e in (-error, error))
    rows = grouped(torch.tensor(low).to(x.dtype), down, sizes, bias=biases[1], **rules).numpy()
    out, decided = np.zeros((tokens, down.shape[1]), np.float32), np.ones(tokens, bool)
    place = {slot: row for row, slot in enumerate(order.tolist())}
    weights = values_of(counts).reshape(-1).astype(np.float32)
    for slot in sorted(place):
        at = slot // slots
        out[at] = oracle.fused_multiply_add(weights[slot], rows[place[slot]], out[at])
        decided[at] &= (low[place[slot]] == high[place[slot]]).all()
    return torch.from_numpy(out), torch.from_numpy(decided)


# Tokens, slots, experts, width, inner: tiles of eight and of 16 rows, one of many slots.
LAYERS = [(1, 4, 8, 96, 64), (9, 3, 4, 160, 96), (9, 3, 30, 288, 32)]


# The same of tiles of 24 rows, for activations that are kept.
KEPT_LAYERS = [(26, 2, 3, 96, 64), (27, 2, 3, 160, 32)]


@pytest.mark.parametrize("hidden_act", ["swiglu_oai", "silu"])
@pytest.mark.parametrize(
    ("shape", "mode"),
    [
        *((shape, mode) for shape in LAYERS for mode in MODES),
        *((shape, "bf16") for shape in KEPT_LAYERS),
    ],
    ids=str,
)
def test_a_layer_is_made_of_its_parts(shape, hidden_act, mode):
    tokens, slots, count, width, inner = shape
    gate_up, down = layer(count, width, inner)
    ids, counts = torch.randint(-1, count, (tokens, slots)), torch.rand(tokens, slots)
    x = torch.randn(tokens, width).bfloat16()
    biases = [torch.randn(count, n) for n in (2 * inner, width)] if tokens > 1 else [None, None]
    named = dict(zip(("bias_gate_up", "bias_down"), biases, strict=True))
    rules = {"hidden_act": hidden_act}
    got = layer_of(x, gate_up, down, ids, counts, out_dtype="float32", activations=mode, **named,
                   **rules)  # fmt: skip
    expected, decided = composed(x, gate_up, down, ids, counts, biases, mode=mode, **rules)
    assert decided.float().mean() > 0.2 or tokens == 1
    same_bits(got[decided], expected[decided])


@pytest.mark.parametrize(("tokens", "kernel"), [(9, FEW), (24, MORE), (60, MANY)])
@pytest.mark.parametrize("gate", OTHER_GATES)
def test_every_gate_makes_its_hidden_numbers(gate, tokens, kernel):
    gate_up, down = layer(2 if tokens > 9 else 4, 96, 96, gate)
    count = len(gate_up.codes)
    ids, counts = torch.randint(-1, count, (tokens, 2)), torch.rand(tokens, 2)
    x = torch.randn(tokens, 96).bfloat16()
    biases = torch.randn(count, sums_of(gate, 96)), torch.randn(count, 96)
    named = dict(zip(("bias_gate_up", "bias_down"), biases, strict=True))
    rules = {"kernel": kernel, **GATES[gate]}
    got = layer_of(x, gate_up, down, ids, counts, out_dtype="float32", activations="mxfp8",
                   **named, **rules)  # fmt: skip
    expected, decided = composed(x, gate_up, down, ids, counts, biases, mode="mxfp8", **rules)
    assert decided.float().mean() > 0.2
    same_bits(got[decided], expected[decided])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [3, 30])
def test_all_tokens_to_one_expert(count, seed):
    gate_up, down = layer(count, 96, 32)
    x, counts = torch.randn(17, 96).bfloat16(), torch.rand(17, 2)
    ids = torch.full((17, 2), count - 1, dtype=torch.int32)
    rules = {"hidden_act": "swiglu_oai"}
    got = layer_of(x, gate_up, down, ids, counts, seed=seed, groups=None, activations="bf16",
                   out_dtype="float32", **rules)  # fmt: skip
    expected, decided = composed(x, gate_up, down, ids, counts, mode="bf16", **rules)
    assert decided.any()
    same_bits(got[decided], expected[decided])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_ids_may_be_any_numbers(dtype):
    values = [0, 1, 2, 3, -1, 2**31 - 1, -(2**31), 77, 1024, 4]
    if dtype == torch.int64:
        values += [2**63 - 1, -(2**63), 2**32, 2**32 + 1, -(2**32)]
    gate_up, down = layer(4, 96, 64)
    rng = np.random.default_rng(2)
    ids = torch.tensor(rng.choice(np.array(values), (16, 3)), dtype=dtype)
    ids[::5] = torch.tensor([3, -1, 0], dtype=dtype)
    x, counts = torch.randn(16, 96), torch.rand(16, 3)
    got = layer_of(x, gate_up, down, ids, counts)
    is_bad = (ids >= 4).any(1)
    assert got[is_bad].isnan().all()
    assert is_bad.any()
    assert not is_bad.all()
    expected = layer_of(x, gate_up, down, torch.where(ids < 4, ids, -1), counts)
    same_bits(got[~is_bad], expected[~is_bad])
    assert expected.isfinite().all()
    nobody = torch.full_like(ids, -1), torch.full_like(counts, torch.nan)
    assert (layer_of(x, gate_up, down, *nobody) == 0).all()


FEW_IDS = [
    [[3, 3, 3, 3], [3, 3, 3, 3]], [[-1, -1, -1, -1], [-1, 2, -1, 2]], [[4, 0, 1, 2], [0, 1, 2, 3]],
    [[3, 2, 1, 0], [0, 0, 1, -1]], [[2**31 - 1, 1, 1, -(2**31)], [1, -1, 1, 0]],
]  # fmt: skip


@pytest.mark.parametrize("ids", FEW_IDS, ids=str)
def test_up_to_eight_slots_find_their_tiles_as_more_do(ids):
    """One by one they are looked at; of more, which one token more makes, they are counted."""
    gate_up, down = layer(4, 96, 64)
    x, counts = torch.randn(3, 96), torch.rand(3, 4)
    ids = torch.tensor([*ids, [0, 3, -1, 2]], dtype=torch.int32)
    few, more = (layer_of(x[:n], gate_up, down, ids[:n], counts[:n]) for n in (2, 3))
    assert np.array_equal(values_of(few), values_of(more[:2]), equal_nan=True)
    assert torch.equal(few.isnan().any(1), (ids[:2] >= 4).any(1))


def compared_at_the_end_of_the_range(ids, count, tiny, **rules):
    """Compares a layer whose first weights are extreme; returns which tokens were decided.

    `tiny` tells which tokens are small enough for them: what is tiny is computed slowly.
    """
    gate_up, _ = experts(count, 128, 96)
    gate_up.scales[1, 7, 1], gate_up.scales[2, 70] = 254, 253
    gate_up = gate_up.preshuffle(device="cuda")
    _, down = experts(count, 96, 64)
    x, counts = torch.randn(len(ids), 96), torch.rand(len(ids), 1)
    x[tiny] *= 2.0**-126
    x = x.bfloat16()
    got = layer_of(x, gate_up, down, ids, counts, activations="mxfp8", out_dtype="float32", **rules)
    expected, decided = composed(x, gate_up, down, ids, counts, mode="mxfp8", **rules)
    same_bits(got[decided], expected[decided])
    return decided


@pytest.mark.parametrize("hidden_act", ["swiglu_oai", "silu"])
def test_first_weights_at_the_end_of_the_range(hidden_act):
    """Hidden numbers that are computed another way, in both places of gates and ups."""
    ids = torch.tensor([[1], [2], [0], [-1], [1]])
    decided = compared_at_the_end_of_the_range(ids, 8, slice(None), hidden_act=hidden_act)
    assert decided.sum() > 2


@pytest.mark.parametrize(("shape", "num_launches"), [(LONG_LAYERS[2], 4), (LONG_LAYERS[3], 3)])
def test_a_layer_with_a_long_k_is_near_the_exact_one(shape, num_launches):
    """Sums of parts of K are added up and gated by a launch; small batches leave room for all K."""
    plain, shuffled, x, ids, counts, biases = long_layer(shape)
    named = dict(zip(("bias_gate_up", "bias_down"), biases, strict=True))
    rules = {"hidden_act": "silu", "activations": "bf16", "out_dtype": "float32", **named}
    recorded = calls.moe(x, *shuffled, ids, counts, **rules)
    assert len(recorded.launches) == num_launches
    got = run(recorded, groups=3)
    assert_is_layer(got, x, *plain, ids, counts, biases, "silu", "bf16")
    same_bits(run(recorded, groups=5, seed=1), got)


# More rows

# Rows of each expert, rows behind them, n, k: tiles of 32 rows; of activations that are kept, rows
# too long for the kernel for few, and tiles of 16 too.
MORE_GROUPS = [([20, 1, 0, 40], 3, 130, 160), ([0, 33, 5], 30, 40, 96)]
LONG_GROUPS = [([20, 1, 0, 33], 3, 40, 4128), ([0, 33, 5], 30, 40, 4128), ([1, 17, 0], 3, 40, 8224)]
# Tiles of 128 and 256 rows, of which instructions take 32, 64, 128, 192 and 256.
MANY_GROUPS = [
    ([2, 60], 15, 40, 96), ([0, 133], 0, 130, 160), ([70, 205], 0, 40, 96), ([33, 190], 0, 40, 96),
]  # fmt: skip


@pytest.mark.parametrize(
    ("group", "mode"),
    [
        *((group, mode) for group in MANY_GROUPS for mode in MODES),
        *((group, mode) for group in MORE_GROUPS for mode in MODES[1:]),
        *((group, "bf16") for group in LONG_GROUPS),
    ],
    ids=lambda g: g if isinstance(g, str) else f"{sum(g[0])} rows, {g[2]} x {g[3]}",
)
def test_more_rows_are_within_the_derived_bound(group, mode):
    sizes, behind, n, k = group
    plain, shuffled = experts(len(sizes), n, k)
    x = torch.randn(sum(sizes) + behind, k).bfloat16()
    kernel = MANY if group in MANY_GROUPS else MORE
    got = grouped(x, shuffled, sizes, kernel=kernel, activations=mode)
    assert_is_product(got, x, plain, sizes, mode)
    same_bits(grouped(x, shuffled, sizes, kernel=kernel, activations=mode, seed=1), got)


@pytest.mark.parametrize("hidden_act", ["swiglu_oai", "silu"])
@pytest.mark.parametrize(("tokens", "kernel"), [(24, MORE), (60, MANY), (120, MANY)])
def test_a_layer_of_more_rows_is_made_of_its_parts(tokens, kernel, hidden_act):
    gate_up, down = layer(2, 96, 96)
    ids, counts = torch.randint(-1, 2, (tokens, 2)), torch.rand(tokens, 2)
    x, rules = torch.randn(tokens, 96).bfloat16(), {"hidden_act": hidden_act, "kernel": kernel}
    got = layer_of(x, gate_up, down, ids, counts, activations="mxfp8", out_dtype="float32", **rules)
    expected, decided = composed(x, gate_up, down, ids, counts, mode="mxfp8", **rules)
    assert decided.float().mean() > 0.2
    same_bits(got[decided], expected[decided])


@every_mode
def test_many_rows_and_scales_at_the_ends_of_the_range(mode):
    plain, _ = experts(3, 40, 96)
    plain.scales[1, 5, 0], plain.scales[1, 7, -1], plain.scales[2, 9] = 254, 253, 0
    x = torch.randn(135, 96) * 2.0**-80
    x[1, :32], x[129, 32:64] = 2.0**-140, 0
    sizes = [130, 3, 2]
    got = grouped(x, plain.preshuffle(device="cuda"), sizes, kernel=MANY, activations=mode)
    assert_is_product(got, x, plain, sizes, mode)
    plain, shuffled = experts(2, 40, 96, 2.0**-60)
    huge = torch.randn(100, 96)
    huge[3, :32], huge[98, -32:] = 3.3e38, 3.0e38
    got = grouped(huge, shuffled, [40, 60], kernel=MANY, activations=mode)
    assert_is_product(got, huge, plain, [40, 60], mode)


@pytest.mark.parametrize("hidden_act", ["swiglu_oai", "silu"])
def test_first_weights_of_many_rows_at_the_end_of_the_range(hidden_act):
    """Each warp computes its own hidden numbers another way, whose gates or ups want it."""
    ids = torch.zeros(100, 1, dtype=torch.int64)
    ids[3], ids[77], ids[99], ids[20] = 1, 2, 1, -1
    tiny = [3, 50, 77, 99]
    decided = compared_at_the_end_of_the_range(ids, 3, tiny, hidden_act=hidden_act, kernel=MANY)
    assert decided[[3, 77, 99]].any()

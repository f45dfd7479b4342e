"""Experts on gfx950, compiled and run in the simulator, against the oracle.

Every launch executes every workgroup and is checked for hazards and for accesses beyond the
operands, whose padding is poisoned.
"""

import re
from functools import partial

import numpy as np
import pytest

import mx_kernels as mx
import oracle
from cases import GATES, OTHER_GATES, USUAL_GATES, sums_of
from tests.cdna4 import expert_layers as layers
from tests.cdna4.expert_layers import Experts, Layer, types_of
from tests.cdna4.support import NUMPY_DTYPES
from tests.tiers import late_by_turns

pytestmark = pytest.mark.deep

MODES = pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
ORDERS = [(None, None), ("reverse", None), (1, None), (2, 1), (None, 1)]
"""Orders of workgroups, and how many run at a time."""
GROUPED = ["mxfp4_bfloat16_bfloat16_none", "mxfp4_float32_float32_float32"]
LAYERS = [
    "mxfp4_bfloat16_bfloat16_none",
    "mxfp4_bfloat16_bfloat16_float32",
    "mxfp4_float32_float32_bfloat16",
    "mxfp8_bfloat16_bfloat16_float32",
    "bf16_bfloat16_bfloat16_none",
    "bf16_float32_float32_float32",
    "mxfp8_e5m2_bfloat16_bfloat16_float32",
    "mxfp8_e5m2.mxfp8_e5m2_bfloat16_bfloat16_none",
    "mxfp6_bfloat16_bfloat16_float32",
    "mxfp6_e3m2.mxfp6_e3m2_bfloat16_bfloat16_none",
    "bf16.nvfp4_bfloat16_bfloat16_float32",
]
OF_RANGE = LAYERS[6:8]
"""Activations with two bits of mantissa, by weights of four bits and of the same eight."""
SIXES = LAYERS[8:10]
"""Activations of six bits, by weights of four bits and of the same six."""
GROUPED_SIXES = [
    "mxfp6_bfloat16_float32_float32",
    "mxfp6_e3m2.mxfp6_e3m2_bfloat16_float32_none",
]
"""The products of their layers."""
GROUPED_NVFP4 = "bf16.nvfp4_bfloat16_float32_float32"
WHOLE_PIECES = 64
"""Rows of weights of six bits are a multiple of so many along K."""
GROUPS = [
    # Rows of each expert, rows behind them, n, k.
    ([5], 0, 48, 96),
    ([0, 3, 1, 0, 17, 2], 3, 33, 64),
    ([0, 0, 40], 0, 7, 32),
    ([1] * 70, 5, 64, 544),
    ([100, 3], 20, 100, 160),
    ([200], 1, 20, 288),
    ([0, 0], 5, 32, 32),
    ([0] * 127 + [9], 0, 80, 2080),
]


def floats(rng, name, *shape):
    """Draws rows as the types of a name have them."""
    return rng.standard_normal(shape).astype(NUMPY_DTYPES[types_of(name).x])


def rounded(x, name):
    """Returns what a kernel multiplies: rows rounded to its left format."""
    left = types_of(name).left
    if left == "bf16":
        return x.astype(NUMPY_DTYPES["bfloat16"]).astype(np.float64)
    return oracle.dequantize(*oracle.quantize(x.astype(np.float64), format=left), left)


def assert_grouped(name, c, x, experts, sizes):
    """Compares a grouped product with the oracle's bound, group by group."""
    result, left, first = types_of(name).out, rounded(x, name), 0
    for expert, size in enumerate(sizes):
        rows = slice(first, first + size)
        if size:
            bias = None if experts.bias is None else experts.bias[expert].astype(np.float64)
            got = c[rows].astype(np.float64)
            roundings = int(experts.format == "nvfp4")
            oracle.assert_matmul(
                got, left[rows], experts.matrix(expert), result, bias, scale_roundings=roundings
            )
        first += size
    assert (c[first:] == 0).all()


def whole(name, *ks):
    """Returns numbers of elements along K that weights of these types may have, not smaller."""
    unit = WHOLE_PIECES if types_of(name).right.startswith("mxfp6") else oracle.BLOCK
    return [-(-k // unit) * unit for k in ks]


@MODES
@pytest.mark.parametrize("name", [*GROUPED, *GROUPED_SIXES, GROUPED_NVFP4])
def test_a_grouped_product_is_within_the_bound_for_each_group(rng, name, late):
    types = types_of(name)
    for sizes, rest, n, least_k in GROUPS:
        (k,) = whole(name, least_k)
        x = floats(rng, name, sum(sizes) + rest, k)
        experts = Experts.random(rng, len(sizes), n, k, types.bias, format=types.right)
        c = layers.grouped(name, x, experts, sizes, late=late)
        assert_grouped(name, c, x, experts, sizes)


@pytest.mark.parametrize("name", GROUPED)
def test_a_grouped_product_has_the_same_bits_in_every_order_of_workgroups(rng, name):
    sizes, (m, n, k) = [7, 0, 40, 1, 19], (70, 100, 544)
    x, experts = floats(rng, name, m, k), Experts.random(rng, 5, n, k, types_of(name).bias)
    results = [
        layers.grouped(name, x, experts, sizes, order=order, batch=batch, check=False)
        for order, batch in ORDERS
    ]
    assert_grouped(name, results[0], x, experts, sizes)
    for result in results[1:]:
        oracle.assert_bitwise_equal(result, results[0])


@pytest.mark.parametrize(
    "sizes, meant",
    [
        ([-5, 3, 2], [0, 3, 2]),
        ([30, 30, 30], [30, 10, 0]),
        ([2**31 - 1, 2**31 - 1, 1], [40, 0, 0]),
        ([-(2**31), 2**31 - 1, -1], [0, 40, 0]),
    ],
)
def test_sizes_that_do_not_fit_end_where_the_rows_end(rng, sizes, meant):
    name = GROUPED[0]
    x, experts = floats(rng, name, 40, 96), Experts.random(rng, 3, 33, 96)
    assert_grouped(name, layers.grouped(name, x, experts, sizes), x, experts, meant)


def test_irregular_rows_and_experts_disturb_no_others(rng):
    name, sizes = GROUPED[0], [4, 9, 0, 5]
    x, experts = floats(rng, name, 20, 96), Experts.random(rng, 4, 40, 96)
    x[2, 5] = x[19, 3] = np.nan
    experts.scales[1, 21, 2] = oracle.NAN_SCALE
    c = layers.grouped(name, x, experts, sizes)
    assert_grouped(name, c, x, experts, sizes)
    expected = np.zeros((20, 40), bool)
    expected[2] = expected[4:13, 21] = True
    oracle.assert_bitwise_equal(np.isnan(c), expected)


def test_no_rows_are_no_launch(rng):
    c = layers.grouped(
        GROUPED[0], floats(rng, GROUPED[0], 0, 64), Experts.random(rng, 3, 8, 64), []
    )
    assert c.shape == (0, 8)


def layer(rng, name, tokens, slots, width, inner, count, gate="swiglu_oai", dtypes=None):
    """Draws a layer whose hidden numbers are about one; a tenth of its slots has no expert."""
    bias = types_of(name).bias
    right = types_of(name).right
    width, inner = whole(name, width, inner)
    gate_up = Experts.random(rng, count, sums_of(gate, inner), width, bias, top=125, format=right)
    down = Experts.random(rng, count, width, inner, bias, top=125, format=right)
    ids = rng.integers(0, count, (tokens, slots))
    ids[rng.random(ids.shape) < 0.1] = -1
    ids_dtype, weights_dtype = dtypes or (np.int64, np.float32)
    weights = rng.standard_normal((tokens, slots)).astype(weights_dtype)
    x = floats(rng, name, tokens, width)
    return Layer(name, x, gate_up, down, ids.astype(ids_dtype), weights, gate)


same = partial(oracle.assert_bitwise_equal, zeros_are_the_claim=True)


def assert_is_made_of_its_parts(layer, parts):
    """Compares what each launch computed with what it got."""
    ids, (count, width, _) = layer.ids.reshape(-1), layer.down.codes.shape
    order = np.argsort(ids, kind="stable")
    order = order[(ids[order] >= 0) & (ids[order] < count)]
    places = np.where(ids < 0, -1, -2).astype(np.int32)
    places[order] = np.arange(len(order))
    same(parts.places, places)
    sizes = np.bincount(ids[order].astype(np.int64), minlength=count).astype(np.int32)
    same(parts.sizes, sizes)
    tokens = order // layer.ids.shape[1]
    same(parts.tokens[: len(order)], tokens.astype(np.int32))

    both, x, _, bias = layer.name.rsplit("_", 3)
    left = types_of(layer.name).left
    sums = layer.sums()[: len(order)]
    assert_grouped(f"{both}_{x}_float32_{bias}", sums, layer.x[tokens], layer.gate_up, sizes)
    exact, error = oracle.gated(sums, **GATES[layer.gate])
    low, high = (oracle.round_to(exact + e, x) for e in (-error, error))
    if parts.codes is None:
        hidden = parts.hidden[: len(order)]
        finite = np.isfinite(exact)
        assert ((low <= hidden) & (hidden <= high))[finite].all()
        assert np.isnan(hidden.astype(np.float64)[~finite]).all()
    else:
        hidden = assert_encoded([part[: len(order)] for part in parts.codes], low, high, left)

    second = f"{both}_{x}_float32_{bias}"
    assert_grouped(second, parts.rows[: len(order)], hidden, layer.down, sizes)
    y = np.zeros((len(layer.x), width), np.float32)
    slots = layer.ids.shape[1]
    for slot, place in enumerate(places):
        if place >= 0:
            weight = np.float32(layer.weights.reshape(-1)[slot])
            total = y[slot // slots]
            y[slot // slots] = oracle.fused_multiply_add(weight, parts.rows[place], total)
        elif place == -2:
            y[slot // slots] = np.nan
    same(parts.y, y.astype(parts.y.dtype))


def assert_encoded(codes, low, high, left):
    """Claims that codes are those of numbers within bounds; returns what they stand for.

    What both bounds are encoded as leaves no choice. Elsewhere a block has the scale of one of
    the bounds, and elements between what those are encoded as.
    """
    ends = [oracle.quantize(np.float64(end), format=left) for end in (low, high)]
    (low_codes, low_scales), (high_codes, high_scales) = ends
    is_scale = (codes[1] == low_scales) | (codes[1] == high_scales)
    assert is_scale.all()
    block_bytes = low_codes.shape[1] // low_scales.shape[1]
    decided = (low_codes == high_codes) & np.repeat(low_scales == high_scales, block_bytes, axis=1)
    assert decided.mean() > 0.95 or decided.size < 1000
    assert (codes[0] == low_codes)[decided].all()
    numbers = oracle.dequantize(*codes, left)
    between = [oracle.dequantize(*end, left) for end in ends]
    finite = np.isfinite(numbers)
    assert (np.minimum(*between) <= numbers)[finite].all()
    assert (numbers <= np.maximum(*between))[finite].all()
    assert np.array_equal(finite, np.isfinite(between[0]) & np.isfinite(between[1]))
    return numbers


@late_by_turns(name=LAYERS, gate=USUAL_GATES)
def test_a_layer_is_made_of_its_parts(rng, name, gate, late):
    for sizes in ((1, 2, 96, 64, 4), (9, 3, 96, 64, 4), (40, 4, 160, 96, 3)):
        found = layer(rng, name, *sizes, gate)
        assert_is_made_of_its_parts(found, found.run(late=late))


@pytest.mark.parametrize("name", [LAYERS[1], SIXES[0]])
@pytest.mark.parametrize("sizes", [(9, 3, 96, 64, 4), (40, 4, 160, 96, 3), (180, 2, 160, 96, 1)])
@pytest.mark.parametrize("gate", OTHER_GATES)
def test_every_gate_makes_its_hidden_numbers(rng, gate, sizes, name):
    """Of floats, of encoded rows, and of those in tiles."""
    found = layer(rng, name, *sizes, gate)
    assert_is_made_of_its_parts(found, found.run())


ENCODED = [(40, 2, 3), (40, 4, 3), (60, 4, 2), (70, 2, 1)]
"""Tokens, slots and experts of layers for each cut of encoded rows."""
ORDERED = [(110, 4, 2), (180, 2, 1)]
"""The same for rows in tiles: groups are a tile, or one and some rows."""
NUM_XCDS = 8
"""Workgroups of which each has an XCD of its own: their number is a multiple."""


@late_by_turns(name=[*LAYERS[1:4], OF_RANGE[0], SIXES[0]], sizes=ENCODED + ORDERED)
def test_a_layer_that_encodes_its_rows_first_is_made_of_its_parts(rng, name, sizes, late):
    tokens, slots, count = sizes
    found = layer(rng, name, tokens, slots, 288, 160, count)
    assert layers.encodes(found.launches()[0])
    assert_is_made_of_its_parts(found, found.run(late=late))


@pytest.mark.parametrize(
    "name, tokens, rows", [(LAYERS[1], 130, 160), (LAYERS[3], 160, 192), (SIXES[0], 130, 160)]
)
def test_tiles_are_wide_where_narrow_ones_take_another_round(rng, name, tokens, rows):
    """257 tiles of 192 columns are one more than compute units."""
    width = 256 * 192 + 32
    question = {"op": mx.moe, "experts": 1, "slots": 1, "device": "gfx950"}
    launches = mx.explain(tokens, 32, width, activations=types_of(name).left, **question).launches
    assert [one.cut for one in launches if one.cut] == [f"middle{rows}x256"] * 2
    found = layer(rng, name, tokens, 1, width, 32, 1)
    found.gate_up.scales -= 7  # Sums of so many products are about one.
    assert_is_made_of_its_parts(found, found.run())


@late_by_turns(name=[*LAYERS[1:4:2], SIXES[0]], sizes=ENCODED + ORDERED)
def test_workgroups_go_through_any_number_of_tiles(rng, name, sizes, late):
    tokens, slots, count = sizes
    found = layer(rng, name, tokens, slots, 800, 288, count)
    few, many = found.run(workgroups=NUM_XCDS, late=late), found.run(check=False)
    for part in ("rows", "y"):
        oracle.assert_bitwise_equal(getattr(few, part), getattr(many, part))
    for codes, expected in zip(few.codes, many.codes, strict=True):
        oracle.assert_bitwise_equal(codes, expected)


@pytest.mark.parametrize("name", [*LAYERS[1:4:2], SIXES[0]])
def test_hidden_numbers_of_any_size_are_encoded(rng, name):
    """Biases are the sums: subnormal gates, infinite ones and NaN, some blocks of each, and gates
    whose sigmoid is 0, beside NaN too."""
    found = layer(rng, name, 60, 4, 96, 256, 2)
    found.gate_up.scales[:] = 0
    bias = found.gate_up.bias.reshape(2, 8, 32, 2)
    bias[..., 0] *= 2.0 ** np.array([0, 4, -100, -118, -126, -134, -146, 7])[:, None]
    bias[0, 7, 5], bias[1, 7, 6], bias[1, 6, 0, 0] = np.nan, np.inf, -np.inf
    parts, order = found.run(), np.flatnonzero(found.ids >= 0)
    exact, error = oracle.gated(found.sums()[: len(order)], **GATES[found.gate])
    low, high = (oracle.round_to(exact + e, "bfloat16") for e in (-error, error))
    left = types_of(name).left
    numbers = assert_encoded([part[: len(order)] for part in parts.codes], low, high, left)
    assert 0 < np.isfinite(numbers).mean() < 1


@pytest.mark.parametrize("name", [LAYERS[1], SIXES[0]])
@pytest.mark.parametrize("tokens, slots, count", ENCODED + ORDERED)
def test_encoded_rows_may_all_go_to_one_of_many_experts(rng, tokens, slots, count, name):
    found = layer(rng, name, tokens, slots, 96, 64, count + 66)
    found.ids[:] = count + 65
    found.ids[3] = 1
    many = layer(rng, name, tokens * 16, slots, 96, 64, count + 66)
    many.ids[:] = 64
    for one in (found, many):
        assert_is_made_of_its_parts(one, one.run(check=False))


@pytest.mark.parametrize(
    "tokens, slots, count",
    [*((5, slots, 16) for slots in range(1, 9)), *((9, 2, count) for count in (1, 2, 32, 128))],
)
def test_a_layer_has_any_number_of_slots_and_experts(rng, tokens, slots, count):
    found = layer(rng, LAYERS[0], tokens, slots, 64, 32, count)
    assert_is_made_of_its_parts(found, found.run())


def test_more_slots_than_a_stretch_of_each_wave(rng):
    found = layer(rng, LAYERS[0], 700, 4, 32, 32, 5)
    assert_is_made_of_its_parts(found, found.run(check=False))


def test_all_slots_may_go_to_one_expert(rng):
    found = layer(rng, LAYERS[0], 40, 2, 64, 64, 8)
    found.ids[:] = 6
    assert_is_made_of_its_parts(found, found.run())


@pytest.mark.parametrize("ids", [np.int32, np.int64])
@pytest.mark.parametrize("weights", NUMPY_DTYPES)
def test_ids_and_weights_have_any_type(rng, ids, weights):
    dtypes = ids, NUMPY_DTYPES[weights]
    found = layer(rng, LAYERS[0], 9, 2, 64, 32, 4, dtypes=dtypes)
    low, high = np.iinfo(ids).min, np.iinfo(ids).max
    found.ids[2, 1], found.ids[5, 0], found.ids[6, 0] = 4, high, low
    parts = found.run()
    assert_is_made_of_its_parts(found, parts)
    isnan = np.isnan(parts.y.astype(np.float64)).all(1)
    oracle.assert_bitwise_equal(isnan, np.isin(np.arange(9), [2, 5]))


def test_a_layer_without_tokens_or_slots_is_nothing_or_zeros(rng):
    assert layer(rng, LAYERS[0], 0, 2, 64, 32, 4).launches()[0] == []
    y = layer(rng, LAYERS[0], 3, 0, 64, 32, 4).run().y
    same(y, np.zeros_like(y))


@pytest.mark.parametrize("name", [LAYERS[1], SIXES[0]])
@pytest.mark.parametrize("gate", USUAL_GATES)
def test_a_layer_has_the_same_bits_in_every_order_of_workgroups(rng, gate, name):
    for sizes in ((12, 3, 160, 96, 5), (110, 3, 160, 160, 3)):
        found = layer(rng, name, *sizes, gate)
        results = [found.run(order=order, batch=batch, check=False).y for order, batch in ORDERS]
        for result in results[1:]:
            oracle.assert_bitwise_equal(result, results[0])


@pytest.mark.parametrize(
    "experts, tokens, columns", [(32, 1024, 192), (128, 2048, 192), (128, 4096, 256)]
)
def test_the_columns_of_tiles_are_those_with_the_cheapest_rounds(experts, tokens, columns):
    """Of gpt-oss, 128 experts, 4096 tokens: 6 rounds of 160 x 256 for 8 of 160 x 192."""
    size = {"op": mx.moe, "experts": experts, "slots": 4, "device": "gfx950"}
    size |= {"activations": "mxfp4"}
    launches = mx.explain(tokens, 2880, 2880, **size).launches
    (down,) = (one for one in launches if one.name == "down")
    assert down.tile[1] == columns


@pytest.mark.parametrize("gate", [*USUAL_GATES, "swiglu_oai in halves", "relu2"])
@pytest.mark.parametrize("tokens", [1, 9, 40, 110, 300, 2000])
def test_explain_says_what_is_launched(tokens, gate):
    sizes = tokens, 4, 96, 160, 5
    for name in (*LAYERS[:7:3], SIXES[0]):
        kinds = 8, 0, *layers.gate_of(gate)
        launches, num_bytes = layers.launches_of(layers.program(), name, (*sizes, *kinds))
        question = {"op": mx.moe, "experts": 5, "slots": 4, **GATES[gate]}
        question |= {"device": "gfx950", "activations": types_of(name).left}
        found = mx.explain(tokens, 160, 96, **question)
        assert found.workspace_bytes == num_bytes
        assert [(one.grid, one.threads) for one in found.launches] == [
            (launch["grid"], launch["threads"]) for launch in launches
        ]
    for m in (1, 20, 300):
        (launch,) = layers.program().grouped(GROUPED[0], (m, 160, 96, 5))
        (one,) = mx.explain(
            m, 160, 96, device="gfx950", op=mx.grouped_linear, experts=5, activations="mxfp4"
        ).launches
        assert (one.grid, one.threads) == (launch["grid"], launch["threads"])


def test_no_kernel_spills_or_touches_scratch():
    for m in (1, 32, 64, 128, 192, 256):
        launches = [
            launch for n in GROUPED for launch in layers.program().grouped(n, (m, 64, 64, 1))
        ]
        for name in LAYERS:
            for gate in USUAL_GATES:
                sizes = m, 1, 64, 64, 1, 8, 0, *layers.gate_of(gate)
                launches += layers.launches_of(layers.program(), name, sizes)[0]
        for launch in launches:
            assert re.search(r"\.vgpr_spill_count: +0\b", launch["text"])
            assert re.search(r"\.private_segment_fixed_size: +0\b", launch["text"])

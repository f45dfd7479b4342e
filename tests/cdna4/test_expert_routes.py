"""Slots sorted by expert on gfx950, alone: what many slots, and many of one expert, do to it.

Test_experts.py has the claims about whole layers.
"""

import re

import numpy as np
import pytest

import oracle
from tests.cdna4 import expert_layers as layers
from tests.gfx950.test_lanes import LANES_OF

pytestmark = pytest.mark.deep

NAME = "mxfp4_bfloat16_bfloat16_none"
BLOCK = 32
FLOAT32 = 2


def launches_of(ids: np.ndarray, count: int) -> tuple[list, int]:
    """Returns the launches of a small layer, and the bytes of their workspace."""
    sizes = *ids.shape, BLOCK, BLOCK, count, ids.dtype.itemsize, FLOAT32
    gate = layers.gate_of(layers.FUSED)
    return layers.launches_of(layers.program(), NAME, (*sizes, *gate))


def routed(ids: np.ndarray, count: int, **options) -> tuple[np.ndarray, ...]:
    """Runs the first launch of a layer; returns sizes, tokens and places."""
    launches, num_bytes = launches_of(ids, count)
    workspace = np.full(num_bytes, 0xA5, np.uint8)
    layers.run(launches[:1], {"ids": ids}, workspace, **options)
    lengths = count, ids.size, ids.size
    places = launches[0]["arguments"][6:9]
    return tuple(
        layers.part_of(workspace, place, np.int32, length)
        for place, length in zip(places, lengths, strict=True)
    )


def assert_sorted(ids: np.ndarray, count: int, **options) -> None:
    """Compares what comes out with NumPy's stable sort."""
    sizes, tokens, places = routed(ids, count, **options)
    flat = ids.reshape(-1)
    order = np.argsort(flat, kind="stable")
    order = order[(flat[order] >= 0) & (flat[order] < count)]
    expected = np.where(flat < 0, -1, -2).astype(np.int32)
    expected[order] = np.arange(len(order))
    oracle.assert_bitwise_equal(places, expected)
    rows = np.bincount(flat[order].astype(np.int64), minlength=count).astype(np.int32)
    oracle.assert_bitwise_equal(sizes, rows, zeros_are_the_claim=True)
    oracle.assert_bitwise_equal(
        tokens[: len(order)], (order // ids.shape[1]).astype(np.int32), zeros_are_the_claim=True
    )


def drawn(rng, tokens: int, slots: int, count: int, dtype) -> np.ndarray:
    """Draws experts; some are none, some are not there, at both ends of the type too."""
    ids = rng.integers(0, count, (tokens, slots)).astype(dtype)
    ids[rng.random(ids.shape) < 0.1] = -1
    ids[rng.random(ids.shape) < 0.05] = count
    ids.flat[0], ids.flat[-1] = np.iinfo(dtype).min, np.iinfo(dtype).max
    if dtype == np.int64:
        ids.flat[1], ids.flat[-2] = 1 << 32, (1 << 31) + 1
    return ids


@pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("slots", [63, 64, 65, 1023, 1024, 1025, 2048, 2049, 16385])
def test_any_number_of_slots_is_sorted(rng, slots, dtype, late):
    assert_sorted(drawn(rng, slots, 1, 5, dtype), 5, late=late)


@pytest.mark.parametrize("slots, dtype", [(65537, np.int32), (140000, np.int64)])
def test_slots_of_several_rounds_are_sorted(rng, slots, dtype):
    assert_sorted(drawn(rng, slots // 4 + 1, 4, 2, dtype), 2)


@pytest.mark.parametrize("tokens", [16, 300, 17000])
@pytest.mark.parametrize("expert", [0, 2])
def test_an_expert_may_have_all_slots(tokens, expert):
    assert_sorted(np.full((tokens, 4), expert, np.int32), 3)


@pytest.mark.parametrize("tokens", [40, 700])
def test_routes_are_the_same_for_any_order_of_waves(rng, tokens):
    ids = drawn(rng, tokens, 4, 3, np.int32)
    for order in (1, 2):
        assert_sorted(ids, 3, lockstep=False, order=order)


def test_routes_of_experts_of_which_most_have_no_slot(rng):
    assert_sorted(drawn(rng, 5, 8, 200, np.int64), 200)


def test_lanes_meet_by_instructions_that_are_claimed_one_by_one():
    [sort, *_], _ = launches_of(np.zeros((4, 2), np.int64), 4)
    controls = r"(?:.* (row_(?!mask)\w+|quad_perm|wave_\w+):(\d+))?"
    moving = re.compile(r"\t(v_\w*(?:lane|mbcnt|dpp)\w*|ds_\w*(?:permute|swizzle)\w*)" + controls)
    found: dict[str, set[int]] = {}
    for name, control, number in moving.findall(sort["text"]):
        numbers = found.setdefault(f"{name} {control}".strip(), set())
        numbers |= {int(number)} if number else set()
    assert found == LANES_OF

"""Do workgroups that prepare rows for each other rely on luck? Every mutation that matters shows.

Mutations of what orders workgroups: delete a barrier around the wait for others' parts, or its
`buffer_inv`; take `sc1` from a load, a store, an atomic. Survivors are of kinds that are explained.
"""

from collections.abc import Iterator

import numpy as np
import pytest

import gfx950
from tests.cdna4 import support as cdna4
from tests.cdna4.test_prefill import LOW_LINEAR, MATMUL, multiply
from tests.tiers import deep

SHAPES = {LOW_LINEAR: (128, 512, 512), MATMUL: (256, 512, 2048)}
HARMLESS = {
    "atomic": "a read-modify-write happens in memory with or without sc1",
    "first barrier": "the barrier after the poll orders the same operations",
}

ORDERS = 24
"""Of the waves, that are tried."""


@pytest.fixture(scope="module")
def kernels():
    texts = cdna4.compile_texts("prefill")
    return {name: gfx950.parse(texts[name]) for name in SHAPES}


def mutants(kernel) -> Iterator[tuple[str, str, gfx950.Kernel]]:
    """Yields kind, label and kernel of each mutation."""
    inv = next(i.pc for i in kernel.instructions if i.name == "buffer_inv")
    barriers = [i.pc for i in kernel.instructions[:inv] if i.name == "s_barrier"]
    for pc, kind in zip(barriers[-2:], ("first barrier", "second barrier"), strict=True):
        yield kind, kind, kernel.replaced(pc, "s_nop 0")
    yield "invalidation", "buffer_inv", kernel.replaced(inv, "s_nop 0")
    yield "invalidation", "buffer_inv sc0", kernel.replaced(inv, "buffer_inv sc0")
    for i in kernel.instructions:
        if "sc1" in i.mods and i.name != "buffer_inv":
            kind = next(k for k in ("atomic", "store", "load") if k in i.name)
            yield kind, str(i), kernel.replaced(i.pc, i.text.replace(" sc1", ""))


def findings(kernel, name, rng):
    """Returns what a checked launch says."""
    try:
        multiply(kernel, name, rng, SHAPES[name])
    except gfx950.HazardError as error:
        return error.hazards
    return []


@pytest.mark.deep
@pytest.mark.parametrize("name", SHAPES)
def test_every_mutation_that_matters_is_caught(kernels, name):
    kernel = kernels[name]
    caught, survivors = set(), {}
    for kind, label, mutant in mutants(kernel):
        found = findings(mutant, name, np.random.default_rng(20))
        if found:
            assert {hazard.kind for hazard in found} == {"race"}, label
            caught.add(kind)
        else:
            survivors[label] = kind, mutant
    assert caught >= {"second barrier", "invalidation", "store", "load"}
    assert {kind for kind, _ in survivors.values()} <= HARMLESS.keys(), survivors.keys()


@deep
def test_a_deleted_barrier_gives_wrong_results_in_some_order(kernels):
    """What the checker says without trying is true: interleavings differ. Some three of eight do,
    and none of the kernel as it is."""
    kernel = kernels[LOW_LINEAR]
    mutant = next(m for kind, _, m in mutants(kernel) if kind == "second barrier")
    intact = in_order(kernel, 0)
    assert intact is not None
    seed = next((seed for seed in range(ORDERS) if in_order(mutant, seed) != intact), None)
    assert seed is not None
    assert in_order(kernel, seed) == intact


def in_order(kernel: gfx950.Kernel, seed: int) -> bytes | None:
    """Returns C of waves that take turns at random; None if what they hand over was not there."""
    rng = np.random.default_rng(20)
    options = {"check": False, "lockstep": False, "order": seed, "batch": 8, "late": True}
    try:
        return multiply(kernel, LOW_LINEAR, rng, SHAPES[LOW_LINEAR], **options).c.tobytes()
    except AssertionError:
        return None

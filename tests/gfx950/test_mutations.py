"""Does the checker see a missing wait? Every wait and barrier of six kernels is tampered with.

Mutations: delete an s_waitcnt or an s_barrier (an s_nop takes its place), or raise one counter
of an s_waitcnt by one. A mutant counts as caught if the checked run reports a hazard or faults.
A mutant that is not caught must be harmless: its results have the same bits in late mode, in
lockstep and with the waves in other orders. Each survivor is explained by what the wait does:

    never executed      the launch does not reach it (a fallback for old firmware, a skipped branch)
    proves nothing      whenever it runs, its operations have been waited for already
    proves too much     it also waits for operations whose result nothing uses afterwards
    ordered twice       the barrier stands between two others that order the same accesses
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

import gfx950
from tests.gfx950.support import TILINGS, Case, corpus_case, max_case
from tests.tiers import tiered

CASES = {
    "max_128x128": lambda: max_case(TILINGS[0]),
    "max_64x64_mfma32": lambda: max_case(TILINGS[3]),
    "max_16x128": lambda: max_case(TILINGS[4]),
    "triton_bf16": lambda: corpus_case("triton_bf16_bf16_64x64x64_w4_s3", 64, 64, 320),
    "triton_mxfp4": lambda: corpus_case("triton_mxfp4_mxfp4_64x64x256_w4_s2", 64, 64, 768),
    "triton_mxfp8": lambda: corpus_case("triton_mxfp8_mxfp4_32x32x128_w2_s2", 32, 32, 512),
}
LATE = [
    {"late": True},
    {"late": True, "lockstep": False, "order": 1},
    {"late": True, "lockstep": False, "order": 2},
    {"lockstep": False, "order": 3},
]


@dataclass
class Mutant:
    """One tampered kernel."""

    label: str
    pc: int
    kernel: gfx950.Kernel


def mutants(kernel: gfx950.Kernel) -> Iterator[Mutant]:
    """Yields every mutation of a kernel."""
    for ins in kernel.instructions:
        if ins.name in ("s_waitcnt", "s_barrier"):
            yield Mutant(f"delete {ins}", ins.pc, kernel.replaced(ins.pc, "s_nop 0"))
        if ins.name == "s_waitcnt":
            for counter, count in ins.mods.items():
                raised = {**ins.mods, counter: count + 1}
                text = "s_waitcnt " + " ".join(f"{c}({n})" for c, n in raised.items())
                yield Mutant(f"raise {counter} of {ins}", ins.pc, kernel.replaced(ins.pc, text))


def is_caught(case: Case, mutant: Mutant) -> bool:
    """Whether the checked run objects."""
    try:
        return bool(case.launch(kernel=mutant.kernel)[1].hazards)
    except gfx950.SimulationError:
        return True


def changes_results(case: Case, mutant: Mutant, expected: np.ndarray) -> bool:
    """Whether any late schedule gives other bits, or none at all."""
    for options in LATE:
        try:
            c, _ = case.launch(kernel=mutant.kernel, check=False, **options)
        except gfx950.SimulationError:
            return True
        if not np.array_equal(c, expected):
            return True
    return False


def explanation(mutant: Mutant, proofs: dict[int, int], kernel: gfx950.Kernel) -> str:
    """Says why a survivor is harmless."""
    if kernel.instructions[mutant.pc].name == "s_barrier":
        return "ordered twice"
    if mutant.pc not in proofs:
        return "never executed"
    return "proves too much" if proofs[mutant.pc] else "proves nothing"


@pytest.mark.parametrize("name", tiered(CASES, first=["triton_bf16"]))
def test_every_mutation_that_matters_is_caught(name, capsys):
    case = CASES[name]()
    expected, result = case.launch()
    assert result.hazards == []

    caught, survivors, missed = 0, [], []
    for mutant in mutants(case.kernel):
        if is_caught(case, mutant):
            caught += 1
        elif changes_results(case, mutant, expected):
            missed.append(mutant.label)
        else:
            why = explanation(mutant, result.proofs, case.kernel)
            survivors.append(f"{why}: {mutant.label}")
    with capsys.disabled():
        total = caught + len(survivors) + len(missed)
        print(f"\n{name}: {total} mutants, {caught} caught, {len(survivors)} harmless")
        for survivor in survivors:
            print(f"    {survivor}")
    assert missed == []
    assert caught > 20


@pytest.mark.parametrize("name", tiered(["max_128x128", "triton_mxfp4"], first=["triton_mxfp4"]))
def test_in_order_execution_sees_no_missing_wait(name):
    """Why a checker is needed: without it, and in order, every mutant gives the right bits."""
    case = CASES[name]()
    expected, _ = case.launch(check=False)
    for mutant in mutants(case.kernel):
        if mutant.label.startswith("delete") and "s_waitcnt" in mutant.label:
            c, _ = case.launch(kernel=mutant.kernel, check=False)
            assert np.array_equal(c, expected)

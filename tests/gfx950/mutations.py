"""Everything by which a kernel's waves share, taken away or made weaker, one thing at a time.

    barrier         s_barrier deleted
    invalidation    buffer_inv deleted; one of its bits dropped
    write-back      buffer_wbl2 likewise
    store, load     a cache bit (sc0, sc1, nt) dropped
    atomic          sc1 dropped
    wait            s_waitcnt deleted; before a release also each of its counters raised by one

A release is a barrier or what others may see at any time: an atomic, a store with sc1. `sc0` of an
atomic is no cache bit: it asks for the old value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import gfx950

CACHE_BITS = ("sc0", "sc1", "nt")
WHOLE_CACHES = {"buffer_inv": "invalidation", "buffer_wbl2": "write-back"}
NOP = "s_nop 0"


@dataclass(frozen=True)
class Mutant:
    """A kernel with one thing less."""

    kind: str
    label: str
    pc: int
    kernel: gfx950.Kernel


def mutants(kernel: gfx950.Kernel) -> Iterator[Mutant]:
    """Yields every mutant of a kernel."""
    before_release = set(waits_before_releases(kernel))
    for ins in kernel.instructions:
        for kind, what, text in _weaker(ins, ins.pc in before_release):
            yield Mutant(kind, f"{what} {ins}", ins.pc, kernel.replaced(ins.pc, text))


def _weaker(ins, before_release: bool) -> Iterator[tuple[str, str, str]]:
    """Yields kind, what is done, and the text of each weaker instruction."""
    bits = [bit for bit in CACHE_BITS if bit in ins.mods]
    if ins.name == "s_barrier":
        yield "barrier", "delete", NOP
    elif ins.name == "s_waitcnt":
        yield "wait", "delete", NOP
        for counter, count in ins.mods.items() if before_release else ():
            raised = {**ins.mods, counter: count + 1}
            text = " ".join(f"{name}({value})" for name, value in raised.items())
            yield "wait", f"raise {counter} of", f"s_waitcnt {text}"
    elif ins.name in WHOLE_CACHES:
        yield WHOLE_CACHES[ins.name], "delete", NOP
        for bit in bits:
            yield WHOLE_CACHES[ins.name], f"no {bit} for", without(ins.text, bit)
    else:
        kind = "atomic" if "atomic" in ins.name else "store" if "store" in ins.name else "load"
        for bit in bits:
            if (kind, bit) != ("atomic", "sc0"):
                yield f"{kind} {bit}", f"no {bit} for", without(ins.text, bit)


def without(text: str, bit: str) -> str:
    """Returns an instruction without one of its words."""
    return " ".join(word for word in text.split() if word != bit)


def waits_before_releases(kernel: gfx950.Kernel) -> Iterator[int]:
    """Yields the waits from which straight code leads to a release, with no release between."""
    targets = {ins.target for ins in kernel.instructions if ins.target is not None}
    for ins in kernel.instructions:
        if not is_release(ins):
            continue
        for earlier in reversed(kernel.instructions[: ins.pc]):
            if is_release(earlier) or earlier.target is not None or earlier.pc + 1 in targets:
                break
            if earlier.name == "s_waitcnt":
                yield earlier.pc


def is_release(ins) -> bool:
    """Says whether an instruction tells others that what came before is done."""
    announces = "atomic" in ins.name or ("store" in ins.name and "sc1" in ins.mods)
    return ins.name == "s_barrier" or announces

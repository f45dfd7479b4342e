"""Where the cycles go: a model of gfx950 over a functional trace.

    model       `profile`: trace -> Profile
    steps       the price of every instruction
    grid        occupancy, rounds, XCDs, who shares which cache lines
    cu          the waves of one CU compete for its units
    memory      L1, and this CU's share of everything beyond
    conflicts   LDS bank conflicts, from addresses
    parameters  what all of it assumes, with ranges and sources
    timeline    a profile as a picture or a trace for ui.perfetto.dev

Imports isa, memory and machine; only `model` runs anything.
"""

from gfx950.timing.model import Profile, profile, simulate
from gfx950.timing.parameters import Machine

__all__ = ["Machine", "Profile", "profile", "simulate"]

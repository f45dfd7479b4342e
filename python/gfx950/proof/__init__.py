"""What a run must not depend on: everything that in-order execution cannot show.

    hazards     registers and LDS bytes touched before a wait or a barrier proves them
    waits       wait states between pairs of instructions
    releases    what a workgroup announces to others before its stores have completed
    undefined   values that nothing has written

Imports isa and memory.
"""

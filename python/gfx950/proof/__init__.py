"""What a run must not depend on: everything that in-order execution cannot show.

    hazards     registers and LDS bytes touched before a wait or a barrier proves them
    waits       wait states between pairs of instructions
    sharing     what waves write for each other in global memory: races and stale caches
    cells       who wrote each byte, and who has read it
    clocks      what a wave may rely on of others' operations
    undefined   values that nothing has written

Imports isa and memory.
"""

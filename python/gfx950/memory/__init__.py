"""Where bytes live and the instructions that move them.

    islands     global memory: the kernel's arguments, each an island; atomics
    lds         the local data share and `ds_*`
    scratch     private memory and `scratch_*`
    vmem        global, flat and buffer memory instructions
    smem        scalar memory instructions
    access      a memory operation in two halves, issue and completion

Imports isa.
"""

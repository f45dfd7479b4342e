"""Kernels of NVIDIA GPUs as the compiler wrote them, run on the CPU: an interpreter of PTX.

    calls           what a CUDA device would be told for a call of `mx_kernels`
    device          runs that, and gives the result
    parse           PTX text to functions: statements, registers, labels
    instructions    statements to closures, operands what these read, copies those that copy
    registers       what changes registers alone, often as one function for many instructions
    scalar          what a lane computes alone
    tensor          what a warp does together with tensor cores
    memory          the buffers that a launch may touch, barrier objects
    warp            registers of a warp, and where its lanes are
    machine         grids, clusters and groups: who runs next, who waits for whom

It is functional: no time, no caches. Every access is checked against the buffers of the launch, and
everything that is asynchronous happens as late, or in as odd an order, as is allowed.
"""

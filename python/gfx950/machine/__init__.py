"""Executes a grid of workgroups.

    execute     runs waves in lockstep: `run`
    decode      every instruction of a kernel -> executable form, once
    modes       states in which instructions mean something else
    launch      registers, arguments and memory before the first instruction
    trace       what each wave did: the input of timing/

Imports isa, memory and proof.
"""

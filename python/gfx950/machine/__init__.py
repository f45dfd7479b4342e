"""Executes a grid of workgroups.

    run         one launch: `run`
    execute     waves of some workgroups, in lockstep: Machine
    decode      every instruction of a kernel -> executable form, once
    modes       states in which instructions mean something else
    launch      registers, arguments and memory before the first instruction
    trace       what each wave did: the input of timing/

Imports isa, memory and proof.
"""

"""Runs compiled CDNA4 (gfx950) machine code on a CPU and proves its waits and barriers.

`run` executes code objects and the assembly text that LLVM emits for gfx950, all waves of a
workgroup in lockstep as NumPy arrays. It raises on anything it does not know, on reads of
registers or LDS that were never written, and on memory outside the arguments; it reports missing
waits, missing wait states and races, within workgroups and between them, as hazards.

    file -> load, text -> parse -> Kernel -> run -> Result

    isa/        what an instruction is and computes
    memory/     where bytes live, and the instructions that move them
    proof/      what it got wrong: waits, barriers, wait states, sharing, undefined values
    machine/    runs waves, and records what each did
    timing/     a model of where its cycles go
    cli/        the same from the command line

Rooms import those above them, never below.

It needs NumPy alone to run text, and knows nothing of block-scaled formats beyond the instructions.

One batch of workgroups runs to its end before the next, so that a workgroup must not wait for
one of a later batch (`batch`). Not implemented, and therefore an error: stochastic rounding,
sparse, float64 and multi-block matrix instructions, swizzled and typed buffers, calls, flat access
to LDS.
"""

from gfx950.isa.asm import AsmError, Instruction, Kernel, Operand, parse
from gfx950.isa.disassembly import load
from gfx950.isa.operands import UnknownInstruction
from gfx950.machine.execute import HazardError, Result, SimulationError
from gfx950.machine.launch import ArgumentError
from gfx950.machine.run import run
from gfx950.machine.trace import Event, Trace
from gfx950.proof.hazards import Hazard
from gfx950.timing.model import Profile, profile

__all__ = [
    "ArgumentError",
    "AsmError",
    "Event",
    "Hazard",
    "HazardError",
    "Instruction",
    "Kernel",
    "Operand",
    "Profile",
    "Result",
    "SimulationError",
    "Trace",
    "UnknownInstruction",
    "load",
    "parse",
    "profile",
    "run",
]

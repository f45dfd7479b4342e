"""Runs compiled CDNA4 (gfx950) machine code on a CPU and proves its waits and barriers.

`run` executes the assembly text that LLVM emits for gfx950, all waves of a workgroup in
lockstep as NumPy arrays. It raises on anything it does not know, on reads of registers or LDS
that were never written, and on memory outside the arguments; it reports missing waits, barrier
races and missing wait states as hazards.

    asm text -> asm.parse -> Kernel -> machine.run -> Result
                                         |-- alu*, mfma, vmem, lds   what it computes
                                         |-- hazards, waits          what it got wrong
                                         |-- trace                   what it did, per wave
                                         `-- timing.profile          a model of where its cycles go

It depends on NumPy alone and knows nothing of block-scaled formats beyond the instructions.

Not seen: races between workgroups in global memory, and waits that spin on another workgroup
(one batch of workgroups runs to its end before the next). Not implemented, and therefore an
error: stochastic rounding, sparse, float64 and multi-block matrix instructions, structured and
typed buffers, calls, flat access to LDS.
"""

from gfx950.asm import AsmError, Instruction, Kernel, Operand, parse
from gfx950.hazards import Hazard
from gfx950.launch import ArgumentError
from gfx950.machine import HazardError, Result, SimulationError, run
from gfx950.operands import UnknownInstruction
from gfx950.timing import Profile, profile
from gfx950.trace import Event, Trace

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
    "parse",
    "profile",
    "run",
]

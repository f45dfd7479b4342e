"""What an instruction is: text and code objects in, executable closures out.

    asm         assembly text -> Kernel, Instruction, Operand
    operands    operands -> readers and writers of registers; which registers an instruction touches
    state       the registers of waves that stand at one instruction
    formats     small floats, bf16, one rounding of a * b + c
    alu*, lanes, mfma, results     what instructions compute; memory instructions are in memory/

Imports nothing of the other rooms.
"""

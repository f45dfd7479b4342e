"""Turns the instructions of a kernel into executable form, once."""

from __future__ import annotations

from dataclasses import replace

from gfx950.isa.alu import decode_scalar
from gfx950.isa.alu_convert import decode_convert
from gfx950.isa.alu_packed import decode_packed
from gfx950.isa.alu_vector import decode_vector
from gfx950.isa.asm import VCC, AsmError, Instruction, Kernel
from gfx950.isa.lanes import decode_lanes
from gfx950.isa.mfma import decode_mfma
from gfx950.isa.operands import Build, Decoded, UnknownInstruction
from gfx950.machine.modes import decode_mode
from gfx950.memory.lds import decode_lds
from gfx950.memory.scratch import decode_scratch
from gfx950.memory.smem import decode_scalar_memory
from gfx950.memory.vmem import decode_memory
from gfx950.proof.waits import WaitRules

_BRANCHES = {
    "s_branch": "always", "s_cbranch_scc0": "scc0", "s_cbranch_scc1": "scc1",
    "s_cbranch_vccz": "vccz", "s_cbranch_vccnz": "vccnz",
    "s_cbranch_execz": "execz", "s_cbranch_execnz": "execnz",
}  # fmt: skip
_DECODERS = (
    decode_mode, decode_mfma, decode_convert, decode_packed, decode_lanes, decode_vector,
    decode_lds, decode_memory, decode_scalar_memory, decode_scratch, decode_scalar,
)  # fmt: skip


MAX_STATES = 16
MAX_COUNTS = {"vmcnt": 63, "lgkmcnt": 15, "expcnt": 7}


class CodeFault(Exception):
    """Control flow that leaves the kernel."""


def _nothing(w) -> None:
    """Control flow is the machine's business."""


def _leave(w) -> None:
    raise CodeFault("runs off the end of the kernel, expected an s_endpgm before it")


def _waitcnt_fields(b: Build) -> dict[str, int]:
    """Returns the counters that an s_waitcnt names."""
    if b.ins.operands:
        value = int(b.operand(0).value)
        return {
            "vmcnt": (value & 15) | (value >> 10 & 0x30),
            "expcnt": value >> 4 & 7,
            "lgkmcnt": value >> 8 & 15,
        }
    return {name: int(b.mod(name)) for name in list(b.mods)}


def _decode_control(b: Build) -> Decoded | None:
    name = b.ins.name
    if name in _BRANCHES:
        if name.startswith("s_cbranch_vcc"):
            b.s_reads += [VCC, VCC + 1]
        return b.finish(_nothing, "branch", info={"condition": _BRANCHES[name]})
    if name == "s_waitcnt":
        counters = _waitcnt_fields(b)
        if any(not 0 <= count <= MAX_COUNTS.get(name, -1) for name, count in counters.items()):
            raise b.unknown("counter")
        return b.finish(_nothing, "wait", info={"counters": counters})
    if name == "s_barrier":
        return b.finish(_nothing, "barrier")
    if name == "s_endpgm":
        return b.finish(_nothing, "end")
    return None


def decode(kernel: Kernel, ins: Instruction) -> Decoded:
    """Decodes one instruction.

    Raises:
        UnknownInstruction: with the instruction's text, if any part of it is not implemented.
    """
    try:
        return _decode(kernel, ins)
    except AsmError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Of a decoder that got what no assembler writes.
        raise UnknownInstruction(f"unknown form of instruction: {ins} ({error})") from error


def _decode(kernel: Kernel, ins: Instruction) -> Decoded:
    b = Build(kernel, ins)
    decoded = _decode_control(b)
    for decoder in _DECODERS:
        if decoded is not None:
            break
        decoded = decoder(b)
    if decoded is None:
        raise b.unknown()
    decoded.rules = WaitRules(decoded)
    if decoded.kind == "nop" and ins.operands:
        decoded.states = int(ins.operands[0].value) + 1
        if ins.name == "s_nop" and not 1 <= decoded.states <= MAX_STATES:
            raise b.unknown("operand")
    decoded.memory = decoded.info.get("memory")
    reads = (*decoded.v_reads, *(~s for s in decoded.s_reads))
    writes = (*decoded.v_writes, *(~s for s in decoded.s_writes))
    decoded.reads, decoded.touches = frozenset(reads), frozenset(reads + writes)
    if decoded.memory is not None:
        decoded.loads = frozenset(writes)
    return decoded


def end_of(kernel: Kernel) -> Decoded:
    """Returns what comes behind the last instruction: a fault."""
    last = kernel.instructions[-1]
    b = Build(kernel, replace(last, pc=last.pc + 1, operands=(), mods={}, target=None))
    decoded = b.finish(_leave, "nop")
    decoded.rules = WaitRules(decoded)
    return decoded


def decode_kernel(kernel: Kernel) -> list[Decoded]:
    """Decodes every instruction of a kernel; the kernel keeps the result."""
    kernel.decoded = [
        d or decode(kernel, ins)
        for d, ins in zip(
            kernel.decoded or [None] * len(kernel.instructions), kernel.instructions, strict=True
        )
    ]
    return kernel.decoded

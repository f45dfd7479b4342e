"""Turns a trace into one stream of priced steps per wave.

Two halves: `Op` holds what an instruction costs whatever the data, decoded once per line of
assembly; `streams` adds what depends on the run, the LDS cycles of each access and the 64-byte
sectors of each global access. The CU model then only does integer arithmetic.

    Event (trace.py) --> [ (Op, payload), ... ] per wave

    payload   LDS access            (cycles, conflict cycles, bytes returned)
              global access         (sectors, bytes, LDS cycles if it writes LDS)
              anything else         None
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gfx950.memory.islands import ISLAND_BITS
from gfx950.timing.conflicts import access_cycles
from gfx950.timing.parameters import F8F6F4_PASSES, MFMA_PASSES, MFMA_RESULT_WAIT, Machine

SECTOR_BYTES = 64
LANES = 64
_TRANS = re.compile(
    r"v_(exp|log|rcp|rsq|sqrt|sin|cos|rcp_iflag)_(legacy_)?(f16|f32|f64|iflag_f32)$"
)
_MULTIPLY = re.compile(r"v_(mul_lo_u32|mul_hi_[iu]32|mad_[iu]64_[iu]32)$")
_SHAPE = re.compile(r"_(\d+)x(\d+)x(\d+)_?(?:\d+b_)?(\w*)$")
GLOBAL_KINDS = ("load", "store", "atomic")
_GLOBAL = ("global_", "buffer_", "flat_", "scratch_")
_CACHE_CONTROL = ("buffer_wbl2", "buffer_inv", "s_icache_inv", "s_dcache_wb", "s_dcache_inv")
_OPERAND_KINDS = {
    "f32": "f32",
    "f64": "f64",
    "f16": "f16",
    "bf16": "f16",
    "i8": "i8",
    "xf32": "xf32",
}
EIGHT_BIT_FORMATS = (0, 1)
"""cbsz / blgp codes of E4M3 and E5M2."""


class LdsCost(NamedTuple):
    """Payload of an LDS access."""

    cycles: int
    conflict_cycles: int
    returned_bytes: int
    """Bytes that go back to the registers of the wave."""


LANE_EXCHANGE = LdsCost(2, 0, 256)
"""ds_bpermute and its kin: 64 dwords there and back, without the banks."""


class GlobalCost(NamedTuple):
    """Payload of a global access."""

    sectors: tuple[int, ...]
    num_bytes: int
    lds_cycles: int


@dataclass(frozen=True, slots=True)
class Op:
    """One instruction as the CU model sees it."""

    pc: int
    kind: str
    """valu mfma salu smem lds load store atomic wait barrier nop prio branch end."""
    text: str
    cycles: int = 4
    """Cycles its unit is busy."""
    touched: tuple[int, ...] = ()
    """Pairs of vector registers it reads or writes, those of AGPRs from 256; `result` is not
    among them if an MFMA accumulates in place."""
    result: tuple[int, ...] = ()
    """Pairs that an MFMA writes."""
    chained: bool = False
    """Whether an MFMA accumulates in place."""
    result_cycles: int = 0
    """Cycles until another instruction can use an MFMA's result."""
    flops: int = 0
    vmcnt: int | None = None
    lgkmcnt: int | None = None
    value: int = 0
    """Priority of s_setprio."""
    past_l2: bool = False
    """Whether other XCDs must see it (sc1): L2 does not answer."""


def mfma_shape(ins):
    """Returns (rows, columns, K) and the type suffix of an MFMA."""
    match = _SHAPE.search(ins.name)
    if not match:
        raise ValueError(f"the timing model cannot read the MFMA shape of {ins}")
    return tuple(map(int, match.groups()[:3])), match.group(4)


def mfma_passes(ins) -> int:
    """Returns the passes of an MFMA.

    Raises:
        ValueError: if the shape is in no table.
    """
    shape, suffix = mfma_shape(ins)
    if suffix == "f8f6f4":
        formats = {int(ins.mods.get("cbsz", 0)), int(ins.mods.get("blgp", 0))}
        return F8F6F4_PASSES[shape][bool(formats & set(EIGHT_BIT_FORMATS))]
    suffix = suffix.removesuffix("_1k")
    kind = "f8" if "fp8" in suffix or "bf8" in suffix else _OPERAND_KINDS.get(suffix, suffix)
    try:
        return MFMA_PASSES[kind][shape]
    except KeyError:
        raise ValueError(f"the timing model has no passes for {ins}") from None


def _registers(operand):
    first = operand.index + (512 if operand.kind == "a" else 0)
    return tuple(range(first, first + operand.count))


def _pairs(registers):
    """Returns the pairs of registers; what spans several begins with an even one."""
    return tuple(dict.fromkeys(r >> 1 for r in registers))


def _touched(ins):
    return _pairs(r for o in ins.operands if o.is_vector for r in _registers(o))


def _mfma(ins, machine):
    (rows, columns, depth), _ = mfma_shape(ins)
    passes = mfma_passes(ins)
    result = _registers(ins.operands[0])
    accumulator = ins.operands[3]
    slot = machine.pass_cycles
    chained = accumulator.is_vector and _registers(accumulator) == result
    result = _pairs(result)
    touched = tuple(r for r in _touched(ins) if not (chained and r in result))
    return Op(
        ins.pc, "mfma", ins.text, passes * slot, touched, result, chained,
        slot * (1 + MFMA_RESULT_WAIT[passes]), 2 * rows * columns * depth,
    )  # fmt: skip


def _valu_cycles(ins, machine):
    if _TRANS.match(ins.name):
        return machine.trans_cycles
    if _MULTIPLY.match(ins.name):
        return machine.multiply_cycles
    return machine.f64_cycles if ins.name.endswith("_f64") else machine.issue_cycles


def _scalar(ins, machine):
    name = ins.name
    if name == "s_waitcnt":
        return Op(ins.pc, "wait", ins.text, 0, vmcnt=ins.mods.get("vmcnt"),
                  lgkmcnt=ins.mods.get("lgkmcnt"))  # fmt: skip
    if name in ("s_nop", "s_sleep"):
        unit = machine.issue_cycles if name == "s_nop" else 64
        count = int(ins.operands[0].value) + (name == "s_nop")
        return Op(ins.pc, "nop", ins.text, unit * count)
    if name == "s_setprio":
        return Op(ins.pc, "prio", ins.text, value=int(ins.operands[0].value))
    kinds = {"s_barrier": "barrier", "s_endpgm": "end"}
    if name in kinds:
        return Op(ins.pc, kinds[name], ins.text)
    if name.startswith(("s_load", "s_buffer_load", "s_memtime", "s_memrealtime")):
        return Op(ins.pc, "smem", ins.text)
    kind = "branch" if ins.target is not None else "salu"
    return Op(ins.pc, kind, ins.text)


def decode(ins, machine: Machine) -> Op:
    """Prices one instruction.

    Raises:
        ValueError: if the model does not know what kind of instruction it is.
    """
    name = ins.name
    if name.startswith("v_mfma_ld_scale"):
        return Op(ins.pc, "valu", ins.text, machine.issue_cycles, _touched(ins))
    if name.startswith("v_mfma"):
        return _mfma(ins, machine)
    if name.startswith("v_"):
        return Op(ins.pc, "valu", ins.text, _valu_cycles(ins, machine), _touched(ins))
    if name.startswith("ds_"):
        return Op(ins.pc, "lds", ins.text, touched=_touched(ins))
    if name.startswith(_CACHE_CONTROL):
        return Op(ins.pc, "salu", ins.text)
    if name.startswith(_GLOBAL):
        kind = next((kind for kind in ("store", "atomic") if f"_{kind}" in name), "load")
        return Op(ins.pc, kind, ins.text, touched=_touched(ins), past_l2="sc1" in ins.mods)
    if name.startswith("s_"):
        return _scalar(ins, machine)
    raise ValueError(f"the timing model does not know {ins}")


def _lds_cycles(event, is_write, machine):
    """Returns (cycles, free cycles) of each wave's LDS access, both parts of read2 summed."""
    parts = event.lds_addr.reshape(len(event.waves), LANES, -1)
    banks = machine.lds_write_banks if is_write else machine.lds_banks
    costs = [
        access_cycles(parts[:, :, i], event.exec_mask, event.lds_bytes, banks, is_write=is_write)
        for i in range(parts.shape[2])
    ]
    return sum(c for c, _ in costs), sum(f for _, f in costs)


def _sectors(event, row, sizes):
    """Returns the 64-byte sectors that one wave's active lanes touch, in lane order.

    One comes again where lanes between have touched another. Lanes beyond the end of a buffer of
    known size read zeros and move nothing.
    """
    address = event.global_addr[row][event.exec_mask[row]].astype(np.int64)
    for island in set((address >> ISLAND_BITS).tolist()) & set(sizes):
        inside = address - (island << ISLAND_BITS) < sizes[island]
        address = address[inside | (address >> ISLAND_BITS != island)]
    last = (address + max(event.global_bytes, 1) - 1) // SECTOR_BYTES
    touched = np.stack([address // SECTOR_BYTES, last], 1).ravel()
    changes = np.diff(touched, prepend=-1) != 0
    return tuple(touched[changes].tolist())


def _payloads(event, op, sizes, machine):
    """Returns the payload of each wave of an event."""
    count = len(event.waves)
    has_lds = event.lds_addr is not None
    if op.kind == "lds":
        if not has_lds:
            return [LANE_EXCHANGE] * count
        is_write = not op.text.startswith("ds_read")
        cycles, free = _lds_cycles(event, is_write, machine)
        parts = event.lds_addr.reshape(count, LANES, -1).shape[2]
        returned = 0 if is_write else parts * event.lds_bytes * LANES
        return [LdsCost(int(c), int(c - f), returned) for c, f in zip(cycles, free, strict=True)]
    if op.kind not in GLOBAL_KINDS:
        return [None] * count
    lanes = event.exec_mask.sum(axis=1) * event.global_bytes
    lds = -(-lanes // machine.lds_load_bytes) if has_lds else np.zeros(count, int)
    return [GlobalCost(_sectors(event, i, sizes), int(lanes[i]), int(lds[i])) for i in range(count)]


def streams(
    trace, machine: Machine, sizes: dict[int, int], waves: Sequence[int] | None = None
) -> dict[int, list]:
    """Returns the priced steps of waves, by wave number.

    Args:
        trace: what they did.
        machine: the chip.
        sizes: bytes of each buffer by island number (`memory.ISLAND_BITS`).
        waves: their numbers, default all of the trace.
    """
    ops = {}
    result = {number: [] for number in (trace.wave_numbers() if waves is None else waves)}
    is_wanted = np.zeros(max(trace.wave_numbers()) + 1, bool)
    is_wanted[list(result)] = True
    for event in trace.events:
        rows = is_wanted[event.waves]
        if not rows.any():
            continue
        part = event if rows.all() else event.take(rows)
        op = ops.get(event.pc)
        if op is None:
            op = ops[event.pc] = decode(trace.kernel.instructions[event.pc], machine)
        for wave, payload in zip(
            part.waves.tolist(), _payloads(part, op, sizes, machine), strict=True
        ):
            result[wave].append((op, payload))
    return result

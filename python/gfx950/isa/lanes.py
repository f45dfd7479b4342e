"""Instructions and encodings that move data between lanes or between parts of a register.

DPP replaces the first source by that of another lane, given by a fixed permutation:

    quad_perm:[1,0,3,2]   row_shr:1   row_ror:8   row_bcast:15   row_newbcast:3   ...
    `- 4 lanes             `- 16 lanes, a row      `- across rows

A lane whose source lies outside its row, or is inactive, keeps its destination; with
bound_ctrl it reads zero. SDWA reads and writes bytes or words of a register.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gfx950.isa.operands import Build, Decoded, Reader, typed, write_register
from gfx950.isa.results import result_function
from gfx950.isa.state import LANES, Waves

U16, U32 = np.uint16, np.uint32
LANE = np.arange(LANES)
ROW = 16
_SELECT = {f"BYTE_{i}": (8 * i, 8) for i in range(4)} | {
    "WORD_0": (0, 16), "WORD_1": (16, 16), "DWORD": (0, 32),
}  # fmt: skip


# --- DPP ---------------------------------------------------------------------------------------

QUAD = range(4)
DPP_CONTROLS = {
    "quad_perm": QUAD, "row_newbcast": range(ROW), "row_bcast": (15, 31), "row_mirror": (True,),
    "row_half_mirror": (True,), "wave_shl": (1,), "wave_shr": (1,), "wave_rol": (1,),
    "wave_ror": (1,),
}  # fmt: skip
"""Numbers that a control takes; others take 1 to 15."""


def dpp_permutation(b: Build) -> tuple[np.ndarray, np.ndarray]:
    """Consumes the DPP control and returns the source lane of each lane and its validity."""
    row, lane = LANE // ROW * ROW, LANE % ROW
    everywhere = np.ones(LANES, bool)
    table: dict[str, Callable] = {
        "quad_perm": lambda p: (LANE // 4 * 4 + np.array(p)[LANE % 4], everywhere),
        "row_shl": lambda n: (row + lane + n, lane + n < ROW),
        "row_shr": lambda n: (row + lane - n, lane >= n),
        "row_ror": lambda n: (row + (lane - n) % ROW, everywhere),
        "wave_shl": lambda n: (LANE + n, LANE + n < LANES),
        "wave_shr": lambda n: (LANE - n, LANE >= n),
        "wave_rol": lambda n: ((LANE + n) % LANES, everywhere),
        "wave_ror": lambda n: ((LANE - n) % LANES, everywhere),
        "row_mirror": lambda _: (row + ROW - 1 - lane, everywhere),
        "row_half_mirror": lambda _: (LANE // 8 * 8 + 7 - LANE % 8, everywhere),
        "row_newbcast": lambda n: (row + n, everywhere),
        "row_bcast": lambda n: (
            (row - 1, row >= ROW) if n == 15 else (np.full(LANES, 31), LANE >= 32)
        ),
    }
    found = [name for name in table if name in b.mods]
    control = b.mod(found[0]) if len(found) == 1 else None
    numbers = control if isinstance(control, tuple) else (control,)
    fits = DPP_CONTROLS.get(found[0], range(1, ROW)) if found else ()
    if not all(n in fits for n in numbers) or (len(numbers) == 4) != (fits == QUAD):
        raise b.unknown("DPP control")
    source, valid = table[found[0]](control)
    return np.where(valid, source, 0), valid


def _decode_dpp(b: Build, type_: str, sources: list[str], fn, accumulate: bool) -> Decoded:
    source, valid = dpp_permutation(b)
    row_mask, bank_mask = int(b.mod("row_mask", 15)), int(b.mod("bank_mask", 15))
    zero_fill = "bound_ctrl" in b.mods
    b.mod("bound_ctrl")
    enabled = ((row_mask >> LANE // ROW) & (bank_mask >> LANE % ROW // 4) & 1).astype(bool)
    reads = [b.src(i + 1, t) for i, t in enumerate(sources)]
    if accumulate:
        reads.append(b.src(0, type_))
    index = b.vector_index(b.operand(0), 1)
    b.v_writes.append(index)
    b.v_kept.append(index)

    def run(w: Waves) -> None:
        first = np.broadcast_to(reads[0](w), w.exec_mask.shape)[:, source]
        usable = valid & w.exec_mask[:, source]
        if zero_fill:
            first = np.where(usable, first, first.dtype.type(0))
        result = fn(first, *[read(w) for read in reads[1:]])
        lanes = w.exec_mask & enabled & (True if zero_fill else usable)
        np.copyto(w.v[index], register_bits(result, type_), where=lanes)

    return b.finish(run, "valu", info={"dpp": True})


def register_bits(x: np.ndarray, type_: str) -> np.ndarray:
    """Returns a one-register result as uint32."""
    if type_.endswith("16"):
        return np.asarray(x).view(U16).astype(U32)
    if type_.endswith("64"):
        raise ValueError(f"{type_} does not fit one register")
    return np.asarray(x).view(U32)


# --- SDWA --------------------------------------------------------------------------------------


def sdwa_source(b: Build, position: int, type_: str, which: int) -> Reader:
    """Consumes `src<which>_sel` and returns a reader of the selected part."""
    op = b.operand(position)
    shift, width = _SELECT[str(b.mod(f"src{which}_sel", "DWORD"))]
    plain = b.vector_source(
        type(op)(op.kind, op.index, op.count, op.value), "u32" if op.kind != "float" else type_
    )
    if op.kind == "float":
        raise b.unknown("operand")
    narrow = {8: np.int8, 16: np.int16, 32: np.int32}[width]

    def read(w: Waves) -> np.ndarray:
        bits = plain(w) >> U32(shift)
        if op.sext:
            bits = bits.astype(narrow).astype(np.int32).view(U32)
        elif width < 32:
            bits = bits & U32((1 << width) - 1)
        x = typed(bits, type_)
        x = np.abs(x) if op.abs else x
        return -x if op.neg else x

    return read


def _sdwa_writer(b: Build, type_: str) -> Callable:
    shift, width = _SELECT[str(b.mod("dst_sel", "DWORD"))]
    unused = b.mod("dst_unused", "UNUSED_PAD")
    index = b.vector_index(b.operand(0), 1)
    b.v_writes.append(index)
    keeps = unused == "UNUSED_PRESERVE" and width < 32
    if keeps:
        b.v_kept.append(index)
    if unused == "UNUSED_SEXT":
        raise b.unknown("modifier")
    mask = U32(((1 << width) - 1) << shift)

    def write(w: Waves, x: np.ndarray) -> None:
        bits = (register_bits(x, type_) << U32(shift)) & mask
        write_register(w, index, (w.v[index] & ~mask) | bits if keeps else bits)

    return write


def _decode_sdwa(b: Build, type_: str, sources: list[str], fn, accumulate: bool) -> Decoded:
    if accumulate:
        raise b.unknown("SDWA form")
    fn = result_function(b, b.ins.name, type_, fn)
    reads = [sdwa_source(b, i + 1, t, i) for i, t in enumerate(sources)]
    write = _sdwa_writer(b, type_)
    run = lambda w: write(w, fn(*[read(w) for read in reads]))  # noqa: E731
    return b.finish(run, "valu")


def decode_wrapped(b: Build, type_: str, sources: list[str], fn, accumulate=False) -> Decoded:
    """Decodes the SDWA or DPP encoding of a table instruction."""
    decode = _decode_sdwa if b.ins.encoding == "sdwa" else _decode_dpp
    return decode(b, type_, sources, fn, accumulate)


def decode_cndmask(b: Build) -> Decoded:
    """Decodes v_cndmask_b32 with SDWA."""
    if b.ins.encoding != "sdwa":
        raise b.unknown("encoding")
    first, second = sdwa_source(b, 1, "b32", 0), sdwa_source(b, 2, "b32", 1)
    select, write = b.src(3, "mask"), _sdwa_writer(b, "b32")
    run = lambda w: write(w, np.where(select(w), second(w), first(w)))  # noqa: E731
    return b.finish(run, "valu")


# --- single lanes and swaps --------------------------------------------------------------------


def _decode_readfirstlane(b: Build) -> Decoded:
    value, write = b.src(1, "b32"), b.scalar_dst(0, "b32")

    def run(w: Waves) -> None:
        first = np.argmax(w.exec_mask, axis=1)
        x = np.broadcast_to(value(w), w.exec_mask.shape)
        write(w, x[np.arange(w.count), first])

    return b.finish(run, "valu", info={"readlane": True})


def _lane_select(b: Build):
    """Returns what selects the lane, and the SGPRs that it reads."""
    before = len(b.s_reads)
    return b.scalar(2, "u32"), tuple(b.s_reads[before:])


def _decode_readlane(b: Build) -> Decoded:
    value, (lane, selects), write = b.src(1, "b32"), _lane_select(b), b.scalar_dst(0, "b32")

    def run(w: Waves) -> None:
        x = np.broadcast_to(value(w), w.exec_mask.shape)
        write(w, x[np.arange(w.count), lane(w) & U32(63)])

    register = b.v_reads[0]

    def spread(w: Waves) -> np.ndarray:
        found = w.v_undef[register][np.arange(w.count), lane(w) & U32(63)]
        return np.repeat(found[:, None], LANES, axis=1)[None]

    info = {"readlane": True, "lane selects": selects}
    return b.finish(run, "valu", masked=False, spread=spread, info=info)


def _decode_writelane(b: Build) -> Decoded:
    value = b.scalar(1, "b32")
    values = tuple(b.s_reads)
    lane, selects = _lane_select(b)
    index = b.vector_index(b.operand(0), 1)
    b.v_kept.append(index)
    b.v_writes.append(index)

    def run(w: Waves) -> None:
        rows, lanes = np.arange(w.count), lane(w) & U32(63)
        w.v[index, rows, lanes] = value(w)
        w.v_undef[index, rows, lanes] = False

    def spread(w: Waves) -> np.ndarray:
        found = w.v_undef[index].copy()
        is_undefined = [w.s_undef[register] for register in values]
        found[np.arange(w.count), lane(w) & U32(63)] = np.any(is_undefined, axis=0)
        return found[None]

    info = {"writelane": True, "lane selects": selects}
    found = b.finish(run, "valu", masked=False, spread=spread, info=info)
    # What other lanes keep stays as defined as it was.
    return replace(found, v_inputs=(index,))


def _decode_swap(b: Build) -> Decoded:
    """v_swap_b32, v_permlane16_swap_b32 and v_permlane32_swap_b32."""
    first = b.vector_index(b.operand(0), 1)
    second = b.vector_index(b.operand(1), 1)
    b.v_reads += [first, second]
    b.v_writes += [first, second]
    if b.ins.name == "v_swap_b32":
        taken, given = LANE, LANE
    else:
        half = 16 if "16" in b.ins.name else 32
        given = LANE[LANE % (2 * half) < half]
        taken = given + half
    if any(b.mods.pop(m, False) for m in ("bound_ctrl", "fi")):
        raise b.unknown("modifier")

    def run(w: Waves) -> None:
        a, c = w.v[first][:, taken], w.v[second][:, given]
        w.v[first][:, taken] = np.where(w.exec_mask[:, taken], c, a)
        w.v[second][:, given] = np.where(w.exec_mask[:, given], a, c)

    return b.finish(run, "valu", info={"permlane": b.ins.name != "v_swap_b32"})


def _decode_accvgpr(b: Build) -> Decoded:
    value, write = b.src(1, "b32"), b.dst(0, "b32")
    return b.finish(lambda w: write(w, value(w)), "valu")


_OPS = {
    "v_readfirstlane_b32": _decode_readfirstlane,
    "v_readlane_b32": _decode_readlane,
    "v_writelane_b32": _decode_writelane,
    "v_swap_b32": _decode_swap,
    "v_permlane16_swap_b32": _decode_swap,
    "v_permlane32_swap_b32": _decode_swap,
    "v_accvgpr_read_b32": _decode_accvgpr,
    "v_accvgpr_write_b32": _decode_accvgpr,
    "v_accvgpr_mov_b32": _decode_accvgpr,
}


def decode_lanes(b: Build) -> Decoded | None:
    """Decodes an instruction of this module, or returns None if it is none."""
    decode = _OPS.get(b.ins.name)
    return decode(b) if decode else None

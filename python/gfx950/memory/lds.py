"""The local data share and its instructions (`ds_*`).

One flat byte array holds the LDS of all workgroups of a batch, `stride` bytes each. `undefined`
marks bytes that nothing has written; reading one leaves the register undefined.

A transposed read `ds_read_b64_tr_bN` exchanges N-bit elements within 16 lanes, P = 64 / N of
them per lane, so that lane l gets column l of a tile whose rows are 16 elements long:

    element r of lane l   <-   element l % P of lane (16 / P) * r + l / P
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from gfx950.isa.alu_convert import pack_codes, unpack_codes
from gfx950.isa.operands import Build, Decoded
from gfx950.isa.state import LANES, Waves
from gfx950.memory.access import (
    Capture,
    LoadFormat,
    MemoryOp,
    runs_through_memory,
    source_rows,
    write_loaded,
)
from gfx950.memory.islands import ATOMICS, AtomicOp, apply_atomic

U8, U16, U32, I64 = np.uint8, np.uint16, np.uint32, np.int64
LDS_LIMIT = 160 * 1024
_LANE = np.arange(LANES)
_TR = re.compile(r"ds_read_b(64|96)_tr_b(4|6|8|16)$")
_PLAIN_READ = re.compile(r"ds_read_(b32|b64|b96|b128|[iu](?:8|16)(?:_d16(?:_hi)?)?)$")
_PLAIN_WRITE = re.compile(r"ds_write_b(8|16|32|64|96|128)(_d16_hi)?$")
_PAIR = re.compile(r"ds_(read|write)2(st64)?_b(32|64)$")
_ATOMIC = re.compile(r"ds_(\w+?)_(rtn_)?([iuf]32|[iuf]64|b32|b64|f16|bf16)$")


class LdsFault(Exception):
    """An access outside the LDS that the kernel allocates."""


class Lds:
    """LDS of `groups` workgroups."""

    def __init__(self, groups: int, size: int):
        self.size = size
        self.stride = (size + 127) // 64 * 64
        self.data = np.full(groups * self.stride, 0xBD, U8)
        self.undefined = np.ones(groups * self.stride, bool)

    def check_range(self, ins, cap: Capture, size: int) -> None:
        """Raises if an active lane leaves the allocation."""
        lanes = cap.exec_mask[..., None]
        outside = lanes & ((cap.lds < 0) | (cap.lds + size > self.size))
        if outside.any():
            wave, lane, part = np.argwhere(outside)[0]
            raise LdsFault(
                f"{size}-byte LDS access at byte {int(cap.lds[wave, lane, part])} of "
                f"{self.size}, lane {lane}: {ins}"
            )

    def index(self, cap: Capture, part: int) -> np.ndarray:
        """Returns positions in `data` [waves, lanes]; inactive lanes point at their base."""
        local = cap.lds[..., part] if cap.lds.shape[-1] > 1 else cap.lds[..., 0]
        return np.where(cap.exec_mask, local, 0) + cap.lds_base[:, None]

    def load(self, cap: Capture, part: int, size: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Reads registers [count, waves, lanes] and which of them are undefined."""
        at = self.index(cap, part)
        count = (size + 3) // 4
        if size % 4 == 0 and not (at & 3).any():
            words = (at >> 2) + np.arange(count)[:, None, None]
            marks = self.undefined.view(U32)[words]
            undefined = marks != 0 if marks.any() else None
            return self.data.view(U32)[words], undefined
        result = np.zeros((count, *at.shape), U32)
        marks = np.zeros((count, *at.shape), bool)
        for byte in range(size):
            result[byte // 4] |= self.data[at + byte].astype(U32) << U32(8 * (byte % 4))
            marks[byte // 4] |= self.undefined[at + byte]
        return result, marks if marks.any() else None

    def store(self, cap: Capture, part: int, words: np.ndarray, size: int, undefined=None) -> None:
        """Writes `size` bytes per active lane from registers [count, waves, lanes]."""
        lanes = cap.exec_mask
        at = (cap.lds[..., part] + cap.lds_base[:, None])[lanes]
        aligned = size % 4 == 0 and not (at & 3).any()
        for i in range(len(words)):
            part_words = np.broadcast_to(words[i], lanes.shape)[lanes]
            marks = False if undefined is None else undefined[i][lanes]
            if aligned:
                self.data.view(U32)[(at >> 2) + i] = part_words
                self.undefined.view(U32)[(at >> 2) + i] = marks * U32(0x01010101)
                continue
            for byte in range(min(4, size - 4 * i)):
                where = at + 4 * i + byte
                self.data[where] = (part_words >> U32(8 * byte)).astype(U8)
                self.undefined[where] = marks


def _address(b: Build, position: int, offsets: list[int]) -> Callable:
    """Returns a function that gives LDS byte addresses [waves, lanes, parts]."""
    base = b.vector(position, "u32")
    steps = np.array(offsets, I64)

    def find(w: Waves) -> np.ndarray:
        start = np.broadcast_to(base(w), (w.count, LANES)).astype(I64)
        return start[..., None] + steps

    return find


def _finish_read(b: Build, form: LoadFormat, offsets: list[int], arrange=None) -> Decoded:
    size = form.size
    registers = form.registers * len(offsets)
    index = b.vector_index(b.operand(0), registers)
    b.v_writes += range(index, index + registers)
    if form.half:
        b.v_kept.append(index)
    find = _address(b, 1, offsets)

    def capture(m, w: Waves) -> Capture:
        cap = Capture(w.exec_mask.copy(), lds=find(w), lds_base=m.lds_base(w))
        m.lds.check_range(b.ins, cap, size)
        return cap

    def complete(m, w: Waves, rows, cap: Capture) -> None:
        parts = [m.lds.load(cap, part, size) for part in range(len(offsets))]
        words = np.concatenate([p[0] for p in parts])
        undefined = None
        if any(p[1] is not None for p in parts):
            shape = (form.registers, *cap.exec_mask.shape)
            undefined = np.concatenate(
                [np.zeros(shape, bool) if p[1] is None else p[1] for p in parts]
            )
        if arrange:
            words, undefined = arrange(words, undefined)
        write_loaded(w, rows, index, words, cap, form=form, undefined=undefined)

    op = MemoryOp(capture, complete, ("lgkm",), is_load=True, lds_kind="read", lds_bytes=size)
    return b.finish(runs_through_memory, "lds", strict=True, info={"memory": op})


def _transposer(bits: int, element: int) -> Callable:
    """Returns the exchange of a transposed read on registers [count, waves, 64]."""
    per_lane = bits // element
    group, column = _LANE // 16 * 16, _LANE % 16
    r = np.arange(per_lane)[:, None]
    source_lane = group + (16 // per_lane) * r + column // per_lane
    source_element = np.broadcast_to(column % per_lane, source_lane.shape)

    def arrange(words: np.ndarray, undefined):
        codes = unpack_codes(words, element)
        moved = codes[source_element, :, source_lane].transpose(0, 2, 1)
        if undefined is not None:
            rows = undefined.any(0).reshape(words.shape[1], 4, 16).any(2)
            undefined = np.broadcast_to(np.repeat(rows, 16, axis=1), words.shape)
        return pack_codes(moved, element), undefined

    return arrange


def _decode_read(b: Build) -> Decoded | None:
    name = b.ins.name
    if match := _TR.match(name):
        bits, element = int(match.group(1)), int(match.group(2))
        if (bits == 96) != (element == 6):
            return None
        offset = int(b.mod("offset", 0))
        return _finish_read(b, LoadFormat(bits // 8), [offset], _transposer(bits, element))
    kind = _PLAIN_READ.match(name).group(1)
    offset = int(b.mod("offset", 0))
    if kind[0] == "b":
        return _finish_read(b, LoadFormat(int(kind[1:]) // 8), [offset])
    bits = int(kind[1:].split("_")[0])
    half = "hi" if kind.endswith("_hi") else "lo" if kind.endswith("_d16") else ""
    form = LoadFormat(bits // 8, bits if kind[0] == "i" else 0, half)
    return _finish_read(b, form, [offset])


def _pair_offsets(b: Build, size: int, stride64: bool) -> list[int]:
    step = size * (64 if stride64 else 1)
    return [int(b.mod("offset0", 0)) * step, int(b.mod("offset1", 0)) * step]


def _finish_write(b: Build, size: int, shift: int, offsets: list[int]) -> Decoded:
    count = (size + 3) // 4
    sources = [b.vector(1 + part, f"x{count}") for part in range(len(offsets))]
    registers = list(dict.fromkeys(b.v_reads))
    find = _address(b, 0, offsets)

    def capture(m, w: Waves) -> Capture:
        words = np.concatenate([source_rows(s(w), w.count) for s in sources], 1) >> U32(shift)
        undefined = None
        if not all(w.v_clean[r] for r in registers):
            undefined = _undefined_sources(b, w, count, len(sources))
        cap = Capture(
            w.exec_mask.copy(), lds=find(w), lds_base=m.lds_base(w), data=words,
            undefined=undefined,
        )  # fmt: skip
        m.lds.check_range(b.ins, cap, size)
        return cap

    def complete(m, w: Waves, rows, cap: Capture) -> None:
        words = cap.data.transpose(1, 0, 2)
        marks = None if cap.undefined is None else cap.undefined.transpose(1, 0, 2)
        for part in range(len(offsets)):
            own = slice(part * count, (part + 1) * count)
            m.lds.store(cap, part, words[own], size, None if marks is None else marks[own])

    op = MemoryOp(capture, complete, ("lgkm",), is_store=True, lds_kind="write", lds_bytes=size)
    return b.finish(runs_through_memory, "lds", strict=False, info={"memory": op})


def _undefined_sources(b: Build, w: Waves, count: int, parts: int) -> np.ndarray:
    """Returns which data registers of a write are undefined [waves, count * parts, 64]."""
    marks = []
    for part in range(parts):
        first = b.vector_index(b.operand(1 + part), count)
        marks.append(w.v_undef[first : first + count])
    return np.concatenate(marks).transpose(1, 0, 2).copy()


def _decode_atomic(b: Build, atomic: AtomicOp, returns: bool) -> Decoded:
    first = 1 if returns else 0
    count = atomic.registers
    sources = [b.vector(first + 1 + i, f"x{count}") for i in range(atomic.data_values)]
    if atomic.data_values == 2:
        sources.reverse()
    find = _address(b, first, [int(b.mod("offset", 0))])
    index = -1
    if returns:
        index = b.vector_index(b.operand(0), count)
        b.v_writes += range(index, index + count)

    def capture(m, w: Waves) -> Capture:
        words = np.concatenate([source_rows(s(w), w.count) for s in sources], 1)
        cap = Capture(w.exec_mask.copy(), lds=find(w), lds_base=m.lds_base(w), data=words)
        m.lds.check_range(b.ins, cap, 4 * count)
        return cap

    def complete(m, w: Waves, rows, cap: Capture) -> None:
        old = np.zeros((count, *cap.exec_mask.shape), U32)
        words = cap.data.transpose(1, 0, 2)
        where = m.lds.index(cap, 0) >> 2
        apply_atomic(m.lds.data.view(U32), where, cap.exec_mask, words, old=old, op=atomic)
        if returns:
            write_loaded(w, rows, index, old, cap, form=LoadFormat(4 * count))

    op = MemoryOp(
        capture, complete, ("lgkm",), is_load=returns, is_store=True, lds_kind="atomic",
        lds_bytes=4 * count,
    )  # fmt: skip
    return b.finish(runs_through_memory, "lds", strict=True, info={"memory": op})


def _atomic_op(name: str) -> tuple[AtomicOp, bool] | None:
    """Finds the operation of `ds_add_rtn_u32` and the like."""
    match = _ATOMIC.match(name)
    if not match:
        return None
    kind, returns, type_ = match.groups()
    kind = {"wrxchg": "swap", "cmpst": "cmpswap", "pk_add": f"pk_add_{type_}"}.get(kind, kind)
    if kind in ("min", "max"):
        kind = {"i": "s", "u": "u"}.get(type_[0], "") + kind
    if type_[0] == "f" and not kind.startswith("pk"):
        kind = f"{kind}_{type_}"
    elif type_.endswith("64"):
        kind += "_x2"
    return (ATOMICS[kind], bool(returns)) if kind in ATOMICS else None


# --- lane exchanges that use the LDS crossbar but no LDS ------------------------------------------


def _swizzle_lanes(offset: int) -> np.ndarray:
    """Returns the source lane of each lane for a numeric ds_swizzle_b32 offset."""
    if offset & 0x8000:
        quad = np.array([offset >> (2 * i) & 3 for i in range(4)])
        return _LANE // 4 * 4 + quad[_LANE % 4]
    and_mask, or_mask, xor_mask = (offset >> s & 31 for s in (0, 5, 10))
    return _LANE // 32 * 32 + (((_LANE % 32 & and_mask) | or_mask) ^ xor_mask)


_SWIZZLE = re.compile(r"swizzle\((\w+),(.*)\)$")


def _swizzle_control(b: Build) -> np.ndarray:
    """Reads `offset:0x401f` or `offset:swizzle(SWAP,16)` and the other symbolic forms."""
    value = b.mod("offset", 0)
    if isinstance(value, int):
        return _swizzle_lanes(value)
    match = _SWIZZLE.match(str(value))
    if not match:
        raise b.unknown("swizzle")
    mode, arguments = match.group(1), match.group(2).split(",")
    lane = _LANE
    if mode == "QUAD_PERM":
        return lane // 4 * 4 + np.array([int(a) for a in arguments])[lane % 4]
    if mode == "BITMASK_PERM":
        bits = arguments[0].strip("\"'")
        result = 0
        for position, action in enumerate(reversed(bits)):
            bit = lane >> position & 1
            chosen = {"0": 0 * bit, "1": 0 * bit + 1, "p": bit, "i": 1 - bit}[action]
            result = result | chosen << position
        return lane // 32 * 32 + result
    size = int(arguments[0])
    if size not in (1, 2, 4, 8, 16, 32):
        raise b.unknown("swizzle")
    if mode == "BROADCAST":
        return lane // size * size + int(arguments[1])
    if mode == "SWAP":
        return lane ^ size
    if mode == "REVERSE":
        return lane // size * size + size - 1 - lane % size
    raise b.unknown("swizzle")


def _decode_exchange(b: Build) -> Decoded:
    """ds_swizzle_b32, ds_bpermute_b32 and ds_permute_b32."""
    name = b.ins.name
    index = b.vector_index(b.operand(0), 1)
    b.v_writes.append(index)
    if name == "ds_swizzle_b32":
        value, lanes, offset = b.src(1, "b32"), _swizzle_control(b), 0
    else:
        value, lanes, offset = b.src(2, "b32"), b.src(1, "u32"), int(b.mod("offset", 0))

    def capture(m, w: Waves) -> Capture:
        shape = (w.count, LANES)
        words = np.where(w.exec_mask, np.broadcast_to(value(w), shape), U32(0))
        if name == "ds_swizzle_b32":
            words = words[:, lanes]
        else:
            target = (np.broadcast_to(lanes(w), shape) + U32(offset)) >> U32(2) & U32(63)
            if name == "ds_bpermute_b32":
                words = np.take_along_axis(words, target.astype(I64), axis=1)
            else:
                pushed = np.zeros(shape, U32)
                for lane in range(LANES):
                    rows = np.flatnonzero(w.exec_mask[:, lane])
                    pushed[rows, target[rows, lane]] = words[rows, lane]
                words = pushed
        return Capture(w.exec_mask.copy(), data=words[:, None])

    def complete(m, w: Waves, rows, cap: Capture) -> None:
        write_loaded(w, rows, index, cap.data.transpose(1, 0, 2), cap, form=LoadFormat(4))

    op = MemoryOp(capture, complete, ("lgkm",), is_load=True)
    return b.finish(runs_through_memory, "lds", strict=True, info={"memory": op})


def decode_lds(b: Build) -> Decoded | None:
    """Decodes a `ds_*` instruction, or returns None if it is none of this module."""
    name = b.ins.name
    if not name.startswith("ds_"):
        return None
    if name in ("ds_swizzle_b32", "ds_bpermute_b32", "ds_permute_b32"):
        return _decode_exchange(b)
    if _TR.match(name) or _PLAIN_READ.match(name):
        return _decode_read(b)
    if match := _PLAIN_WRITE.match(name):
        shift = 16 if match.group(2) else 0
        return _finish_write(b, int(match.group(1)) // 8, shift, [int(b.mod("offset", 0))])
    if match := _PAIR.match(name):
        size = int(match.group(3)) // 8
        offsets = _pair_offsets(b, size, bool(match.group(2)))
        if match.group(1) == "read":
            return _finish_read(b, LoadFormat(size), offsets)
        return _finish_write(b, size, 0, offsets)
    if found := _atomic_op(name):
        return _decode_atomic(b, *found)
    return None

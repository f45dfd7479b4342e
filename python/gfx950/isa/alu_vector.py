"""Decodes the vector ALU: VOP1, VOP2, VOP3 and compares, one result per lane.

Most instructions are rows of `alu_table.OPS`. The same row serves the e32, e64, SDWA and DPP
encodings: `lanes.py` wraps the sources and the result of the last two. What remains here are the
instructions that read or write lane masks, or more than one result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gfx950.isa import lanes
from gfx950.isa.alu_table import ACCUMULATING, KEEPS_HIGH_HALF, OPS, count_bits
from gfx950.isa.asm import EXEC, VCC
from gfx950.isa.formats import fma
from gfx950.isa.operands import DTYPES, Build, Decoded, write_register
from gfx950.isa.results import result_function, result_modifiers
from gfx950.isa.state import LANES, Waves, lanes_to_mask, mask_to_lanes

U16, U32, I32, U64, I64 = np.uint16, np.uint32, np.int32, np.uint64, np.int64
F16, F32, F64 = np.float16, np.float32, np.float64

_CONDITIONS = {
    "f": lambda a, b: np.zeros(np.broadcast(a, b).shape, bool),
    "lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater,
    "lg": lambda a, b: (a < b) | (a > b), "ne": np.not_equal, "ge": np.greater_equal,
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": lambda a, b: ~(a >= b), "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b), "nle": lambda a, b: ~(a <= b),
    "neq": np.not_equal, "nlt": lambda a, b: ~(a < b),
    "tru": lambda a, b: np.ones(np.broadcast(a, b).shape, bool),
    "t": lambda a, b: np.ones(np.broadcast(a, b).shape, bool),
}  # fmt: skip


def _decode_table(b: Build, name: str) -> Decoded:
    type_, sources, fn = OPS[name]
    sources = sources.split()
    if b.ins.encoding in ("sdwa", "dpp"):
        return lanes.decode_wrapped(b, type_, sources, fn)
    fn = result_function(b, name, type_, fn)
    select = b.mod("op_sel", (0,) * (len(sources) + 1))
    reads = [b.src(i + 1, t, hi=bool(select[i])) for i, t in enumerate(sources)]
    if select[-1] or name in KEEPS_HIGH_HALF:
        write = _half_writer(b, bool(select[-1]))
    else:
        write = b.dst(0, type_)
    if len(reads) == 1:
        (first,) = reads
        run = lambda w: write(w, fn(first(w)))  # noqa: E731
    elif len(reads) == 2:
        first, second = reads
        run = lambda w: write(w, fn(first(w), second(w)))  # noqa: E731
    else:
        first, second, third = reads
        run = lambda w: write(w, fn(first(w), second(w), third(w)))  # noqa: E731
    kind = "trans" if _is_transcendental(name) else "valu"
    return b.finish(run, kind, info={"part": bool(select[-1])})


def _is_transcendental(name: str) -> bool:
    return name.startswith(("v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_"))


def _half_writer(b: Build, high: bool) -> Callable:
    """Writes 16 bits and keeps the other half."""
    index = b.vector_index(b.operand(0), 1)
    b.v_writes.append(index)
    b.v_kept.append(index)

    def write(w: Waves, x: np.ndarray) -> None:
        bits = np.asarray(x).view(U16).astype(U32)
        old = w.v[index]
        merged = (old & U32(0xFFFF)) | (bits << U32(16)) if high else (old & ~U32(0xFFFF)) | bits
        write_register(w, index, merged)

    return write


def _decode_accumulate(b: Build, name: str) -> Decoded:
    type_, _, fn = OPS[ACCUMULATING[name]]
    if b.ins.encoding in ("sdwa", "dpp"):
        return lanes.decode_wrapped(b, type_, [type_, type_], fn, accumulate=True)
    finish = result_modifiers(b, type_)
    first, second = b.src(1, type_), b.src(2, type_)
    addend, write = b.src(0, type_), b.dst(0, type_)
    run = lambda w: write(w, finish(fn(first(w), second(w), addend(w))))  # noqa: E731
    return b.finish(run, "valu")


def _decode_fma_constant(b: Build) -> Decoded:
    """v_fmamk (a * K + b) and v_fmaak (a * b + K), whose operands are printed in that order."""
    type_ = b.ins.name.rsplit("_", 1)[1]
    dtype = F32 if type_ == "f32" else F16
    reads = [b.src(i, type_) for i in (1, 2, 3)]
    write = b.dst(0, type_)
    run = lambda w: write(w, fma(*[read(w) for read in reads], dtype))  # noqa: E731
    return b.finish(run, "valu")


def _decode_compare(b: Build) -> Decoded:
    _, kind, condition, type_ = b.ins.name.split("_")
    if condition == "class":
        return _decode_class(b, type_)
    test, _ = _CONDITIONS[condition], DTYPES[type_]
    if b.ins.encoding == "sdwa":
        first, second = lanes.sdwa_source(b, 1, type_, 0), lanes.sdwa_source(b, 2, type_, 1)
    else:
        select = b.mod("op_sel", (0, 0, 0))
        first, second = (b.src(i + 1, type_, hi=bool(select[i])) for i in range(2))
    write = b.mask_dst(0)
    if kind == "cmpx":
        b.s_writes += [EXEC, EXEC + 1]

    def run(w: Waves) -> None:
        result = np.broadcast_to(test(first(w), second(w)), w.exec_mask.shape)
        write(w, result)
        if kind == "cmpx":
            w.set_s64(EXEC, lanes_to_mask(result & w.exec_mask))

    return b.finish(run, "valu")


def _decode_class(b: Build, type_: str) -> Decoded:
    value, wanted, write = b.src(1, type_), b.src(2, "u32"), b.mask_dst(0)
    if b.ins.name.startswith("v_cmpx"):
        raise b.unknown()
    quiet = {"f32": (U32, 0x400000), "f16": (U16, 0x200), "f64": (U64, 1 << 51)}[type_]

    def run(w: Waves) -> None:
        x, mask = value(w), wanted(w)
        tiny = np.finfo(x.dtype).tiny
        is_quiet = (x.view(quiet[0]) & quiet[0](quiet[1])) != 0
        nan, negative, size = np.isnan(x), np.signbit(x), np.abs(x)
        ordered = [np.isinf(x), (size >= tiny) & np.isfinite(x), (size < tiny) & (x != 0), x == 0]
        classes = [nan & ~is_quiet, nan & is_quiet]
        classes += [negative & c for c in ordered] + [~negative & c for c in reversed(ordered)]
        result = np.zeros(np.broadcast(x, mask).shape, bool)
        for bit, member in enumerate(classes):
            result |= member & (((mask >> U32(bit)) & U32(1)) != 0)
        write(w, result)

    return b.finish(run, "valu")


def _decode_carry(b: Build) -> Decoded:
    """v_add_co, v_sub_co, v_addc_co and their reversed forms."""
    name = b.ins.name
    if b.ins.encoding in ("sdwa", "dpp"):
        raise b.unknown("encoding")
    first, second = b.src(2, "u32"), b.src(3, "u32")
    carry = b.src(4, "mask") if name.startswith(("v_addc", "v_subb")) else None
    write, write_carry = b.dst(0, "u32"), b.mask_dst(1)
    is_add, is_reversed = name.startswith("v_add"), "rev" in name

    def run(w: Waves) -> None:
        a, c = first(w).astype(I64), second(w).astype(I64)
        extra = 0 if carry is None else carry(w)
        a, c = (c, a) if is_reversed else (a, c)
        total = a + c + extra if is_add else a - c - extra
        total = np.broadcast_to(total, w.exec_mask.shape)
        write(w, total.astype(U32))
        write_carry(w, (total >> 32) != 0)

    return b.finish(run, "valu")


def _decode_cndmask(b: Build) -> Decoded:
    if b.ins.encoding in ("sdwa", "dpp"):
        return lanes.decode_cndmask(b)
    first, second = b.src(1, "b32"), b.src(2, "b32")
    if any(o.neg or o.abs for o in b.ins.operands):
        first, second = b.src(1, "f32"), b.src(2, "f32")
    select, write = b.src(3, "mask"), b.dst(0, "b32")
    run = lambda w: write(w, np.where(select(w), second(w), first(w)))  # noqa: E731
    return b.finish(run, "valu")


def _decode_bitop3(b: Build) -> Decoded:
    table = int(b.mod("bitop3", 0))
    type_ = "b16" if b.ins.name.endswith("16") else "b32"
    select = b.mod("op_sel", (0, 0, 0, 0))
    reads = [b.src(i + 1, type_, hi=bool(select[i])) for i in range(3)]
    write = _half_writer(b, True) if select[3] else b.dst(0, type_)

    def run(w: Waves) -> None:
        values = [read(w) for read in reads]
        result = np.zeros_like(values[0])
        for row in range(8):
            if table >> row & 1:
                term = ~np.zeros_like(values[0])
                for bit, value in zip((4, 2, 1), values, strict=True):
                    term = term & (value if row & bit else ~value)
                result = result | term
        write(w, result)

    return b.finish(run, "valu", info={"part": bool(select[3])})


def _decode_mbcnt(b: Build) -> Decoded:
    below = (U64(1) << np.arange(LANES, dtype=U64)) - U64(1)
    part = below >> U64(32) if "_hi_" in b.ins.name else below
    mask = part.astype(U32)
    bits, base, write = b.src(1, "u32"), b.src(2, "u32"), b.dst(0, "u32")
    run = lambda w: write(w, count_bits(bits(w) & mask, base(w)))  # noqa: E731
    return b.finish(run, "valu")


def _decode_mad64(b: Build) -> Decoded:
    signed = b.ins.name == "v_mad_i64_i32"
    narrow, wide, dtype = ("i32", "i64", I64) if signed else ("u32", "u64", U64)
    first, second = b.src(2, narrow), b.src(3, narrow)
    num_v, num_s = len(b.v_reads) + 1, len(b.s_reads) + 1
    addend = b.src(4, wide)
    low, both = (b.v_reads[:num_v], b.s_reads[:num_s]), (b.v_reads, b.s_reads)
    write, write_carry = b.dst(0, wide), b.mask_dst(1)

    def run(w: Waves) -> None:
        product = first(w).astype(dtype) * second(w).astype(dtype)
        total = np.broadcast_to(product + addend(w), w.exec_mask.shape)
        write(w, total)
        write_carry(w, total < product)

    def spread(w: Waves) -> np.ndarray:
        """The high word of the addend reaches the high word of the sum only."""
        return np.stack([w.undefined_lanes(*low), w.undefined_lanes(*both)])

    return b.finish(run, "valu", spread=spread)


def _decode_div_scale(b: Build) -> Decoded:
    """Scales numerator or denominator by 2^64 or 2^-64 where a division would lose bits.

    Where the published pseudo-code cannot divide correctly, this follows what the sequence
    div_scale, rcp, fma, div_fmas, div_fixup needs to give the rounded quotient.
    """
    type_ = b.ins.name.rsplit("_", 1)[1]
    if type_ != "f32":
        raise b.unknown()
    s0, s1, s2 = (b.src(i, "f32") for i in (2, 3, 4))
    write, write_flag = b.dst(0, "f32"), b.mask_dst(1)

    def run(w: Waves) -> None:
        value, den, num = np.broadcast_arrays(s0(w), s1(w), s2(w), np.empty((w.count, LANES), F32))[
            :3
        ]
        tiny = np.finfo(F32).tiny
        exponent = lambda x: (x.view(U32) >> U32(23) & U32(255)).astype(I32)  # noqa: E731
        den, num = np.ascontiguousarray(den), np.ascontiguousarray(num)
        is_den, is_num = value == den, value == num
        invalid = (num == 0) | (den == 0)
        wide = ~invalid & (exponent(num) - exponent(den) >= 96)
        den_tiny = ~invalid & ~wide & (np.abs(den) < tiny)
        rcp_tiny = np.abs(1 / den.astype(F64)) < tiny
        quotient_tiny = np.abs(num.astype(F64) / den.astype(F64)) < tiny
        rest = ~(invalid | wide | den_tiny)
        both, only_rcp = rest & rcp_tiny & quotient_tiny, rest & rcp_tiny & ~quotient_tiny
        only_quotient = rest & ~rcp_tiny & quotient_tiny
        small = rest & ~rcp_tiny & ~quotient_tiny & (exponent(num) <= 23)
        up = (wide & is_den) | den_tiny | (only_quotient & is_num) | small
        down = only_rcp | (both & is_den)
        scale = np.where(up, F32(2.0**64), np.where(down, F32(2.0**-64), F32(1)))
        write(w, np.where(invalid, F32(np.nan), value * scale))
        write_flag(w, wide | both | only_quotient)

    return b.finish(run, "valu")


def _decode_div_fmas(b: Build) -> Decoded:
    if not b.ins.name.endswith("f32"):
        raise b.unknown()
    reads, write = [b.src(i, "f32") for i in (1, 2, 3)], b.dst(0, "f32")
    b.s_reads += [VCC, VCC + 1]

    def run(w: Waves) -> None:
        values = [read(w) for read in reads]
        plain = fma(*values)
        undo = np.where(np.abs(values[2]) >= 2, F32(2.0**64), F32(2.0**-64))
        write(w, np.where(mask_to_lanes(w.s64(VCC)), plain * undo, plain))

    return b.finish(run, "valu")


def _decode_div_fixup(b: Build) -> Decoded:
    type_ = b.ins.name.rsplit("_", 1)[1]
    reads, write = [b.src(i, type_) for i in (1, 2, 3)], b.dst(0, type_)

    def run(w: Waves) -> None:
        q, den, num = (read(w) for read in reads)
        sign = np.signbit(den) ^ np.signbit(num)
        result = np.copysign(q, np.where(sign, -1, 1).astype(q.dtype))
        exact = (num.astype(F64) / den.astype(F64)).astype(q.dtype)
        special = ~np.isfinite(num) | ~np.isfinite(den) | (num == 0) | (den == 0) | np.isinf(exact)
        write(w, np.where(special, exact, result).astype(q.dtype))

    return b.finish(run, "valu")


_SPECIAL = {
    "v_cndmask_b32": _decode_cndmask,
    "v_bitop3_b32": _decode_bitop3,
    "v_bitop3_b16": _decode_bitop3,
    "v_mbcnt_lo_u32_b32": _decode_mbcnt,
    "v_mbcnt_hi_u32_b32": _decode_mbcnt,
    "v_mad_u64_u32": _decode_mad64,
    "v_mad_i64_i32": _decode_mad64,
    "v_div_scale_f32": _decode_div_scale,
    "v_div_fmas_f32": _decode_div_fmas,
    "v_div_fixup_f32": _decode_div_fixup,
    "v_div_fixup_f16": _decode_div_fixup,
}


def decode_vector(b: Build) -> Decoded | None:
    """Decodes a vector ALU instruction of this module, or returns None if it is none."""
    name = b.ins.name
    if name in OPS:
        return _decode_table(b, name)
    if name in ACCUMULATING:
        return _decode_accumulate(b, name)
    if name in _SPECIAL:
        return _SPECIAL[name](b)
    if name.startswith(("v_cmp_", "v_cmpx_")):
        return _decode_compare(b)
    if name.startswith(("v_fmamk_", "v_fmaak_")):
        return _decode_fma_constant(b)
    if name.startswith(("v_add", "v_sub")) and "_co_" in name:
        return _decode_carry(b)
    return None

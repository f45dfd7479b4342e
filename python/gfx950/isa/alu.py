"""The scalar ALU: one value per wave, and the SCC bit.

Each table row gives the types of result and sources and a function of the sources, arrays over
waves. SCC follows one of four rules: kept, result != 0, or given by the function.

    s_add_u32    result and carry    given
    s_and_b64    result              result != 0
    s_cmp_lt_i32 no result           given
    s_mov_b32    result              kept
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gfx950.isa.asm import EXEC
from gfx950.isa.operands import Build, Decoded
from gfx950.isa.state import Waves

U32, I32, U64, I64 = np.uint32, np.int32, np.uint64, np.int64


def _u64(x: np.ndarray) -> np.ndarray:
    return x.astype(U64)


def _add_u32(a, b):
    total = _u64(a) + _u64(b)
    return total.astype(U32), total >> U64(32) != 0


def _sub_u32(a, b):
    return a - b, b > a


def _overflow(a, b, result):
    return result, ((a ^ result) & (b ^ result)) < 0


def _bfe(a, b, bits, signed):
    """Bit field extract: offset in b[4:0] or b[5:0], width in b[22:16]."""
    offset = (b & U32(bits - 1)).astype(a.dtype)
    width = np.minimum((b >> U32(16)) & U32(0x7F), bits - offset).astype(a.dtype)
    field = a >> offset
    mask = np.where(width >= bits, ~np.zeros_like(a), (a.dtype.type(1) << width) - a.dtype.type(1))
    field &= mask
    if signed:
        sign = np.where(width > 0, (field >> np.maximum(width, 1) - a.dtype.type(1)) & 1, 0)
        field = np.where(sign != 0, field | ~mask, field)
    return field


def _bfm(a, b, dtype, bits):
    width, offset = (a & U32(bits - 1)).astype(dtype), (b & U32(bits - 1)).astype(dtype)
    return ((dtype(1) << width) - dtype(1)) << offset


def _find(a: np.ndarray, bits: int, highest: bool) -> np.ndarray:
    """Position of the lowest set bit, or the number of leading zeros; -1 if there is none."""
    wide = np.arange(bits, dtype=np.uint64)
    is_set = ((a[..., None].astype(U64) >> wide) & U64(1)).astype(bool)
    found = np.argmax(is_set[..., ::-1] if highest else is_set, axis=-1)
    return np.where(is_set.any(-1), found, -1).astype(I32)


def _popcount(a: np.ndarray) -> np.ndarray:
    return np.unpackbits(np.ascontiguousarray(a)[:, None].view(np.uint8), axis=1).sum(1).astype(I32)


def _brev(a: np.ndarray) -> np.ndarray:
    octets = np.ascontiguousarray(a)[:, None].view(np.uint8)
    bits = np.unpackbits(octets, axis=1, bitorder="little")[:, ::-1]
    return np.packbits(bits, axis=1, bitorder="little").view(a.dtype).ravel()


def _mul_hi(a, b, wide):
    return ((a.astype(wide) * b.astype(wide)) >> wide(32)).astype(a.dtype)


def _pack(high_a: bool, high_b: bool) -> Callable:
    def pack(a, b):
        low = a >> U32(16) if high_a else a & U32(0xFFFF)
        high = b & U32(0xFFFF0000) if high_b else b << U32(16)
        return low | high

    return pack


def _shift(op: Callable, bits: int) -> Callable:
    return lambda a, b: op(a, (b & U32(bits - 1)).astype(a.dtype))


def _lshl_add(n: int) -> Callable:
    def lshl_add(a, b):
        total = (_u64(a) << U64(n)) + _u64(b)
        return total.astype(U32), total >> U64(32) != 0

    return lshl_add


def _min_max(op: Callable) -> Callable:
    return lambda a, b: (op(a, b), op(a, b) == a)


# name: (result type, source types, SCC rule, function)
_RESULT = {
    "s_add_u32": ("u32", "u32 u32", "given", _add_u32),
    "s_sub_u32": ("u32", "u32 u32", "given", _sub_u32),
    "s_add_i32": ("i32", "i32 i32", "given", lambda a, b: _overflow(a, b, a + b)),
    "s_sub_i32": ("i32", "i32 i32", "given", lambda a, b: _overflow(a, ~b, a - b)),
    "s_min_i32": ("i32", "i32 i32", "given", _min_max(np.minimum)),
    "s_min_u32": ("u32", "u32 u32", "given", _min_max(np.minimum)),
    "s_max_i32": ("i32", "i32 i32", "given", _min_max(np.maximum)),
    "s_max_u32": ("u32", "u32 u32", "given", _min_max(np.maximum)),
    "s_mul_i32": ("i32", "i32 i32", "kept", lambda a, b: a * b),
    "s_mul_hi_u32": ("u32", "u32 u32", "kept", lambda a, b: _mul_hi(a, b, U64)),
    "s_mul_hi_i32": ("i32", "i32 i32", "kept", lambda a, b: _mul_hi(a, b, I64)),
    "s_absdiff_i32": ("i32", "i32 i32", "nonzero", lambda a, b: np.abs(a - b)),
    "s_abs_i32": ("i32", "i32", "nonzero", np.abs),
    "s_mov_b32": ("b32", "b32", "kept", lambda a: a),
    "s_mov_b64": ("b64", "b64", "kept", lambda a: a),
    "s_not_b32": ("b32", "b32", "nonzero", lambda a: ~a),
    "s_not_b64": ("b64", "b64", "nonzero", lambda a: ~a),
    "s_brev_b32": ("b32", "b32", "kept", _brev),
    "s_brev_b64": ("b64", "b64", "kept", _brev),
    "s_sext_i32_i8": ("i32", "i32", "kept", lambda a: a.astype(np.int8).astype(I32)),
    "s_sext_i32_i16": ("i32", "i32", "kept", lambda a: a.astype(np.int16).astype(I32)),
    "s_bcnt0_i32_b32": ("i32", "b32", "nonzero", lambda a: _popcount(~a)),
    "s_bcnt0_i32_b64": ("i32", "b64", "nonzero", lambda a: _popcount(~a)),
    "s_bcnt1_i32_b32": ("i32", "b32", "nonzero", _popcount),
    "s_bcnt1_i32_b64": ("i32", "b64", "nonzero", _popcount),
    "s_ff0_i32_b32": ("i32", "b32", "kept", lambda a: _find(~a, 32, False)),
    "s_ff0_i32_b64": ("i32", "b64", "kept", lambda a: _find(~a, 64, False)),
    "s_ff1_i32_b32": ("i32", "b32", "kept", lambda a: _find(a, 32, False)),
    "s_ff1_i32_b64": ("i32", "b64", "kept", lambda a: _find(a, 64, False)),
    "s_flbit_i32_b32": ("i32", "b32", "kept", lambda a: _find(a, 32, True)),
    "s_flbit_i32_b64": ("i32", "b64", "kept", lambda a: _find(a, 64, True)),
    "s_bfe_u32": ("u32", "u32 u32", "nonzero", lambda a, b: _bfe(a, b, 32, False)),
    "s_bfe_i32": ("u32", "u32 u32", "nonzero", lambda a, b: _bfe(a, b, 32, True)),
    "s_bfe_u64": ("u64", "u64 u32", "nonzero", lambda a, b: _bfe(a, b, 64, False)),
    "s_bfe_i64": ("u64", "u64 u32", "nonzero", lambda a, b: _bfe(a, b, 64, True)),
    "s_bfm_b32": ("b32", "b32 b32", "kept", lambda a, b: _bfm(a, b, U32, 32)),
    "s_bfm_b64": ("b64", "b32 b32", "kept", lambda a, b: _bfm(a, b, U64, 64)),
    "s_pack_ll_b32_b16": ("b32", "b32 b32", "kept", _pack(False, False)),
    "s_pack_lh_b32_b16": ("b32", "b32 b32", "kept", _pack(False, True)),
    "s_pack_hh_b32_b16": ("b32", "b32 b32", "kept", _pack(True, True)),
    "s_lshl1_add_u32": ("u32", "u32 u32", "given", _lshl_add(1)),
    "s_lshl2_add_u32": ("u32", "u32 u32", "given", _lshl_add(2)),
    "s_lshl3_add_u32": ("u32", "u32 u32", "given", _lshl_add(3)),
    "s_lshl4_add_u32": ("u32", "u32 u32", "given", _lshl_add(4)),
}
for _bits in (32, 64):
    _RESULT |= {
        f"s_lshl_b{_bits}": (f"b{_bits}", f"b{_bits} u32", "nonzero", _shift(np.left_shift, _bits)),
        f"s_lshr_b{_bits}": (
            f"b{_bits}", f"b{_bits} u32", "nonzero", _shift(np.right_shift, _bits)
        ),
        f"s_ashr_i{_bits}": (
            f"i{_bits}", f"i{_bits} u32", "nonzero", _shift(np.right_shift, _bits)
        ),
    }  # fmt: skip

_LOGIC = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
for _name, _op in _LOGIC.items():
    for _type in ("b32", "b64"):
        _RESULT[f"s_{_name}_{_type}"] = (_type, f"{_type} {_type}", "nonzero", _op)

_COMPARE = {
    "eq": np.equal, "lg": np.not_equal, "gt": np.greater,
    "ge": np.greater_equal, "lt": np.less, "le": np.less_equal,
}  # fmt: skip
_SAVEEXEC = _LOGIC | {"andn1": lambda a, b: ~a & b, "orn1": lambda a, b: ~a | b}
_NOPS = ("s_nop", "v_nop")
_IGNORED = (
    *_NOPS, "s_sleep", "s_setprio", "s_sethalt", "s_icache_inv", "s_inst_prefetch", "s_dcache_wb",
    "s_dcache_inv", "s_incperflevel", "s_decperflevel",
)  # fmt: skip


def _decode_result(b: Build, row: tuple) -> Decoded:
    type_, sources, rule, fn = row
    reads = [b.scalar(i + 1, t) for i, t in enumerate(sources.split())]
    write = b.scalar_dst(0, type_)

    def run(w: Waves) -> None:
        result = fn(*[read(w) for read in reads])
        if rule == "given":
            result, w.scc = result[0], np.array(result[1], bool)
        elif rule == "nonzero":
            w.scc = result != 0
        write(w, result)

    return b.finish(run, "salu", writes_scc=rule != "kept")


def _decode_select(b: Build) -> Decoded:
    type_ = "b64" if b.ins.name.endswith("64") else "b32"
    if b.ins.name.startswith("s_cselect"):
        first, second = b.scalar(1, type_), b.scalar(2, type_)
    else:
        first, second = b.scalar(1, type_), b.scalar(0, type_)
    write = b.scalar_dst(0, type_)
    run = lambda w: write(w, np.where(w.scc, first(w), second(w)))  # noqa: E731
    return b.finish(run, "salu", reads_scc=True)


def _decode_carry(b: Build) -> Decoded:
    first, second, write = b.scalar(1, "u32"), b.scalar(2, "u32"), b.scalar_dst(0, "u32")
    is_add = b.ins.name == "s_addc_u32"

    def run(w: Waves) -> None:
        a, c = first(w).astype(I64), second(w).astype(I64)
        total = a + c + w.scc if is_add else a - c - w.scc
        write(w, total.astype(U32))
        w.scc = (total >> 32) != 0

    return b.finish(run, "salu", reads_scc=True, writes_scc=True)


def _decode_compare(b: Build) -> Decoded:
    _, condition, type_ = b.ins.name.rsplit("_", 2)
    op = _COMPARE[condition]
    first = b.scalar(0, type_)
    if b.ins.name.startswith("s_cmpk"):
        value = _immediate16(b, 1, signed=type_ == "i32")
        second = lambda w: value.view(np.int32 if type_ == "i32" else U32)  # noqa: E731
    else:
        second = b.scalar(1, type_)

    def run(w: Waves) -> None:
        w.scc = op(first(w), second(w))

    return b.finish(run, "salu", writes_scc=True)


def _decode_bitcmp(b: Build) -> Decoded:
    wide = b.ins.name.endswith("64")
    value, index = b.scalar(0, "u64" if wide else "u32"), b.scalar(1, "u32")
    wanted = int("bitcmp1" in b.ins.name)

    def run(w: Waves) -> None:
        shift = _u64(index(w)) & U64(63 if wide else 31)
        w.scc = ((_u64(value(w)) >> shift) & U64(1)) == wanted

    return b.finish(run, "salu", writes_scc=True)


def _decode_bitset(b: Build) -> Decoded:
    type_, dtype = ("b64", U64) if b.ins.name.endswith("64") else ("b32", U32)
    old, index, write = b.scalar(0, type_), b.scalar(1, "u32"), b.scalar_dst(0, type_)
    is_set = "bitset1" in b.ins.name

    def run(w: Waves) -> None:
        bit = dtype(1) << (index(w) & U32(63 if dtype is U64 else 31)).astype(dtype)
        write(w, old(w) | bit if is_set else old(w) & ~bit)

    return b.finish(run, "salu")


def _immediate16(b: Build, position: int, signed: bool = True) -> np.ndarray:
    value = b.operand(position).value & 0xFFFF
    if signed and value & 0x8000:
        value |= 0xFFFF0000
    return np.array([value], U32)


def _decode_immediate(b: Build) -> Decoded:
    """s_movk, s_addk, s_mulk: a sign-extended 16-bit constant."""
    value = _immediate16(b, 1).view(I32)
    old = None if b.ins.name == "s_movk_i32" else b.scalar(0, "i32")
    write = b.scalar_dst(0, "i32")

    def run(w: Waves) -> None:
        if old is None:
            write(w, value)
        elif b.ins.name == "s_mulk_i32":
            write(w, old(w) * value)
        else:
            a = old(w)
            result, w.scc = _overflow(a, value, a + value)
            write(w, result)

    return b.finish(run, "salu", writes_scc=b.ins.name == "s_addk_i32")


def _decode_saveexec(b: Build) -> Decoded:
    op = _SAVEEXEC[b.ins.name.split("_")[1]]
    source, write = b.scalar(1, "b64"), b.scalar_dst(0, "b64")
    b.s_reads += [EXEC, EXEC + 1]
    b.s_writes += [EXEC, EXEC + 1]
    saves = "saveexec" in b.ins.name

    def run(w: Waves) -> None:
        old = w.s64(EXEC)
        result = op(source(w), old)
        w.set_s64(EXEC, result)
        write(w, old if saves else result)
        w.scc = result != 0

    return b.finish(run, "salu", writes_scc=True)


def decode_scalar(b: Build) -> Decoded | None:
    """Decodes a scalar ALU instruction, or returns None if it is none."""
    name = b.ins.name
    if name in _RESULT:
        return _decode_result(b, _RESULT[name])
    if name in _IGNORED:
        b.mods.clear()
        return b.finish(lambda w: None, "nop" if name in _NOPS else "salu")
    if name.startswith(("s_cselect_", "s_cmov_")):
        return _decode_select(b)
    if name in ("s_addc_u32", "s_subb_u32"):
        return _decode_carry(b)
    if name.startswith(("s_cmp_", "s_cmpk_")):
        return _decode_compare(b)
    if name.startswith("s_bitcmp"):
        return _decode_bitcmp(b)
    if name.startswith("s_bitset"):
        return _decode_bitset(b)
    if name in ("s_movk_i32", "s_addk_i32", "s_mulk_i32"):
        return _decode_immediate(b)
    if name.endswith(("_saveexec_b64", "_wrexec_b64")):
        return _decode_saveexec(b)
    return None

"""Instructions that every lane executes for itself: closures over registers, made once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import numpy as np

LANES = 32
BITS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOATS = {16: np.float16, 32: np.float32, 64: np.float64}

Value = np.ndarray


EVERY = np.arange(LANES)


def lanes_of(m: np.ndarray | None) -> np.ndarray:
    """Returns the lanes that run."""
    return EVERY if m is None else np.flatnonzero(m)


TYPES = {
    f"{letter}{bits}": (bits // 8, BITS[bits], None if letter == "u" else kind)
    for letter, kinds in (("u", BITS), ("s", SIGNED), ("f", FLOATS))
    for bits, kind in kinds.items()
}
"""Of a type as PTX has it: bytes, its bits, and what they are viewed as."""


def typed(values: Value, kind: str) -> Value:
    """Views bits as numbers of a type, or converts them to its width first; "pred" is kept."""
    if kind == "pred":
        return values
    size, bits, number = TYPES[kind]
    if values.dtype.itemsize != size:
        values = values.astype(bits)
    return values if number is None else values.view(number)


def same(values: Value) -> Value:
    """Moves."""
    return values


def bits_of(values: Value) -> Value:
    """Views numbers as bits."""
    return np.ascontiguousarray(values).view(BITS[values.dtype.itemsize * 8])


def from_bfloat16(bits: Value) -> Value:
    """Returns float32 numbers."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bfloat16(values: Value) -> Value:
    """Rounds float32 to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded)


def round_f64_to_bfloat16(values: Value) -> Value:
    """Rounds exact sums and products of two numbers, once."""
    near = values.astype(np.float32)
    # To odd, so that the second rounding is the right one.
    bits = near.view(np.uint32)
    exact = near.astype(np.float64) == values
    toward_zero = np.where(np.abs(near.astype(np.float64)) > np.abs(values), bits - 1, bits)
    odd = np.where(exact | np.isnan(values) | np.isinf(near), bits, toward_zero | 1)
    return to_bfloat16(odd.astype(np.uint32).view(np.float32))


def halves(values: Value) -> tuple[Value, Value]:
    """Returns the lower and the upper halves of registers."""
    return (values & 0xFFFF).astype(np.uint16), (values >> 16).astype(np.uint16)


def joined(low: Value, high: Value) -> Value:
    """Returns registers of two halves."""
    return low.astype(np.uint32) | (high.astype(np.uint32) << 16)


def shift(values: Value, by: Value, how: Callable) -> Value:
    """Shifts; what is shifted too far is zero, or the sign."""
    width = values.dtype.itemsize * 8
    by = by.astype(np.uint64)
    far = by >= width
    near = how(values, np.minimum(by, width - 1).astype(values.dtype))
    if how is operator.rshift and values.dtype.kind == "i":
        return near
    return np.where(far, values.dtype.type(0), near)


def quotient(a: Value, b: Value) -> Value:
    """Divides integers, towards zero; by zero it gives all bits."""
    safe = np.where(b == 0, 1, b).astype(a.dtype)
    found = a // safe
    if a.dtype.kind == "i":
        exact = found * safe == a
        found = np.where((found < 0) & ~exact, found + 1, found).astype(a.dtype)
    return np.where(b == 0, np.array(-1).astype(a.dtype), found)


def remainder(a: Value, b: Value) -> Value:
    """Returns what a division leaves."""
    return a - quotient(a, b) * b


def lesser(a: Value, b: Value) -> Value:
    """Returns the smaller number; NaN gives way."""
    return np.fmin(a, b) if a.dtype.kind == "f" else np.minimum(a, b)


def greater(a: Value, b: Value) -> Value:
    """Returns the larger number; NaN gives way."""
    return np.fmax(a, b) if a.dtype.kind == "f" else np.maximum(a, b)


PLACES = np.arange(0, 16, 4, dtype=np.uint32)
"""Where the numbers of four bytes are in a selector."""


def permute(a: Value, b: Value, selector: Value) -> Value:
    """Picks bytes of two registers."""
    nibbles = selector[:, None] >> PLACES & 15
    found = bytes_of(a, b)[EVERY[:, None], nibbles & 7]
    signs = (found.view(np.int8) >> 7).view(np.uint8)
    return np.where(nibbles & 8, signs, found).view(np.uint32)[:, 0]


def bytes_of(a: Value, b: Value) -> np.ndarray:
    """Returns the eight bytes of two registers, [lane, byte]."""
    return np.stack((a, b), axis=1).view(np.uint8)


def permute_by(number: int, kind: str) -> Callable:
    """Returns a permutation that is known beforehand."""
    nibbles = [number >> int(place) & 15 for place in PLACES]
    if any(nibble & 8 for nibble in nibbles):
        selector = np.full(LANES, number, np.uint32)
        return lambda a, b: permute(a, b, selector)
    return lambda a, b: np.take(bytes_of(a, b), nibbles, axis=1).view(np.uint32)[:, 0]


def shift_by(how: Callable) -> Callable:
    """Returns what makes shifts that are known beforehand, see `shift`."""

    def known(number: int, kind: str) -> Callable:
        width = int(kind[1:])
        if number >= width:
            far = np.full(LANES, number, np.uint32)
            return lambda a: shift(a, far, how)
        near = (SIGNED if kind[0] == "s" else BITS)[width](number)
        return lambda a: how(a, near)

    return known


def logic_by(number: int, kind: str) -> Callable:
    """Returns a function of three bits by its table."""
    few = number if number.bit_count() <= 4 else ~number & 0xFF
    rows = [i for i in range(8) if few >> i & 1]

    def logic(a: Value, b: Value, c: Value) -> Value:
        parts = [((a if i & 4 else ~a) & (b if i & 2 else ~b)) & (c if i & 1 else ~c) for i in rows]
        found = np.zeros_like(a)
        for part in parts:
            found |= part
        return found if few == number else ~found

    return logic


WITH_NUMBER = {
    "shl": shift_by(operator.lshift), "shr": shift_by(operator.rshift), "prmt": permute_by,
    "lop3": logic_by,
}  # fmt: skip
"""Functions whose last operand is known beforehand: given that and the type of the first one."""


def fused(a: Value, b: Value, c: Value) -> Value:
    """Multiplies and adds, rounding float32 once, but for ties of the wider sum."""
    if a.dtype == np.float32:
        return (a.astype(np.float64) * b + c).astype(np.float32)
    return a * b + c


UNORDERED = {"equ": operator.eq, "neu": operator.ne, "ltu": operator.lt, "leu": operator.le,
             "gtu": operator.gt, "geu": operator.ge}  # fmt: skip
COMPARE = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
           "gt": operator.gt, "ge": operator.ge, "lo": operator.lt, "ls": operator.le,
           "hi": operator.gt, "hs": operator.ge}  # fmt: skip


def comparison(how: str, kind: str) -> Callable:
    """Returns a comparison of numbers; with NaN, only unordered ones hold."""
    if how in ("num", "nan"):
        either = lambda a, b: np.isnan(a) | np.isnan(b)  # noqa: E731
        return either if how == "nan" else lambda a, b: ~either(a, b)
    if how in UNORDERED:
        return lambda a, b: UNORDERED[how](a, b) | np.isnan(a) | np.isnan(b)
    # Of ordered ones, numpy takes only one for true where there is NaN.
    if how == "ne" and kind[0] == "f":
        return lambda a, b: (a != b) & ~(np.isnan(a) | np.isnan(b))
    return COMPARE[how]


def packed(op: str, kind: str, how: Sequence[str]) -> Callable:
    """Returns what works on both halves of registers, given what stands between name and type."""
    if kind == "u16x2":
        pick = {"max": np.maximum, "min": np.minimum}[op]

        return lambda a, b: pick(a.view(np.uint16), b.view(np.uint16)).view(np.uint32)
    if op in ("abs", "neg"):
        mask = np.uint32(0x7FFF7FFF if op == "abs" else 0x80008000)
        return lambda a: a & mask if op == "abs" else a ^ mask
    sums = {"add": operator.add, "sub": operator.sub, "mul": operator.mul,
            "max": np.fmax, "min": np.fmin,
            "fma": lambda a, b, c: a * b + c}[op]  # fmt: skip
    if "NaN" in how:
        sums = {"max": np.maximum, "min": np.minimum}[op]
    if "xorsign" in how:
        of_magnitudes = sums

        def sums(a: Value, b: Value) -> Value:
            size = of_magnitudes(np.abs(a), np.abs(b))
            return np.where(np.signbit(a) ^ np.signbit(b), -size, size)

    if kind == "bf16x2":
        widen, narrow = from_bfloat16, round_f64_to_bfloat16
    else:
        widen = lambda bits: bits.view(np.float16)  # noqa: E731
        narrow = lambda v: v.astype(np.float16).view(np.uint16)  # noqa: E731

    def of_floats(*operands: Value) -> Value:
        parts = (widen(o.view(np.uint16)).astype(np.float64) for o in operands)
        return narrow(sums(*parts)).view(np.uint32)

    return of_floats


def eight_bits(kind: str) -> Value:
    """Returns the float16 numbers of all bytes of a type."""
    code = np.arange(256)
    mantissa_bits, bias = (3, 7) if kind == "e4m3" else (2, 15)
    exponent = (code >> mantissa_bits) & (15 if kind == "e4m3" else 31)
    mantissa = code & ((1 << mantissa_bits) - 1)
    one = 1 << mantissa_bits
    size = np.where(
        exponent == 0,
        mantissa * 2.0 ** (1 - bias) / one,
        (1 + mantissa / one) * 2.0 ** (exponent - bias),
    )
    if kind == "e4m3":
        size = np.where(code & 0x7F == 0x7F, np.nan, size)
    else:
        size = np.where(exponent == 31, np.where(mantissa, np.nan, np.inf), size)
    return np.where(code & 0x80, -size, size)


BYTES = {kind: eight_bits(kind) for kind in ("e4m3", "e5m2")}


MINIFLOATS = {"e4m3": (448.0, -6, 3, 0x7F), "e5m2": (57344.0, -14, 2, 0x7C)}
"""The largest number, the smallest regular exponent, mantissa bits, the first code of no number."""


def to_byte(x: np.ndarray, kind: str) -> Value:
    """Rounds numbers to E4M3 or E5M2 bytes, nearest even, the largest one at most."""
    largest, smallest, bits, end = MINIFLOATS[kind]
    size = np.minimum(np.abs(x.astype(np.float64)), largest)
    size = np.where(np.isnan(size), 0.0, size)
    _, exponent = np.frexp(size)
    # Numbers of one exponent lie equally far apart; those below the smallest one, as those of it.
    step = np.ldexp(1.0, np.maximum(exponent - 1, smallest) - bits)
    code = np.searchsorted(BYTES[kind][:end], np.rint(size / step) * step)
    code = np.where(np.isnan(x), 127, code)
    return code.astype(np.uint16) | np.signbit(x).astype(np.uint16) << 7


def joined_bytes(high: Value, low: Value) -> Value:
    """Returns two bytes as a number of 16 bits."""
    return (high << 8 | low).astype(np.uint16)


def convert(op: str) -> Callable:
    """Returns what converts one type to another, by the instruction's name."""
    parts = op.split(".")[1:]
    to, source = parts[-2], parts[-1]
    if to in ("f16x2", "bf16x2") and source == "f32":
        if to == "bf16x2":
            return lambda high, low: joined(
                to_bfloat16(low.view(np.float32)), to_bfloat16(high.view(np.float32))
            )
        return lambda high, low: joined(
            low.view(np.float32).astype(np.float16).view(np.uint16),
            high.view(np.float32).astype(np.float16).view(np.uint16),
        )
    if source in ("e4m3x2", "e5m2x2"):
        table = BYTES[source[:4]].astype(np.float16).view(np.uint16)
        return lambda x: joined(table[x & 0xFF], table[(x >> 8) & 0xFF])
    if source == "bf16":
        return lambda x: bits_of(from_bfloat16(x).astype(FLOATS[int(to[1:])]))
    if to == "bf16":
        return lambda x: to_bfloat16(typed(x, source).astype(np.float32))
    if to in ("e4m3x2", "e5m2x2") and "satfinite" in parts:
        if source == "f16x2":
            return lambda x: joined_bytes(
                to_byte((x >> 16).astype(np.uint16).view(np.float16), to[:4]),
                to_byte((x & 0xFFFF).astype(np.uint16).view(np.float16), to[:4]),
            )
        return lambda high, low: joined_bytes(
            to_byte(high.view(np.float32), to[:4]), to_byte(low.view(np.float32), to[:4])
        )
    if to in ("e4m3x2", "e5m2x2"):
        raise NotImplementedError(op)
    rounds = next((p for p in parts if p in ("rni", "rzi", "rmi", "rpi")), None)
    saturates = "sat" in parts

    def by_value(x: Value) -> Value:
        values = typed(x, source)
        if to[0] == "f":
            return bits_of(values.astype(FLOATS[int(to[1:])]))
        width = int(to[1:])
        if values.dtype.kind == "f":
            how = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[rounds]
            kind = SIGNED[width] if to[0] == "s" else BITS[width]
            info = np.iinfo(kind)
            limited = np.clip(np.nan_to_num(how(values.astype(np.float64))), info.min, info.max)
            return bits_of(limited.astype(kind))
        if saturates:
            raise NotImplementedError(op)
        if to[0] == "s" or source[0] == "s":
            return values.astype(SIGNED[width]).view(BITS[width])
        return values.astype(BITS[width])

    return by_value


def arithmetic(op: str) -> tuple[Callable, str] | None:
    """Returns a function of numbers and the type of its operands, or nothing."""
    name, *parts = op.split(".")
    kind = parts[-1] if parts else ""
    if kind in ("bf16x2", "f16x2", "u16x2"):
        return packed(name, kind, parts[:-1]), "u32"
    simple = {
        "add": operator.add, "sub": operator.sub, "and": operator.and_, "or": operator.or_,
        "xor": operator.xor, "not": operator.invert, "neg": operator.neg, "abs": np.abs,
        "min": lesser, "max": greater, "fma": fused, "rem": remainder,
    }  # fmt: skip
    number = kind.replace("b", "u") if kind.startswith("b") else kind
    if name in simple and kind != "pred":
        return simple[name], number
    if name == "mul" and kind[0] == "f":
        return operator.mul, kind
    if name in ("mul", "mad") and "wide" in parts:
        wide = (SIGNED if kind[0] == "s" else BITS)[2 * int(kind[1:])]
        if name == "mad":
            return lambda a, b, c: a.astype(wide) * b.astype(wide) + c.astype(wide), kind
        return lambda a, b: a.astype(wide) * b.astype(wide), kind
    if name == "mul" and "hi" in parts:
        if kind[1:] == "64":
            raise NotImplementedError(op)
        wide = np.int64 if kind[0] == "s" else np.uint64
        return lambda a, b: ((a.astype(wide) * b.astype(wide)) >> wide(32)).astype(a.dtype), kind
    if name == "mul":
        return operator.mul, kind
    if name == "mad":
        return (lambda a, b, c: a * b + c), kind
    if name == "div":
        return (operator.truediv if kind[0] == "f" else quotient), kind
    if name == "shl":
        return (lambda a, b: shift(a, b, operator.lshift)), number
    if name == "shr":
        return (lambda a, b: shift(a, b, operator.rshift)), number
    if name == "prmt":
        return permute, "u32"
    if name == "lop3":
        return (lambda a, b, c, table: logic_by(int(table[0]), "u32")(a, b, c)), "u32"
    if name == "ex2":
        return np.exp2, kind
    if name == "lg2":
        return np.log2, kind
    if name in ("rcp", "sqrt", "rsqrt"):
        how = {"rcp": lambda x: 1 / x, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x)}[name]
        return how, kind
    if name == "popc":
        return (lambda a: np.bitwise_count(a).astype(np.uint32)), number
    if name == "clz":
        width = int(number[1:])
        return (lambda a: np.array([width - int(v).bit_length() for v in a], np.uint32)), number
    if name == "brev":
        return (lambda a: np.array([int(f"{int(v):032b}"[::-1], 2) for v in a], np.uint32)), "u32"
    if name == "bfi":

        def insert(a: Value, b: Value, at: Value, count: Value) -> Value:
            mask = ((np.uint64(1) << count.astype(np.uint64)) - np.uint64(1)) << at.astype(
                np.uint64
            )
            mask = mask.astype(np.uint32)
            return (b & ~mask) | ((a << at) & mask)

        return insert, "u32"
    if name == "bfe":

        def extract(a: Value, at: Value, count: Value) -> Value:
            mask = ((np.uint64(1) << count.astype(np.uint64)) - np.uint64(1)).astype(np.uint32)
            return (a >> at) & mask

        return extract, "u32"
    if name == "shf":

        def funnel(a: Value, b: Value, c: Value) -> Value:
            both = (b.astype(np.uint64) << np.uint64(32)) | a.astype(np.uint64)
            by = (c & 31).astype(np.uint64)
            if parts[0] == "l":
                return ((both << by) >> np.uint64(32)).astype(np.uint32)
            return (both >> by).astype(np.uint32)

        return funnel, "u32"
    return None

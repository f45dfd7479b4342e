"""Turns operands into closures that read and write registers of a `Waves`.

`Build` decodes one instruction. Every `src` and `dst` call returns a closure and records which
registers the instruction touches, so that the hazard checker needs no table of its own.

| type            | what a closure yields                                        |
|-----------------|--------------------------------------------------------------|
| b32 u32 i32 f32 | one register                                                 |
| b64 u64 i64 f64 | two registers                                                |
| u16 i16 f16     | half a register, picked by op_sel                            |
| bf16            | half a register, widened to float32                          |
| x32 (x2..x32)   | that many registers as uint32 [count, waves, 64]             |
| mask            | an SGPR pair as bool [waves, 64]                             |

Scalar (`s...`) variants of b32..f64 yield [waves] instead of something that broadcasts to
[waves, 64].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gfx950.isa.asm import EXEC, AsmError, Instruction, Kernel, Operand
from gfx950.isa.formats import bf16_to_f32, f32_to_bf16
from gfx950.isa.state import SGPRS, Waves, lanes_to_mask, mask_to_lanes

Reader = Callable[[Waves], np.ndarray]
DTYPES = {
    "b32": np.uint32, "u32": np.uint32, "i32": np.int32, "f32": np.float32,
    "b64": np.uint64, "u64": np.uint64, "i64": np.int64, "f64": np.float64,
    "b16": np.uint16, "u16": np.uint16, "i16": np.int16, "f16": np.float16,
}  # fmt: skip
FLOAT_BITS = {"f16": (np.float16, np.uint16), "f64": (np.float64, np.uint64)}
INV_2PI = 0.15915494309189532


class UnknownInstruction(AsmError):
    """An instruction, operand or modifier that the simulator does not implement."""


def registers_of(type_: str) -> int:
    """Returns how many 32-bit registers a value of `type_` occupies."""
    if type_.startswith("x"):
        return int(type_[1:])
    return 2 if type_ in ("b64", "u64", "i64", "f64", "mask") else 1


def constant_bits(operand: Operand, type_: str) -> int:
    """Returns the bits that a constant operand supplies to a value of `type_`."""
    value = operand.value
    if operand.kind == "int":
        if not -(1 << 31) <= value < 1 << 32:
            raise UnknownInstruction(f"unknown operand {value}: expected at most 32 bits")
        if type_ == "f64" and not -16 <= value <= 64:
            return (value & 0xFFFFFFFF) << 32
        return value & 0xFFFFFFFFFFFFFFFF
    if operand.kind == "float":
        if type_ in ("b64", "u64", "i64"):
            type_ = "f64"
        float_type, bits_type = FLOAT_BITS.get(type_, (np.float32, np.uint32))
        if type_ == "bf16":
            return int(f32_to_bf16(np.float32(value)))
        return int(np.array(value, float_type).view(bits_type))
    raise UnknownInstruction(f"operand {operand.value!r} is no constant")


def typed(bits: np.ndarray, type_: str) -> np.ndarray:
    """Views uint32 or uint64 bits as `type_`."""
    if type_ == "bf16":
        return bf16_to_f32(bits & np.uint32(0xFFFF))
    dtype = DTYPES[type_]
    if np.dtype(dtype).itemsize == 2:
        return bits.astype(np.uint16).view(dtype)
    return bits.view(dtype)


def _with_modifiers(read: Reader, operand: Operand, neg: bool, absolute: bool) -> Reader:
    neg, absolute = neg or operand.neg, absolute or operand.abs
    if absolute and neg:
        return lambda w: -np.abs(read(w))
    if absolute:
        return lambda w: np.abs(read(w))
    if neg:
        return lambda w: -read(w)
    return read


@dataclass(eq=False)
class Decoded:
    """An executable instruction and the registers it touches."""

    ins: Instruction
    run: Callable[[Waves], None]
    kind: str
    v_reads: tuple[int, ...] = ()
    v_writes: tuple[int, ...] = ()
    s_reads: tuple[int, ...] = ()
    s_writes: tuple[int, ...] = ()
    reads_scc: bool = False
    writes_scc: bool = False
    masked: bool = True
    """Whether lanes outside EXEC keep their registers and ignore their inputs."""
    strict: bool = False
    """Whether an undefined input is an error rather than an undefined result."""
    info: dict = field(default_factory=dict)
    memory: object = None
    """The instruction's memory.access.MemoryOp, if it has one."""
    spread: Callable[[Waves], np.ndarray] | None = None
    """Which results [registers, waves, 64] undefined inputs make undefined, if not lane by lane."""
    rules: object = None
    """The instruction's proof.waits.WaitRules."""
    states: int = 1
    """Wait states the instruction provides to those before it."""
    v_inputs: tuple[int, ...] = ()
    """`v_reads` without destinations that are merely kept in part."""
    s_inputs: tuple[int, ...] = ()
    reads: frozenset[int] = frozenset()
    """Registers read; SGPRs are negative. Likewise the next two."""
    touches: frozenset[int] = frozenset()
    loads: frozenset[int] = frozenset()
    """Registers written when the memory operation completes."""


class Build:
    """Decodes the operands and modifiers of one instruction."""

    def __init__(self, kernel: Kernel, ins: Instruction):
        self.kernel, self.ins = kernel, ins
        self.mods = dict(ins.mods)
        self.v_reads: list[int] = []
        self.v_writes: list[int] = []
        self.s_reads: list[int] = []
        self.s_writes: list[int] = []
        self.v_kept: list[int] = []
        """Destinations of which some bits are kept."""

    def unknown(self, what: str = "instruction") -> UnknownInstruction:
        """Returns the error for something that is not implemented."""
        return UnknownInstruction(f"unknown {what}: {self.ins}")

    def mod(self, name: str, default: object = 0) -> object:
        """Consumes a modifier."""
        return self.mods.pop(name, default)

    def operand(self, position: int) -> Operand:
        """Returns an operand, which must exist."""
        if position >= len(self.ins.operands):
            raise self.unknown("operand count")
        return self.ins.operands[position]

    def finish(self, run: Callable[[Waves], None], kind: str, **facts) -> Decoded:
        """Checks that nothing of the instruction was ignored and wraps it up."""
        if self.mods:
            raise self.unknown(f"modifier {sorted(self.mods)}")
        if EXEC in self.s_writes or EXEC + 1 in self.s_writes:
            inner = run

            def run(w: Waves) -> None:
                inner(w)
                w.refresh_exec()

        reads = tuple(dict.fromkeys(self.v_reads))
        return Decoded(
            self.ins, run, kind,
            tuple(dict.fromkeys((*reads, *self.v_kept))), tuple(dict.fromkeys(self.v_writes)),
            tuple(dict.fromkeys(self.s_reads)), tuple(dict.fromkeys(self.s_writes)),
            v_inputs=reads, s_inputs=tuple(dict.fromkeys(self.s_reads)), **facts,
        )  # fmt: skip

    def vector_index(self, operand: Operand, count: int) -> int:
        """Returns the row of a VGPR or AGPR in `Waves.v` and checks the range."""
        if operand.kind not in "va":
            raise self.unknown("operand (expected a vector register)")
        is_acc = operand.kind == "a"
        if operand.count != count:
            raise self.unknown(f"operand (expected {count} registers, got {operand.count})")
        first = operand.index + (self.kernel.accum_offset if is_acc else 0)
        limit = self.kernel.unified_registers
        if first + count > limit:
            raise AsmError(f"{self.ins}: register beyond the {limit} that the kernel declares")
        return first

    def scalar_index(self, operand: Operand, count: int, used: list[int]) -> int:
        """Returns the row of an SGPR in `Waves.s` and records its use."""
        if operand.kind != "s":
            raise self.unknown("operand (expected a scalar register)")
        if operand.count != count:
            raise self.unknown(f"operand (expected {count} registers, got {operand.count})")
        if operand.index + count > SGPRS:
            raise self.unknown(f"operand (expected {count} registers below s{SGPRS})")
        used += range(operand.index, operand.index + count)
        return operand.index

    def src(self, position: int, type_: str, *, hi: bool = False, neg=False, abs_=False) -> Reader:
        """Returns a reader that broadcasts to [waves, 64]."""
        return self.vector_source(self.operand(position), type_, hi=hi, neg=neg, abs_=abs_)

    def vector(self, position: int, type_: str) -> Reader:
        """Returns a reader of an operand that must be a vector register."""
        self.vector_index(self.operand(position), registers_of(type_))
        return self.src(position, type_)

    def vector_source(self, op: Operand, type_: str, *, hi=False, neg=False, abs_=False) -> Reader:
        """Returns a reader of `op`; `hi` picks the upper half of a 16-bit value."""
        if type_ == "mask":
            index = self.scalar_index(op, 2, self.s_reads)
            return lambda w: mask_to_lanes(w.s64(index))
        read = self._bits(op, type_, hi)
        if type_.startswith("x"):
            return read
        return _with_modifiers(lambda w: typed(read(w), type_), op, neg, abs_)

    def uniform_source(self, op: Operand, type_: str) -> Reader:
        """Returns a reader of `op` that broadcasts, too, where all lanes have the same."""
        if op.is_vector:
            raise self.unknown("operand (expected a scalar)")
        return self.vector_source(op, type_)

    def _bits(self, op: Operand, type_: str, hi: bool) -> Reader:
        count = registers_of(type_)
        shift = np.uint32(16)
        if op.is_vector:
            i = self.vector_index(op, count)
            self.v_reads += range(i, i + count)
            if type_.startswith("x"):
                return lambda w: w.v[i : i + count]
            if count == 2:
                return lambda w: _join(w.v[i], w.v[i + 1])
            return (lambda w: w.v[i] >> shift) if hi else (lambda w: w.v[i])
        if op.kind == "s":
            i = self.scalar_index(op, count, self.s_reads)
            if type_.startswith("x"):
                return lambda w: w.s[i : i + count, :, None]
            if count == 2:
                return lambda w: w.s64(i)[:, None]
            return (lambda w: w.s[i][:, None] >> shift) if hi else (lambda w: w.s[i][:, None])
        bits = self._constant(op, type_)
        if type_.startswith("x"):
            words = [bits & 0xFFFFFFFF] * count
            block = np.array(words, np.uint32)[:, None, None]
            return lambda w: block
        if count == 2:
            wide = np.array([[bits & 0xFFFFFFFFFFFFFFFF]], np.uint64)
            return lambda w: wide
        word = np.array([[(bits >> 16 if hi else bits) & 0xFFFFFFFF]], np.uint32)
        return lambda w: word

    def _constant(self, op: Operand, type_: str) -> int:
        if op.kind == "word":
            raise self.unknown(f"operand {op.value!r}")
        bits = constant_bits(op, type_)
        literal = op.kind == "int" and not -16 <= op.value <= 64
        if literal and registers_of(type_) == 2 and type_ in ("b64", "u64"):
            bits &= 0xFFFFFFFF
        return bits

    def scalar(self, position: int, type_: str) -> Reader:
        """Returns a reader of a scalar operand that yields [waves]."""
        op = self.operand(position)
        count = registers_of(type_)
        dtype = DTYPES[type_]
        if op.kind == "s":
            i = self.scalar_index(op, count, self.s_reads)
            if count == 2:
                return lambda w: w.s64(i).view(dtype)
            return lambda w: w.s[i].view(dtype)
        width = np.uint64 if count == 2 else np.uint32
        bits = self._constant(op, type_) & (2 ** (32 * count) - 1)
        value = np.array([bits], width).view(dtype)
        return lambda w: np.broadcast_to(value, (w.count,))

    def scalar_dst(self, position: int, type_: str) -> Callable[[Waves, np.ndarray], None]:
        """Returns a writer of a scalar destination."""
        count = registers_of(type_)
        index = self.scalar_index(self.operand(position), count, self.s_writes)
        if count == 2:
            return lambda w, x: w.set_s64(index, np.asarray(x).view(np.uint64))

        def write(w: Waves, x: np.ndarray) -> None:
            w.s[index] = np.asarray(x).view(np.uint32)

        return write

    def mask_dst(self, position: int) -> Callable[[Waves, np.ndarray], None]:
        """Returns a writer of a lane mask; inactive lanes write zero."""
        index = self.scalar_index(self.operand(position), 2, self.s_writes)
        return lambda w, lanes: w.set_s64(index, lanes_to_mask(lanes & w.exec_mask))

    def dst(self, position: int, type_: str) -> Callable[[Waves, np.ndarray], None]:
        """Returns a writer of a vector destination under EXEC."""
        count = registers_of(type_)
        op = self.operand(position)
        index = self.vector_index(op, count)
        self.v_writes += range(index, index + count)
        if type_.startswith("x"):
            return lambda w, x: write_registers(w, index, x)
        if count == 2:
            return lambda w, x: write_registers(w, index, _halves(x))
        if type_ == "bf16":
            return lambda w, x: write_register(w, index, f32_to_bf16(x))
        if np.dtype(DTYPES[type_]).itemsize == 2:
            return lambda w, x: write_register(w, index, widen16(x))
        return lambda w, x: write_register(w, index, np.asarray(x).view(np.uint32))


def widen16(x: np.ndarray) -> np.ndarray:
    """Zero-extends 16-bit values to uint32 bits."""
    return np.asarray(x).view(np.uint16).astype(np.uint32)


def _join(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))


def _halves(x: np.ndarray) -> np.ndarray:
    bits = np.asarray(x).view(np.uint64)
    return np.stack([bits & np.uint64(0xFFFFFFFF), bits >> np.uint64(32)]).astype(np.uint32)


def write_register(w: Waves, index: int, bits: np.ndarray) -> None:
    """Writes uint32 `bits` to one vector register under EXEC."""
    if w.exec_full:
        w.v[index] = bits
    else:
        np.copyto(w.v[index], bits, where=w.exec_mask)


def write_registers(w: Waves, index: int, bits: np.ndarray) -> None:
    """Writes uint32 [count, ...] to consecutive vector registers under EXEC."""
    rows = w.v[index : index + len(bits)]
    if w.exec_full:
        rows[...] = bits
    else:
        np.copyto(rows, bits, where=w.exec_mask)

"""The instructions of a kernel as closures over registers, made when they first run.

A closure gets the warp and the lanes that run, nothing for all of them. It returns nothing, or that
the warp has to wait.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tests.ptx import parse, tensor
from tests.ptx.copies import Copies
from tests.ptx.memory import PARAM, PEER_BITS, SHARED, Fault, of_space
from tests.ptx.operands import ADDRESS, NUMBER, names_in
from tests.ptx.registers import LONGEST, OnRegisters, Straight
from tests.ptx.scalar import (
    BITS,
    LANES,
    SIGNED,
    WITH_NUMBER,
    arithmetic,
    comparison,
    convert,
    same,
    typed,
)

if TYPE_CHECKING:
    from tests.ptx.machine import Module
    from tests.ptx.warp import Warp

WHOLE = (
    "bar.", "barrier.", "shfl.", "vote.", "mma.", "wgmma.", "ldmatrix.", "stmatrix.", "elect.",
    "redux.", "match.",
)  # fmt: skip
PARAM_ALIGNMENT = 64
"""Parameters of which a kernel may take the address begin at multiples of this."""
NOTHING = (
    "griddepcontrol.", "setmaxnreg.", "fence.", "membar.", "wgmma.fence", "wgmma.commit_group",
    "bar.warp.sync", "prefetch", "nanosleep",
)  # fmt: skip


@dataclass
class Op:
    """An instruction that is ready to run."""

    run: Callable | None
    guard: int
    negated: bool
    target: int
    """Where it jumps to, or -1."""
    text: str
    exits: bool = False
    whole: bool = False
    """Whether the lanes of a warp run it together."""
    seen: list[int] = field(default_factory=lambda: [0, 0])
    """How often all lanes of a warp came by, and some, where it changes registers alone."""
    straight: list[tuple[Callable, int] | None] = field(default_factory=lambda: [None, None])
    """It and those that follow as one function for them, and how many they are."""


class Kernel(Copies):
    """The instructions of a function as closures."""

    def __init__(self, module: Module, function: parse.Function):
        self.module, self.function = module, function
        self.statics, self.constants = module.statics, module.constants
        self.slots = {name: i for i, name in enumerate(function.registers)}
        self.widths = list(function.registers.values())
        self.locals, self.local_bytes = {}, 0
        self.params = {}
        for name, (space, size, align) in function.spaces.items():
            if space == "local":
                at = -(-self.local_bytes // align) * align
                self.locals[name], self.local_bytes = at, at + size
            elif space == "param":
                self.params[name] = size
        self.entry_params = dict(function.params)
        self.param_places = {}
        at = 0
        for name, size in self.entry_params.items():
            self.param_places[name] = at
            at += -(-size // PARAM_ALIGNMENT) * PARAM_ALIGNMENT
        self.labels = function.labels
        self.ops = [self.op(s) for s in function.statements]
        self.ops.append(Op(None, -1, False, -1, "end", exits=True))
        self.starts = set(self.labels.values())
        fresh = {1: np.zeros(LANES, bool)}
        fresh |= {bits: np.full(LANES, -1).astype(kind) for bits, kind in BITS.items()}
        for values in fresh.values():
            values.setflags(write=False)
        # What registers hold that nobody wrote; all warps share it.
        self.garbage = [fresh[bits] for bits in self.widths]

    def op(self, s: parse.Statement) -> Op:
        """Makes an instruction ready."""
        guard = self.slots[s.predicate] if s.predicate else -1
        if s.op.startswith("bra"):
            return Op(None, guard, s.negated, self.labels[s.operands[0]], s.text)
        if s.op in ("ret", "exit", "trap"):
            if s.op == "trap":
                return Op(self.trap, guard, s.negated, -1, s.text)
            return Op(None, guard, s.negated, -1, s.text, exits=True)
        whole = s.op.startswith(WHOLE)
        if s.op.startswith(NOTHING):
            return Op(lambda w, m: None, guard, s.negated, -1, s.text, whole=whole)
        return Op(self.later, guard, s.negated, -1, s.text, whole=whole)

    def later(self, w: Warp, m: np.ndarray | None) -> str | None:
        """Runs an instruction for the first time."""
        return self.ready(w.pc)(w, m)

    @staticmethod
    def trap(w: Warp, m: np.ndarray | None) -> None:
        """A kernel gives up."""
        raise Fault("trap")

    def ready(self, at: int) -> Callable:
        """Makes an instruction ready to run."""
        s, op = self.function.statements[at], self.ops[at]
        try:
            op.run = self.instruction(s)
        except NotImplementedError as error:
            text = f"{error}: {s.text}"

            def run(w: Warp, m: np.ndarray | None) -> None:
                raise Fault(f"not known: {text}")

            op.run = run
        return op.run

    def straighten(self, at: int, *, partial: bool) -> None:
        """Makes one function of the instructions from here on that change registers alone."""
        run, end = Straight(self, self.widths, partial=partial), at
        while end - at < LONGEST and (end == at or end not in self.starts):
            op = self.ops[end]
            if op.guard >= 0 or op.run is None:
                break
            if op.run == self.later:
                self.ready(end)
            if not isinstance(op.run, OnRegisters):
                break
            run.add(op.run)
            # Those within begin no function of their own.
            op.seen[partial] = max(op.seen[partial], self.ops[at].seen[partial])
            end += 1
        self.ops[at].straight[partial] = run.function(), end - at

    def instruction(self, s: parse.Statement) -> Callable:
        """Returns the closure of an instruction."""
        name, *parts = s.op.replace("::", ":").split(".")
        special = getattr(self, f"_{name}", None)
        if special:
            return special(s, parts)
        found = arithmetic(s.op)
        if found is None:
            raise NotImplementedError(s.op)
        how, kind = found
        to, *operands = s.operands
        kinds = [kind] * len(operands)
        if name in ("shl", "shr", "bfi", "bfe"):
            counts = 1 + (name == "bfi")
            kinds[counts:] = ["u32"] * len(operands[counts:])
        elif name == "mad" and "wide" in parts:
            kinds[2] = f"{kind[0]}{2 * int(kind[1:])}"
        # The last operand is mostly a number, of which more can be said beforehand.
        if name in WITH_NUMBER and NUMBER.match(operands[-1]):
            number, _ = self.constant(operands.pop(), 32), kinds.pop()
            how = WITH_NUMBER[name](number, kinds[0])
        return self.on_registers(to, how, operands, kinds)

    def on_registers(
        self, to: str, how: Callable, operands: Sequence[str], kinds: Sequence[str]
    ) -> OnRegisters:
        """Returns an instruction that changes one register."""
        return OnRegisters(self, [self.slots[to]], how, operands, kinds)

    def _mov(self, s: parse.Statement, parts: list[str]) -> Callable:
        kind = parts[-1]
        to, source = s.operands
        if kind == "pred":
            return self.on_registers(to, same, [source], [kind])
        width = int(kind[1:])
        if source.startswith("{"):
            names = names_in(source)
            each = width // len(names)

            def pack(*values: np.ndarray) -> np.ndarray:
                found = values[0].astype(BITS[width])
                for i, value in enumerate(values[1:], 1):
                    found |= value.astype(BITS[width]) << BITS[width](each * i)
                return found

            return self.on_registers(to, pack, names, [f"u{each}"] * len(names))
        if to.startswith("{"):
            slots = self.targets(to)
            each = width // len(slots)

            def unpack(bits: np.ndarray) -> tuple[np.ndarray, ...]:
                return tuple(
                    (bits >> BITS[width](each * i)).astype(BITS[each]) for i in range(len(slots))
                )

            return OnRegisters(self, slots, unpack, [source], [f"u{width}"])
        return self.on_registers(to, same, [source], [f"u{width}"])

    def _bits(self, s: parse.Statement, parts: list[str], how: Callable) -> Callable:
        kind = "pred" if parts[-1] == "pred" else "u" + parts[-1][1:]
        to, *operands = s.operands
        return self.on_registers(to, how, operands, [kind] * len(operands))

    def _and(self, s: parse.Statement, parts: list[str]) -> Callable:
        return self._bits(s, parts, np.bitwise_and)

    def _or(self, s: parse.Statement, parts: list[str]) -> Callable:
        return self._bits(s, parts, np.bitwise_or)

    def _xor(self, s: parse.Statement, parts: list[str]) -> Callable:
        return self._bits(s, parts, np.bitwise_xor)

    def _not(self, s: parse.Statement, parts: list[str]) -> Callable:
        return self._bits(s, parts, np.invert)

    def _setp(self, s: parse.Statement, parts: list[str]) -> Callable:
        kind = parts[-1]
        kind = kind.replace("b", "u") if kind.startswith("b") else kind
        to, *operands = s.operands
        how = comparison(parts[0], kind)
        if len(parts) > 2 and parts[1] in ("and", "or", "xor"):
            join = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[parts[1]]
            return self.on_registers(
                to, lambda a, b, c: join(how(a, b), c), operands, [kind, kind, "pred"]
            )
        return self.on_registers(to, how, operands, [kind, kind])

    def _selp(self, s: parse.Statement, parts: list[str]) -> Callable:
        kind = "u" + parts[-1][1:]
        to, a, b, chosen = s.operands
        return self.on_registers(to, np.where, [chosen, a, b], ["pred", kind, kind])

    def _cvt(self, s: parse.Statement, parts: list[str]) -> Callable:
        kind = parts[-1]
        width = {"e4m3x2": 16, "e5m2x2": 16, "bf16": 16, "f16x2": 32}.get(kind) or int(kind[1:])
        to, *operands = s.operands
        return self.on_registers(to, convert(s.op), operands, [f"u{width}"] * len(operands))

    def _cvta(self, s: parse.Statement, parts: list[str]) -> Callable:
        to, value = self.slots[s.operands[0]], self.value(s.operands[1], "u64")
        base = {"shared": SHARED, "local": 0, "param": PARAM}.get(parts[-2], 0)
        sign = -1 if parts[0] == "to" else 1

        def run(w: Warp, m: np.ndarray | None) -> None:
            if parts[-2] == "local":
                w.put(to, of_space("local", value(w)), m)
                return
            w.put(to, value(w).astype(np.uint64) + np.uint64(sign * base & (1 << 64) - 1), m)

        return run

    # Memory

    @staticmethod
    def shape_of(parts: list[str]) -> tuple[str, int, str]:
        """Returns the space, the numbers of a lane and the type of an access."""
        space = next(
            (
                p
                for p in parts
                if p.split(":")[0] in ("global", "shared", "local", "param", "const")
            ),
            "generic",
        )
        count = next((int(p[1]) for p in parts if re.fullmatch(r"v[248]", p)), 1)
        return space, count, parts[-1]

    def _ld(self, s: parse.Statement, parts: list[str]) -> Callable:
        space, count, kind = self.shape_of(parts)
        width = int(kind[1:])
        size = width // 8
        slots = self.targets(s.operands[0])
        if space.startswith("param"):
            name, offset = ADDRESS.match(s.operands[1]).groups()
            at = int(offset or "0", 0)

            def of_param(w: Warp, m: np.ndarray | None) -> np.ndarray:
                return np.broadcast_to(
                    w.param(name)[:, at : at + count * size], (LANES, count * size)
                )

            load = of_param
        else:
            address = self.address(s.operands[1], 32 if space.startswith("shared") else 64)

            def of_memory(w: Warp, m: np.ndarray | None) -> np.ndarray:
                return w.load(space, address(w), count * size, m)

            load = of_memory

        def run(w: Warp, m: np.ndarray | None) -> None:
            raw = np.ascontiguousarray(load(w, m))
            values = np.ascontiguousarray(raw.view(BITS[width]).reshape(LANES, count).T)
            if kind[0] == "s":
                # A register that is narrower than this gets the lower part.
                values = values.view(SIGNED[width]).astype(SIGNED[64]).view(BITS[64])
            for slot, found in zip(slots, values, strict=True):
                if slot >= 0:
                    w.put(slot, found, m)

        return run

    def _st(self, s: parse.Statement, parts: list[str]) -> Callable:
        space, count, kind = self.shape_of(parts)
        width = int(kind[1:])
        size = width // 8
        values = self.values(s.operands[1], f"u{width}")

        def bytes_of(w: Warp) -> np.ndarray:
            columns = [typed(f(w), f"u{width}") for f in values]
            return np.stack(columns, axis=1).view(np.uint8).reshape(LANES, count * size)

        if space.startswith("param"):
            name, offset = ADDRESS.match(s.operands[0]).groups()
            at = int(offset or "0", 0)

            def to_param(w: Warp, m: np.ndarray | None) -> None:
                lanes = slice(None) if m is None else m
                w.param(name)[lanes, at : at + count * size] = bytes_of(w)[lanes]

            return to_param
        address = self.address(s.operands[0], 32 if space.startswith("shared") else 64)
        if parts[0] == "async":
            return self.store_later(address, bytes_of, self.address(s.operands[2], 32))
        return lambda w, m: w.store(space, address(w), bytes_of(w), m)

    def _atom(self, s: parse.Statement, parts: list[str]) -> Callable:
        return self.atomic(s, parts, self.slots.get(s.operands[0], -1), s.operands[1:])

    def _red(self, s: parse.Statement, parts: list[str]) -> Callable:
        return self.atomic(s, parts, -1, s.operands)

    def atomic(
        self, s: parse.Statement, parts: list[str], slot: int, operands: tuple[str, ...]
    ) -> Callable:
        """Lanes read, change and write one after the other."""
        space, _, kind = self.shape_of(parts)
        change = next(
            p for p in parts if p in ("add", "or", "and", "max", "min", "exch", "cas", "xor")
        )
        address = self.address(operands[0], 32 if space.startswith("shared") else 64)
        number = kind.replace("b", "u") if kind[0] == "b" else kind
        values = [self.value(o, number) for o in operands[1:]]
        hows = {
            "add": lambda old, a: old + a, "or": lambda old, a: old | a,
            "and": lambda old, a: old & a, "xor": lambda old, a: old ^ a,
            "max": np.maximum, "min": np.minimum, "exch": lambda old, a: a,
            "cas": lambda old, a, b: np.where(old == a, b, old),
        }  # fmt: skip

        def run(w: Warp, m: np.ndarray | None) -> None:
            at, given = address(w), [typed(f(w), number) for f in values]
            before = np.zeros(LANES, BITS[int(kind[1:])])
            for lane in range(LANES) if m is None else np.flatnonzero(m):
                only = np.arange(LANES) == lane
                raw = w.load(space, at, int(kind[1:]) // 8, only)
                old = typed(np.ascontiguousarray(raw).view(BITS[int(kind[1:])])[:, 0], number)
                new = hows[change](old, *given).astype(old.dtype)
                before[lane] = old.view(BITS[int(kind[1:])])[lane]
                w.store(space, at, new.view(np.uint8).reshape(LANES, -1), only)
            if slot >= 0:
                w.put(slot, before, m)

        return run

    def _mapa(self, s: parse.Statement, parts: list[str]) -> Callable:
        to, at, rank = self.slots[s.operands[0]], *(self.value(o) for o in s.operands[1:])

        def run(w: Warp, m: np.ndarray | None) -> None:
            low = at(w) & np.uint32((1 << PEER_BITS) - 1)
            w.put(to, low | ((rank(w) + np.uint32(1)) << np.uint32(PEER_BITS)), m)

        return run

    # Who waits for whom

    def _bar(self, s: parse.Statement, parts: list[str]) -> Callable:
        if parts[0] == "red":
            to, source = self.slots[s.operands[0]], self.predicate(s.operands[-1])
            number, count = self.value(s.operands[1]), self.value(s.operands[2])
            any_of = parts[1] == "or"

            def reduce(w: Warp, m: np.ndarray | None) -> str | None:
                votes = source(w)
                vote = bool(votes.any() if any_of else votes.all())
                return w.group.reduce(w, int(number(w)[0]), int(count(w)[0]), vote, any_of, to)

            return reduce
        number = self.value(s.operands[0])
        count = self.value(s.operands[1]) if len(s.operands) > 1 else None
        waits = parts[0] == "sync"

        def run(w: Warp, m: np.ndarray | None) -> str | None:
            threads = int(count(w)[0]) if count else w.group.num_threads()
            return w.group.meet(w, int(number(w)[0]), threads, waits)

        return run

    def _barrier(self, s: parse.Statement, parts: list[str]) -> Callable:
        if parts[0] != "cluster":
            return self._bar(s, parts)
        if parts[1] == "arrive":
            return lambda w, m: w.group.cluster.arrive(w)
        return lambda w, m: w.group.cluster.wait(w)

    # Warps

    def _shfl(self, s: parse.Statement, parts: list[str]) -> Callable:
        to, *also = self.targets(s.operands[0].replace("|", ","))
        value, by, limits = (self.value(o) for o in s.operands[1:4])
        mode = parts[1]

        def run(w: Warp, m: np.ndarray | None) -> None:
            lane = np.arange(LANES)
            b, c = by(w).astype(np.int64) & 31, limits(w).astype(np.int64)
            clamp, segment = c & 31, (c >> 8) & 31
            highest = (lane & segment) | (clamp & ~segment)
            lowest = lane & segment
            found = {"up": lane - b, "down": lane + b, "bfly": lane ^ b,
                     "idx": lowest | (b & ~segment)}[mode]  # fmt: skip
            inside = found >= highest if mode == "up" else found <= highest
            w.put(to, value(w)[np.where(inside, found, lane) % LANES], m)
            if also:
                w.put(also[0], inside, m)

        return run

    def _vote(self, s: parse.Statement, parts: list[str]) -> Callable:
        to, source = self.slots[s.operands[0]], self.predicate(s.operands[1])

        def run(w: Warp, m: np.ndarray | None) -> None:
            votes = source(w) & w.live
            if parts[1] == "ballot":
                bits = int(sum(1 << i for i in np.flatnonzero(votes)))
                w.put(to, np.full(LANES, bits, np.uint32), m)
            else:
                found = votes.any() if parts[1] == "any" else source(w)[w.live].all()
                w.put(to, np.full(LANES, found), m)

        return run

    def _redux(self, s: parse.Statement, parts: list[str]) -> Callable:
        to, value, kind = self.slots[s.operands[0]], self.value(s.operands[1]), parts[-1]
        how = {"add": np.sum, "max": np.max, "min": np.min, "or": np.bitwise_or.reduce,
               "and": np.bitwise_and.reduce, "xor": np.bitwise_xor.reduce}[parts[1]]  # fmt: skip
        number = kind.replace("b", "u") if kind[0] == "b" else kind

        def run(w: Warp, m: np.ndarray | None) -> None:
            found = how(typed(value(w), number)[w.live])
            w.put(to, np.full(LANES, found).astype(BITS[32]), m)

        return run

    def _ldmatrix(self, s: parse.Statement, parts: list[str]) -> Callable:
        slots, address = self.targets(s.operands[0]), self.address(s.operands[1], 32)
        turned = "trans" in parts

        def run(w: Warp, m: np.ndarray | None) -> None:
            at = address(w)
            asked = np.arange(LANES) < 8 * len(slots)
            rows = w.load("shared", at, 16, asked)
            for slot, found in zip(
                slots, tensor.load_matrices(rows, len(slots), turned=turned), strict=True
            ):
                w.put(slot, found, m)

        return run

    def _stmatrix(self, s: parse.Statement, parts: list[str]) -> Callable:
        address, values = self.address(s.operands[0], 32), self.values(s.operands[1], "u32")
        turned = "trans" in parts

        def run(w: Warp, m: np.ndarray | None) -> None:
            rows = tensor.rows_of_matrices([f(w) for f in values], turned=turned)
            raw = np.zeros((LANES, 16), np.uint8)
            raw[: len(rows)] = rows
            w.store("shared", address(w), raw, np.arange(LANES) < len(rows))

        return run

    def _mma(self, s: parse.Statement, parts: list[str]) -> Callable:
        kind = parts[-2]
        if "m16n8k16" not in parts or kind not in ("bf16", "f16"):
            raise NotImplementedError(s.op)
        slots = self.targets(s.operands[0])
        a, b, c = (self.values(o, "u32") for o in s.operands[1:4])

        def run(w: Warp, m: np.ndarray | None) -> None:
            given = [[f(w) for f in part] for part in (a, b, c)]
            for slot, found in zip(slots, tensor.multiply(*given, kind), strict=True):
                w.put(slot, found, m)

        return run

    def _wgmma(self, s: parse.Statement, parts: list[str]) -> Callable:
        if parts[0] == "wait_group":
            keep = int(s.operands[0])
            return lambda w, m: w.settle(keep)
        count, depth, kind, of_right = tensor.WGMMA.match(s.op).groups()
        slots = self.targets(s.operands[0])
        in_registers = s.operands[1].startswith("{")
        left = (
            self.values(s.operands[1], "u32") if in_registers else self.value(s.operands[1], "u64")
        )
        right, adds = self.value(s.operands[2], "u64"), self.predicate(s.operands[3])
        num_bytes = int(depth) * (2 if kind == "bf16" else 1)

        def run(w: Warp, m: np.ndarray | None) -> None:
            shared = w.group.shared
            at = tensor.rows_described(int(right(w)[0]), np.arange(int(count)), num_bytes)
            read = [at]
            if in_registers:
                a = tensor.left_of([f(w) for f in left], kind)
            else:
                rows = 16 * (w.index % 4) + np.arange(16)
                of_left = tensor.rows_described(int(left(w)[0]), rows, num_bytes)
                read.append(of_left)
                a = tensor.numbers_at(shared, of_left, kind)
            sums = tensor.sums_from([w.r[slot] for slot in slots])
            if not adds(w)[0]:
                sums = np.zeros_like(sums)
            found = tensor.product(a, tensor.numbers_at(shared, at, of_right), sums)
            for slot, values in zip(slots, tensor.registers_from(found), strict=True):
                w.put(slot, values, m)
            w.products[-1] += [(places, shared[places].copy()) for places in read]

        return run

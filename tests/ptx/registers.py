"""Instructions that change registers and nothing else, alone and in straight runs.

A run that warps come by often becomes one Python function, for all lanes of a warp at once: what
types its operands and results have is found out once, not each time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tests.ptx.operands import Operands
from tests.ptx.scalar import BITS, LANES, TYPES, typed

if TYPE_CHECKING:
    from tests.ptx.warp import Warp

LONGEST = 128
"""Instructions of a run: others take turns in between."""
INFIX = {
    operator.add: "+", operator.sub: "-", operator.mul: "*",
    operator.and_: "&", operator.or_: "|", operator.xor: "^",
    np.bitwise_and: "&", np.bitwise_or: "|", np.bitwise_xor: "^",
}  # fmt: skip


def each(found: np.ndarray | tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Returns an array for each register."""
    return found if isinstance(found, tuple) else (found,)


class OnRegisters:
    """An instruction whose results are a function of registers.

    Args:
        names: has the registers.
        targets: the registers written, -1 for none; `how` returns an array for the only one, or
            one for each.
        how: the function, of arrays of the types in `kinds`.
        operands: their texts.
        kinds: types as PTX has them, "pred" for predicates.
    """

    def __init__(
        self,
        names: Operands,
        targets: Sequence[int],
        how: Callable,
        operands: Sequence[str],
        kinds: Sequence[str],
    ):
        self.targets, self.how, self.operands, self.kinds = targets, how, operands, kinds
        self.sources = [
            names.predicate(o) if k == "pred" else names.value(o, k)
            for o, k in zip(operands, kinds, strict=True)
        ]

    def __call__(self, w: Warp, m: np.ndarray | None) -> None:
        given = [typed(f(w), k) for f, k in zip(self.sources, self.kinds, strict=True)]
        found = self.how(*given)
        for slot, values in zip(self.targets, each(found), strict=True):
            if slot >= 0:
                w.put(slot, values, m)


class Straight:
    """Writes the function of a run, for all lanes of a warp or for some."""

    def __init__(self, names: Operands, widths: list[int], *, partial: bool):
        self.names, self.widths, self.partial = names, widths, partial
        self.lines: list[str] = []
        self.given = {"typed": typed, "where": np.where, "pred": np.bool_}
        self.given |= {kind: number or bits for kind, (_, bits, number) in TYPES.items()}

    def name(self, thing: object) -> str:
        """Names what the function uses."""
        name = f"x{len(self.given)}"
        self.given[name] = thing
        return name

    def add(self, one: OnRegisters) -> None:
        """Adds an instruction."""
        texts = [self.operand(o, k) for o, k in zip(one.operands, one.kinds, strict=True)]
        if one.how in INFIX:
            value = f" {INFIX[one.how]} ".join(texts)
        else:
            value = f"{self.name(one.how)}({', '.join(texts)})"
        with np.errstate(all="ignore"):
            trial = each(one.how(*(np.zeros(LANES, self.given[k]) for k in one.kinds)))
        parts = [f"({value})"]
        if len(one.targets) > 1:
            self.lines.append(f"found = {value}")
            parts = [f"found[{i}]" for i in range(len(one.targets))]
        for slot, part, values in zip(one.targets, parts, trial, strict=True):
            if slot >= 0:
                new = self.result(part, values.dtype, slot)
                new = f"where(m, {new}, r[{slot}])" if self.partial else new
                self.lines.append(f"r[{slot}] = {new}")

    def operand(self, text: str, kind: str) -> str:
        """Returns what an operand is in the function."""
        bits = kind.lstrip("usf")
        name = text.lstrip("!")
        if name not in self.names.slots:
            if text.startswith("%"):
                return f"typed(w.special({text!r}), {kind!r})"
            value = self.names.predicate(text) if kind == "pred" else self.names.value(text, kind)
            return self.name(typed(value(None), kind))
        slot = self.names.slots[name]
        if kind == "pred":
            return f"~r[{slot}]" if text.startswith("!") else f"r[{slot}]"
        found = f"r[{slot}]"
        if self.widths[slot] != int(bits):
            found += f".astype(u{bits})"
        return found if kind[0] == "u" else f"{found}.view({kind})"

    def result(self, value: str, kind: np.dtype, slot: int) -> str:
        """Returns a value as a register has it."""
        wanted = "pred" if self.widths[slot] == 1 else f"u{self.widths[slot]}"
        bits = 8 * kind.itemsize
        if kind.kind in "if" and bits > 8:
            value, kind = f"{value}.view(u{bits})", np.dtype(BITS[bits])
        return value if kind == np.dtype(self.given[wanted]) else f"{value}.astype({wanted})"

    def function(self) -> Callable[[Warp, np.ndarray | None], None]:
        """Returns the function."""
        text = "def run(w, m):\n    r = w.r\n" + "".join(f"    {line}\n" for line in self.lines)
        exec(compile(text, "<a run of instructions>", "exec"), self.given)
        return self.given["run"]

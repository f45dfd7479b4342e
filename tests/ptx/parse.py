"""PTX text to functions: statements with names resolved, calls inlined, scopes renamed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

BRACE = re.compile(r"[{}]")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
TOKEN = re.compile(
    r"\s*(?:(?P<label>[\w$.%#]+):(?!:)|(?P<open>\{)|(?P<close>\})|(?P<statement>[^;{}]*(?:\{[^}]*\}[^;{}]*)*;))"
)
NAME = re.compile(r"[%$A-Za-z_][\w$]*(?:\.[xyz])?")
DECLARED = re.compile(r"\.reg\s+\.(\w+)\s+(.*);", re.S)
SPACE = re.compile(
    r"\.(local|shared|param)\s+(?:\.align\s+(\d+)\s+)?\.(b8|b16|b32|b64)\s+([\w$]+)(?:\[(\d+)\])?\s*;"
)
PARAM = re.compile(
    r"\.param\s+\.?(?:align\s+(\d+)\s+)?\.(\w+)((?:\s+\.\w+)*(?:\s+\.?\d+)?)\s+([\w$]+)(?:\[(\d+)\])?"
)
PARTS = re.compile(r",(?![^\[]*\]|[^{]*\}|[^(]*\))")
WORD = re.compile(r"[%$A-Za-z_][\w$#@]*")
WIDTHS = {"pred": 1, "b16": 16, "b32": 32, "b64": 64, "b128": 128,
          "u16": 16, "u32": 32, "u64": 64, "s32": 32, "s64": 64, "f32": 32, "f64": 64}  # fmt: skip


@dataclass(frozen=True)
class Statement:
    """An instruction: its predicate, its name and the text of its operands."""

    op: str
    operands: tuple[str, ...]
    predicate: str = ""
    negated: bool = False
    text: str = ""


@dataclass
class Function:
    """A kernel, or a function that is inlined."""

    name: str
    params: list[tuple[str, int]]
    """Names and bytes."""
    result: list[tuple[str, int]] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: dict[str, int] = field(default_factory=dict)
    """Bits of each, 1 for predicates."""
    spaces: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """Variables: the space, bytes and alignment of each."""


def split_operands(text: str) -> tuple[str, ...]:
    """Splits at commas that are in no brackets."""
    parts = [part.strip() for part in PARTS.split(text)]
    return tuple(parts if parts[-1] else parts[:-1])


def statement_of(text: str) -> Statement:
    """Reads one instruction without its semicolon."""
    text = " ".join(text.split())
    predicate, negated, rest = "", False, text
    if text.startswith("@"):
        guard, rest = text[1:].split(None, 1)
        negated = guard.startswith("!")
        predicate = guard.lstrip("!")
    op, _, operands = rest.partition(" ")
    return Statement(op, split_operands(operands), predicate, negated, text)


def params_of(text: str) -> list[tuple[str, int]]:
    """Reads a list of parameters."""
    found = []
    for part in split_operands(text):
        words = part.replace("[", " [").split()
        size = 1
        if words[-1].startswith("["):
            size = int(words[-1][1:-1])
            words = words[:-1]
        kinds = [w[1:] for w in words if w.startswith(".") and w[1:] in {*WIDTHS, "b8"}]
        found.append((words[-1], size * (1 if kinds[0] == "b8" else WIDTHS[kinds[0]] // 8)))
    return found


class Body:
    """Reads the statements of a function."""

    def __init__(self, function: Function):
        self.function, self.scopes, self.count = function, [{}], 0

    def resolve(self, name: str) -> str:
        """Returns what a name stands for here."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return name

    def declare(self, name: str) -> str:
        """Makes a name of this scope."""
        unique = f"{name}#{self.count}" if len(self.scopes) > 2 else name
        self.scopes[-1][name] = unique
        return unique

    def read(self, text: str) -> None:
        """Reads everything between the outer braces, those included."""
        at = 0
        text = text.strip()
        while at < len(text):
            found = TOKEN.match(text, at)
            if not found:
                if text[at:].strip():
                    raise ValueError(f"not understood: {text[at : at + 80]!r}")
                return
            at = found.end()
            if found["open"]:
                self.count += 1
                # Labels of a scope may be used before they are seen.
                self.scopes.append({})
                end = self._end(text, at)
                for label in re.findall(r"(?<![\w$:])([A-Za-z_]\w*):(?!:)", text[at:end]):
                    if len(self.scopes) > 2:
                        self.declare(label)
            elif found["close"]:
                self.scopes.pop()
            elif found["label"]:
                self.function.labels[self.resolve(found["label"])] = len(self.function.statements)
            else:
                self.statement(found["statement"].strip())

    @staticmethod
    def _end(text: str, at: int) -> int:
        depth = 1
        for brace in BRACE.finditer(text, at):
            depth += 1 if brace[0] == "{" else -1
            if not depth:
                return brace.end()
        raise ValueError("a brace is not closed")

    def statement(self, text: str) -> None:
        """Reads a declaration or an instruction."""
        if not text.startswith("."):
            if any(self.scopes[2:]):
                text = NAME.sub(lambda name: self.resolve(name[0]), text)
            if text != ";":
                self.function.statements.append(statement_of(text[:-1]))
        elif found := DECLARED.match(text):
            width = WIDTHS[found[1]]
            for name in map(str.strip, found[2].split(",")):
                if many := re.fullmatch(r"(.*)<(\d+)>", name):
                    for i in range(int(many[2])):
                        self.function.registers[f"{many[1]}{i}"] = width
                else:
                    self.function.registers[self.declare(name)] = width
        elif found := SPACE.match(text):
            size = int(found[5] or 1) * int(found[3][1:]) // 8
            name = self.declare(found[4])
            self.function.spaces[name] = found[1], size, int(found[2] or 8)
        elif not text.startswith((".pragma", ".loc", ".file")):
            raise ValueError(f"not understood: {text!r}")


def functions_of(text: str) -> tuple[dict[str, Function], dict[str, bytes]]:
    """Returns the functions of a module, and its constants."""
    text = COMMENT.sub(" ", text)
    found = {}
    constants = {}
    for name, size, values in re.findall(
        r"\.(?:global|const)\s+\.align\s+\d+\s+\.b8\s+([\w$]+)\[(\d+)\]\s*=\s*\{([^}]*)\}", text
    ):
        data = bytes(int(v, 0) for v in values.replace(",", " ").split())
        constants[name] = data.ljust(int(size), b"\0")
    head = re.compile(
        r"\.(entry|func)\s*(?:\(([^)]*)\))?\s*([\w$]+)\s*\(([^)]*)\)\s*((?:\.\w+[^{;]*)?)([{;])",
        re.S,
    )
    for match in head.finditer(text):
        if match[6] == ";":
            continue
        function = Function(match[3], params_of(match[4]), params_of(match[2] or ""))
        end = Body._end(text, match.end())
        Body(function).read(text[match.end() - 1 : end])
        found[function.name] = function
    return found, constants


def renamed(text: str, names: dict[str, str]) -> str:
    """Returns the text of an operand with other names."""
    return WORD.sub(lambda found: names.get(found[0], found[0]), text)


def inline(function: Function, others: dict[str, Function]) -> Function:
    """Returns a function with the bodies of those that it calls in their place."""
    if not any(s.op.startswith("call") for s in function.statements):
        return function
    flat = Function(function.name, function.params, function.result)
    flat.registers, flat.spaces = dict(function.registers), dict(function.spaces)
    moved, count = {}, 0
    for index, statement in enumerate(function.statements):
        moved[index] = len(flat.statements)
        if not statement.op.startswith("call"):
            flat.statements.append(statement)
            continue
        count += 1
        operands = list(statement.operands)
        results = split_operands(operands.pop(0)[1:-1]) if operands[0].startswith("(") else ()
        callee = inline(others[operands[0]], others)
        given = split_operands(operands[1][1:-1]) if len(operands) > 1 else ()
        names = dict(zip((n for n, _ in callee.params), given, strict=True))
        names |= dict(zip((n for n, _ in callee.result), results, strict=True))
        for name in (*callee.registers, *callee.labels, *callee.spaces):
            names[name] = f"{name}@{count}"
        end = f"$end@{count}"
        flat.registers |= {names[n]: bits for n, bits in callee.registers.items()}
        flat.spaces |= {names[n]: what for n, what in callee.spaces.items()}
        start = len(flat.statements)

        for inner in callee.statements:
            if inner.op.startswith("ret"):
                guard = renamed(inner.predicate, names)
                flat.statements.append(Statement("bra", (end,), guard, inner.negated, "ret"))
            else:
                flat.statements.append(
                    replace(
                        inner,
                        operands=tuple(renamed(o, names) for o in inner.operands),
                        predicate=renamed(inner.predicate, names) if inner.predicate else "",
                    )
                )
        for label, at in callee.labels.items():
            flat.labels[names[label]] = start + at
        flat.labels[end] = len(flat.statements)
    moved[len(function.statements)] = len(flat.statements)
    flat.labels |= {label: moved[at] for label, at in function.labels.items()}
    return flat

"""Parses gfx950 assembly text, as LLVM prints it, into a `Kernel`.

One instruction line becomes one `Instruction`:

    v_add_u32_sdwa v3, -v1, s[4:5] dst_sel:WORD_1   ; comment
    `-------------' `-----------'  `------------'
      op = name+encoding  operands      mods

Registers are numbered as the hardware's operand field numbers them: s0..s101, then
flat_scratch 102, xnack_mask 104, vcc 106, m0 124 and exec 126. The kernel descriptor
(`.amdhsa_*` directives) and the metadata that follows the code give the launch contract.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field

SPECIAL_SGPRS = {
    "flat_scratch": (102, 2),
    "flat_scratch_lo": (102, 1),
    "flat_scratch_hi": (103, 1),
    "xnack_mask": (104, 2),
    "vcc": (106, 2),
    "vcc_lo": (106, 1),
    "vcc_hi": (107, 1),
    "m0": (124, 1),
    "exec": (126, 2),
    "exec_lo": (126, 1),
    "exec_hi": (127, 1),
}
VCC, M0, EXEC = 106, 124, 126
WITHOUT_OPERANDS = ("buffer_inv", "buffer_wbl2")
ENCODINGS = ("e64_dpp", "e32", "e64", "sdwa", "dpp")

LIMITS = {
    "group_segment_fixed_size": (0, 160 << 10),
    "private_segment_fixed_size": (0, 128 << 10),
    "kernarg_size": (0, 64 << 10),
    "next_free_vgpr": (1, 512),
    "next_free_sgpr": (0, 112),
    "accum_offset": (4, 512),
    "user_sgpr_count": (0, 32),
    "system_vgpr_workitem_id": (0, 2),
    "user_sgpr_kernarg_preload_length": (0, 16),
    "user_sgpr_kernarg_preload_offset": (0, 511),
}
"""What a descriptor may say, in the words of assembly; bytes, registers or dwords."""
NEEDED = "next_free_vgpr", "next_free_sgpr", "accum_offset"

_REG = re.compile(r"([vas])(?:(\d+)|\[(\d+):(\d+)\])$")
_OP = re.compile(r"[a-zA-Z]\w*")
_INT = re.compile(r"-?(0x[0-9a-fA-F]+|\d+)$")
_FLOAT = re.compile(r"-?\d+\.\d+(e[-+]?\d+)?$")
_COMMENT = re.compile(r"(;|//).*$")
_LABEL = re.compile(r"([.\w$]+):")
_MODIFIER = re.compile(r"([a-z_0-9]+)(?::(\[[^\]]*\]|\S+))?$")
_COUNTER = re.compile(r"(\w+)\((\w+)\)")


class AsmError(ValueError):
    """A kernel's file that this package does not understand."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand: a register range, a constant, or a keyword such as `off`."""

    kind: str
    """"v", "a" or "s" for registers, "int", "float", or "word" for anything else."""
    index: int = 0
    """Number of the first register."""
    count: int = 1
    """Number of 32-bit registers named."""
    value: int | float | str = 0
    neg: bool = False
    abs: bool = False
    sext: bool = False

    @property
    def is_vector(self) -> bool:
        """Whether this is a VGPR or an AGPR."""
        return self.kind in "va"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One parsed instruction."""

    pc: int
    """Index in `Kernel.instructions`."""
    line: int
    """Line number in the text, from 1."""
    text: str
    op: str
    """The mnemonic as printed."""
    name: str
    """The mnemonic without its encoding suffix."""
    encoding: str
    operands: tuple[Operand, ...]
    mods: dict[str, object]
    target: int | None = None
    """Index of the instruction a branch goes to."""

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class KernelArg:
    """One entry of the kernel argument segment."""

    offset: int
    size: int
    kind: str
    name: str = ""


@dataclass
class Kernel:
    """A kernel's code and its launch contract."""

    name: str
    instructions: list[Instruction]
    text: str
    descriptor: dict[str, int] = field(default_factory=dict)
    args: list[KernelArg] = field(default_factory=list)
    metadata: dict[str, int] = field(default_factory=dict)
    preload_entry: int = 0
    """First instruction when the hardware preloads arguments: it skips the fallback loads."""
    decoded: list = field(default_factory=list, repr=False, compare=False)
    """Cache of `machine.decode.decode_kernel`, one entry per instruction or None."""

    def __post_init__(self) -> None:
        for key in NEEDED:
            if key not in self.descriptor:
                raise AsmError(f"kernel {self.name!r} has no number for .amdhsa_{key}")
        for key, (low, high) in LIMITS.items():
            if not low <= self.descriptor.get(key, low) <= high:
                raise AsmError(
                    f"kernel {self.name!r}: got {self.descriptor[key]} for .amdhsa_{key}, expected "
                    f"a number from {low} to {high}"
                )
        for arg in self.args:
            if not 0 <= arg.offset <= arg.offset + arg.size <= LIMITS["kernarg_size"][1]:
                raise AsmError(f"kernel {self.name!r}: got {arg}, expected bytes of its arguments")

    def replaced(self, pc: int, text: str) -> Kernel:
        """Returns a copy in which instruction `pc` reads `text`, which must not branch."""
        instructions, decoded = list(self.instructions), list(self.decoded)
        instructions[pc] = parse_instruction(text, pc, instructions[pc].line)
        if decoded:
            decoded[pc] = None
        return dataclasses.replace(self, instructions=instructions, decoded=decoded)

    @property
    def lds_bytes(self) -> int:
        """LDS that the kernel allocates statically."""
        return self.descriptor.get("group_segment_fixed_size", 0)

    @property
    def scratch_bytes(self) -> int:
        """Private memory per lane."""
        return self.descriptor.get("private_segment_fixed_size", 0)

    @property
    def kernarg_bytes(self) -> int:
        """Size of the kernel argument segment."""
        return self.descriptor.get("kernarg_size", 0)

    @property
    def accum_offset(self) -> int:
        """Number of VGPRs before the first AGPR of the unified register file."""
        return self.descriptor["accum_offset"]

    @property
    def agprs(self) -> int:
        """Accumulation registers a lane uses."""
        reserved = max(0, self.descriptor["next_free_vgpr"] - self.accum_offset)
        return self.metadata.get("agpr_count", reserved)

    @property
    def vgprs(self) -> int:
        """Architectural vector registers a lane uses."""
        return min(self.descriptor["next_free_vgpr"], self.accum_offset)

    @property
    def unified_registers(self) -> int:
        """Vector registers of both kinds that a lane occupies; what occupancy depends on."""
        return self.descriptor["next_free_vgpr"]

    @property
    def sgprs(self) -> int:
        """Scalar registers a wave uses, without vcc and the like."""
        return self.descriptor["next_free_sgpr"]

    @property
    def user_sgprs(self) -> int:
        """Scalar registers filled before the workgroup id."""
        return self.descriptor.get("user_sgpr_count", 0)

    @property
    def preload_dwords(self) -> int:
        """Dwords of kernel arguments that the hardware loads before the first instruction."""
        return self.descriptor.get("user_sgpr_kernarg_preload_length", 0)

    @property
    def preload_offset_dwords(self) -> int:
        """Offset of the preloaded arguments in the segment, in dwords."""
        return self.descriptor.get("user_sgpr_kernarg_preload_offset", 0)

    @property
    def spills(self) -> int:
        """Vector and scalar registers that the compiler spilled."""
        return self.metadata.get("vgpr_spill_count", 0) + self.metadata.get("sgpr_spill_count", 0)


def parse_operand(text: str, line: int = 0) -> Operand:
    """Parses one operand with its `-`, `|x|`, `neg()`, `abs()` and `sext()` wrappers."""
    body, flags = text.strip(), {}
    if _INT.match(body):
        return Operand("int", value=int(body, 0))
    if _FLOAT.match(body):
        return Operand("float", value=float(body))
    for prefix, flag in (("neg(", "neg"), ("abs(", "abs"), ("sext(", "sext"), ("lit(", None)):
        if body.startswith(prefix) and body.endswith(")"):
            body = body[len(prefix) : -1]
            if flag:
                flags[flag] = True
    if body.startswith("-"):
        body, flags["neg"] = body[1:], True
    if body.startswith("|") and body.endswith("|"):
        body, flags["abs"] = body[1:-1], True
    if body in SPECIAL_SGPRS:
        index, count = SPECIAL_SGPRS[body]
        return Operand("s", index, count, **flags)
    if match := _REG.match(body):
        kind, single, first, last = match.groups()
        low = int(single or first)
        high = int(last or low)
        if high < low:
            raise AsmError(f"line {line}: register range {text!r} ends before it begins")
        return Operand(kind, low, high - low + 1, **flags)
    if _INT.match(body):
        return Operand("int", value=int(body, 0), **flags)
    if _FLOAT.match(body):
        return Operand("float", value=float(body), **flags)
    if re.match(r"[\w.$@+\-()]+$", body) and not flags:
        return Operand("word", value=body)
    raise AsmError(f"line {line}: cannot read operand {text!r}")


def _split_operands(text: str) -> list[str]:
    """Splits at the commas outside brackets."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += (char in "[(") - (char in "])")
        if char == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += char
    return [*parts, current] if current.strip() else parts


def _parse_modifier(token: str, line: int) -> tuple[str, object]:
    match = _MODIFIER.match(token)
    if not match:
        raise AsmError(f"line {line}: cannot read modifier {token!r}")
    name, value = match.groups()
    if value is None:
        return name, True
    if value.startswith("["):
        return name, tuple(int(x, 0) for x in value[1:-1].split(","))
    return name, int(value, 0) if _INT.match(value) else value


def parse_instruction(text: str, pc: int = 0, line: int = 0) -> Instruction:
    """Parses one instruction without resolving its branch target.

    Raises:
        AsmError: with the line, if it cannot be read.
    """
    try:
        return _parse_instruction(text, pc, line)
    except AsmError:
        raise
    except ValueError as error:  # Of a number.
        raise AsmError(f"line {line}: cannot read {text!r}: {error}") from None


def _parse_instruction(text: str, pc: int, line: int) -> Instruction:
    op, _, rest = text.strip().partition(" ")
    if not _OP.fullmatch(op):
        raise AsmError(f"line {line}: cannot read {text!r}")
    rest = rest.strip()
    encoding = next((e for e in ENCODINGS if op.endswith("_" + e)), "")
    name = op[: -len(encoding) - 1] if encoding else op
    operands: list[Operand] = []
    mods: dict[str, object] = {}
    if name == "s_waitcnt" and "(" in rest:
        for counter in re.split(r"[\s&,]+", rest):
            match = _COUNTER.fullmatch(counter)
            if not match or match[1] in mods:
                raise AsmError(f"line {line}: cannot read {text!r}")
            mods[match[1]] = int(match[2], 0)
    elif name in WITHOUT_OPERANDS:
        mods.update(_parse_modifier(token, line) for token in rest.split())
    else:
        parts = _split_operands(rest)
        for position, part in enumerate(parts):
            head, *tail = part.split()
            operands.append(parse_operand(head, line))
            if tail and position != len(parts) - 1:
                raise AsmError(f"line {line}: cannot read {text!r}")
            mods.update(_parse_modifier(token, line) for token in tail)
    return Instruction(pc, line, text.strip(), op, name, encoding, tuple(operands), mods)


def _strip_comments(text: str) -> list[str]:
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)
    return [_COMMENT.sub("", line).rstrip() for line in text.split("\n")]


def _number(text: str) -> int | None:
    """Returns a number of a directive or of metadata, None if it is no number."""
    try:
        return int(text, 0)
    except ValueError:
        return None


def _parse_descriptors(lines: list[str]) -> dict[str, dict[str, int]]:
    """Reads every `.amdhsa_kernel` block."""
    kernels: dict[str, dict[str, int]] = {}
    current: dict[str, int] | None = None
    for number, line in enumerate(lines, 1):
        words = line.split(None, 1)
        if not words:
            continue
        if words[0] == ".amdhsa_kernel":
            if len(words) < 2:
                raise AsmError(f"line {number}: expected the name of the kernel, got {line!r}")
            current = kernels.setdefault(words[1].strip(), {})
        elif words[0] == ".end_amdhsa_kernel":
            current = None
        elif current is not None and words[0].startswith(".amdhsa_"):
            value = _number(words[-1].strip())
            if value is not None:
                current[words[0].removeprefix(".amdhsa_")] = value
    return kernels


def _argument(kernel: str, row: dict[str, str]) -> KernelArg:
    offset, size = (_number(row.get(key, "")) for key in ("offset", "size"))
    if offset is None or size is None or "value_kind" not in row:
        raise AsmError(
            f"kernel {kernel!r}: got {row} in the metadata, expected an argument with numbers for "
            "offset and size, and value_kind"
        )
    return KernelArg(offset, size, row["value_kind"], row.get("name", ""))


def _parse_metadata(lines: list[str]) -> dict[str, tuple[dict[str, int], list[KernelArg]]]:
    """Reads the kernels of the `.amdgpu_metadata` block: counts and argument table."""
    kernels: dict[str, tuple[dict[str, int], list[KernelArg]]] = {}
    counts: dict[str, int] = {}
    args: list[dict[str, str]] = []
    name, inside = "", False

    def finish() -> None:
        if name:
            kernels[name] = (dict(counts), [_argument(name, a) for a in args])

    for line in lines:
        if line.strip() == ".amdgpu_metadata":
            inside = True
        match = re.match(r"(\s*)(- )?\s*\.(\w+):\s*(.*)$", line)
        if not inside or not match:
            continue
        indent, dash, key, value = match.groups()
        value = value.strip().strip("'\"")
        if len(indent) <= 2 and dash:
            finish()
            counts, args, name = {}, [], ""
        if len(indent) > 4:
            if dash:
                args.append({})
            if args:
                args[-1][key] = value
        elif key == "name":
            name = value
        elif (number := _number(value)) is not None:
            counts[key] = number
    finish()
    return kernels


def _parse_code(lines: list[str], name: str) -> tuple[list[Instruction], dict[str, int]]:
    """Parses the instructions from the kernel's label up to the end of its function."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    inside = False
    for number, line in enumerate(lines, 1):
        body = line.strip()
        if match := _LABEL.match(body):
            inside = inside or match.group(1) == name
            if inside and match.group(1) in labels:
                raise AsmError(f"line {number}: label {match.group(1)!r} is there twice")
            if inside:
                labels[match.group(1)] = len(instructions)
            body = body[match.end() :].strip()
        if not inside or not body:
            continue
        if body.startswith(".Lfunc_end") or body.startswith(".section"):
            break
        if not body.startswith("."):
            instructions.append(parse_instruction(body, len(instructions), number))
    return instructions, labels


def _resolve_branches(instructions: list[Instruction], labels: dict[str, int]) -> None:
    for pc, ins in enumerate(instructions):
        if ins.name.startswith(("s_cbranch", "s_branch")):
            label = str(ins.operands[0].value) if ins.operands else ""
            if label not in labels:
                raise AsmError(f"{ins}: unknown label {label!r}")
            instructions[pc] = Instruction(
                ins.pc, ins.line, ins.text, ins.op, ins.name, "", (), ins.mods, labels[label]
            )


def choice_of(kernels, name: str | None) -> str:
    """Says why a file's kernels have none of this name, or without a name, no single one."""
    if not kernels:
        return "no kernel here: expected a code object, or text with an .amdhsa_kernel block"
    names = ", ".join(sorted(kernels))
    return f"no kernel {name!r}, got {names}" if name else f"several kernels, name one: {names}"


def parse(text: str, name: str | None = None) -> Kernel:
    """Parses assembly text and returns one kernel.

    Args:
        text: what `llc`, Mojo's `_compile_code` or Triton's `asm["amdgcn"]` produce.
        name: which kernel, when the text contains several.

    Raises:
        AsmError: if the text contains no such kernel or a line cannot be read.
    """
    lines = _strip_comments(text)
    descriptors = _parse_descriptors(lines)
    if name is None and len(descriptors) == 1:
        name = next(iter(descriptors))
    if name not in descriptors:
        raise AsmError(choice_of(descriptors, name))

    instructions, labels = _parse_code(lines, name)
    if not instructions:
        raise AsmError(f"kernel {name!r} has no instructions")
    _resolve_branches(instructions, labels)
    metadata, args = _parse_metadata(lines).get(name, ({}, []))
    kernel = Kernel(name, instructions, text, descriptors[name], args, metadata)
    if kernel.preload_dwords:
        first = next((i for i in instructions if i.name == "s_branch"), None)
        if first is not None and all(
            i.name.startswith(("s_load", "s_waitcnt")) for i in instructions[: first.pc]
        ):
            kernel.preload_entry = first.target
    return kernel

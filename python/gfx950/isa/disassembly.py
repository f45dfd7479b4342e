"""Machine code -> assembly text, by the LLDB that comes with Mojo.

    f.co[0x2c08] <+8>:  00 01 06 c0 00 00 00 00   s_load_dwordx2 s[4:5], s[0:1], 0x0
         address        bytes                     text

`load` writes the text that asm.py reads: descriptor, then instructions, each under a label of
its address, up to the last one that control flow can reach.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gfx950.isa.asm import AsmError, Kernel, KernelArg, choice_of, parse

if TYPE_CHECKING:
    from gfx950.isa.code_object import CodeObject

MAGIC = b"\x7fELF"
ATTEMPTS = 20
"""LLDB crashes in every third run, whatever it disassembles for gfx950."""
SECONDS = 120
_LINE = re.compile(r"\S*\[0x([0-9a-f]+)\] <\+\d+>:\s+((?:[0-9a-f]{2} )+)\s*(.*)$")
_BRANCH = re.compile(r"(s_c?branch\w*) (\d+)$")
_LAST = ("s_endpgm", "s_branch")


def load(path: str | Path, name: str | None = None) -> Kernel:
    """Returns a kernel of a file: a code object, or assembly text.

    Args:
        path: a `.co` or `.hsaco` file, or text as LLVM prints it.
        name: which kernel, when the file contains several.

    Raises:
        AsmError: if the file contains no such kernel or cannot be read.
    """
    content = Path(path).read_bytes()
    if content[:4] != MAGIC:
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise AsmError(f"{path} is neither a code object nor assembly text") from None
        return parse(text, name)
    try:
        from gfx950.isa.code_object import code_objects  # noqa: PLC0415 (text needs no library)
    except ModuleNotFoundError as error:
        raise AsmError(
            f"code objects are read by {error.name.partition('.')[0]}, which is not installed: "
            "pip install 'mx_kernels[gfx950]'"
        ) from None
    kernels = {code.name: code for code in code_objects(content)}
    if name is None and len(kernels) == 1:
        name = next(iter(kernels))
    if name not in kernels:
        raise AsmError(choice_of(kernels, name))
    return kernel_of(kernels[name])


def kernel_of(code: CodeObject) -> Kernel:
    """Returns what the simulator executes."""
    lines = [f".amdhsa_kernel {code.name}"]
    lines += [f".amdhsa_{key} {value}" for key, value in code.directives().items()]
    lines += [".end_amdhsa_kernel", f"{code.name}:"]
    lines += _reachable(disassemble(code))
    counts = {key: value for key, value in code.metadata.items() if isinstance(value, int)}
    args = [
        KernelArg(row[".offset"], row[".size"], row[".value_kind"], row.get(".name", ""))
        for row in code.metadata.get("args", [])
    ]
    return dataclasses.replace(parse("\n".join(lines), code.name), args=args, metadata=counts)


def disassemble(code: CodeObject) -> list[tuple[int, str]]:
    """Returns addresses and texts of a kernel's instructions.

    Raises:
        AsmError: if LLDB is not installed or cannot do it.
    """
    lldb = shutil.which("mojo-lldb", path=str(Path(sys.executable).parent))
    lldb = lldb or shutil.which("mojo-lldb")
    if lldb is None:
        raise AsmError("a code object is disassembled by mojo-lldb, which is not installed")
    count = len(code.code) // 4
    if not count:
        raise AsmError(f"kernel {code.name!r} has no instructions")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.co"
        file.write_bytes(code.image)
        listing = f"disassemble -b --force -X gfx950 -s {code.entry:#x} -c {count}"
        for _ in range(ATTEMPTS):
            try:
                done = subprocess.run(
                    [lldb, "-x", "-b", "-o", listing, str(file)], capture_output=True, check=False,
                    text=True, errors="replace", timeout=SECONDS, env={"TMPDIR": folder},
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise AsmError(f"LLDB has not disassembled {code.name} in {SECONDS} s") from None
            if done.returncode > 0:
                break
            found = [match for line in done.stdout.splitlines() if (match := _LINE.match(line))]
            if found and not done.returncode:
                end = code.entry + len(code.code)
                rows = [(int(m[1], 16), " ".join(m[3].split()) or m[2]) for m in found]
                return [row for row in rows if row[0] < end]
    raise AsmError(f"LLDB cannot disassemble {code.name}: {done.stderr.strip()[-500:]}")


def _reachable(listing: list[tuple[int, str]]) -> list[str]:
    """Returns lines with labels for branches, up to the last instruction that is reached.

    What control flow jumps over is padding or data, and reads as an end of the program.
    """
    index = {address: i for i, (address, _) in enumerate(listing)}
    texts, targets = [text for _, text in listing], {}
    for i, (address, text) in enumerate(listing):
        if branch := _BRANCH.fullmatch(text):
            words = int(branch[2]) - (int(branch[2]) >> 15 << 16)
            targets[i] = address + 4 + 4 * words
            texts[i] = f"{branch[1]} .L{targets[i]:x}"
    todo, seen = [0], set()
    while todo:
        i = todo.pop()
        while i < len(listing) and i not in seen:
            seen.add(i)
            if i in targets:
                if targets[i] not in index:
                    raise AsmError(f"{listing[i][1]} at {listing[i][0]:#x} leaves the kernel")
                todo.append(index[targets[i]])
            if listing[i][1].split()[0] in _LAST:
                break
            i += 1
    return [
        f".L{address:x}: {texts[i] if i in seen else _LAST[0]}"
        for i, (address, _) in enumerate(listing[: max(seen) + 1])
    ]

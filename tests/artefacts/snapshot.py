"""Says whether a change left the GPU code as it was: `python tests/artefacts/snapshot.py COMMIT`.

Every kernel of what the tests compile is brought into a form without names, and hashed; then the
kernels of a commit are compared with those of the working tree:

    PTX            entry, symbols, labels and virtual registers numbered as they appear
    gfx950 text    symbols and labels likewise; registers stay, for there they are the code
    code objects   the bytes of the kernel's instructions

A kernel whose text is the same under another name is equal. What the commit has and the working
tree lacks is printed, and the other way round; the exit code is 1 if there is any. Artefacts are
made where the cache lacks them, minutes each: arguments behind the commit name those that count,
by how they begin (`ptx/sm_90a`, `cdna4/`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PTX = re.compile(rb"\.version \d+\.\d+\s*\n\.target [^\0]*")
ENTRY = re.compile(r"\.entry\s+(\w+)")
COMMENT = re.compile(r"(?://|;)[^\n]*|/\*.*?\*/", re.DOTALL)
NAMED = {
    "ptx": re.compile(
        r"%[a-z]+\d+|\$\w+|\b[A-Za-z_]\w*_[0-9a-f]{6,}\w*|\b\w+_param_\d+\b|\bextern_ptr_\w+"
    ),
    "gfx950": re.compile(r"(?:\.L\w+|\b[A-Za-z_]\w*_[0-9a-f]{16}\b)(?:\$local)?"),
}
VIRTUAL = re.compile(r"%[a-z]+")
CODE_LINES = re.compile(
    r"^\s*(?!\.(?:file|loc|section|ident|type|size|p2align|globl)\b)\S.*$", re.MULTILINE
)


def canonical(text: str, kind: str, entry: str) -> str:
    """Returns a kernel's text without comments, with names numbered by first appearance."""
    numbers: dict[str, str] = {}
    counts: Counter[str] = Counter()

    def numbered(match: re.Match) -> str:
        name = match[0]
        if name not in numbers:
            kind_of = VIRTUAL.match(name)
            prefix = kind_of[0] if kind_of else "name"
            numbers[name] = f"{prefix}#{counts[prefix]}"
            counts[prefix] += 1
        return numbers[name]

    lines = CODE_LINES.findall(COMMENT.sub("", text))
    plain = "\n".join(" ".join(line.split()) for line in lines).replace(entry, "kernel")
    return NAMED[kind].sub(numbered, plain)


def digest(code: str | bytes) -> str:
    """Returns what stands for a kernel's code."""
    return hashlib.sha256(code.encode() if isinstance(code, str) else code).hexdigest()[:16]


def kernels_of_ptx(module: bytes) -> Iterator[tuple[str, str]]:
    """Yields the name and digest of each kernel whose PTX is in a shared library."""
    for found in PTX.finditer(module):
        text = found[0].decode("utf-8", "replace")
        entry = ENTRY.search(text)
        if entry:
            yield entry[1], digest(canonical(text, "ptx", entry[1]))


def kernels_of(name: str, path: Path) -> Iterator[tuple[str, str]]:
    """Yields the name and digest of each GPU kernel of an artefact."""
    from bench.simulated.catalogue import Catalogue  # noqa: PLC0415  of the checkout that is listed
    from tests.hip import code_object  # noqa: PLC0415

    if path.suffix != ".so":
        return
    if name.startswith("hip/"):
        for code in code_object.embedded_in(path):
            yield code.name, digest(code.code)
    elif name.startswith("ptx/"):
        yield from kernels_of_ptx(path.read_bytes())
    else:
        try:
            texts = Catalogue.load(path, path.stem).texts
        except AttributeError:
            print(f"{name} tells launches alone: not compared", file=sys.stderr)
            return
        for kernel, text in texts.items():
            yield kernel, digest(canonical(text, "gfx950", kernel))


def listed(prefixes: list[str]) -> dict[str, dict[str, str]]:
    """Returns the kernels of this checkout: names by digest, by artefact."""
    from tests import artefacts  # noqa: PLC0415  of the checkout that is listed

    found = {}
    for artefact in artefacts.ARTEFACTS:
        has_kernels = artefact.name.startswith(("ptx/", "hip/", "cdna4/", "bench/"))
        if has_kernels and artefact.name.startswith(tuple(prefixes) or ""):
            kernels = kernels_of(artefact.name, artefacts.made(artefact))
            found[artefact.name] = {code: name for name, code in kernels}
    return found


def list_checkout(root: Path, prefixes: list[str]) -> dict[str, dict[str, str]]:
    """Returns what `listed` says in another process, of another checkout."""
    path = os.pathsep.join(str(root / folder) for folder in ("python", "tests", "."))
    done = subprocess.run(
        [sys.executable, __file__, "--list", *prefixes],
        env={**os.environ, "PYTHONPATH": path},
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def difference(before: dict, after: dict) -> list[str]:
    """Returns a line for each kernel that one side alone has."""
    lines = []
    for artefact in sorted({*before, *after}):
        old, new = before.get(artefact, {}), after.get(artefact, {})
        lines += [f"- {artefact} {old[code]}" for code in sorted({*old} - {*new}, key=old.get)]
        lines += [f"+ {artefact} {new[code]}" for code in sorted({*new} - {*old}, key=new.get)]
    return lines


def main() -> None:
    """Compares a commit with the working tree, or lists this checkout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print what this checkout has, as JSON")
    parser.add_argument("names", nargs="*", metavar="COMMIT or ARTEFACT")
    options = parser.parse_args()
    if options.list:
        print(json.dumps(listed(options.names)))
        return
    if not options.names:
        parser.error("a commit is wanted")
    commit, *prefixes = options.names
    root = Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "before"
        git = ["git", "-C", str(root), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", other, commit], check=True)
        try:
            before = list_checkout(other, prefixes)
        finally:
            subprocess.run([*git, "remove", "--force", other], check=True)
    after = list_checkout(root, prefixes)
    lines = difference(before, after)
    equal = sum(len({*before.get(name, {})} & {*kernels}) for name, kernels in after.items())
    print(*lines, f"{equal} kernels are equal, {len(lines)} are not", sep="\n")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()

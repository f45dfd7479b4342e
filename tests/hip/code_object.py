"""Code objects for gfx950: what a HIP runtime reads in them, and the kernel for the simulator.

A code object is an ELF file with one kernel: its machine code, a descriptor of 64 bytes and a
note with its metadata. The simulator reads assembly, so the machine code is disassembled by the
LLDB that comes with Mojo, and descriptor and metadata become what the text would say.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import gfx950
from gfx950.isa.asm import KernelArg

ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
NOTE = struct.Struct("<III")
DESCRIPTOR = struct.Struct("<III4xq20xIIIHH4x")
SHARED_OBJECT, AMDGPU, HSA_ABI, GFX950 = 3, 224, 64, 0x4F
NOTES, DYNAMIC_SYMBOLS = 7, 11

PROPERTIES = (
    "private_segment_buffer",
    "dispatch_ptr",
    "queue_ptr",
    "kernarg_segment_ptr",
    "dispatch_id",
    "flat_scratch_init",
    "private_segment_size",
)
"""User registers that a kernel asks for, by bit."""
LINE = re.compile(r".*<\+(\d+)>:\s+(\S.*)$")
BRANCH = re.compile(r"(s_c?branch\w*) (\d+)$")
ATTEMPTS = 20
"""LLDB crashes in every third run, whatever it disassembles for gfx950."""


@dataclass(frozen=True)
class CodeObject:
    """A file with one kernel for gfx950."""

    image: bytes
    metadata: dict
    """The kernel's entry in the metadata note, keys without their dot."""
    descriptor: bytes
    code: bytes

    @property
    def name(self) -> str:
        return self.metadata["name"]

    @property
    def arguments(self) -> list[dict]:
        """What a caller passes; the runtime itself fills hidden ones."""
        rows = self.metadata["args"]
        return [row for row in rows if not row[".value_kind"].startswith("hidden_")]

    @classmethod
    def at(cls, address: int) -> CodeObject:
        """Reads the file that begins at an address; its section headers are its end."""
        header = ELF_HEADER.unpack(ctypes.string_at(address, ELF_HEADER.size))
        return cls.parse(ctypes.string_at(address, header[6] + header[11] * header[12]))

    @classmethod
    def parse(cls, image: bytes) -> CodeObject:
        """Takes a file apart.

        Raises:
            ValueError: if it is not for gfx950.
        """
        header = ELF_HEADER.unpack_from(image)
        if (header[0][:4], header[0][7], *header[1:3]) != (
            b"\x7fELF",
            HSA_ABI,
            SHARED_OBJECT,
            AMDGPU,
        ):
            raise ValueError("not a code object")
        if header[7] & 0xFF != GFX950:
            raise ValueError(f"got machine {header[7] & 0xFF:#x}, expected gfx950")
        sections = [
            SECTION.unpack_from(image, header[6] + i * SECTION.size) for i in range(header[12])
        ]
        [metadata] = _metadata(image, sections)["amdhsa.kernels"]
        metadata = {key.removeprefix("."): value for key, value in metadata.items()}
        symbols = dict(_symbols(image, sections))
        return cls(image, metadata, symbols[metadata["symbol"]], symbols[metadata["name"]])

    def kernel(self) -> gfx950.Kernel:
        """Returns what the simulator executes: the file's own machine code."""
        lines = [f".amdhsa_kernel {self.name}"]
        lines += [f".amdhsa_{key} {value}" for key, value in self._directives().items()]
        lines += [".end_amdhsa_kernel", f"{self.name}:"]
        for offset, text in disassemble(self):
            branch = BRANCH.fullmatch(text)
            if branch:
                words = int(branch[2]) - (int(branch[2]) >> 15 << 16)
                text = f"{branch[1]} .L{offset + 4 + 4 * words}"  # noqa: PLW2901
            lines.append(f".L{offset}: {text}")
        counts = {key: value for key, value in self.metadata.items() if isinstance(value, int)}
        table = [
            (row[".offset"], row[".size"], row[".value_kind"]) for row in self.metadata["args"]
        ]
        return dataclasses.replace(
            gfx950.parse("\n".join(lines)),
            args=[KernelArg(*row) for row in table],
            metadata=counts,
        )

    def _directives(self) -> dict[str, int]:
        """Returns the descriptor in the words of assembly."""
        lds, scratch, arguments, _, accumulation, vectors, registers, properties, preload = (
            DESCRIPTOR.unpack(self.descriptor)
        )
        found = {
            "group_segment_fixed_size": lds,
            "private_segment_fixed_size": scratch,
            "kernarg_size": arguments,
            "accum_offset": 4 * (accumulation % 64 + 1),
            "next_free_vgpr": 8 * (vectors % 64 + 1),
            "next_free_sgpr": self.metadata["sgpr_count"],
            "user_sgpr_count": registers >> 1 & 31,
            "system_vgpr_workitem_id": registers >> 11 & 3,
            "user_sgpr_kernarg_preload_length": preload & 127,
            "user_sgpr_kernarg_preload_offset": preload >> 7,
        }
        for bit, axis in enumerate("xyz", 7):
            found[f"system_sgpr_workgroup_id_{axis}"] = registers >> bit & 1
        for bit, name in enumerate(PROPERTIES):
            found[f"user_sgpr_{name}"] = properties >> bit & 1
        return found


def disassemble(code: CodeObject) -> list[tuple[int, str]]:
    """Returns offsets and texts of a kernel's instructions.

    Raises:
        RuntimeError: if LLDB cannot do it.
    """
    lldb = Path(sys.executable).with_name("mojo-lldb")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.hsaco"
        file.write_bytes(code.image)
        command = [lldb, "-x", "-b", "-o", f"disassemble --force -X gfx950 -n {code.name}", file]
        for _ in range(ATTEMPTS):
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env={"TMPDIR": folder}
            )
            if done.returncode == 0:
                found = [LINE.fullmatch(line) for line in done.stdout.splitlines()]
                return [(int(m[1]), " ".join(m[2].split())) for m in found if m]
    raise RuntimeError(f"LLDB crashed {ATTEMPTS} times:\n{done.stderr[-2000:]}")


def embedded_in(module: Path) -> list[CodeObject]:
    """Returns the code objects that are part of a shared library."""
    content, found = module.read_bytes(), []
    for match in re.finditer(rb"\x7fELF\x02\x01\x01" + bytes([HSA_ABI]), content):
        header = ELF_HEADER.unpack_from(content, match.start())
        size = header[6] + header[11] * header[12]
        found.append(CodeObject.parse(content[match.start() :][:size]))
    return found


def _metadata(image: bytes, sections: list[tuple]) -> dict:
    """Returns the content of the note."""
    [offset] = [section[4] for section in sections if section[1] == NOTES]
    name_bytes, size, _ = NOTE.unpack_from(image, offset)
    start = offset + NOTE.size + (name_bytes + 3) // 4 * 4
    import msgspec  # noqa: PLC0415  the GPU host, which lists the artefacts, lacks it

    return msgspec.msgpack.decode(image[start : start + size])


def _symbols(image: bytes, sections: list[tuple]):
    """Yields names and contents of the dynamic symbols."""
    [(start, size, link)] = [
        (section[4], section[5], section[6])
        for section in sections
        if section[1] == DYNAMIC_SYMBOLS
    ]
    names = sections[link][4]
    for at in range(start + SYMBOL.size, start + size, SYMBOL.size):
        name, _, _, index, value, length = SYMBOL.unpack_from(image, at)
        address, offset = sections[index][3:5]
        name_end = image.index(b"\0", names + name)
        content = image[offset + value - address :][:length]
        yield image[names + name : name_end].decode(), content

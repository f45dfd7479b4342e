"""Reads code objects for gfx950: the ELF files that a HIP runtime loads.

    .note      metadata, MessagePack: name, arguments, sizes of each kernel
    NAME.kd    descriptor, 64 bytes: registers, LDS, what the hardware prepares; where code begins
    .text      machine code; a kernel's reaches to the next kernel or the end of the section

pyelftools finds the parts and msgspec checks the metadata. Nothing depends on sizes or labels in
the symbol table, which assemblers leave out or invent. Machine code becomes text by
disassembly.py, and text a `Kernel` by asm.py, which knows what a descriptor may say.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import Annotated

import msgspec
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection, Section, SymbolTableSection

from gfx950.isa.asm import AsmError

HEADER_BYTES = 64
_TABLE = struct.Struct("<40xQ10xHH2x")
"""Of an ELF header: where its last table begins, bytes of a row, rows."""
_DESCRIPTOR = struct.Struct("<III4xq20xIIIHH4x")
_MACHINE_BITS, _GFX950 = 0xFF, 0x4F
_METADATA_NOTE = 32
_PROPERTIES = (
    "private_segment_buffer", "dispatch_ptr", "queue_ptr", "kernarg_segment_ptr", "dispatch_id",
    "flat_scratch_init", "private_segment_size",
)  # fmt: skip
"""User registers that a kernel asks for, by bit."""
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class _Argument(msgspec.Struct, rename=".{}".format):
    """What a row of arguments must have."""

    offset: _Count
    size: _Count
    value_kind: str
    name: str = ""


class _Metadata(msgspec.Struct, rename=".{}".format):
    """What a kernel's entry in the note must have, and the types of what is read of the rest."""

    name: str
    symbol: str
    args: list[_Argument] = []
    kernarg_segment_size: _Count = 0
    sgpr_count: _Count = 0
    agpr_count: _Count = 0
    sgpr_spill_count: _Count = 0
    vgpr_spill_count: _Count = 0


@dataclass(frozen=True)
class CodeObject:
    """One kernel of a file."""

    image: bytes
    """The file."""
    metadata: dict
    """The kernel's entry in the note, keys without their dot."""
    descriptor: bytes
    entry: int
    """Address of the first instruction."""
    code: bytes

    @property
    def name(self) -> str:
        """The kernel's symbol."""
        return self.metadata["name"]

    @property
    def arguments(self) -> list[dict]:
        """What a caller passes, rows of the metadata; a runtime fills the others."""
        rows = self.metadata.get("args", [])
        return [row for row in rows if not row[".value_kind"].startswith("hidden_")]

    def directives(self) -> dict[str, int]:
        """Returns descriptor and metadata in the words of assembly."""
        lds, scratch, arguments, _, third, first, second, properties, preload = _DESCRIPTOR.unpack(
            self.descriptor
        )
        vectors = 8 * (first % 64 + 1)
        found = {
            "group_segment_fixed_size": lds,
            "private_segment_fixed_size": scratch,
            "kernarg_size": max(arguments, self.metadata.get("kernarg_segment_size", 0)),
            "accum_offset": 4 * (third % 64 + 1),
            "next_free_vgpr": vectors,
            "next_free_sgpr": self.metadata.get("sgpr_count", 102),
            "user_sgpr_count": second >> 1 & 31,
            "system_vgpr_workitem_id": second >> 11 & 3,
            "user_sgpr_kernarg_preload_length": preload & 127,
            "user_sgpr_kernarg_preload_offset": preload >> 7,
        }
        found |= {f"system_sgpr_workgroup_id_{a}": second >> b & 1 for b, a in enumerate("xyz", 7)}
        found |= {f"user_sgpr_{n}": properties >> b & 1 for b, n in enumerate(_PROPERTIES)}
        return found


def size_of(header: bytes) -> int:
    """Returns the bytes of a file that begins with `HEADER_BYTES` such bytes; it ends with a table.

    For files within others, and in memory.
    """
    start, row_bytes, rows = _TABLE.unpack_from(header)
    return start + row_bytes * rows


def code_objects(image: bytes) -> list[CodeObject]:
    """Returns the kernels of a file.

    Raises:
        AsmError: if it is no code object for gfx950, or a damaged one.
    """
    try:
        return _read(image)
    except AsmError:
        raise
    except Exception as error:  # Of pyelftools, whatever the damage leads it to.
        reason = " ".join(str(error).split())
        raise AsmError(
            f"the code object is damaged: {type(error).__name__}{reason and f': {reason}'}"
        ) from error


def _read(image: bytes) -> list[CodeObject]:
    elf = ELFFile(io.BytesIO(image))
    if (machine := elf["e_machine"]) != "EM_AMDGPU":
        raise AsmError(f"ELF file for machine {machine}, expected an AMD GPU (EM_AMDGPU)")
    if (flags := elf["e_flags"] & _MACHINE_BITS) != _GFX950:
        raise AsmError(f"code object for machine {flags:#x}, expected gfx950")
    sections = list(elf.iter_sections())
    tables = [section for section in sections if isinstance(section, SymbolTableSection)]
    symbols = {s.name: s["st_value"] for table in tables for s in table.iter_symbols()}
    kernels, starts = _kernels(sections), {}
    for kernel in kernels:
        if kernel["symbol"] not in symbols:
            raise AsmError(f"code object has no descriptor {kernel['symbol']!r}")
        at = symbols[kernel["symbol"]]
        starts[kernel["name"]] = at + _DESCRIPTOR.unpack(_bytes_at(sections, at, 64))[3]
    found = []
    for kernel in kernels:
        entry = starts[kernel["name"]]
        section = _section_of(sections, entry)
        later = [start for start in starts.values() if start > entry]
        end = min([*later, section["sh_addr"] + section["sh_size"]])
        descriptor = _bytes_at(sections, symbols[kernel["symbol"]], 64)
        code = _bytes_at(sections, entry, end - entry)
        found.append(CodeObject(image, kernel, descriptor, entry, code))
    return found


def _kernels(sections: list[Section]) -> list[dict]:
    """Returns the metadata of all kernels, keys without their dot."""
    for section in sections:
        for note in section.iter_notes() if isinstance(section, NoteSection) else ():
            if note["n_type"] == _METADATA_NOTE:
                metadata = msgspec.msgpack.decode(note["n_descdata"], type=dict[str, object])
                kernels = metadata.get("amdhsa.kernels", [])
                msgspec.convert(kernels, list[_Metadata])
                return [{k.removeprefix("."): v for k, v in row.items()} for row in kernels]
    raise AsmError("code object has no metadata")


def _section_of(sections: list[Section], address: int) -> Section:
    for section in sections:
        first = section["sh_addr"]
        if first and first <= address < first + section["sh_size"]:
            return section
    raise AsmError(f"code object has nothing at {address:#x}")


def _bytes_at(sections: list[Section], address: int, size: int) -> bytes:
    """Returns what is loaded at an address, which must be within the file."""
    section = _section_of(sections, address)
    section.stream.seek(section["sh_offset"] + address - section["sh_addr"])
    found = section.stream.read(size)
    if len(found) != size:
        raise AsmError(f"the code object ends before {address + size:#x}: was it cut?")
    return found

"""Reads code objects for gfx950: the ELF files that a HIP runtime loads.

    .note      metadata, MessagePack: name, arguments, sizes of each kernel
    NAME.kd    descriptor, 64 bytes: registers, LDS, what the hardware prepares; where code begins
    .text      machine code; a kernel's reaches to the next kernel or the end of the section

Nothing depends on sizes or labels in the symbol table, which assemblers leave out or invent.
Machine code becomes text by disassembly.py, and text a `Kernel` by asm.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from gfx950.isa.asm import AsmError

MAGIC = b"\x7fELF"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
HEADER_BYTES = _HEADER.size
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_NOTE = struct.Struct("<III")
_DESCRIPTOR = struct.Struct("<III4xq20xIIIHH4x")
_AMDGPU, _MACHINE_BITS, _GFX950 = 224, 0xFF, 0x4F
_SYMBOLS, _NOTES, _DYNAMIC_SYMBOLS = 2, 7, 11
_METADATA_NOTE = 32
_PROPERTIES = (
    "private_segment_buffer", "dispatch_ptr", "queue_ptr", "kernarg_segment_ptr", "dispatch_id",
    "flat_scratch_init", "private_segment_size",
)  # fmt: skip
"""User registers that a kernel asks for, by bit."""


@dataclass(frozen=True)
class Section:
    """A part of the file and where it is loaded."""

    kind: int
    address: int
    offset: int
    size: int
    link: int


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
    fields = _HEADER.unpack_from(header)
    return fields[6] + fields[11] * fields[12]


def code_objects(image: bytes) -> list[CodeObject]:
    """Returns the kernels of a file.

    Raises:
        AsmError: if it is no code object for gfx950.
    """
    if image[:4] != MAGIC:
        raise AsmError("not an ELF file")
    header = _HEADER.unpack_from(image)
    if header[2] != _AMDGPU:
        raise AsmError(f"ELF file for machine {header[2]}, expected an AMD GPU ({_AMDGPU})")
    if header[7] & _MACHINE_BITS != _GFX950:
        raise AsmError(f"code object for machine {header[7] & _MACHINE_BITS:#x}, expected gfx950")
    sections = []
    for i in range(header[12]):
        row = _SECTION.unpack_from(image, header[6] + i * _SECTION.size)
        sections.append(Section(row[1], row[3], row[4], row[5], row[6]))
    kernels = [
        {key.removeprefix("."): value for key, value in kernel.items()}
        for kernel in _metadata(image, sections).get("amdhsa.kernels", [])
    ]
    symbols = dict(_symbols(image, sections))
    starts = {}
    for kernel in kernels:
        if kernel["symbol"] not in symbols:
            raise AsmError(f"code object has no descriptor {kernel['symbol']!r}")
        at = symbols[kernel["symbol"]]
        starts[kernel["name"]] = at + _DESCRIPTOR.unpack(_bytes_at(image, sections, at, 64))[3]
    return [_kernel(image, sections, kernel, symbols, starts) for kernel in kernels]


def _kernel(image, sections, metadata, symbols, starts) -> CodeObject:
    entry = starts[metadata["name"]]
    section = _section_of(sections, entry)
    later = [start for start in starts.values() if start > entry]
    end = min([*later, section.address + section.size])
    return CodeObject(
        image, metadata, _bytes_at(image, sections, symbols[metadata["symbol"]], 64), entry,
        _bytes_at(image, sections, entry, end - entry),
    )  # fmt: skip


def _section_of(sections: list[Section], address: int) -> Section:
    for section in sections:
        if section.address and section.address <= address < section.address + section.size:
            return section
    raise AsmError(f"code object has nothing at {address:#x}")


def _bytes_at(image: bytes, sections: list[Section], address: int, size: int) -> bytes:
    section = _section_of(sections, address)
    return image[section.offset + address - section.address :][:size]


def _metadata(image: bytes, sections: list[Section]) -> dict:
    for section in sections:
        at = section.offset
        while section.kind == _NOTES and at < section.offset + section.size:
            name_bytes, size, kind = _NOTE.unpack_from(image, at)
            start = at + _NOTE.size + (name_bytes + 3) // 4 * 4
            if kind == _METADATA_NOTE:
                return _unpacked(image[start : start + size])
            at = start + (size + 3) // 4 * 4
    raise AsmError("code object has no metadata")


def _unpacked(metadata: bytes) -> dict:
    try:
        import msgspec  # noqa: PLC0415  (text is read without it)
    except ImportError:
        raise AsmError(
            "the metadata of code objects is read by msgspec, which is not installed: "
            "pip install 'mx_kernels[gfx950]'"
        ) from None
    try:
        return msgspec.msgpack.decode(metadata)
    except msgspec.DecodeError as error:
        raise AsmError(f"the metadata of the code object is no MessagePack: {error}") from None


def _symbols(image: bytes, sections: list[Section]) -> Iterator[tuple[str, int]]:
    """Yields names and addresses of all symbols."""
    for section in sections:
        if section.kind not in (_SYMBOLS, _DYNAMIC_SYMBOLS):
            continue
        names = sections[section.link].offset
        for at in range(section.offset, section.offset + section.size, _SYMBOL.size):
            name, _, _, _, value, _ = _SYMBOL.unpack_from(image, at)
            end = image.index(b"\0", names + name)
            yield image[names + name : end].decode(), value

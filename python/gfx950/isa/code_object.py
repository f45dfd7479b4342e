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


def unpacked(data: bytes) -> object:
    """Decodes MessagePack, as far as metadata needs it."""
    value, _ = _unpack(data, 0)
    return value


_FIXED = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {0xCC: "B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: "b", 0xD1: ">h", 0xD2: ">i",
            0xD3: ">q", 0xCA: ">f", 0xCB: ">d"}  # fmt: skip
_SIZED = {0xD9: ("B", "s"), 0xDA: (">H", "s"), 0xDB: (">I", "s"), 0xC4: ("B", "b"),
          0xC5: (">H", "b"), 0xC6: (">I", "b"), 0xDC: (">H", "a"), 0xDD: (">I", "a"),
          0xDE: (">H", "m"), 0xDF: (">I", "m")}  # fmt: skip


def _unpack(data: bytes, at: int) -> tuple[object, int]:
    tag, at = data[at], at + 1
    if tag < 0x80 or tag >= 0xE0:
        return tag - (256 if tag >= 0xE0 else 0), at
    if tag in _FIXED:
        return _FIXED[tag], at
    if tag in _NUMBERS:
        form = struct.Struct(_NUMBERS[tag])
        return form.unpack_from(data, at)[0], at + form.size
    if tag in _SIZED:
        form, kind = struct.Struct(_SIZED[tag][0]), _SIZED[tag][1]
        count, at = form.unpack_from(data, at)[0], at + form.size
    elif tag < 0xC0:
        kind = "m" if tag < 0x90 else "a" if tag < 0xA0 else "s"
        count = tag & (0x1F if kind == "s" else 0x0F)
    else:
        raise AsmError(f"metadata holds MessagePack type {tag:#x}")
    if kind in "sb":
        raw = data[at : at + count]
        return raw.decode() if kind == "s" else raw, at + count
    items = []
    for _ in range(count * (2 if kind == "m" else 1)):
        item, at = _unpack(data, at)
        items.append(item)
    return (dict(zip(items[::2], items[1::2], strict=True)) if kind == "m" else items), at


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
                return unpacked(image[start : start + size])
            at = start + (size + 3) // 4 * 4
    raise AsmError("code object has no metadata")


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

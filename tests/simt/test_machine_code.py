"""What the compiler made of the kernels of `simt.tiles`, for three generations of NVIDIA GPUs.

A cubin is an ELF file; sections of one type tell facts of kernels, attribute by attribute.
"""

import struct

import pytest

from tests import artefacts

FACTS_TYPE, SIZED = 0x70000000, 4
"""The type of these sections, and the kind of attributes that say how long they are."""
REGISTERS, FRAME = 0x2F, 0x11
"""Attributes of a symbol: its registers, and the bytes of memory for what these cannot hold."""
SECTION_SIZE = 64
OTHERS = ("stage_rows", "stage_codes", "add_parts", "compute_marked")
NUM_KERNELS = 4 * 8 + 5 + len(OTHERS)
MANY_WARPS = 65536 // (40 * 32)
"""Registers of a thread under which a multiprocessor has 40 warps."""
TWO_GROUPS = 65536 // (2 * 256)
"""Registers of a thread under which a multiprocessor has two groups."""
ARCHITECTURES = ["sm_80", "sm_89", "sm_90a"]
IN_MEMORY = {
    ("sm_80", "e4m3_2_64x128"): 16,
    ("sm_80", "e5m2_2_64x128"): 16,
    ("sm_80", "compute_marked"): 88,
    ("sm_89", "e2m1_2_64x128"): 8,
    ("sm_89", "e4m3_2_64x128"): 16,
    ("sm_89", "e4m3_0_128x128"): 16,
    ("sm_89", "e5m2_2_64x128"): 16,
    ("sm_89", "e5m2_0_128x128"): 16,
    ("sm_89", "nvfp4_2_64x128"): 8,
    ("sm_89", "compute_marked"): 8,
    ("sm_90a", "e4m3_1_128x128"): 8,
    ("sm_90a", "e5m2_1_128x128"): 8,
    ("sm_90a", "nvfp4_1_128x128"): 8,
    ("sm_90a", "nvfp4_2_64x128"): 8,
}
"""Bytes of registers that kernels have too many of for two groups, outside the steps of a tile."""


def sections_of(cubin):
    """Returns type and bytes of each section."""
    (first,) = struct.unpack_from("<Q", cubin, 0x28)
    (count,) = struct.unpack_from("<H", cubin, 0x3C)
    for index in range(count):
        header = struct.unpack_from("<IIQQQQ", cubin, first + SECTION_SIZE * index)
        _, kind, _, _, start, size = header
        yield kind, cubin[start : start + size]


def facts_of(cubin):
    """Returns the largest value of each sized attribute of a symbol."""
    found = {}
    for kind, content in sections_of(cubin):
        at = 0
        while kind == FACTS_TYPE and at < len(content):
            form, attribute, size = struct.unpack_from("<BBH", content, at)
            at += 4
            if form == SIZED:
                if size == 8:
                    value = struct.unpack_from("<II", content, at)[1]
                    found[attribute] = max(value, found.get(attribute, 0))
                at += size
    return found


def kernels(architecture):
    """Returns words of the PTX and facts of the machine code, by the name of a kernel."""
    lines, found = artefacts.text("simt/tiles").splitlines(), {}
    for title, digits in zip(lines[::2], lines[1::2], strict=True):
        (name, target), words = (part.split() for part in title.split(":"))
        if target == architecture:
            counts = {word: int(count) for word, count in (pair.split("=") for pair in words)}
            found[name] = counts, facts_of(bytes.fromhex(digits))
    assert len(found) == NUM_KERNELS
    return found


@pytest.mark.deep
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_kernel_keeps_anything_in_memory_that_registers_could_not_hold(architecture):
    found = kernels(architecture)
    frames = {name: facts[FRAME] for name, (_, facts) in found.items() if facts[FRAME]}
    assert frames == {name: size for (of, name), size in IN_MEMORY.items() if of == architecture}
    assert all(0 < facts[REGISTERS] <= 255 for _, facts in found.values())
    assert found["stage_codes"][1][REGISTERS] <= MANY_WARPS


@pytest.mark.deep
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tiles_are_multiplied_by_warps_from_copies_ahead(architecture):
    for name, (words, facts) in kernels(architecture).items():
        if name not in OTHERS:
            rows, columns = map(int, name.split("_")[2].split("x"))
            # Warps have 32 columns, and rows so that a tile has eight of them.
            warp_rows = rows * columns // (8 * 32)
            # A stage: fragments below each other, four beside, four steps of K. The last stage is
            # apart, and so are the steps of both halves of the warps of a large tile.
            steps = 3 if rows == 128 else 2
            assert words["mma.sync"] == steps * warp_rows // 16 * 4 * 4, name
            assert words["ldmatrix"] == steps * 4 * (warp_rows // 16 + 2), name
            # Of the first stage, and of the next one.
            assert words["cp.async.cg"] == steps * rows // 32, name
            assert facts[REGISTERS] <= TWO_GROUPS, name
        assert words["wgmma"] == 0

"""A MAX graph for gfx950 compiles to a MEF on a machine without a GPU.

What the MEF of `graphs/gfx950.py` holds is machine code for gfx950, one ELF file for each kernel
that a symbolic number of rows can ask for; whether the kernels compute the right thing is the
simulator's to say.
"""

import re
import struct
from pathlib import Path

import pytest

from tests import artefacts
from tests.artefacts import kinds
from tests.max_graph.graphs.gfx950 import other_pairs

GRAPHS = Path(__file__).with_name("graphs")

EM_AMDGPU = 224
MACHINE, SECTION_TABLE, SECTION_COUNTS = 18, 40, 58
"""Offsets in an ELF header."""
KERNEL_DESCRIPTOR = struct.Struct("<II50xH")
"""Bytes of LDS and of scratch, and dwords of arguments in registers."""


def refusals(architecture):
    """Returns what calls on a virtual GPU are told."""
    return kinds.run_script(GRAPHS / "gfx950.py", "refusals", architecture).splitlines()


@pytest.fixture(scope="module")
def compiled():
    """The MEF."""
    return artefacts.path("max_graph/gfx950").read_bytes()


@pytest.fixture(scope="module")
def pairs():
    """The MEF of the pairs of formats that the other leaves out."""
    return artefacts.path("max_graph/gfx950_pairs").read_bytes()


def device_programs(mef):
    """Returns the ELF files for AMD GPUs within a MEF, each up to the next."""
    starts = [match.start() for match in re.finditer(b"\x7fELF", mef)]
    parts = [mef[i:j] for i, j in zip(starts, [*starts[1:], len(mef)], strict=True)]
    return [part for part in parts if struct.unpack_from("<H", part, MACHINE)[0] == EM_AMDGPU]


def section(program, name):
    """Returns the bytes of a section of an ELF file."""
    (table,) = struct.unpack_from("<Q", program, SECTION_TABLE)
    size, count, names = struct.unpack_from("<HHH", program, SECTION_COUNTS)
    headers = [struct.unpack_from("<IIQQQQ", program, table + i * size) for i in range(count)]
    for header in headers:
        label = program[headers[names][4] + header[0] :].split(b"\0", 1)[0]
        if label == name:
            return program[header[4] : header[4] + header[5]]
    raise AssertionError(f"no section {name}")


def kernel_names(programs):
    """Returns the names of our kernels; the platform shortens and numbers them."""
    return {name for part in programs for name in re.findall(rb"mojo_kernels_cdna4_\w+", part)}


@pytest.mark.deep
def test_the_mef_holds_gfx950_code_of_every_op(compiled):
    programs = device_programs(compiled)
    assert all(b"gfx950" in program for program in programs)
    names = kernel_names(programs)
    count = {
        room: sum(f"cdna4_{room}".encode() in name for name in names)
        for room in ("prepare_qu", "streaming", "interleave", "ping_pong")
    }
    # The op's, those of floats before interleaved kernels, which are for those and for codes, of
    # four bits and of six, and that of rows of experts.
    assert count["prepare_qu"] == 4
    # Of each product that is encoded first one at least, and experts' four gated and six others.
    assert count["interleave"] >= 3 + 4 + 6
    # Few rows; many: both heights of tiles for codes, MXFP8 and both products of floats by floats,
    # one for each other product, experts' two.
    assert count["streaming"] >= 2
    assert count["ping_pong"] == 9 + 2 * 2


@pytest.mark.deep
def test_every_other_pair_of_formats_compiles_for_batches_and_for_no_rows(pairs):
    names = kernel_names(device_programs(pairs))
    formats = {left for left, _ in other_pairs()} - {"bf16"}
    assert len(formats) == 7
    assert sum(b"cdna4_prepare" in name for name in names) == len(formats), "what quantizes to each"
    for room in (b"streaming", b"interleave"):
        assert sum(b"cdna4_" + room in name for name in names) > len(other_pairs()), room


@pytest.mark.deep
@pytest.mark.parametrize("mef", ["compiled", "pairs"])
def test_kernels_find_their_arguments_in_registers_and_need_no_scratch(mef, request):
    for program in device_programs(request.getfixturevalue(mef)):
        _, scratch, preload = KERNEL_DESCRIPTOR.unpack_from(section(program, b".rodata"))
        # The portable kernel of norms and gates takes records, which stay in memory.
        assert preload > 0 or b"mojo_kernels_simt_prologue" in program
        assert scratch == 0


@pytest.mark.deep
def test_a_layer_of_experts_is_made_of_our_kernels(compiled):
    names = kernel_names(device_programs(compiled))
    for kernel in (b"streaming", b"prepare_or", b"experts_ro", b"experts_sl"):
        assert any(b"cdna4_" + kernel in name for name in names), kernel


@pytest.mark.deep
def test_norms_and_gates_are_quantized_by_kernels_of_their_own_or_the_portable_one(compiled):
    programs = device_programs(compiled)
    own = [name for name in kernel_names(programs) if re.search(b"prepare_(no|ga)", name)]
    assert len(own) == 2, own
    portable = {
        name for part in programs for name in re.findall(rb"mojo_kernels_simt_prologue\w+", part)
    }
    # Of a norm, rows on whole vectors and others; of a gate others alone: the kernel of gfx950
    # takes all that lie on whole vectors.
    assert len(portable) == 2 + 1, portable


@pytest.mark.deep
def test_the_example_of_gpt_oss_leaves_its_experts_to_our_op():
    built = kinds.run_script(GRAPHS / "gpt_oss.py", "gfx950")
    assert built.count("mx_moe") == 2, "a layer each"


def test_a_graph_on_the_gpu_refuses_what_has_no_kernel():
    plain, elsewhere, decoded, formats, experts, depth, types = refusals("gfx950")
    assert "w: got layout 'plain', on a gfx950 GPU expected 'preshuffled_cdna4'" in plain
    assert "x and w: got devices gpu:0 and cpu:0, expected one device" in elsewhere
    assert "q: got device gpu:0, expected cpu:0, the only one that decodes" in decoded
    assert "got 'mxint8' x 'mxfp4' on gpu:0, expected 'bf16' x 'mxfp4' or " in formats
    assert "w: got layout 'plain', on a gfx950 GPU expected 'preshuffled_cdna4'" in experts
    assert "a and b: got shapes [m, 160] and [m, 32], expected [..., K] and [N, K] with" in depth
    assert "a and b: got bfloat16 and float16, expected bfloat16 or float16 for both" in types


def test_other_gpus_are_refused_by_name():
    refused = refusals("gfx942")
    assert "x: got device gpu:0 (gfx942), expected cpu:0 or a gfx950 GPU" in refused[0]

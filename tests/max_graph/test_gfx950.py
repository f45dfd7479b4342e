"""A MAX graph for gfx950 compiles to a MEF on a machine without a GPU.

The graph is compiled by a process of its own, because a virtual device cannot be taken back.
What the MEF holds is machine code for gfx950, one ELF file for each kernel that a symbolic
number of rows can ask for; whether the kernels compute the right thing is the simulator's to say.
"""

import re
import struct
import subprocess
import sys

import pytest

PROGRAM = """
import sys

import torch
from max.driver import (
    Accelerator,
    set_virtual_device_api,
    set_virtual_device_count,
    set_virtual_device_target_arch,
)

set_virtual_device_api(sys.argv[1])
set_virtual_device_target_arch(sys.argv[2])
set_virtual_device_count(1)

from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, ops

import mx_kernels as mx
from mx_kernels import max_graph

N, K = 80, 160
gpu = DeviceRef.GPU()
generator = torch.Generator().manual_seed(0)
plain = mx.quantize(torch.randn(N, K, generator=generator))
weights = mx.preshuffle(plain, device="gfx950")
rows = TensorType(DType.bfloat16, ["m", K], gpu)


def refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return "accepted"


library = [max_graph.library()]
with Graph("layer", input_types=[rows], custom_extensions=library) as graph:
    x = graph.inputs[0].tensor
    print(refusal(lambda: max_graph.linear(x, plain)))
    print(refusal(lambda: max_graph.linear(x, max_graph.constant(weights))))
    print(refusal(lambda: max_graph.dequantize(max_graph.quantize(x))))
    fused = max_graph.linear(x, weights, bias=torch.ones(N))
    codes = max_graph.quantize(x, rounding="rceil")
    graph.output(fused, max_graph.matmul(codes, weights, out_dtype="float32"))
max_graph.export(graph, sys.argv[3], device=Accelerator())
"""
EM_AMDGPU = 224
MACHINE, SECTION_TABLE, SECTION_COUNTS = 18, 40, 58
"""Offsets in an ELF header."""
KERNEL_DESCRIPTOR = struct.Struct("<II50xH")
"""Bytes of LDS and of scratch, and dwords of arguments in registers."""


def compile_graph(api, architecture, path):
    """Runs the program; returns its process."""
    command = [sys.executable, "-c", PROGRAM, api, architecture, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What the program printed, and the MEF."""
    path = tmp_path_factory.mktemp("max_graph") / "layer.mef"
    done = compile_graph("hip", "gfx950", path)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), path.read_bytes()


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


def test_the_mef_holds_gfx950_code_of_every_op(compiled):
    programs = device_programs(compiled[1])
    assert all(b"gfx950" in program for program in programs)
    names = kernel_names(programs)
    assert sum(b"cdna4_quantize" in name for name in names) == 1
    # Few rows: as many for fused as for encoded activations. Many rows: one for each.
    decode = sum(b"cdna4_matmul_deco" in name for name in names)
    assert decode >= 2 and decode % 2 == 0
    assert sum(b"cdna4_matmul_pref" in name for name in names) == 1
    assert sum(b"cdna4_linear_pref" in name for name in names) == 1


def test_kernels_find_their_arguments_in_registers_and_need_no_scratch(compiled):
    for program in device_programs(compiled[1]):
        _, scratch, preload = KERNEL_DESCRIPTOR.unpack_from(section(program, b".rodata"))
        assert preload > 0
        assert scratch == 0


def test_a_graph_on_the_gpu_refuses_what_has_no_kernel(compiled):
    plain, elsewhere, decoded = compiled[0]
    assert "w: got layout 'plain', on a gfx950 GPU expected 'preshuffled_cdna4'" in plain
    assert "x and w: got devices gpu:0 and cpu:0, expected one device" in elsewhere
    assert "q: got device gpu:0, expected cpu:0, the only one that decodes" in decoded


def test_other_gpus_are_refused_by_name(tmp_path):
    done = compile_graph("hip", "gfx942", tmp_path / "layer.mef")
    assert done.returncode != 0
    assert "x: got device gpu:0 (gfx942), expected cpu:0 or a gfx950 GPU" in done.stderr

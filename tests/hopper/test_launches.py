"""What `_mx_kernels_ptx` says of launches is what a CUDA device would be told; none is asked."""

import re
import struct
from itertools import pairwise, product

import pytest
import torch

import mx_kernels as mx
from cases import LAYOUTS
from mx_kernels._core import native
from tests import artefacts
from tests.ptx import calls, kinds

ENTRY_LETTERS = 29
"""Of the name of a kernel's file that the compiler leaves in that of its entry."""

NO_DEVICE = 1000
"""More than a machine has."""

pytestmark = pytest.mark.deep


def operand(rows, k, fmt="mxfp4", *lead):
    return mx.quantize(torch.randn(*lead, rows, k), format=fmt)


def recorded(architecture):
    """Returns a call of every operation, of every kind of product that has kernels of its own."""
    x, w = torch.randn(300, 256).bfloat16(), operand(64, 256).preshuffle("cuda")
    fp8 = operand(300, 256, "fp8"), operand(64, 256, "fp8").preshuffle("cuda")
    experts = operand(64, 64, "mxfp4", 4).preshuffle("cuda")
    gates = operand(128, 64, "mxfp4", 4).preshuffle("cuda")
    sizes, ids = torch.tensor([1, 0, 3, 1]).int(), torch.tensor([[0, 3], [2, 1]])
    on = {"architecture": architecture}
    return [
        calls.multiply(x, w, **on),
        calls.multiply(x[:3], w, bias=torch.randn(64), **on),
        calls.multiply(x.float(), w, activations="bf16", **on),
        calls.multiply(*fp8, **on),
        calls.grouped_linear(torch.randn(5, 64), experts, sizes, **on),
        calls.grouped_linear(torch.randn(500, 64), experts, 100 * sizes, **on),
        calls.moe(torch.randn(2, 64), gates, experts, ids, torch.rand(2, 2), **on),
        calls.quantize(x, format="mxfp8", **on),
        calls.dequantize(w, **on),
        calls.preshuffle(operand(64, 256), **on),
    ]


@pytest.mark.parametrize("architecture", kinds.ARCHITECTURES)
def test_every_operation_has_launches_of_its_architecture(architecture):
    for launches, _, out in recorded(architecture):
        assert launches
        assert out is not None
        for launch in launches:
            assert f".target {architecture}\n" in launch.ptx
            assert f".entry {launch.entry}(" in launch.ptx
            assert launch.ptx.count(f"{launch.entry}_param_") >= len(launch.arguments)
            assert f"{launch.entry}_param_{len(launch.arguments)}" not in launch.ptx


@pytest.mark.parametrize("architecture", kinds.ARCHITECTURES)
def test_what_the_module_of_a_device_has_compiles_without_one(architecture):
    """The module of the tests has all of it, under a name of its own."""
    module = calls.module_of(architecture)
    extension = native.gpu_extension(architecture)
    source = (native.source_folder() / extension.source).read_text()
    functions = re.findall(r'module\.def_function\[\w+\]\("(\w+)"\)', source)
    assert {"open", "multiply", "quantize"} <= {*functions}
    assert all(hasattr(module, function) for function in functions)
    assert f"def PyInit_{extension.name}()" in source


def test_the_text_is_what_the_module_of_a_device_loads():
    """Functions that launch are in the same module, which has one text of each kernel."""
    module = artefacts.path("ptx/sm_90a").read_bytes()
    texts = {launch.ptx for call in recorded("sm_90a") for launch in call.launches}
    assert len(texts) > len(recorded("sm_90a"))
    entries = re.findall(rb"\.entry ([^\s(]+)\(", module)
    assert b"wgmma.mma_async" in module
    assert len(entries) == len(set(entries)) >= len(texts)
    assert all(module.count(text.encode()) == 1 for text in texts)


@pytest.mark.parametrize("architecture", kinds.ARCHITECTURES)
def test_without_a_device_opening_one_says_so(architecture):
    with pytest.raises(Exception, match=r"libnvidia|CUDA"):
        calls.module_of(architecture).open(NO_DEVICE)


@pytest.mark.parametrize(
    "rows, fmt, mode",
    [
        *((rows, fmt, "mxfp4") for rows, fmt in ((5, "mxfp4"), (500, "mxfp4"), (5, "mxfp8"))),
        *((rows, "nvfp4", mode) for rows in (5, 500) for mode in ("bf16", "nvfp4")),
    ],
)
def test_explain_says_what_experts_launch(rows, fmt, mode):
    """Kernels and grids, in their order; names of entries begin with the file's, shortened."""
    n, k, count, slots = 64, 96, 4, 2
    w = operand(n, k, fmt, count).preshuffle("cuda")
    gate_up, down = (operand(*shape, fmt, count).preshuffle("cuda") for shape in ((128, k), (k, n)))
    x, sizes = torch.randn(rows, k).bfloat16(), torch.tensor([rows, 0, 0, 0]).int()
    ids = torch.randint(count, (rows, slots))
    rules = {"activations": mode}
    made = {
        "grouped_linear": calls.grouped_linear(x, w, sizes, **rules),
        "moe": calls.moe(x, gate_up, down, ids, torch.rand(rows, slots), **rules),
    }
    for op, (launches, *_) in made.items():
        question = {"device": "cuda", "format": fmt, "experts": count, **rules}
        question |= {"slots": slots} if op == "moe" else {}
        found = mx.explain(rows, n, k, op=getattr(mx, op), **question)
        assert len(found.launches) == len(launches)
        for said, launch in zip(found.launches, launches, strict=True):
            file = said.kernel.removesuffix(".mojo").replace("/", "_")
            assert launch.entry.startswith(f"mojo_kernels_{file}"[:ENTRY_LETTERS].rstrip("_"))
            assert (said.grid, said.threads) == (launch.grid, launch.threads)


def test_arguments_are_the_bytes_of_structs():
    x, w = torch.randn(3, 256).bfloat16(), operand(64, 256).preshuffle("cuda")
    launches, buffers, out = calls.multiply(x, w)
    (launch,) = launches
    activations, _, _, weights, target, *_ = launch.arguments
    found = {buffer.address: buffer for buffer in buffers}
    in_x, in_codes, in_scales, in_out = (
        found[address]
        for address in (
            struct.unpack("<3q4iq", activations)[0],
            *struct.unpack("<5q4i", weights)[:2],
            struct.unpack("<2q5i2f4x", target)[0],
        )
    )
    assert struct.unpack("<3q4iq", activations)[-1] == 256
    assert struct.unpack("<2q5i2f4x", target)[4:6] == (3, 64)
    for tensor, buffer in zip(
        (x, w.codes, w.scales, out), (in_x, in_codes, in_scales, in_out), strict=True
    ):
        assert buffer.view.ctypes.data == tensor.data_ptr()
        assert len(buffer.view) == tensor.nbytes
        assert buffer.may_be_written == (tensor is out)


def test_tensors_of_one_storage_are_far_from_each_other():
    storage = torch.zeros(8 * 256).bfloat16()
    x, bias = storage[: 3 * 256].view(3, 256), storage[3 * 256 : 3 * 256 + 64]
    _, buffers, _ = calls.multiply(x, operand(64, 256).preshuffle("cuda"), bias=bias)
    ends = sorted((buffer.address, buffer.address + len(buffer.view)) for buffer in buffers)
    assert {x.nbytes, bias.nbytes} <= {end - start for start, end in ends}
    assert all(start - end > 1 << 30 for (_, end), (start, _) in pairwise(ends))


SHAPES = [(m, 32, k) for m in (1, 8, 9, 17, 70) for k in (32, 256, 288, 2080)]
"""Few rows and more, a short K and a long one."""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("right", ["mxfp4", "mxfp8", "mxint8", "fp8", "fp8_block_2d", "nvfp4"])
@pytest.mark.parametrize("architecture", kinds.ARCHITECTURES)
def test_a_product_gets_the_memory_that_it_wants(architecture, right, layout):
    """Whatever its activations, addresses and results: what it wants is what Python asked for."""
    for m, n, k in SHAPES:
        w = operand(n, k, right)
        if device := LAYOUTS[layout]["device"]:
            w = w.preshuffle(device)
        flat = torch.randn(m * k + 1).bfloat16()
        odd, even = flat[1:].view(m, k), flat[:-1].view(m, k)
        for left, x, dtype in product(
            ("bf16", "mxfp4", "mxfp8", "fp8", "fp8_block", "nvfp4"),
            (even, odd),
            (None, torch.float32),
        ):
            call = calls.multiply(
                x, w, activations=left, out_dtype=dtype or x.dtype, architecture=architecture
            )
            assert call.launches
        for left in ("mxfp4", "mxfp8", "fp8_block_2d", "nvfp4"):
            assert calls.multiply(operand(m, k, left), w, architecture=architecture).launches


def test_a_workspace_that_is_too_small_is_refused(monkeypatch):
    x, w = torch.randn(300, 256).bfloat16(), operand(64, 256).preshuffle("cuda")
    fill = calls._Device.fill
    monkeypatch.setattr(calls._Device, "fill", lambda *args: fill(*args) - 1)
    with pytest.raises(Exception, match=r"got a workspace of \d+ bytes, expected \d+"):
        calls.multiply(x, w, out_dtype=torch.float32)

"""A MAX graph on an NVIDIA GPU: compiled anywhere, run where there is one.

Graphs for a virtual H200 are compiled by a process of its own, because a virtual device cannot
be taken back. What runs gives the bits of the torch route on the same device.
"""

import os
import subprocess
import sys

import pytest
import torch
from max.driver import CPU, Accelerator, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import DeviceRef, Graph, TensorType

import mx_kernels as mx
from mx_kernels import max_graph

N, K = 80, 160
PROGRAM = """
import os
import sys

from max.driver import (
    Accelerator,
    set_virtual_device_api,
    set_virtual_device_count,
    set_virtual_device_target_arch,
)

set_virtual_device_api("cuda")
set_virtual_device_target_arch(sys.argv[1])
set_virtual_device_count(1)

import torch
from max.graph import DeviceRef

from mx_kernels import max_graph
from tests.max_graph.test_cuda import graph_on

max_graph.export(graph_on(DeviceRef.GPU()), sys.argv[2], device=Accelerator())
# Threads of a virtual device may outlive the interpreter, which then aborts.
os._exit(0)
"""


def operands():
    """Returns weights in the layout of CUDA and in another one, and a bias, on the CPU."""
    torch.manual_seed(3)
    w = mx.quantize(torch.randn(N, K, device="cpu"))
    return w.preshuffle(device="cuda"), w.preshuffle(device="cpu"), torch.arange(float(N)).cpu()


def graph_on(device) -> Graph:
    """Returns a graph of every op on a device."""
    w, other, bias = operands()
    rows = TensorType(DType.bfloat16, ["m", K], device)
    library = [max_graph.library()]
    with Graph("layer", input_types=[rows], custom_extensions=library) as graph:
        x = graph.inputs[0].tensor
        codes = max_graph.quantize(x, rounding="rceil")
        graph.output(
            max_graph.linear(x, w, bias=bias),
            max_graph.linear(x, other, activations="bf16"),
            max_graph.matmul(codes, w, out_dtype="float32"),
            max_graph.dequantize(codes, dtype="float16"),
        )
    return graph


@pytest.mark.parametrize(
    "architecture, kernels",
    [
        ("sm_90a", (b"hopper_quantize", b"hopper_matmul_dec", b"hopper_matmul_pre")),
        ("sm_80", (b"simt_matmul",)),
    ],
)
def test_a_graph_for_nvidia_compiles_without_one(tmp_path, architecture, kernels):
    path = tmp_path / "layer.mef"
    command = [sys.executable, "-c", PROGRAM, architecture, str(path)]
    path_of_tests = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=path_of_tests)
    assert done.returncode == 0, done.stderr
    mef = path.read_bytes()
    # The platform shortens and numbers the names of kernels; machine code is assembled already.
    for name in (*kernels, b"simt_quantize"):
        assert b"mojo_kernels_" + name in mef
    assert f"-arch {architecture} ".encode() in mef


def test_a_graph_gives_the_bits_of_torch_on_the_same_device(device):
    gpu = device == "cuda"
    graph = graph_on(DeviceRef.GPU() if gpu else DeviceRef.CPU())
    model = InferenceSession(devices=[Accelerator() if gpu else CPU()]).load(graph)
    w, other, bias = (part.to(device) for part in operands())
    for rows in (1, 7, 200):
        x = torch.randn(rows, K).bfloat16()
        got = [torch.from_dlpack(part) for part in model.execute(Buffer.from_dlpack(x))]
        codes = mx.quantize(x, rounding="rceil")
        assert torch.equal(got[0], mx.linear(x, w, bias=bias))
        assert torch.equal(got[1], mx.linear(x, other, activations="bf16"))
        assert torch.equal(got[2], mx.matmul(codes, w, out_dtype="float32"))
        assert torch.equal(got[3], mx.dequantize(codes, dtype="float16"))

"""A MAX graph on an NVIDIA GPU: compiled anywhere, run where there is one.

What runs gives the bits of the torch route on the same device.
"""

import pytest
import torch
from max.driver import Accelerator, Buffer
from max.engine import InferenceSession
from max.graph import DeviceRef

import mx_kernels as mx
from tests import artefacts
from tests.max_graph.graphs.layer import (
    SLOTS,
    E,
    K,
    experts,
    float_scaled,
    graph_on,
    norm,
    operands,
)


@pytest.mark.deep
@pytest.mark.parametrize(
    "architecture, kernels",
    [
        ("sm_90a", (b"hopper_prepare", b"hopper_streaming", b"hopper_gemm_rs_b")),
        ("sm_80", (b"simt_matmul",)),
    ],
)
def test_a_graph_for_nvidia_compiles_without_one(architecture, kernels):
    mef = artefacts.path(f"max_graph/{architecture}").read_bytes()
    # The platform shortens and numbers the names of kernels; machine code is assembled already.
    for name in (*kernels, b"simt_quantize", b"simt_prologue", b"simt_experts"):
        assert b"mojo_kernels_" + name in mef
    assert f"-arch {architecture} ".encode() in mef


@pytest.mark.deep
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_graph_gives_the_bits_of_torch_on_the_same_device():
    """On the CPU these ops are among those of `test_ops` and `test_experts`."""
    model = InferenceSession(devices=[Accelerator()]).load(graph_on(DeviceRef.GPU()))
    w, other, bias = (part.to("cuda") for part in operands())
    gate_up, down = (part.to("cuda") for part in experts())
    blocks = float_scaled().to("cuda")
    for rows in (1, 7, 200):
        with torch.device("cuda"):
            x = torch.randn(rows, K).bfloat16()
            routing = torch.randint(-1, E, (rows, SLOTS)).int(), torch.rand(rows, SLOTS)
            sizes = torch.tensor([rows // 2, 0, rows // 3]).int()
        inputs = map(Buffer.from_dlpack, (x, *routing, sizes))
        got = [torch.from_dlpack(part) for part in model.execute(*inputs)]
        codes = mx.quantize(x, scale_rule="rceil")
        assert torch.equal(got[0], mx.linear(x, w, bias=bias, activations="mxfp4"))
        assert torch.equal(got[1], mx.linear(x, other, activations="bf16"))
        assert torch.equal(got[2], mx.matmul(codes, w, out_dtype="float32"))
        assert torch.equal(got[3], mx.dequantize(codes, dtype="float16"))
        assert torch.equal(got[4], mx.moe(x, gate_up, down, *routing, activations="mxfp4"))
        assert torch.equal(got[5], mx.grouped_linear(x, gate_up, sizes, activations="bf16"))
        assert torch.equal(got[6], mx.linear(x, blocks, activations="fp8_block"))
        normed, stream = mx.rms_norm_quantize(x, norm().to("cuda"), residual=x, format="mxint8")
        hidden = mx.gate_quantize(x, x, format="mxfp8")
        for made, expected in zip(got[7:10], (normed.codes, stream, hidden.codes), strict=True):
            assert torch.equal(made, expected)
        assert torch.equal(got[10], mx.matmul(mx.quantize(torch.stack([x] * E)), gate_up))

"""An op that a user registers beside ours, `examples/my_ops`, in MAX's session."""

import numpy as np
import pytest
import torch
from max.driver import CPU
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import DeviceRef, Graph, TensorType, ops

import mx_kernels as mx
from bench.serving.environment import ROOT
from mx_kernels import max_graph
from mx_kernels._core import builds
from tests import artefacts

N, K = 64, 128
PACKAGE = ROOT / "examples" / "my_ops"


def test_the_folder_for_mojo_holds_our_package():
    assert (mx.mojo_path() / "mojo_kernels" / "bindings" / "max_ops.mojo").is_file()


@pytest.mark.deep
@pytest.mark.compiles
def test_an_op_of_ones_own_has_the_bits_of_our_product(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # Where Mojo finds no sources of ours by itself.
    options = ["-I", str(mx.mojo_path()), "-o", "my_ops.mojoc"]
    builds.run_mojo(["precompile", *options, str(PACKAGE)])
    cpu = DeviceRef.CPU()
    w = mx.quantize(torch.randn(N, K)).preshuffle()
    rows = {"others": N, "m": K}
    types = [TensorType(DType.float32, list(shape), cpu) for shape in rows.items()]
    result = TensorType(DType.float32, ["m", N], cpu)
    libraries = [artefacts.path("max_graph/library"), tmp_path / "my_ops.mojoc"]
    with Graph("own", input_types=types, custom_extensions=libraries) as graph:
        residual, x = (value.tensor for value in graph.inputs)
        weights = max_graph.constant(w)
        none = ops.constant(np.zeros(0, np.float32), DType.float32, cpu)
        operands = [residual, x, weights.codes, weights.scales, none]
        graph.output(*ops.custom("my_residual_linear", cpu, operands, [result]))
    model = InferenceSession(devices=[CPU()]).load(graph)
    for m in (0, 1, 33):
        residual, x = torch.randn(m, N), torch.randn(m, K)
        got = torch.from_dlpack(model.execute(residual, x)[0])
        assert torch.equal(got, residual + mx.linear(x, w, activations="mxint8"))
    with pytest.raises(ValueError, match=r"residual: got \(2, 64\), expected \(1, 64\)"):
        model.execute(torch.randn(2, N), torch.randn(1, K))

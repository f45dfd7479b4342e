"""ONNX Runtime's `MatMulNBits`: 4-bit weights in blocks of 32, int8 compute.

`accuracy_level=4` is the setting that quantizes the activations to int8 inside
the call, the fastest one on processors with integer dot products.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from bench.peers import Peer, Prepared
from bench.problem import Q4_0_BLOCK, Problem, Q4Weights

INT8_COMPUTE = 4
DOMAIN = "com.microsoft"
OPSET, DOMAIN_OPSET, IR_VERSION = 21, 1, 10


def build_model(weights: Q4Weights, n: int, k: int) -> onnx.ModelProto:
    """Returns a model of one node with the weights inside.

    Byte i of a block holds code 2 i in its low half and code 2 i + 1 in its high half.
    """
    even, odd = weights.codes[..., 0::2], weights.codes[..., 1::2]
    node = helper.make_node(
        "MatMulNBits", ["x", "codes", "scales"], ["y"], domain=DOMAIN,
        K=k, N=n, bits=4, block_size=Q4_0_BLOCK, accuracy_level=INT8_COMPUTE,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "q4_matmul",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", n])],
        [
            numpy_helper.from_array((even | odd << 4).numpy(), "codes"),
            numpy_helper.from_array(weights.scales.float().flatten().numpy(), "scales"),
        ],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, DOMAIN_OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def prepare(problem: Problem) -> Prepared:
    """Float32 activations, quantized in the call, times 4-bit weights."""
    shape = problem.shape
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(
        build_model(problem.weight_q4, shape.n, shape.k).SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    binding = session.io_binding()
    binding.bind_cpu_input("x", problem.x_f32.numpy())
    out = onnxruntime.OrtValue.ortvalue_from_shape_and_type([shape.m, shape.n], np.float32)
    binding.bind_ortvalue_output("y", out)
    return Prepared(
        call=lambda: session.run_with_iobinding(binding),
        output=lambda: torch.from_numpy(out.numpy()),
        weights=problem.weight_q4.dequantize,
    )


PEERS = [
    Peer(
        "ONNX Runtime",
        "integer 4-bit weights with a float32 scale per 32, 8-bit activations",
        prepare,
    )
]

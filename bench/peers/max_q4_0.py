"""MAX's own 4-bit product: `ops.qmatmul` with GGUF's Q4_0 weights.

`ops.qmatmul` puts two operations into a graph, repacking the weights and then
multiplying. They are compiled here as two graphs with symbolic dimensions, so
that one compilation (about 20 s the first time, then cached by MAX) serves all
shapes and repacking is not timed. Measured against `ops.qmatmul` on constant
weights, the speed is the same.

The thread pool of MAX has one thread for each core that the process may use.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from max.driver import Buffer
from max.dtype import DType
from max.engine import InferenceSession, Model
from max.graph import DeviceRef, Graph, TensorType, ops
from max.graph.ops.quantized import repack_gguf_quantized_weights
from max.graph.quantization import QuantizationEncoding

from bench.peers import Peer, Prepared
from bench.problem import Problem


class Q4Models(NamedTuple):
    """The two halves of `ops.qmatmul`, compiled."""

    repack: Model
    matmul: Model


@cache
def compile_models() -> Q4Models:
    """Compiles both graphs, once a process."""
    session, cpu = InferenceSession(), DeviceRef.CPU()
    x_type = TensorType(DType.float32, ("m", "k"), cpu)
    weight_type = TensorType(DType.uint8, ("n", "row_bytes"), cpu)

    with Graph("q4_0_repack", input_types=[weight_type]) as repack:
        weight = repack.inputs[0].tensor
        repack.output(repack_gguf_quantized_weights(weight, QuantizationEncoding.Q4_0))

    with Graph("q4_0_matmul", input_types=[x_type, weight_type]) as matmul:
        operands = [graph_input.tensor for graph_input in matmul.inputs]
        out_type = TensorType(DType.float32, ("m", "n"), cpu)
        matmul.output(ops.custom("vroom_q4_0_matmul", cpu, operands, [out_type])[0])

    return Q4Models(session.load(repack), session.load(matmul))


def prepare(problem: Problem) -> Prepared:
    """Float32 activations, quantized in the call, times Q4_0 weights."""
    models = compile_models()
    weight = models.repack.execute(Buffer.from_numpy(problem.weight_q4.to_gguf()))[0]
    x = Buffer.from_numpy(problem.x_f32.numpy())

    def call():
        return models.matmul.execute(x, weight)

    return Prepared(
        call=call,
        output=lambda: torch.from_dlpack(call()[0]),
        weights=problem.weight_q4.dequantize,
    )


PEERS = [
    Peer(
        "MAX Q4_0",
        "integer 4-bit weights with a float16 scale per 32, 8-bit activations",
        prepare,
    )
]

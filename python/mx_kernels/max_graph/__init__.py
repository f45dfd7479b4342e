"""The operations inside a MAX graph, with the bits that the torch route gives.

    with Graph("mlp", input_types=[...], custom_extensions=[max_graph.library()]) as graph:
        x = graph.inputs[0].tensor                      [..., K], leading dims may be symbolic
        graph.output(max_graph.linear(x, weights))      weights: an MXTensor, or an MXValue

    max_graph.export(graph, "mlp.mef")                  compiles: tens of seconds, once
    model = max_graph.load("mlp.mef")                   milliseconds, in any process

An `MXTensor` becomes constants of the graph; an `MXValue` is its counterpart for codes and
scales that the graph computes or takes as inputs. What can be checked is checked while the
graph is built; what depends on a symbolic dimension is checked again when it runs.

Tensors lie on the CPU, on an NVIDIA GPU, or on a gfx950 GPU, where weights have that device's
preshuffled layout and nothing is dequantized.
Codes are uint8, and so are scales but those that are float32: MAX does not take float8_e8m0fnu
tensors on the CPU.

        values.py       codes and scales of a graph
        products.py     quantize, dequantize, matmul, linear
        experts.py      grouped_linear, moe
        fused.py        rms_norm_quantize, layer_norm_quantize, gate_quantize, mlp
        checks.py       what can be checked while a graph is built
        calls.py        how a call becomes a custom op
        files.py        the library of the ops; graphs as files
"""

from mx_kernels.max_graph.experts import grouped_linear, moe
from mx_kernels.max_graph.files import export, library, library_build, load
from mx_kernels.max_graph.fused import (
    gate_quantize,
    layer_norm_quantize,
    mlp,
    rms_norm_quantize,
)
from mx_kernels.max_graph.products import dequantize, linear, matmul, quantize
from mx_kernels.max_graph.values import MXValue, constant

__all__ = [
    "MXValue",
    "constant",
    "dequantize",
    "export",
    "gate_quantize",
    "grouped_linear",
    "layer_norm_quantize",
    "library",
    "library_build",
    "linear",
    "load",
    "matmul",
    "mlp",
    "moe",
    "quantize",
    "rms_norm_quantize",
]

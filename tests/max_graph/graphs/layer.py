"""A graph of every op on one device.

layer.py FILE.mef ARCHITECTURE     for a virtual NVIDIA GPU, which cannot be taken back
"""

import os
import sys

import torch
from max.driver import (
    Accelerator,
    set_virtual_device_api,
    set_virtual_device_count,
    set_virtual_device_target_arch,
)
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, ops

import mx_kernels as mx
from mx_kernels import max_graph

N, K = 80, 160
E, INNER, SLOTS = 3, 64, 2


def operands():
    """Returns weights in the layout of CUDA and in another one, and a bias, on the CPU."""
    torch.manual_seed(3)
    w = mx.quantize(torch.randn(N, K, device="cpu"))
    return w.preshuffle(device="cuda"), w.preshuffle(device="cpu"), torch.arange(float(N)).cpu()


def float_scaled():
    """Returns weights whose blocks have float32 scales, on the CPU."""
    torch.manual_seed(5)
    return mx.quantize(torch.randn(N, K, device="cpu"), format="fp8_block_2d")


def experts():
    """Returns the weights of a layer of experts, a preshuffled and a plain one, on the CPU."""
    torch.manual_seed(4)
    gate_up, down = (
        mx.quantize(torch.randn(E, n, k, device="cpu") / 8) for n, k in ((2 * INNER, K), (K, INNER))
    )
    return gate_up.preshuffle(device="cuda"), down


def norm():
    """Returns the weight of a norm, on the CPU."""
    return torch.linspace(0.5, 2, K, device="cpu")


def graph_on(device, *, few: bool = False) -> Graph:
    """Returns a graph of every op on a device, or of some that have kernels of all rooms."""
    w, other, bias = operands()
    types = [
        TensorType(DType.bfloat16, ["m", K], device),
        TensorType(DType.int32, ["m", SLOTS], device),
        TensorType(DType.float32, ["m", SLOTS], device),
        TensorType(DType.int32, [E], device),
    ]
    library = [max_graph.library()]
    with Graph("layer", input_types=types, custom_extensions=library) as graph:
        x, ids, counts, sizes = (value.tensor for value in graph.inputs)
        codes = max_graph.quantize(x, scale_rule="rceil")
        normed, stream = max_graph.rms_norm_quantize(x, norm(), residual=x, format="mxint8")
        hidden = max_graph.gate_quantize(x, x, format="mxfp8")
        matrices = max_graph.quantize(ops.stack([x] * E))
        many = max_graph.matmul(matrices, experts()[0])
        made = normed.codes, stream, hidden.codes, many
        if few:
            graph.output(
                codes.codes,
                max_graph.linear(x, w, bias=bias, activations="mxfp4"),
                max_graph.linear(x, other, activations="bf16"),
                max_graph.moe(x, *experts(), ids, counts, activations="mxfp4"),
                *made,
            )
            return graph
        graph.output(
            max_graph.linear(x, w, bias=bias, activations="mxfp4"),
            max_graph.linear(x, other, activations="bf16"),
            max_graph.matmul(codes, w, out_dtype="float32"),
            max_graph.dequantize(codes, dtype="float16"),
            max_graph.moe(x, *experts(), ids, counts, activations="mxfp4"),
            max_graph.grouped_linear(x, experts()[0], sizes, activations="bf16"),
            max_graph.linear(x, float_scaled(), activations="fp8_block"),
            *made,
        )
    return graph


def export(path: str, architecture: str) -> None:
    """Compiles the graph for a device that need not be here."""
    set_virtual_device_api("cuda")
    set_virtual_device_target_arch(architecture)
    set_virtual_device_count(1)
    max_graph.export(graph_on(DeviceRef.GPU(), few=True), path, device=Accelerator())
    # Threads of a virtual device may outlive the interpreter, which then aborts.
    os._exit(0)


if __name__ == "__main__":
    export(*sys.argv[1:])

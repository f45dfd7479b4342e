"""A graph of every op on a virtual gfx950 GPU, which cannot be taken back.

gfx950.py FILE.mef                compiles it
gfx950.py FILE.mef pairs          compiles one of the pairs of formats that it leaves out
gfx950.py refusals ARCHITECTURE   prints what wrong calls are told, without a compilation
"""

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
from mx_kernels._core.native import gpu_plans

ARCHITECTURE = "gfx950"
N, K = 80, 160


def use_virtual(architecture: str) -> None:
    """Makes an AMD GPU that is not here the one that graphs compile for."""
    set_virtual_device_api("hip")
    set_virtual_device_target_arch(architecture)
    set_virtual_device_count(1)


def weights() -> mx.MXTensor:
    """Returns plain weights."""
    generator = torch.Generator().manual_seed(0)
    return mx.quantize(torch.randn(N, K, generator=generator))


def experts() -> tuple[mx.MXTensor, mx.MXTensor]:
    """Returns the weights of a layer of three experts that keep 64 values, for the GPU."""
    generator = torch.Generator().manual_seed(1)
    return tuple(
        mx.preshuffle(mx.quantize(torch.randn(3, *shape, generator=generator)), device=ARCHITECTURE)
        for shape in ((128, K), (K, 64))
    )


def empty_graph(*others: TensorType) -> Graph:
    """Returns a graph with rows on the GPU, and perhaps other inputs."""
    rows = TensorType(DType.bfloat16, ["m", K], DeviceRef.GPU())
    return Graph("layer", input_types=[rows, *others], custom_extensions=[max_graph.library()])


def export(path: str) -> None:
    """Compiles a graph of every op."""
    use_virtual(ARCHITECTURE)
    w = mx.preshuffle(weights(), device=ARCHITECTURE)
    routing = (
        TensorType(dtype, ["m", 2], DeviceRef.GPU()) for dtype in (DType.int32, DType.float32)
    )
    floats = TensorType(DType.bfloat16, [N, K], DeviceRef.GPU())
    with empty_graph(*routing, floats) as graph:
        x, ids, shares, known = (value.tensor for value in graph.inputs)
        fused = max_graph.linear(x, w, bias=torch.ones(N), activations="mxfp4")
        codes = max_graph.quantize(x, scale_rule="rceil")
        others = (max_graph.linear(x, w, activations=name) for name in ("bf16", "mxfp6", "mxfp8"))
        layers = (
            max_graph.moe(x, *experts(), ids, shares, activations=name)
            for name in ("bf16", "mxfp6")
        )
        normed, stream = max_graph.rms_norm_quantize(x, residual=x)
        made = normed.codes, stream, max_graph.gate_quantize(x, x, format="mxfp6").codes
        product = max_graph.matmul(codes, w, out_dtype="float32")
        by_floats = max_graph.matmul(x, x), max_graph.matmul(x, known, bias=torch.ones(N))
        graph.output(fused, product, *by_floats, *others, *layers, *made)
    max_graph.export(graph, path, device=Accelerator())


OF_EVERY_OP = {("bf16", "mxfp4"), ("mxfp4", "mxfp4"), ("mxfp6", "mxfp4"), ("mxfp8", "mxfp4")}
"""The pairs of `export`."""
WIDE = 256
"""Rows and K of weights that blocks of 128 x 128 fit."""


def other_pairs() -> list[tuple[str, str]]:
    """Returns the formats of activations and weights that `export` leaves out, in order."""
    return sorted(set(gpu_plans().pairs_on_gfx950()) - OF_EVERY_OP)


def export_pairs(path: str) -> None:
    """Compiles products of each other pair, by turns of floats and of codes; two are of no rows."""
    use_virtual(ARCHITECTURE)
    generator = torch.Generator().manual_seed(2)
    gpu, library = DeviceRef.GPU(), [max_graph.library()]
    types = [TensorType(DType.bfloat16, [*lead, WIDE], gpu) for lead in (["a", "b"], [0])]
    types += [TensorType(DType.int32, [3], gpu)]

    def weights_of(*shape: int, format: str) -> mx.MXTensor:
        w = mx.quantize(torch.randn(*shape, generator=generator), format=format)
        return w.preshuffle(ARCHITECTURE)

    with Graph("pairs", input_types=types, custom_extensions=library) as graph:
        batch, none, sizes = (value.tensor for value in graph.inputs)
        products = []
        for index, (left, right) in enumerate(other_pairs()):
            w = weights_of(WIDE, WIDE, format=right)
            if index % 2 == 0:
                products.append(max_graph.linear(batch, w, activations=left))
            else:
                products.append(max_graph.matmul(max_graph.quantize(batch, format=left), w))
        products.append(max_graph.linear(none, weights_of(WIDE, WIDE, format="mxfp8")))
        w = weights_of(3, WIDE, WIDE, format="mxfp8")
        products.append(max_graph.grouped_linear(none, w, sizes))
        graph.output(*products)
    max_graph.export(graph, path, device=Accelerator())


def print_refusals(architecture: str) -> None:
    """Prints what calls without a kernel are told, a line each."""
    use_virtual(architecture)
    plain = weights()
    shuffled = mx.preshuffle(plain, device=ARCHITECTURE)
    experts = mx.MXTensor(plain.codes[None], plain.scales[None])
    sizes = TensorType(DType.int32, [1], DeviceRef.GPU())
    with empty_graph(sizes) as graph:
        x, group_sizes = (value.tensor for value in graph.inputs)
        for call in (
            lambda: max_graph.linear(x, plain),
            lambda: max_graph.linear(x, max_graph.constant(shuffled)),
            lambda: max_graph.dequantize(max_graph.quantize(x)),
            lambda: max_graph.linear(
                x, max_graph.constant(shuffled, device=x.device), activations="mxint8"
            ),
            lambda: max_graph.grouped_linear(x, experts, group_sizes),
            lambda: max_graph.matmul(x, x[:, :32]),
            lambda: max_graph.matmul(x, ops.cast(x, DType.float16)),
        ):
            try:
                call()
            except ValueError as error:
                print(error)
            else:
                print("accepted")
        graph.output()


if __name__ == "__main__":
    if sys.argv[1] == "refusals":
        print_refusals(sys.argv[2])
    elif sys.argv[2:] == ["pairs"]:
        export_pairs(sys.argv[1])
    else:
        export(sys.argv[1])

"""A two-layer MXFP4 network as a MAX graph: build, export, load, compare with torch.

    python examples/max_graph.py [FILE.mef]

The first run compiles and writes the file; later runs only load it, which takes milliseconds.
"""

import sys
import time
from pathlib import Path

import torch
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, ops

import mx_kernels as mx
from mx_kernels import max_graph

torch.manual_seed(0)
UP = mx.quantize(torch.randn(512, 128)).preshuffle()
DOWN = mx.quantize(torch.randn(128, 512)).preshuffle()


def build() -> Graph:
    """Returns the graph; any number of rows, weights inside."""
    rows = TensorType(DType.float32, ["rows", 128], DeviceRef.CPU())
    with Graph("mlp", input_types=[rows], custom_extensions=[max_graph.library()]) as graph:
        hidden = ops.relu(max_graph.linear(graph.inputs[0].tensor, UP))
        graph.output(max_graph.linear(hidden, DOWN))
    return graph


def main() -> None:
    """Runs the graph and the same lines in torch on three numbers of rows."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "mlp.mef")
    if not path.exists():
        print(f"compiling {path}, once: about half a minute ...", flush=True)
        max_graph.export(build(), path)

    start = time.perf_counter()
    model = max_graph.load(path)
    print(f"loaded {path} in {1000 * (time.perf_counter() - start):.0f} ms")
    for rows in (1, 7, 32):
        x = torch.randn(rows, 128)
        got = torch.from_dlpack(model.execute(x)[0])
        expected = mx.linear(torch.relu(mx.linear(x, UP)), DOWN)
        print(f"{rows:3} rows: {'same bits' if torch.equal(got, expected) else 'DIFFERENT'}")


if __name__ == "__main__":
    main()

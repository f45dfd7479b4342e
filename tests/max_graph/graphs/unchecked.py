"""A linear whose K, bias and result are all symbolic, so that only the op can check them."""

import sys

from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, ops

from mx_kernels import max_graph

CPU_REF = DeviceRef.CPU()


def custom(name, values, shape, **parameters):
    """Adds an op past the helpers, which would not let wrong shapes through."""
    types = [TensorType(DType.float32, shape, CPU_REF)]
    return ops.custom(name, CPU_REF, values, types, parameters)[0].tensor


def build_graph() -> Graph:
    """Returns the graph."""
    types = [
        TensorType(DType.float32, ["m", "k"], CPU_REF),
        TensorType(DType.uint8, ["n", "bytes"], CPU_REF),
        TensorType(DType.uint8, ["n", "blocks"], CPU_REF),
        TensorType(DType.int64, [], CPU_REF),
        TensorType(DType.float32, ["bias"], CPU_REF),
    ]
    library = [max_graph.library()]
    with Graph("unchecked", input_types=types, custom_extensions=library) as graph:
        values = [value.tensor for value in graph.inputs]
        rules = {"rounding": "even", "activations": "mxfp4", "format": "mxfp4"}
        product = custom("mx_linear", values, ["p", "q"], layout="plain", **rules)
        floats = custom("mx_dequantize", values[1:4], ["r", "s"], format="mxfp4", layout="plain")
        graph.output(product, floats)
    return graph


if __name__ == "__main__":
    max_graph.export(build_graph(), sys.argv[1])

"""Graphs of cases: functions of a route, which is either torch or a graph.

    cases.py FILE.mef first     each op, for the first tier, and behind them ops with any shapes
    cases.py FILE.mef others    all others

The same lines build the graph and compute the expected result. Each op is compiled for each case,
so axes that know nothing of each other go side by side: every value of each is in a case, not every
pair. All pairs are `tests/numerics`' to multiply, with the kernels that these ops call.
"""

import sys
from functools import cache
from itertools import cycle
from types import SimpleNamespace

import numpy as np
import torch
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, ops

import mx_kernels as mx
import oracle
from cases import (
    DTYPES,
    FLOAT_FORMATS,
    FORMATS,
    LAYOUTS,
    ROUNDINGS,
    mx_tensor,
    quantized_normal,
    random_operand,
    torch_of,
)
from mx_kernels import max_graph

CPU_REF = DeviceRef.CPU()
FLOAT_SCALED_PAIRS = [
    *(("fp8_block", "fp8_block_2d"), ("fp8_block", "mxfp4")),
    *(("bf16", "fp8_block"), ("fp8_e5m2", "fp8_e5m2")),
    *(("fp8", "fp8"), ("mxfp8", "fp8_block_2d")),
    *(("nvfp4", "nvfp4"), ("nvfp4", "mxfp4")),
]
"""Activations and weights of which some have float32 scales; by turns of `linear` and `matmul`."""
MX_PAIRS = [
    *(("mxfp4", "mxfp8"), ("mxfp8", "mxfp4"), ("mxfp8_e5m2", "mxfp8_e5m2")),
    *(("mxint8", "mxfp4"), ("mxint8", "mxint8"), ("mxint16", "mxfp4")),
    *(("mxfp6", "mxfp4"), ("mxfp8", "mxfp6"), ("mxfp6_e3m2", "mxfp6_e3m2")),
]
"""Each MX format on both sides, and bytes of both kernels with codes of four bits."""
K, HIDDEN, N = 96, 160, 50

TORCH = SimpleNamespace(ops=mx, relu=torch.relu, value=mx.MXTensor)
GRAPH = SimpleNamespace(ops=max_graph, relu=ops.relu, value=max_graph.MXValue)

_rng = np.random.default_rng(23)
WEIGHTS = {
    "first": (HIDDEN, K, 112, 126),
    "second": (N, HIDDEN, 112, 126),
    "wide": (400, 512),
    "tiny": (N, K, 0, 9),
    "narrow": (N, K, 112, 126),
}
"""Sizes, and where scales do not cover their usual range the smallest and the largest."""
BIASES = {dtype: torch_of(100 * _rng.standard_normal(N), dtype) for dtype in DTYPES}
NORM = torch.linspace(-1, 2, K)
SUBNORMAL_BIAS = torch.full((N,), 1e-42)


@cache
def weights(name: str, layout: str = "plain", format: str = "mxfp4") -> mx.MXTensor:
    """Returns weights, the same in every process."""
    rng = np.random.default_rng(list(WEIGHTS).index(name))
    if format in FLOAT_FORMATS:
        return quantized_normal(rng, WEIGHTS[name], layout, format)
    return mx_tensor(*random_operand(rng, *WEIGHTS[name], format=format), layout, format)


@cache
def batch() -> mx.MXTensor:
    """Returns encoded activations whose matrices share no scales, and have few rows for a block."""
    sizes = torch.tensor([1.0, 100.0, 0.01])[:, None, None]
    floats = torch.from_numpy(np.random.default_rng(25).standard_normal((3, 5, K)))
    return mx.quantize((sizes * floats).float(), format="fp8_block_2d")


INPUTS = {
    **{dtype: (dtype, ["m", K]) for dtype in DTYPES},
    "wide": ("float32", ["m", 512]),
    "nested": ("bfloat16", ["a", "b", K]),
    "codes": ("uint8", ["m", K // 2]),
    "six_bit_codes": ("uint8", ["m", K * 6 // 8]),
    "eight_bit_codes": ("uint8", ["m", K]),
    "scales": ("uint8", ["m", K // 32]),
    "wide_codes": ("uint8", ["m", 512]),
    "float_scales": ("float32", ["m", 4]),
    "bias": ("float16", [N]),
}


CODES = {6: "six_bit_codes", 8: "eight_bit_codes"}
"""Inputs, by the bits of a code."""


def mlp(route, x, layout, bias=None):
    """Two layers with an exact function between them."""
    hidden = route.relu(route.ops.linear(x, weights("first", layout)))
    return route.ops.linear(hidden, weights("second", layout), bias=bias)


CASES = {
    **{
        f"mlp-{dtype}-{layout}": lambda route, i, dtype=dtype, layout=layout: mlp(
            route, i[dtype], layout, None if layout == "preshuffled_cpu" else BIASES[dtype]
        )
        for dtype, layout in zip([*DTYPES, "float16"], LAYOUTS, strict=True)
    },
    **{
        f"linear-{scale_rule}": lambda route, i, scale_rule=scale_rule: route.ops.linear(
            i["float32"], weights("tiny"), scale_rule=scale_rule, bias=i["bias"]
        )
        for scale_rule in ROUNDINGS
    },
    **{
        f"kept-{dtype}": lambda route, i, dtype=dtype: route.ops.linear(
            i[dtype], weights("tiny"), activations="bf16", bias=i["bias"]
        )
        for dtype in DTYPES
    },
    "dequantize-mxfp4": lambda route, i: route.ops.dequantize(
        route.value(i["codes"], i["scales"]), dtype="float16"
    ),
    **{
        f"pair-{left}-{right}": lambda route, i, left=left, right=right: route.ops.linear(
            i["bfloat16"], weights("narrow", "preshuffled_cpu", right), activations=left
        )
        for left, right in MX_PAIRS
    },
    **{
        f"matmul-{format}": lambda route, i, format=format: route.ops.matmul(
            route.ops.quantize(i["float32"], format=format), weights("tiny", format=format)
        )
        for format in FORMATS[1:]
    },
    **{
        f"dequantize-{format}": lambda route, i, format=format, dtype=dtype: route.ops.dequantize(
            route.value(i[CODES[oracle.FORMATS[format].element.bits]], i["scales"], format=format),
            dtype=dtype,
        )
        for format, dtype in zip(FORMATS[1:], cycle(("bfloat16", "float32", "float16")))
    },
    **{
        f"linear-{left}-{right}": lambda route, i, left=left, right=right: route.ops.linear(
            i["wide"], weights("wide", "preshuffled_cpu", right), activations=left
        )
        for left, right in FLOAT_SCALED_PAIRS[::2]
    },
    **{
        f"matmul-{left}-{right}": lambda route, i, left=left, right=right: route.ops.matmul(
            route.ops.quantize(i["wide"], format=left), weights("wide", format=right)
        )
        for left, right in FLOAT_SCALED_PAIRS[1::2]
    },
    **{
        f"dequantize-{format}": lambda route, i, format=format: route.ops.dequantize(
            weights("wide", "preshuffled_cpu", format), dtype="float32"
        )
        for format in FLOAT_FORMATS
        if format != "fp8_block"
    },
    "dequantize-input-fp8_block": lambda route, i: route.ops.dequantize(
        route.value(i["wide_codes"], i["float_scales"], format="fp8_block"), dtype="float32"
    ),
    "dequantize-padded": lambda route, i: route.ops.dequantize(
        weights("second", "preshuffled_cpu")
    ),
    "threads": lambda route, i: route.ops.linear(i["wide"], weights("wide")),
    "nested": lambda route, i: route.ops.linear(i["nested"], weights("tiny"), out_dtype="float32"),
    "nested-quantized": lambda route, i: route.ops.dequantize(route.ops.quantize(i["nested"])),
    "subnormal": lambda route, i: route.ops.matmul(
        route.value(i["codes"], i["scales"]),
        weights("tiny"),
        out_dtype="float32",
        bias=SUBNORMAL_BIAS,
    ),
    "matmul-batch": lambda route, i: route.ops.matmul(batch(), weights("tiny")),
    "input-weights": lambda route, i: route.ops.matmul(
        route.ops.quantize(i["bfloat16"], scale_rule="rceil"), route.value(i["codes"], i["scales"])
    ),
    "norm": lambda route, i: (
        route.ops.rms_norm_quantize(i["nested"], NORM, residual=i["nested"], format="mxint8")[
            0
        ].codes
    ),
    "gate": lambda route, i: route.ops.gate_quantize(i["wide"]).codes,
    "codes": lambda route, i: route.ops.quantize(i["float16"]).codes,
    "scales": lambda route, i: route.ops.quantize(i["float16"]).scales,
}


FIRST = ["nested", "input-weights", "nested-quantized", "norm"]
"""Each op once, but gates, which are as norms: a product takes the compiler some twenty seconds."""
GRAPHS = {"first": FIRST, "others": [case for case in CASES if case not in FIRST]}
"""Cases by graph."""


UNCHECKED = {
    **{"x": ("float32", 2), "w_codes": ("uint8", 2), "w_scales": ("uint8", 2)},
    **{"rows": ("int64", 0), "bias": ("float32", 1)},
}
"""Types and ranks of what is added past the helpers behind the cases of `first`: what its linear
takes, and of that the weights, which it dequantizes."""


def unchecked(i: dict) -> list:
    """Returns ops past the helpers, which would not let wrong shapes through.

    K, bias and result are all symbolic, so that only the ops can check them.
    """
    product, floats = (
        [TensorType(DType.float32, [f"{name}_m", f"{name}_n"], CPU_REF)]
        for name in ("product", "floats")
    )
    stored, weights = {"format": "mxfp4", "layout": "plain"}, list(i.values())[1:4]
    rules = {"rounding": "ceil", "activations": "mxfp4"}
    return [
        *ops.custom("mx_linear", CPU_REF, list(i.values()), product, {**stored, **rules}),
        *ops.custom("mx_dequantize", CPU_REF, weights, floats, stored),
    ]


def build_graph(name: str) -> Graph:
    """Puts the cases of a graph into it."""
    types = [TensorType(DType[d], shape, CPU_REF) for d, shape in INPUTS.values()]
    others = UNCHECKED if name == "first" else {}
    types += [
        TensorType(DType[dtype], [f"{name}_{axis}" for axis in range(rank)], CPU_REF)
        for name, (dtype, rank) in others.items()
    ]
    with Graph("cases", input_types=types, custom_extensions=[max_graph.library()]) as graph:
        values = [value.tensor for value in graph.inputs]
        inputs = dict(zip(INPUTS, values, strict=False))
        results = [CASES[case](GRAPH, inputs) for case in GRAPHS[name]]
        if others:
            results += unchecked(dict(zip(others, values[len(INPUTS) :], strict=True)))
        graph.output(*results)
    return graph


if __name__ == "__main__":
    max_graph.export(build_graph(sys.argv[2]), sys.argv[1])

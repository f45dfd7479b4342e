"""A graph of experts: cases as in `cases.py`, functions of a route.

experts.py FILE.mef

A layer takes seconds to compile, so that axes go side by side as in `cases.py`; and a graph half a
minute whatever is in it, so that both ops with shapes that only they can check are in the same one.
"""

import sys
from functools import cache
from itertools import cycle

import numpy as np
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, ops

import mx_kernels as mx
from cases import (
    DTYPES,
    FLOAT_FORMATS,
    FORMATS,
    GATES,
    LAYOUTS,
    OTHER_GATES,
    ROUNDINGS,
    mx_tensor,
    quantized_normal,
    random_operand,
    sums_of,
    torch_of,
)
from mx_kernels import max_graph
from tests.max_graph.graphs.cases import GRAPH

CPU_REF = DeviceRef.CPU()
E, H, INNER, N = 5, 96, 64, 50

_rng = np.random.default_rng(29)
BIASES = {
    dtype: [torch_of(_rng.standard_normal((E, n)), dtype) for n in (2 * INNER, H, N)]
    for dtype in DTYPES
}


@cache
def weights(n: int, k: int, layout: str = "plain", format: str = "mxfp4") -> mx.MXTensor:
    """Returns weights [E, n, k], the same in every process."""
    rng = np.random.default_rng([n, k])
    if format in FLOAT_FORMATS:
        return quantized_normal(rng, (E, n, k), layout, format)
    top = 124 if format == "mxfp4" else 118
    parts = [random_operand(rng, n, k, top - 4, top, format=format) for _ in range(E)]
    return mx_tensor(*map(np.stack, zip(*parts, strict=True)), layout, format)


INPUTS = {
    **{dtype: (dtype, ["m", H]) for dtype in DTYPES},
    "ids": ("int64", ["m", 3]),
    "short_ids": ("int32", ["m", "k"]),
    "weights": ("float32", ["m", 3]),
    "half_weights": ("float16", ["m", "k"]),
    "sizes": ("int32", [E]),
    "codes": ("uint8", [E, N, H // 2]),
    "scales": ("uint8", [E, N, H // 32]),
    "bias": ("bfloat16", [E, N]),
}


def layer(
    route, i, dtype="bfloat16", layouts=("preshuffled_cpu",) * 2, formats=("mxfp4",) * 2, **rules
):
    """A layer with biases."""
    sums = sums_of(rules.get("hidden_act", "swiglu_oai"), INNER)
    gate_up = weights(sums, H, layouts[0], formats[0])
    down = weights(H, INNER, layouts[1], formats[1])
    biases = dict(zip(("bias_gate_up", "bias_down"), BIASES[dtype], strict=False))
    biases["bias_gate_up"] = biases["bias_gate_up"][:, :sums]
    return route.ops.moe(i[dtype], gate_up, down, i["ids"], i["weights"], **biases, **rules)


def grouped(route, i, dtype="bfloat16", layout="preshuffled_cpu", format="mxfp4", **rules):
    """A grouped product."""
    w = weights(N, H, layout, format)
    return route.ops.grouped_linear(i[dtype], w, i["sizes"], **rules)


MODES = [*FORMATS, "bf16"]
NEIGHBOURS = list(zip(LAYOUTS, [*list(LAYOUTS)[1:], *LAYOUTS], strict=False))
"""Layouts of both weights of a layer: each of both, and no two alike."""
FLOAT_SCALED = [
    *(("fp8", "fp8"), ("fp8_block", "fp8_block_2d"), ("bf16", "fp8_block_2d")),
    ("nvfp4", "nvfp4"),
]
"""Activations and weights whose scales are float32."""
CASES = {
    "moe": layer,
    "moe-silu": lambda route, i: layer(
        route, i, "float32", ("plain", "plain"), hidden_act="silu", activations="mxint8"
    ),
    "moe-kept": lambda route, i: route.ops.moe(
        i["float16"], weights(2 * INNER, H), weights(H, INNER), i["short_ids"], i["half_weights"],
        limit=0.5, alpha=3.0, activations="bf16", out_dtype="float32",
    ),
    **{
        f"moe-{gate}": lambda route, i, gate=gate: layer(
            route, i, activations="mxint8", out_dtype="float32", **GATES[gate]
        )
        for gate in OTHER_GATES
    },
    "moe-weighted-input": lambda route, i: layer(
        route, i, hidden_act="silu", apply_router_weight_on_input=True, activations="mxfp8"
    ),
    "grouped": lambda route, i: grouped(route, i, bias=BIASES["bfloat16"][2]),
    "grouped-kept": lambda route, i: grouped(route, i, "float32", "plain", activations="bf16"),
    "grouped-inputs": lambda route, i: route.ops.grouped_linear(
        i["bfloat16"], route.value(i["codes"], i["scales"]), i["sizes"], bias=i["bias"]
    ),
    **{
        f"moe-{mode}-{dtype}": lambda route, i, mode=mode, dtype=dtype: layer(
            route, i, dtype, activations=mode, out_dtype="float32"
        )
        for mode, dtype in zip(MODES, cycle(DTYPES))
    },
    **{
        f"moe-{'-'.join(layouts)}-{format}": lambda route, i, of=(layouts, format): layer(
            route, i, layouts=of[0], formats=(of[1], "mxfp4"), hidden_act="silu",
            activations="mxfp8", out_dtype="float16",
        )
        for layouts, format in zip(cycle(NEIGHBOURS), FORMATS)
    },
    **{
        f"moe-{mode}-{format}": lambda route, i, mode=mode, format=format: layer(
            route, i, formats=(format, format), activations=mode, out_dtype="float32"
        )
        for mode, format in FLOAT_SCALED[:2]
    },
    **{
        f"grouped-{mode}-{format}": lambda route, i, mode=mode, format=format: grouped(
            route, i, layout="plain", format=format, activations=mode
        )
        for mode, format in FLOAT_SCALED[1:]
    },
    **{
        f"grouped-{mode}-{format}-{rule}": lambda route, i, of=(mode, format, rule): grouped(
            route, i, format=of[1], activations=of[0], scale_rule=of[2], out_dtype="float32"
        )
        for mode, format, rule in zip(FORMATS, cycle(FORMATS[:0:-1]), ROUNDINGS)
    },
}  # fmt: skip


UNCHECKED = {
    **{"x": ("float32", 2), "gate_up": ("uint8", 3), "gate_up_scales": ("uint8", 3)},
    **{"down": ("uint8", 3), "down_scales": ("uint8", 3), "ids": ("int64", 2)},
    **{"weights": ("float32", 2), "bias": ("float32", 2), "bias_down": ("float32", 2)},
    **{"limit": ("float32", 0), "alpha": ("float32", 0), "rows": ("int64", 0)},
    "sizes": ("int32", 1),
}
"""Types and ranks of what is added past the helpers."""


def unchecked(i: dict) -> list:
    """Returns both ops past the helpers, which would not let wrong shapes through."""
    rules = {"rounding": "even", "activations": "mxfp4"}
    of_layer = {"gate_up_format": "mxfp4", "gate_up_layout": "plain", "activation": "silu"}
    of_layer["interleaved"] = False
    of_layer |= {"down_format": "mxfp4", "down_layout": "plain"}
    of_product = {"format": "mxfp4", "layout": "plain"}
    result = [TensorType(DType.float32, ["y", "z"], CPU_REF)]
    layer_inputs = [i[name] for name in list(UNCHECKED)[:11]]
    product_inputs = [i[n] for n in ("x", "gate_up", "gate_up_scales", "rows", "sizes", "bias")]
    return [
        *ops.custom("mx_moe", CPU_REF, layer_inputs, result, {**rules, **of_layer}),
        *ops.custom("mx_grouped_linear", CPU_REF, product_inputs, result, {**rules, **of_product}),
    ]


def build_graph() -> Graph:
    """Puts all cases into a graph, and behind them both ops with any shapes."""
    types = [TensorType(DType[d], shape, CPU_REF) for d, shape in INPUTS.values()]
    types += [
        TensorType(DType[dtype], [f"{name}_{axis}" for axis in range(rank)], CPU_REF)
        for name, (dtype, rank) in UNCHECKED.items()
    ]
    with Graph("experts", input_types=types, custom_extensions=[max_graph.library()]) as graph:
        values = [value.tensor for value in graph.inputs]
        inputs = dict(zip(INPUTS, values, strict=False))
        others = dict(zip(UNCHECKED, values[len(INPUTS) :], strict=True))
        results = [case(GRAPH, inputs) for case in CASES.values()]
        graph.output(*results, *unchecked(others))
    return graph


if __name__ == "__main__":
    max_graph.export(build_graph(), sys.argv[1])

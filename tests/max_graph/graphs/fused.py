"""A graph of norms, gates, MLPs and matrices by matrices: cases as in `cases.py`, lists of tensors.

fused.py FILE.mef

Every format, rule, activation and layout, side by side as there.
"""

import sys
from functools import cache
from itertools import cycle

import numpy as np
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType

import mx_kernels as mx
from cases import (
    DTYPES,
    FLOAT_FORMATS,
    FORMATS,
    GATES,
    LAYOUTS,
    ROUNDINGS,
    quantized_normal,
    sums_of,
    torch_of,
)
from mx_kernels import max_graph
from tests.max_graph.graphs.cases import GRAPH

CPU_REF = DeviceRef.CPU()
K, INNER, N, ROWS, COUNT = 160, 96, 40, 130, 3
"""Of products; rows that share scales, and matrices."""
ROUNDS = ("each", "result", "none")
_rng = np.random.default_rng(41)
WEIGHTS = {dtype: torch_of(1 + _rng.standard_normal(K) / 4, dtype) for dtype in DTYPES}
BIAS = torch_of(_rng.standard_normal(K), "bfloat16")
SUMS, OUT = torch_of(_rng.standard_normal(2 * INNER), "float32"), BIAS

INPUTS = {
    **{dtype: (dtype, ["m", K]) for dtype in DTYPES},
    **{f"both-{dtype}": (dtype, ["m", 2 * K]) for dtype in DTYPES},
    **{f"up-{dtype}": (dtype, ["m", K]) for dtype in DTYPES},
    "rows": ("bfloat16", [ROWS, K]),
    "nested": ("bfloat16", ["a", "b", K]),
    "residual": ("bfloat16", ["a", "b", K]),
    "weight": ("float32", [K]),
    "matrices": ("bfloat16", [COUNT, "b", K]),
}


@cache
def weights(shape: tuple[int, ...], format: str, layout: str = "plain") -> mx.MXTensor:
    """Returns weights, the same in every process."""
    return quantized_normal(np.random.default_rng(shape), shape, layout, format)


def parts(q):
    """Returns codes and scales, and what else a call has made."""
    q, *others = q if isinstance(q, tuple) else (q,)
    return [q.codes, q.scales, *others]


def norm(route, i, index, format, *, dtype="bfloat16"):
    """Normalizes rows to a format; the rules take turns."""
    is_square = format == "fp8_block_2d"
    x = i["rows" if is_square else dtype]
    rule = ROUNDINGS[index % len(ROUNDINGS)] if format in FORMATS else "even"
    rules = {"format": format, "scale_rule": rule, "rounds": ROUNDS[index % 3]}
    weight = WEIGHTS[DTYPES[(index // 2) % 3]]
    if index % 2:
        return parts(route.ops.layer_norm_quantize(x, weight, BIAS, eps=0.5, **rules))
    return parts(route.ops.rms_norm_quantize(x, weight, weight_offset=index % 4 / 2, **rules))


def gate(route, i, name, format, dtype):
    """Makes hidden numbers in a format, of ups beside the gates if an activation has no order."""
    options, rules = {"format": format}, GATES[name]
    if sums_of(name, 1) == 1:
        return parts(route.ops.gate_quantize(i[dtype], **rules, **options))
    if "interleaved" not in rules and DTYPES.index(dtype) % 2:
        options["up"] = i[f"up-{dtype}"]
        return parts(route.ops.gate_quantize(i[dtype], **rules, **options))
    return parts(route.ops.gate_quantize(i[f"both-{dtype}"], **rules, **options))


def mlp(route, i, name, formats, layout, **options):
    """A dense MLP with biases, over matrices of tokens."""
    gate_up = weights((sums_of(name, INNER), K), formats[0], layout)
    biases = {"bias_gate_up": SUMS[: gate_up.shape[0]], "bias_down": OUT}
    down = weights((K, INNER), formats[1], layout)
    return [route.ops.mlp(i["nested"], gate_up, down, **biases, **GATES[name], **options)]


def products(route, i, left, right, layout, bias=None):
    """Multiplies matrices by matrices."""
    b = weights((COUNT, N, K), right, layout)
    a = route.ops.quantize(i["matrices"], format=left)
    return [route.ops.matmul(a, b, out_dtype="float32", bias=bias)]


CASES = {
    "norm": lambda route, i: parts(
        route.ops.rms_norm_quantize(i["nested"], i["weight"], residual=i["residual"])
    ),
    **{
        f"norm-{format}": lambda route, i, of=(index, format): norm(
            route, i, *of, dtype=DTYPES[of[0] % 3]
        )
        for index, format in enumerate([*FORMATS, *FLOAT_FORMATS])
    },
    "norm-of-nothing-else": lambda route, i: parts(route.ops.layer_norm_quantize(i["float32"])),
    **{
        f"gate-{name}-{format}": lambda route, i, of=(name, format, dtype): gate(route, i, *of)
        for name, format, dtype in zip(
            GATES,
            cycle(it for it in [*FORMATS, *FLOAT_FORMATS] if it != "fp8_block_2d"),
            cycle(DTYPES),
        )
    },
    **{
        f"mlp-{name}-{layout}": lambda route, i, of=(name, formats, layout), mode=mode: mlp(
            route, i, *of, activations=mode
        )
        for name, formats, layout, mode in (
            ("silu", ("mxfp4", "mxfp4"), "preshuffled_cpu", None),
            ("swiglu_oai", ("mxfp4", "mxint8"), "plain", "mxfp8"),
            ("relu2", ("fp8_block_2d", "mxfp6"), "preshuffled_cuda", "bf16"),
        )
    },
    **{
        f"matrices-{left}-{right}-{layout}": lambda route, i, of=(left, right, layout): products(
            route, i, *of, torch_of(np.arange(COUNT * N).reshape(COUNT, N), "float32")
            if of[2] == "plain" else None,
        )
        for (left, right), layout in zip(
            (
                ("mxfp4", "mxfp4"), ("mxint8", "mxfp8"), ("nvfp4", "nvfp4"),
                ("fp8_block", "fp8_block_2d"),
            ),
            LAYOUTS,
            strict=True,
        )
    },
}  # fmt: skip


def build_graph() -> Graph:
    """Puts all cases into one graph."""
    types = [TensorType(DType[dtype], shape, CPU_REF) for dtype, shape in INPUTS.values()]
    with Graph("fused", input_types=types, custom_extensions=[max_graph.library()]) as graph:
        inputs = dict(zip(INPUTS, (value.tensor for value in graph.inputs), strict=True))
        graph.output(*(part for case in CASES.values() for part in case(GRAPH, inputs)))
    return graph


if __name__ == "__main__":
    max_graph.export(build_graph(), sys.argv[1])

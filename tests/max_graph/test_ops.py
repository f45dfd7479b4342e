"""The MAX graph gives the bits of the torch route, in this process and from a file in another.

The cases of a tier share one compiled model, see `graphs/cases.py`: a compilation takes the
better part of a minute.
"""

import os
import subprocess
import sys
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, ops

import mx_kernels as mx
from cases import DTYPES, torch_of
from mx_kernels import max_graph
from tests import artefacts
from tests.max_graph.graphs.cases import (
    CASES,
    CPU_REF,
    FIRST,
    GRAPH,
    GRAPHS,
    HIDDEN,
    INPUTS,
    TORCH,
    K,
    N,
    weights,
)
from tests.tiers import tiered

RUNS = [(0, 0, 1), (1, 2, 3), (3, 1, 33), (17, 5, 1), (64, 2, 2)]
"""Sizes of the symbolic dimensions: m, and the two leading dimensions of `nested`."""


@cache
def model(graph):
    return max_graph.load(artefacts.path(f"max_graph/{graph}"))


@cache
def runs(graph):
    """Runs a model with every size; returns inputs and results by case."""
    rng = np.random.default_rng(24)
    results = {}
    for sizes in RUNS:
        inputs = random_inputs(rng, sizes)
        others = arguments() if graph == "first" else ()
        outputs = model(graph).execute(*inputs.values(), *others)[: len(GRAPHS[graph])]
        outputs = map(torch.from_dlpack, outputs)
        results[sizes] = inputs, dict(zip(GRAPHS[graph], outputs, strict=True))
    return results


def random_inputs(rng, sizes):
    return {name: random_input(rng, name, sizes) for name in INPUTS}


def random_input(rng, name, sizes):
    dtype, dims = INPUTS[name]
    symbols = dict(zip("mab", sizes, strict=True))
    shape = [symbols.get(dim, dim) for dim in dims]
    if dtype == "uint8":
        low, high = (0, 140) if name == "scales" else (0, 256)
        return torch.from_numpy(rng.integers(low, high, shape, np.uint8))
    return torch_of(rng.standard_normal(shape), dtype)


def assert_same_bits(got, expected):
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[got.element_size()]
    differing = (got.view(bits) != expected.view(bits)).nonzero()
    assert not len(differing), f"{len(differing)} differ, first at {differing[0].tolist()}"


@pytest.mark.parametrize("sizes", RUNS, ids=str)
@pytest.mark.parametrize("case", tiered(CASES, first=FIRST))
def test_the_graph_has_the_bits_of_torch(case, sizes):
    inputs, results = runs("first" if case in FIRST else "others")[sizes]
    assert_same_bits(results[case], CASES[case](TORCH, inputs))


@pytest.mark.deep
def test_the_subnormal_case_has_subnormals():
    _, results = runs("others")[RUNS[-1]]
    magnitudes = results["subnormal"].abs()
    assert ((magnitudes > 0) & (magnitudes < torch.finfo(torch.float32).tiny)).any()


SECOND_PROCESS = """
import sys, time
import torch
from mx_kernels import max_graph
start = time.process_time()
model = max_graph.load(sys.argv[1])
seconds = time.process_time() - start
inputs, expected = torch.load(sys.argv[2])
results = [torch.from_dlpack(out) for out in model.execute(*inputs)]
assert len(results) == len(expected) + 2
assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(results, expected))
assert "_mx_kernels_native" not in sys.modules, "loading a file must not need the extension"
print(seconds)
"""


def test_a_second_process_loads_the_file_within_a_second(tmp_path):
    inputs, results = runs("first")[RUNS[-1]]
    data = tmp_path / "data.pt"
    others = map(torch.as_tensor, arguments())
    torch.save(([*inputs.values(), *others], list(results.values())), data)
    command = [
        sys.executable,
        "-c",
        SECOND_PROCESS,
        str(artefacts.path("max_graph/first")),
        str(data),
    ]
    clean = dict(os.environ)
    done = subprocess.run(command, capture_output=True, text=True, env=clean, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1.0


# What the helpers cannot see while the graph is built


def run_unchecked(**wrong):
    """Returns what the ops with any shapes give for `arguments`, behind cases of any inputs."""
    inputs = random_inputs(np.random.default_rng(25), RUNS[-1])
    outputs = model("first").execute(*inputs.values(), *arguments(**wrong))
    return [torch.from_dlpack(out) for out in outputs[len(FIRST) :]]


def arguments(*, m=3, k=64, n=5, w_k=64, blocks=2, rows=5, bias=5):
    return (
        torch.randn(m, k),
        torch.zeros(n, w_k // 2, dtype=torch.uint8),
        torch.full((n, blocks), 127, dtype=torch.uint8),
        np.array(rows),
        torch.arange(bias).float(),
    )


def test_shape_functions_find_what_the_graph_leaves_open():
    product, floats = run_unchecked()
    assert_same_bits(product, torch.arange(5).float().expand(3, 5))
    assert_same_bits(floats, torch.zeros(5, 64))


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"k": 96}, r"weights: got \(5, 32\), expected \(5, 48\)"),
        ({"k": 40}, "got K = 40, expected a positive multiple of 32"),
        ({"blocks": 3}, r"weights: got \(5, 3\), expected \(5, 2\)"),
        ({"rows": 6}, r"weights: got \(5, 32\), expected \(6, 32\)"),
        ({"bias": 4}, r"bias: got \[4\], expected \[5\] or \[0\]"),
    ],
)
def test_a_wrong_shape_at_run_time_raises(wrong, message):
    with pytest.raises(ValueError, match=message):
        run_unchecked(**wrong)


# What they can


@pytest.fixture(scope="module")
def inside():
    """Inputs of a graph that is never compiled."""
    types = {
        "x": (DType.float32, ["m", K], CPU_REF),
        "k_symbolic": (DType.float32, ["m", "k"], CPU_REF),
        "k_odd": (DType.float32, ["m", 40], CPU_REF),
        "ints": (DType.int32, ["m", K], CPU_REF),
        "gpu": (DType.float32, ["m", K], DeviceRef.GPU()),
        "scalar": (DType.float32, [], CPU_REF),
        "codes": (DType.uint8, [N, K // 2], CPU_REF),
        "scales": (DType.uint8, [N, K // 32], CPU_REF),
        "e8m0": (DType.float8_e8m0fnu, [N, K // 32], CPU_REF),
        "nested": (DType.uint8, [2, N, K // 2], CPU_REF),
        "eight_bit_codes": (DType.uint8, [N, K], CPU_REF),
        "float_scales": (DType.float32, [N, K // 32], CPU_REF),
    }
    library = [max_graph.library()]
    inputs = [TensorType(*row) for row in types.values()]
    with Graph("inside", input_types=inputs, custom_extensions=library) as graph:
        values = zip(types, (value.tensor for value in graph.inputs), strict=True)
        yield SimpleNamespace(**dict(values))
        graph.output()


@pytest.mark.parametrize("dtype", DTYPES)
def test_codes_count_as_the_floats_that_they_were(dtype):
    """Without a dtype, a result has the one that torch's has."""
    x = torch.randn(3, K, dtype=getattr(torch, dtype))
    of_x = TensorType(DType[dtype], [3, K], CPU_REF)
    with Graph("dtypes", input_types=[of_x], custom_extensions=[max_graph.library()]) as graph:
        for route, floats in ((GRAPH, graph.inputs[0].tensor), (TORCH, x)):
            normed, stream = route.ops.rms_norm_quantize(floats, residual=floats)
            gated = route.ops.gate_quantize(floats, floats)
            for q in (route.ops.quantize(floats), normed, gated, mx.quantize(x)):
                made = route.ops.matmul(q, weights("tiny")), route.ops.dequantize(q)
                assert [str(y.dtype).split(".")[1] for y in (*made, stream)] == [dtype] * 3
        graph.output()


WRONG_CALLS = {
    "x is no tensor of the graph": (
        lambda i: max_graph.linear(torch.ones(1, K), weights("first")),
        (TypeError, "x: got Tensor, expected a TensorValue; .*ops.constant"),
    ),
    "x is quantized": (
        lambda i: max_graph.linear(weights("first"), weights("first")),
        (TypeError, "x: got an MXTensor, expected floats; see matmul"),
    ),
    "x holds integers": (
        lambda i: max_graph.quantize(i.ints),
        (TypeError, "x: got dtype int32, expected bfloat16 .*ops.cast"),
    ),
    "x lies on a GPU": (
        lambda i: max_graph.quantize(i.gpu),
        (ValueError, r"x: got device gpu:0 \(.+\), expected cpu:0 or .*transfer_to"),
    ),
    "x is a number": (
        lambda i: max_graph.quantize(i.scalar),
        (ValueError, "x: got a single number"),
    ),
    "a mode is unknown": (
        lambda i: max_graph.linear(
            ops.cast(i.ints, DType.float32), weights("first"), activations="int4"
        ),
        (ValueError, "activations: got 'int4', expected 'mxfp4' or .* or 'bf16'"),
    ),
    "K is symbolic": (
        lambda i: max_graph.quantize(i.k_symbolic),
        (ValueError, "x: got shape .*, whose last dimension is symbolic"),
    ),
    "K is no multiple of 32": (
        lambda i: max_graph.quantize(i.k_odd),
        (ValueError, r"x: got K = 40, expected a positive multiple of 32; pad .* \[0, 24\]"),
    ),
    "K differs": (
        lambda i: max_graph.linear(i.x, weights("second")),
        (ValueError, "x and w: got K = 96 and K = 160, expected one K"),
    ),
    "unknown rounding": (
        lambda i: max_graph.linear(i.x, weights("first"), scale_rule="up"),
        (ValueError, "scale_rule: got 'up', expected 'floor' or 'even'"),
    ),
    "unknown layout": (
        lambda i: max_graph.MXValue(i.codes, i.scales, layout="tiled"),
        (ValueError, "layout: got 'tiled', expected plain"),
    ),
    "unknown dtype": (
        lambda i: max_graph.linear(i.x, weights("first"), out_dtype=DType.float64),
        (ValueError, "dtype: got 'float64', expected bfloat16"),
    ),
    "weights are floats": (
        lambda i: max_graph.linear(i.x, i.x),
        (TypeError, "w: got TensorValue, expected an MXTensor"),
    ),
    "floats are multiplied by floats on the CPU": (
        lambda i: max_graph.matmul(ops.cast(i.x, DType.bfloat16), ops.cast(i.x, DType.bfloat16)),
        (ValueError, "a and b: got floats on cpu:0, expected a gfx950 GPU.*ops.matmul"),
    ),
    "weights are nested": (
        lambda i: max_graph.linear(i.x, mx.quantize(torch.ones(2, 3, K))),
        (ValueError, r"w: got shape \[2, 3, 96\], expected weights \[N, K\]"),
    ),
    "activations are preshuffled": (
        lambda i: max_graph.matmul(weights("first", "preshuffled_cpu"), weights("first")),
        (ValueError, "a: got layout 'preshuffled_cpu', expected 'plain'"),
    ),
    "scales are of MAX's own dtype": (
        lambda i: max_graph.MXValue(i.codes, i.e8m0),
        (TypeError, r"scales: got dtype float8_e8m0fnu, expected uint8; .*view\(torch.uint8\)"),
    ),
    "scales are too many": (
        lambda i: max_graph.MXValue(i.codes, i.codes),
        (ValueError, r"scales: got \[50, 48\], expected \[50, 3\] for \[50, 96\] of mxfp4"),
    ),
    "scales are bytes": (
        lambda i: max_graph.MXValue(i.eight_bit_codes, i.scales, format="fp8_block"),
        (TypeError, "scales: got dtype uint8, expected float32"),
    ),
    "scales of rows are one for each block": (
        lambda i: max_graph.MXValue(i.eight_bit_codes, i.float_scales, format="fp8"),
        (ValueError, r"scales: got \[50, 3\], expected \[50, 1\] for \[50, 96\] of fp8"),
    ),
    "rows that share scales are not known": (
        lambda i: max_graph.quantize(i.x, format="fp8_block_2d"),
        (ValueError, r"x: got shape \[m, 96\], expected \[..., N, K\] with N known"),
    ),
    "a rule that scales of floats cannot follow": (
        lambda i: max_graph.quantize(i.x, format="fp8_block", scale_rule="floor"),
        (ValueError, "scale_rule: got 'floor' with format='fp8_block', whose scales are float32"),
    ),
    "activations share scales": (
        lambda i: max_graph.linear(i.x, weights("first"), activations="fp8_block_2d"),
        (ValueError, "activations: got 'fp8_block_2d'"),
    ),
    "padding is missing": (
        lambda i: max_graph.MXValue(i.codes, i.scales, layout="preshuffled_cpu"),
        (ValueError, r"codes: got \[50, 48\], expected \[64, 48\]"),
    ),
    "more rows than stored": (
        lambda i: max_graph.MXValue(i.codes, i.scales, shape=(51, K), layout="preshuffled_cpu"),
        (ValueError, r"shape: got \[51, 96\], but codes \[50, 48\] hold \[N, 96\] with N up to 50"),
    ),
    "padding of a nested operand is missing": (
        lambda i: max_graph.MXValue(i.nested, i.scales, layout="preshuffled_cpu"),
        (ValueError, r"codes: got \[2, 50, 48\], expected \[2, 64, 48\] for \[2, 50, 96\]"),
    ),
    "the bias is too short": (
        lambda i: max_graph.linear(i.x, weights("first"), bias=torch.ones(N)),
        (ValueError, r"bias: got shape \[50\], expected \[160\]"),
    ),
    "the bias holds integers": (
        lambda i: max_graph.linear(
            i.x, weights("first"), bias=torch.ones(HIDDEN, dtype=torch.int32)
        ),
        (TypeError, "bias: got dtype int32"),
    ),
}


@pytest.mark.parametrize("wrong", WRONG_CALLS)
def test_a_wrong_call_says_what_to_do(inside, wrong):
    call, (error, message) = WRONG_CALLS[wrong]
    with pytest.raises(error, match=message):
        call(inside)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing\.mef"):
        max_graph.load(tmp_path / "missing.mef")


def test_the_library_is_built_once(capfd):
    path = max_graph.library()
    stamp = path.stat().st_mtime_ns
    capfd.readouterr()
    assert max_graph.library() == path
    assert path.stat().st_mtime_ns == stamp
    assert capfd.readouterr().err == ""

"""Norms, gates, MLPs and matrices by matrices in a MAX graph: the bits of torch, and refusals."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType

from cases import torch_of
from mx_kernels import max_graph
from tests import artefacts
from tests.max_graph.graphs.cases import TORCH
from tests.max_graph.graphs.fused import (
    CASES,
    CPU_REF,
    INPUTS,
    K,
    weights,
)

RUNS = [(0, 0, 1), (1, 2, 3), (33, 3, 37)]
"""Sizes of the symbolic dimensions: m, and the two leading dimensions of `nested`."""


@cache
def runs():
    """Runs a model with every size; returns inputs and results by case."""
    rng, results = np.random.default_rng(43), {}
    model = max_graph.load(artefacts.path("max_graph/fused"))
    for sizes in RUNS:
        inputs = {name: random_input(rng, *of, sizes) for name, of in INPUTS.items()}
        outputs = map(torch.from_dlpack, model.execute(*inputs.values()))
        results[sizes] = {
            name: (expected, [next(outputs) for _ in expected])
            for name, case in CASES.items()
            for expected in [case(TORCH, inputs)]
        }
    return results


def random_input(rng, dtype, dims, sizes):
    symbols = dict(zip("mab", sizes, strict=True))
    return torch_of(3 * rng.standard_normal([symbols.get(dim, dim) for dim in dims]), dtype)


@pytest.mark.deep
@pytest.mark.parametrize("sizes", RUNS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_graph_has_the_bits_of_torch(case, sizes):
    for expected, got in zip(*runs()[sizes][case], strict=True):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        width = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[got.element_size()]
        assert torch.equal(got.view(width), expected.view(width))
        assert not got.numel() or (got != 0).any()


@pytest.fixture(scope="module")
def inside():
    """Inputs of a graph that is never compiled."""
    types = {
        "x": (DType.float32, ["m", K], CPU_REF),
        "other": (DType.float32, ["n", K], CPU_REF),
        "half": (DType.bfloat16, ["m", K], CPU_REF),
        "odd": (DType.float32, ["m", K + 1], CPU_REF),
        "ints": (DType.int32, [K], CPU_REF),
        "gpu": (DType.float32, ["m", K], DeviceRef.GPU()),
        "matrices": (DType.float32, [3, "m", K], CPU_REF),
    }
    inputs = [TensorType(*row) for row in types.values()]
    with Graph("inside", input_types=inputs, custom_extensions=[max_graph.library()]) as graph:
        values = (value.tensor for value in graph.inputs)
        yield SimpleNamespace(**dict(zip(types, values, strict=True)))
        graph.output()


def many(i):
    """Returns activations of three matrices."""
    return max_graph.quantize(i.matrices)


WRONG_CALLS = {
    "a residual of another shape": (
        lambda i: max_graph.rms_norm_quantize(i.x, residual=i.other),
        (ValueError, r"residual: got float32 \[n, 160\], expected float32 \[m, 160\], what x is"),
    ),
    "a residual of another type": (
        lambda i: max_graph.rms_norm_quantize(i.x, residual=i.half),
        (ValueError, r"residual: got bfloat16 \[m, 160\], expected float32"),
    ),
    "a weight of another size": (
        lambda i: max_graph.rms_norm_quantize(i.x, torch.ones(32)),
        (ValueError, r"weight: got shape \[32\], expected \[160\], a number for each element"),
    ),
    "a weight of integers": (
        lambda i: max_graph.layer_norm_quantize(i.x, i.ints),
        (TypeError, "weight: got dtype int32, expected"),
    ),
    "a bias without a weight": (
        lambda i: max_graph.layer_norm_quantize(i.x, bias=torch.ones(K)),
        (ValueError, "bias: got one without a weight"),
    ),
    "an offset without a weight": (
        lambda i: max_graph.rms_norm_quantize(i.x, weight_offset=1.0),
        (ValueError, "weight_offset: got 1.0 without a weight"),
    ),
    "rounds of another kind": (
        lambda i: max_graph.rms_norm_quantize(i.x, rounds="twice"),
        (ValueError, "rounds: got 'twice', expected 'each' or 'result' or 'none'"),
    ),
    "eps below zero": (
        lambda i: max_graph.rms_norm_quantize(i.x, eps=-1.0),
        (ValueError, "eps: got -1.0, expected a number that is not negative"),
    ),
    "rows that are no blocks": (
        lambda i: max_graph.rms_norm_quantize(i.odd),
        (ValueError, "x: got K = 161, expected a positive multiple of 32"),
    ),
    "an odd number of gates and ups": (
        lambda i: max_graph.gate_quantize(i.odd),
        (ValueError, r"x: got shape \[m, 161\], expected \[..., 2K\], gates and ups of 'silu'"),
    ),
    "ups of what has no gate": (
        lambda i: max_graph.gate_quantize(i.x, i.x, hidden_act="relu2"),
        (ValueError, "up: got one with hidden_act='relu2', which has no gate"),
    ),
    "an order of gates that stand apart": (
        lambda i: max_graph.gate_quantize(i.x, i.x, interleaved=True),
        (ValueError, "interleaved: got True with gates and ups of their own, expected None"),
    ),
    "a gate on another device": (
        lambda i: max_graph.gate_quantize(i.gpu),
        (ValueError, r"x: got device gpu:0 \(.+\), expected cpu:0"),
    ),
    "weights of experts in an MLP": (
        lambda i: max_graph.mlp(i.x, weights((3, 64, K), "mxfp4"), weights((K, 32), "mxfp4")),
        (ValueError, r"w_gate_up: got shape \[3, 64, 160\], expected weights \[N, K\]"),
    ),
    "gates and ups that are not as many as the second product sums": (
        lambda i: max_graph.mlp(i.x, weights((64, K), "mxfp4"), weights((K, 64), "mxfp4")),
        (ValueError, "w_gate_up"),
    ),
    "another number of matrices": (
        lambda i: max_graph.matmul(many(i), weights((2, 8, K), "mxfp4")),
        (ValueError, r"a and b: got \[3, m, 160\] and \[2, 8, 160\], expected the same leading"),
    ),
}


@pytest.mark.parametrize("wrong", WRONG_CALLS)
def test_a_wrong_call_says_what_to_do(inside, wrong):
    call, (error, message) = WRONG_CALLS[wrong]
    with pytest.raises(error, match=message):
        call(inside)

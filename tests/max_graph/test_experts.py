"""Experts in a MAX graph: the bits of the torch route, and what wrong calls are told."""

import re
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType

import mx_kernels as mx
from cases import torch_of
from mx_kernels import max_graph
from tests import artefacts
from tests.max_graph.graphs.cases import TORCH
from tests.max_graph.graphs.experts import (
    CASES,
    CPU_REF,
    INNER,
    INPUTS,
    E,
    H,
    N,
    weights,
)

RUNS = [(0, 2), (1, 1), (3, 0), (33, 4)]
"""Numbers of tokens, and of the slots of each where they are symbolic."""


def random_inputs(rng, tokens, slots):
    sizes = {"m": tokens, "k": slots}
    found = {}
    for name, (dtype, dims) in INPUTS.items():
        shape = [sizes.get(dim, dim) for dim in dims]
        if name == "sizes":
            bounds = np.sort(rng.integers(0, tokens + 1, E))
            found[name] = torch.tensor(np.diff(bounds, prepend=0), dtype=torch.int32)
        elif dtype == "uint8":
            low, high = (115, 130) if name == "scales" else (0, 256)
            found[name] = torch.from_numpy(rng.integers(low, high, shape, np.uint8))
        elif dtype.startswith("int"):
            found[name] = torch.tensor(rng.integers(-1, E, shape), dtype=getattr(torch, dtype))
        else:
            found[name] = torch_of(rng.standard_normal(shape), dtype)
    return found


@cache
def model():
    return max_graph.load(artefacts.path("max_graph/experts"))


def execute(inputs, **shapes):
    """Returns the results of all cases, and of both ops with the shapes of `arguments`."""
    return model().execute(*inputs.values(), *arguments(**shapes))


@cache
def runs():
    """Runs the model with every size; returns inputs and results by case."""
    rng, results = np.random.default_rng(31), {}
    for sizes in RUNS:
        inputs = random_inputs(rng, *sizes)
        outputs = [torch.from_dlpack(out) for out in execute(inputs)[: len(CASES)]]
        results[sizes] = inputs, dict(zip(CASES, outputs, strict=True))
    return results


@pytest.mark.deep
@pytest.mark.parametrize("sizes", RUNS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_graph_has_the_bits_of_torch(case, sizes):
    inputs, results = runs()[sizes]
    expected = CASES[case](TORCH, inputs)
    got = results[case]
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert torch.equal(got, expected)
    assert sizes[0] < 30 or (got != 0).any()


@pytest.mark.deep
@pytest.mark.parametrize(
    "name, change, message",
    [
        ("ids", lambda i: i + E, "expert_ids: got an id beyond 4, the last of 5 experts"),
        ("sizes", lambda s: s + 30, "group_sizes: got numbers that do not fit 6 rows of x"),
        ("sizes", lambda s: s - 7, "expected none negative and 6 or fewer together"),
    ],
)
def test_numbers_that_do_not_fit_raise_when_the_graph_runs(name, change, message):
    inputs = random_inputs(np.random.default_rng(3), 6, 2)
    inputs[name] = change(inputs[name])
    with pytest.raises(ValueError, match=re.escape(message)):
        execute(inputs)


def arguments(**wrong):
    """Returns what the unchecked ops take: three tokens, two experts, K = 64, I = 32."""
    shapes = {
        "x": (3, 64), "gate_up": (2, 64, 32), "gate_up_scales": (2, 64, 2), "down": (2, 64, 16),
        "down_scales": (2, 64, 1), "ids": (3, 1), "weights": (3, 1), "bias": (2, 64),
        "bias_down": (2, 64), "rows": 64, "sizes": (2,),
    }  # fmt: skip
    shapes |= wrong
    of = {name: torch.ones(shape) for name, shape in shapes.items() if name != "rows"}
    for name in ("gate_up", "gate_up_scales", "down", "down_scales"):
        of[name] = of[name].byte() * 127
    numbers = np.float32(1), np.float32(1), np.array(shapes["rows"])
    first = [of[n] for n in list(shapes)[:9]]
    first[5] = first[5].long()
    return *first, *map(np.asarray, numbers), of["sizes"].int()


@pytest.mark.deep
def test_what_the_graph_leaves_open_is_found_when_it_runs():
    inputs = random_inputs(np.random.default_rng(3), 1, 1)
    layer, product = (torch.from_dlpack(out) for out in execute(inputs)[len(CASES) :])
    assert (layer.shape, product.shape) == ((3, 64), (3, 64))
    assert (product[2] == 0).all()
    assert (product[:2] != 0).all()


@pytest.mark.deep
@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"x": (3, 96)}, "w_gate_up: got (2, 64, 32), expected (2, 64, 48)"),
        ({"x": (3, 40)}, "got K = 40, expected a positive multiple of 32"),
        ({"gate_up": (2, 63, 32), "gate_up_scales": (2, 63, 2)}, "expected (2, 64, 32)"),
        ({"gate_up_scales": (2, 64, 3)}, "w_gate_up: got (2, 64, 3), expected (2, 64, 2)"),
        ({"down": (3, 64, 16), "down_scales": (3, 64, 1), "bias_down": (3, 64)}, "got 2 and 3"),
        ({"down_scales": (2, 63, 1)}, "w_down: got (2, 63, 1), expected (2, 64, 1)"),
        ({"ids": (2, 1)}, "expert_ids: got (2, 1), expected (3, 1)"),
        ({"weights": (3, 2)}, "expert_weights: got (3, 2), expected (3, 1)"),
        ({"bias": (2, 63)}, "bias_gate_up: got (2, 63), expected (2, 64)"),
        ({"bias_down": (1, 64)}, "bias_down: got (1, 64), expected (2, 64)"),
        ({"rows": 65}, "w: got (2, 64, 32), expected (2, 65, 32)"),
        ({"sizes": (3,)}, "group_sizes: got (3,), expected (2,)"),
    ],
)
def test_a_wrong_shape_at_run_time_raises(wrong, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        execute(random_inputs(np.random.default_rng(3), 1, 1), **wrong)


@pytest.fixture(scope="module")
def inside():
    """Inputs of a graph that is never compiled."""
    types = {
        "x": (DType.bfloat16, ["m", H], CPU_REF),
        "nested": (DType.bfloat16, ["m", 2, H], CPU_REF),
        "narrow": (DType.bfloat16, ["m", 64], CPU_REF),
        "ids": (DType.int64, ["m", 2], CPU_REF),
        "other_ids": (DType.int64, ["n", 2], CPU_REF),
        "any_ids": (DType.int64, ["m", "k"], CPU_REF),
        "any_weights": (DType.float32, ["m", "k"], CPU_REF),
        "weights": (DType.float32, ["m", 2], CPU_REF),
        "sizes": (DType.int32, [E], CPU_REF),
        "long_sizes": (DType.int64, [E], CPU_REF),
        "few_sizes": (DType.int32, [E - 1], CPU_REF),
        "elsewhere": (DType.int32, [E], DeviceRef.GPU()),
        "codes": (DType.uint8, [E, N, H // 2], CPU_REF),
        "scales": (DType.uint8, [E, N, H // 32], CPU_REF),
    }
    library = [max_graph.library()]
    inputs = [TensorType(*row) for row in types.values()]
    with Graph("inside", input_types=inputs, custom_extensions=library) as graph:
        values = zip(types, (value.tensor for value in graph.inputs), strict=True)
        yield SimpleNamespace(**dict(values))
        graph.output()


def moe(i, **wrong):
    named = {
        "x": i.x,
        "w_gate_up": weights(2 * INNER, H),
        "w_down": weights(H, INNER),
        "expert_ids": i.ids,
        "expert_weights": i.weights,
    }
    return max_graph.moe(**{**named, **wrong})


def grouped(i, **wrong):
    named = {"x": i.x, "w": weights(N, H), "group_sizes": i.sizes}
    return max_graph.grouped_linear(**{**named, **wrong})


WRONG_CALLS = {
    "x has three axes": (
        lambda i: moe(i, x=i.nested),
        (ValueError, r"x: got shape \[m, 2, 96\], expected \[T, H\]"),
    ),
    "x is no tensor of the graph": (
        lambda i: moe(i, x=torch.ones(1, H)),
        (TypeError, "x: got Tensor, expected a TensorValue"),
    ),
    "K differs": (
        lambda i: grouped(i, x=i.narrow),
        (ValueError, "x and w: got K = 64 and K = 96"),
    ),
    "one matrix": (
        lambda i: grouped(i, w=mx.quantize(torch.ones(N, H))),
        (ValueError, r"w: got shape \[50, 96\], expected the weights of all experts \[E, N, K\]"),
    ),
    "dense weights": (
        lambda i: moe(i, w_down=i.x),
        (TypeError, "w_down: got TensorValue, expected an MXTensor"),
    ),
    "sizes of int64": (
        lambda i: grouped(i, group_sizes=i.long_sizes),
        (TypeError, r"group_sizes: got dtype int64, expected int32; .*ops.cast"),
    ),
    "too few sizes": (
        lambda i: grouped(i, group_sizes=i.few_sizes),
        (ValueError, r"group_sizes: got shape \[4\], expected \[5\]"),
    ),
    "sizes elsewhere": (
        lambda i: grouped(i, group_sizes=i.elsewhere),
        (ValueError, "group_sizes: got device gpu:0|x and group_sizes: got devices"),
    ),
    "a bias of one": (
        lambda i: grouped(i, bias=torch.ones(N)),
        (ValueError, r"bias: got shape \[50\], expected \[5, 50\]"),
    ),
    "a bias of integers": (
        lambda i: moe(i, bias_down=torch.ones(E, H).int()),
        (TypeError, "bias_down: got dtype int32"),
    ),
    "half the rows": (
        lambda i: moe(i, w_gate_up=weights(INNER, H)),
        (ValueError, r"w_gate_up: got shape \[5, 64, 96\], expected \[5, 128, 96\]"),
    ),
    "another width": (
        lambda i: moe(i, w_down=weights(N, INNER)),
        (ValueError, r"w_down: got shape \[5, 50, 64\], expected \[5, 96, 64\]"),
    ),
    "ids of others": (
        lambda i: moe(i, expert_ids=i.other_ids),
        (ValueError, r"expert_ids: got shape \[n, 2\], expected \[m, k\]"),
    ),
    "ids as floats": (
        lambda i: moe(i, expert_ids=i.weights),
        (TypeError, "expert_ids: got dtype float32, expected int32 or int64"),
    ),
    "weights of integers": (
        lambda i: moe(i, expert_weights=i.ids),
        (TypeError, "expert_weights: got dtype int64, expected bfloat16"),
    ),
    "weights of other slots": (
        lambda i: moe(i, expert_weights=i.x),
        (ValueError, r"expert_weights: got shape \[m, 96\], expected \[m, 2\]"),
    ),
    "unknown activation": (
        lambda i: moe(i, hidden_act="gelu"),
        (ValueError, "hidden_act: got 'gelu', expected 'swiglu_oai' or 'silu' or"),
    ),
    "weights on the input of any number of slots": (
        lambda i: moe(
            i,
            expert_ids=i.any_ids,
            expert_weights=i.any_weights,
            apply_router_weight_on_input=True,
        ),
        (ValueError, "expected a known number of experts a token"),
    ),
    "a limit of zero": (lambda i: moe(i, limit=0), (ValueError, "limit: got 0")),
    "unknown rounding": (lambda i: moe(i, scale_rule="up"), (ValueError, "scale_rule: got 'up'")),
    "unknown activations": (
        lambda i: grouped(i, activations="fp4"),
        (ValueError, "activations: got 'fp4'"),
    ),
    "padding is missing": (
        lambda i: max_graph.MXValue(i.codes, i.scales, layout="preshuffled_cpu"),
        (ValueError, r"codes: got \[5, 50, 48\], expected \[5, 64, 48\] for \[5, 50, 96\]"),
    ),
    "more rows than stored": (
        lambda i: max_graph.MXValue(i.codes, i.scales, shape=(E, 51, H), layout="preshuffled_cpu"),
        (ValueError, r"shape: got \[5, 51, 96\], but codes \[5, 50, 48\] hold \[5, N, 96\]"),
    ),
    "padded experts are decoded": (
        lambda i: max_graph.dequantize(weights(N, H, "preshuffled_cpu")),
        (ValueError, r"q: got shape \[5, 50, 96\] in layout 'preshuffled_cpu', expected \[N, K\]"),
    ),
}


@pytest.mark.parametrize("wrong", WRONG_CALLS)
def test_a_wrong_call_says_what_to_do(inside, wrong):
    call, (error, message) = WRONG_CALLS[wrong]
    with pytest.raises(error, match=message):
        call(inside)

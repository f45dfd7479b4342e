"""Attention with a window and sinks in a MAX graph, against the same in float64."""

import numpy as np
import pytest
from max.driver import CPU, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import BufferType, DeviceRef, Graph, TensorType, ops

from mx_kernels import max_graph

pytestmark = pytest.mark.deep

HEADS, KV_HEADS, HEAD, LAYERS, PAGE = 4, 2, 32, 2, 8
REQUESTS = [(0, 1), (5, 1), (0, 20), (13, 6)]
"""What each has in the cache, and its new rows."""
PAGES = 16
WINDOW = 7
CASES = [(0, False), (0, True), (WINDOW, False), (WINDOW, True)]


@pytest.fixture(scope="module")
def model():
    """Returns one graph of all cases."""
    cpu = DeviceRef.CPU()
    kinds = [
        TensorType(DType.float32, ["rows", HEADS, HEAD], cpu),
        TensorType(DType.uint32, ["offsets"], cpu),
        BufferType(DType.float32, ["pages", 2, LAYERS, PAGE, KV_HEADS, HEAD], cpu),
        TensorType(DType.int64, [1], cpu),
        TensorType(DType.uint32, ["requests"], cpu),
        TensorType(DType.uint32, ["requests", "most"], cpu),
        TensorType(DType.float32, [HEADS], cpu),
    ]
    with Graph("attention", input_types=kinds, custom_extensions=[max_graph.library()]) as graph:
        *values, sinks = graph.inputs
        none = ops.constant([], DType.float32, cpu)
        layer = ops.constant(1, DType.uint32, cpu)
        scale = ops.constant(HEAD**-0.5, DType.float32, cpu)
        graph.output(
            *(
                ops.inplace_custom(
                    "mx_attention",
                    cpu,
                    [*values, layer, scale, sinks if has_sinks else none],
                    [kinds[0]],
                    {"window": window},
                )[0]
                for window, has_sinks in CASES
            )
        )
    return InferenceSession(devices=[CPU()]).load(graph)


@pytest.fixture(scope="module")
def operands():
    """Returns operands as the graph takes them."""
    rng = np.random.default_rng(0)
    rows = sum(new for _, new in REQUESTS)
    offsets = np.cumsum([0, *(new for _, new in REQUESTS)]).astype(np.uint32)
    cache = rng.standard_normal((PAGES, 2, LAYERS, PAGE, KV_HEADS, HEAD)).astype(np.float32)
    pages = rng.permutation(PAGES)[: len(REQUESTS) * 3].reshape(-1, 3).astype(np.uint32)
    q = (3 * rng.standard_normal((rows, HEADS, HEAD))).astype(np.float32)
    cached = np.array([had for had, _ in REQUESTS], np.uint32)
    sinks = rng.standard_normal(HEADS).astype(np.float32)
    return q, offsets, cache, np.array([-1]), cached, pages, sinks


def expected(operands, window, has_sinks):
    """Returns the result, in float64."""
    q, offsets, cache, _, _, pages, sinks = operands
    out = np.zeros(q.shape)
    for request, (had, new) in enumerate(REQUESTS):
        keys, values = (
            cache[pages[request], kind, 1].reshape(-1, KV_HEADS, HEAD).astype(np.float64)
            for kind in (0, 1)
        )
        for i in range(new):
            last = had + i
            first = max(0, last + 1 - window) if window else 0
            for head in range(HEADS):
                own = head // (HEADS // KV_HEADS)
                row = offsets[request] + i
                scores = keys[first : last + 1, own] @ q[row, head] * HEAD**-0.5
                shares = np.exp(scores)
                total = shares.sum() + (np.exp(np.float64(sinks[head])) if has_sinks else 0)
                out[row, head] = shares @ values[first : last + 1, own] / total
    return out


@pytest.mark.parametrize("case", range(len(CASES)), ids=map(str, CASES))
def test_rows_attend_to_what_their_window_holds(model, operands, case):
    given = [Buffer.from_numpy(np.ascontiguousarray(it)) for it in operands]
    got = model.execute(*given)[case].to_numpy()
    wanted = expected(operands, *CASES[case])
    # Scores are sums of 32 products below 2**6; shares round to 2**-24 of themselves.
    assert np.abs(got - wanted).max() < 2**-16
    assert np.abs(wanted).max() > 1

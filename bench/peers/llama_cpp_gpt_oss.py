"""What a token of gpt-oss costs llama.cpp at least: the products of its graph, over ggml.

    each layer     q, k, v and o in Q8_0, then the experts in MXFP4 with their gate
    once           the head in Q8_0

These are the types of the published GGUF file. Norms, positions, routing and the attention itself
are left out, so its own times are longer. Weights are random bytes, and each layer has its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import ggml
import torch

from bench.experts import Layer
from bench.experts import Sizes as ExpertSizes
from bench.gpt_oss.checkpoint import Sizes
from bench.peers.llama_cpp import Product, default_buffer_type
from bench.peers.llama_cpp_experts import Peer as Experts

BLOCK = 32
SCALE = 0.01
"""Of a block of Q8_0."""


def q8_0_blocks(rows: int, k: int) -> torch.Tensor:
    """Returns random weights [rows, K] as ggml's bytes: per block a float16 scale, then 32 int8."""
    scale = torch.tensor([SCALE], dtype=torch.float16).view(torch.uint8)
    codes = torch.empty(rows, k // BLOCK, BLOCK, dtype=torch.int8).random_(-127, 128)
    scales = scale.expand(rows, k // BLOCK, 2)
    return torch.cat([scales, codes.view(torch.uint8)], dim=-1).contiguous()


class Linear:
    """Products of one tensor with several weights in Q8_0."""

    def __init__(self, k: int, *rows: int):
        self.k, self.weights = k, Product()
        context = self.weights.context()
        self.tensors = [ggml.ggml_new_tensor_2d(context, ggml.GGML_TYPE_Q8_0, k, n) for n in rows]
        self.weights.allocate(context, default_buffer_type())
        for tensor, n in zip(self.tensors, rows, strict=True):
            blocks = q8_0_blocks(n, k)
            ggml.ggml_backend_tensor_set(tensor, blocks.data_ptr(), 0, blocks.nbytes)

    def prepare(self) -> Product:
        """Returns the products for a token."""
        product = Product()
        context = product.context()
        x = ggml.ggml_new_tensor_2d(context, ggml.GGML_TYPE_F32, self.k, 1)
        product.graph = ggml.ggml_new_graph(context)
        for tensor in self.tensors:
            product.result = ggml.ggml_mul_mat(context, tensor, x)
            ggml.ggml_build_forward_expand(product.graph, product.result)
        product.allocate(context, default_buffer_type())
        values = torch.randn(1, self.k)
        ggml.ggml_backend_tensor_set(x, values.data_ptr(), 0, values.nbytes)
        return product


class Model:
    """Weights of all layers, and the products of a token."""

    def __init__(self, size: Sizes):
        self.size = size
        heads, kv = size.heads * size.head, size.kv_heads * size.head
        self.q_k_v = [Linear(size.hidden, heads, kv, kv) for _ in range(size.layers)]
        self.o = [Linear(heads, size.hidden) for _ in range(size.layers)]
        self.head = Linear(size.hidden, size.vocabulary)
        self.layer = Layer(ExpertSizes(size.experts, size.active, size.hidden, size.inner))
        self.experts = [Experts(self.layer) for _ in range(size.layers)]

    def prepare(self) -> Callable[[], tuple[float, float]]:
        """Returns a token's step, which returns the seconds of layers and of head."""
        layers = [
            (self.q_k_v[i].prepare(), self.o[i].prepare(), experts.prepare(x)[0])
            for x in [self.layer.tokens(1)]
            for i, experts in enumerate(self.experts)
        ]
        head = self.head.prepare()

        def step() -> tuple[float, float]:
            routings = [self.layer.routings(1)[0] for _ in layers]
            begin = time.perf_counter()
            for (q_k_v, o, experts), routing in zip(layers, routings, strict=True):
                q_k_v.compute()
                o.compute()
                experts(*routing)
            middle = time.perf_counter()
            head.compute()
            return middle - begin, time.perf_counter() - middle

        return step

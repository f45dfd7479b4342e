"""llama.cpp's layer of experts: the graph that it builds for gpt-oss, over ggml.

    gate, up    mul_mat_id with the experts' rows apart, as GGUF files hold them, and add_id
    gated       swiglu_oai
    down        mul_mat_id, add_id, times the experts' weights, added up slot by slot

The weights are ours, bit for bit; activations become 8-bit integers inside the products.
"""

from __future__ import annotations

import ggml
import torch

from bench.experts import ALPHA, LIMIT, Layer
from bench.peers.llama_cpp import Product, default_buffer_type, mxfp4_blocks, weight_buffer_type


class Peer:
    """The layer's weights in ggml, and a graph for each number of tokens."""

    def __init__(self, layer: Layer):
        self.sizes = layer.sizes
        self.weights = Product()
        e, h, i = self.sizes.experts, self.sizes.hidden, self.sizes.intermediate
        context = self.weights.context()
        shapes = {"gate": (h, i), "up": (h, i), "down": (i, h)}
        self.tensors = {
            name: ggml.ggml_new_tensor_3d(context, ggml.GGML_TYPE_MXFP4, *shape, e)
            for name, shape in shapes.items()
        }
        self.weights.allocate(context, weight_buffer_type())
        gate_up, down = layer.gate_up, layer.down
        parts = {"gate": gate_up, "up": gate_up, "down": down}
        for name, w in parts.items():
            rows = {"gate": slice(0, None, 2), "up": slice(1, None, 2)}.get(name, slice(None))
            codes, scales = w.codes[:, rows], w.scales[:, rows]
            blocks = mxfp4_blocks(codes.flatten(0, 1), scales.flatten(0, 1))
            ggml.ggml_backend_tensor_set(self.tensors[name], blocks.ctypes.data, 0, blocks.nbytes)
        self.biases = {
            "gate": layer.bias_gate_up[:, ::2].contiguous(),
            "up": layer.bias_gate_up[:, 1::2].contiguous(),
            "down": layer.bias_down,
        }

    def prepare(self, x: torch.Tensor):
        """Returns a call of experts and their weights for tokens x, and where its result is."""
        tokens, k = len(x), self.sizes.active
        product = Product()
        context = product.context()
        new = ggml.ggml_new_tensor_2d
        x_in = new(context, ggml.GGML_TYPE_F32, self.sizes.hidden, tokens)
        ids = new(context, ggml.GGML_TYPE_I32, k, tokens)
        factors = ggml.ggml_new_tensor_3d(context, ggml.GGML_TYPE_F32, 1, k, tokens)
        biases = {
            name: new(context, ggml.GGML_TYPE_F32, bias.shape[1], bias.shape[0])
            for name, bias in self.biases.items()
        }

        def multiply(name, value):
            out = ggml.ggml_mul_mat_id(context, self.tensors[name], value, ids)
            return ggml.ggml_add_id(context, out, biases[name], ids)

        rows = ggml.ggml_reshape_3d(context, x_in, self.sizes.hidden, 1, tokens)
        gate, up = multiply("gate", rows), multiply("up", rows)
        hidden = ggml.ggml_swiglu_oai(context, gate, up, ALPHA, LIMIT)
        down = ggml.ggml_mul(context, multiply("down", hidden), factors)
        row_bytes = 4 * self.sizes.hidden
        total = None
        for slot in range(k):
            view = ggml.ggml_view_2d(
                context, down, self.sizes.hidden, tokens, k * row_bytes, slot * row_bytes
            )
            total = view if total is None else ggml.ggml_add(context, total, view)
        product.result = total
        product.graph = ggml.ggml_new_graph(context)
        ggml.ggml_build_forward_expand(product.graph, total)
        product.allocate(context, default_buffer_type())

        def put(tensor, values: torch.Tensor) -> None:
            values = values.contiguous()
            ggml.ggml_backend_tensor_set(tensor, values.data_ptr(), 0, values.nbytes)

        put(x_in, x.float())
        for name, bias in self.biases.items():
            put(biases[name], bias)

        def call(expert_ids, expert_weights):
            put(ids, expert_ids)
            put(factors, expert_weights)
            product.compute()

        def output() -> torch.Tensor:
            out = torch.empty(tokens, self.sizes.hidden)
            ggml.ggml_backend_tensor_get(product.result, out.data_ptr(), 0, out.nbytes)
            return out

        return call, output

"""llama.cpp's 4-bit products, through ggml as the package `ggml-python` builds it.

    MXFP4    the weights are ours, bit for bit, in ggml's byte order
    Q4_0     integers with a float16 scale, its fastest 4-bit weights

Activations become 8-bit integers with a scale per 32 (Q8_0) inside the call. Weights
live in ggml's repacked buffer where there is one, as llama.cpp itself keeps them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import ggml
import numpy as np
import torch

from bench.peers import Peer, Prepared, Quantizer
from bench.peers.blocks import mxfp4_blocks
from bench.problem import Problem

ARENA_BYTES = 1 << 20
"""Room for tensor headers; tensor data lives in backend buffers."""


@ggml.ggml_log_callback
def _no_log(level, text, user_data):
    """Keeps ggml's remarks on repacking out of the progress display."""


ggml.ggml_log_set(_no_log, None)


@cache
def _backend() -> int:
    backend = ggml.ggml_backend_cpu_init()
    ggml.ggml_backend_cpu_set_n_threads(backend, torch.get_num_threads())
    return backend


@cache
def weight_buffer_type() -> int:
    """Returns the repacking buffer type if this processor has one, else the plain one."""
    registry = ggml.ggml_backend_cpu_reg()
    address = ggml.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
    types_of_device = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)
    first = types_of_device(ggml.ggml_backend_reg_dev_get(registry, 0))[0]
    return first or default_buffer_type()


def default_buffer_type() -> int:
    """Returns the plain buffer type."""
    return ggml.ggml_backend_get_default_buffer_type(_backend())


@dataclass
class Product:
    """A ggml graph of one product, and everything it must keep alive."""

    contexts: list = field(default_factory=list)
    buffers: list = field(default_factory=list)
    graph: object = None
    result: object = None

    def __del__(self):
        for buffer in self.buffers:
            ggml.ggml_backend_buffer_free(buffer)
        for context in self.contexts:
            ggml.ggml_free(context)

    def context(self):
        """Returns a new arena for tensor headers."""
        parameters = ggml.ggml_init_params(mem_size=ARENA_BYTES, mem_buffer=None, no_alloc=True)
        self.contexts.append(ggml.ggml_init(parameters))
        return self.contexts[-1]

    def allocate(self, context, buffer_type: int) -> None:
        """Gives every tensor of the arena its memory."""
        buffer = ggml.ggml_backend_alloc_ctx_tensors_from_buft(context, buffer_type)
        if not buffer:
            raise MemoryError("ggml could not allocate the tensors of one product")
        self.buffers.append(buffer)

    def compute(self) -> None:
        """Runs the product once."""
        status = ggml.ggml_backend_graph_compute(_backend(), self.graph)
        if status != ggml.GGML_STATUS_SUCCESS:
            raise RuntimeError(f"ggml returned status {status}")


def prepare_mxfp4(problem: Problem) -> Prepared:
    """Float32 activations, quantized in the call, times our MXFP4 weights."""
    blocks = mxfp4_blocks(problem.weight_mx.codes, problem.weight_mx.scales)
    return _prepare(problem, ggml.GGML_TYPE_MXFP4, blocks, problem.weight_mx.dequantize)


def prepare_q4_0(problem: Problem) -> Prepared:
    """Float32 activations, quantized in the call, times Q4_0 weights."""
    weight = problem.weight_q4
    return _prepare(problem, ggml.GGML_TYPE_Q4_0, weight.to_gguf(), weight.dequantize)


def _prepare(
    problem: Problem, weight_type: int, blocks: np.ndarray, weights: Callable[[], torch.Tensor]
) -> Prepared:
    m, n, k = problem.shape
    product = Product()

    weight_context = product.context()
    weight = ggml.ggml_new_tensor_2d(weight_context, weight_type, k, n)
    product.allocate(weight_context, weight_buffer_type())
    ggml.ggml_backend_tensor_set(weight, blocks.ctypes.data, 0, blocks.nbytes)

    context = product.context()
    x = ggml.ggml_new_tensor_2d(context, ggml.GGML_TYPE_F32, k, m)
    product.result = ggml.ggml_mul_mat(context, weight, x)
    product.graph = ggml.ggml_new_graph(context)
    ggml.ggml_build_forward_expand(product.graph, product.result)
    product.allocate(context, default_buffer_type())
    ggml.ggml_backend_tensor_set(x, problem.x_f32.data_ptr(), 0, problem.x_f32.nbytes)

    def output() -> torch.Tensor:
        out = torch.empty(m, n)
        ggml.ggml_backend_tensor_get(product.result, out.data_ptr(), 0, out.nbytes)
        return out

    return Prepared(call=product.compute, output=output, weights=weights)


def prepare_quantizer(x: torch.Tensor) -> Callable[[], object]:
    """Float32 rows to MXFP4, on one thread."""
    x = x.float().contiguous()
    rows, k = x.shape
    blocks = torch.empty(rows, ggml.ggml_row_size(ggml.GGML_TYPE_MXFP4, k), dtype=torch.uint8)

    def call():
        source = ctypes.cast(x.data_ptr(), ctypes.POINTER(ctypes.c_float))
        ggml.ggml_quantize_chunk(ggml.GGML_TYPE_MXFP4, source, blocks.data_ptr(), 0, rows, k, None)

    return call


PEERS = [
    Peer("llama.cpp MXFP4", "the same MXFP4 weights, 8-bit integer activations", prepare_mxfp4),
    Peer(
        "llama.cpp Q4_0",
        "integer 4-bit weights with a float16 scale per 32, 8-bit activations",
        prepare_q4_0,
    ),
]
QUANTIZERS = [
    Quantizer("llama.cpp MXFP4", "MXFP4 from float32, always on one thread", prepare_quantizer)
]

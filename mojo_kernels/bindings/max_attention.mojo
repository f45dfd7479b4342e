"""Attention of MAX graphs on a CPU, with a window, which MAX does not compile there, and sinks.

    mx_attention   q, first rows, cache, page stride, cached, pages, layer, scale, sinks -> rows
                                                                                    window

MAX's own operation has the same operands in another order; see `cpu.attention`. A negative stride
stands for pages that lie beside each other.
"""

import extensibility
from extensibility import InputTensor, OutputTensor, _MutableInputTensor
from layout import Coord
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_cpu

from ..cpu.attention import PagedAttention, PagedCache
from ..cpu.max_runtime import RuntimeTeam
from ..cpu.vectors import LANES
from ..operands import flat


@extensibility.register("mx_attention")
struct MXAttention:
    """Attends over what a paged cache holds."""

    @staticmethod
    def execute[
        target: StaticString, window: Int
    ](
        result: OutputTensor[dtype=DType.float32, rank=3, ...],
        queries: InputTensor[dtype=DType.float32, rank=3, ...],
        first_rows: InputTensor[dtype=DType.uint32, rank=1, ...],
        cache: _MutableInputTensor[dtype=DType.float32, rank=6, ...],
        page_stride: InputTensor[dtype=DType.int64, rank=1, ...],
        cached: InputTensor[dtype=DType.uint32, rank=1, ...],
        pages: InputTensor[dtype=DType.uint32, rank=2, ...],
        layer: UInt32,
        scale: Float32,
        sinks: InputTensor[dtype=DType.float32, rank=1, ...],
        context: DeviceContext,
    ) raises:
        """Checks and runs."""
        comptime assert is_cpu[target](), "mx_attention has a kernel for CPUs alone"
        comptime HEAD = Int(queries.static_spec.shape_tuple[2])
        comptime assert HEAD > 0 and HEAD % LANES == 0, "heads: expected a multiple of 16 elements"
        var heads = queries.dim_size(1)
        if sinks.dim_size(0) not in (0, heads):
            raise Error(String("sinks: got [", sinks.dim_size(0), "], expected [", heads, "]"))
        if cache.dim_size(5) != HEAD or heads % cache.dim_size(4) != 0:
            raise Error(
                String("cache: got ", cache.shape(), ", expected heads that divide ", heads)
            )
        var page_elements = cache.dim_size(1) * cache.dim_size(2) * cache.dim_size(3)
        page_elements *= cache.dim_size(4) * HEAD
        var stride = Int(_first(Int(page_stride.unsafe_ptr())))
        var work = PagedAttention[HEAD](
            queries=Int(queries.unsafe_ptr()),
            result=Int(result.unsafe_ptr()),
            first_rows=Int(first_rows.unsafe_ptr()),
            requests=first_rows.dim_size(0) - 1,
            heads=heads,
            cache=PagedCache(
                blocks=Int(cache.unsafe_ptr()),
                page_elements=page_elements if stride < 0 else stride,
                layers=cache.dim_size(2),
                layer=Int(layer),
                page_tokens=cache.dim_size(3),
                heads=cache.dim_size(4),
                cached=Int(cached.unsafe_ptr()),
                pages=Int(pages.unsafe_ptr()),
                most_pages=pages.dim_size(1),
            ),
            scale=scale,
            window=window,
            sinks=Int(sinks.unsafe_ptr()) if sinks.dim_size(0) > 0 else 0,
        )
        RuntimeTeam(context).run_all(work, queries.dim_size(0) * heads)


def _first(address: Int) -> Int64:
    """Returns the number at an address."""
    return flat[DType.int64](address, 1).load[width=1](Coord(0))

"""Picks the kernel and its grid for a product on Hopper, and launches it.

Few rows are bound by reading the weights: enough groups must run to keep all
of memory busy, so a cluster splits K where there are few tiles of columns.
Everything the fast kernels do not take goes to the portable one.
"""

from max.gpu.host import Dim, FuncAttribute
from std.collections import OptionalReg
from std.math import ceildiv

from ..formats import BLOCK
from ..layouts import OperandLayout
from ..simt.launch import DevicePointer, Queue, device_pointer
from ..simt.matmul import COLUMNS, MAX_GRID_Y, WARPS, WARP_THREADS, matmul_warps
from ..simt.problem import ENCODED
from .layout import PreshuffledCuda, TILE_ROWS
from .matmul_decode import THREADS, TOKENS, matmul_few_rows, shared_bytes

comptime MAX_FEW_ROWS = 64
"""Up to this many rows of activations, `matmul_few_rows` takes them. Guess."""
comptime TARGET_GROUPS = 132
"""Groups that keep the device busy: one a multiprocessor of an H200."""
comptime MAX_RANKS = 8
"""The largest portable cluster."""


@fieldwise_init
struct Product(TrivialRegisterPassable):
    """Everything about one product: addresses, sizes and codes, as the bindings pass them."""

    var x: Int
    """Address of the activations: floats or codes."""
    var x_scales: Int
    """Address of the activations' scales, for codes."""
    var row_stride: Int
    """Elements from one row of floats to the next."""
    var kind: Int
    """How the activations are read, see `simt.problem`."""
    var x_dtype: Int
    """Element type of floats."""
    var carry: Int
    """The rounding rule's carry for float32 bits."""
    var codes: Int
    """Address of the weights' codes."""
    var scales: Int
    """Address of the weights' scales."""
    var rows: Int
    """M."""
    var columns: Int
    """N."""
    var k: Int
    """K."""
    var bias: Int
    """Address of the bias."""
    var bias_dtype: Int
    """Element type of the bias, negative for none."""
    var output: Int
    """Address of the result, contiguous."""
    var out_dtype: Int
    """Element type of the result."""

    def __init__(out self, *, kind: Int):
        """Makes a product of one kind of activations, everything else zero."""
        self = Self(0, 0, 0, kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

    def is_aligned(self) -> Bool:
        """Says whether activations and weights can be read 16 bytes at a time."""
        comptime VECTOR_BYTES = 16
        var element_bytes = 4 if self.x_dtype == 2 else 2
        var stride_bytes = self.row_stride * element_bytes
        if self.kind == ENCODED:
            stride_bytes = 0
        return (
            self.x % VECTOR_BYTES == 0
            and stride_bytes % VECTOR_BYTES == 0
            and self.codes % VECTOR_BYTES == 0
            and self.scales % 4 == 0
            and self.output % VECTOR_BYTES == 0
        )


def multiply[Layout: OperandLayout](queue: Queue, product: Product) raises:
    """Computes activations @ weights.T + bias with the kernel that suits the problem."""
    var aligned = product.is_aligned()
    comptime if Layout.NAME == PreshuffledCuda.NAME:
        if aligned:
            return _launch_few_rows(queue, product)
    comptime for is_aligned in [False, True]:
        if aligned == is_aligned:
            return launch_portable[Layout, is_aligned](queue, product)


def launch_portable[
    Layout: OperandLayout, aligned: Bool
](queue: Queue, product: Product) raises:
    """Launches the portable kernel."""
    comptime kernel = matmul_warps[Layout, aligned]
    queue.stream.enqueue_function(
        queue.context.compile_function[kernel](),
        device_pointer[DType.uint8](product.x),
        device_pointer[DType.uint8](product.x_scales),
        Int64(product.row_stride),
        Int32(product.kind),
        Int32(product.x_dtype),
        UInt32(product.carry),
        device_pointer[DType.uint8](product.codes),
        device_pointer[DType.uint8](product.scales),
        Int32(product.rows),
        Int32(product.columns),
        Int32(product.k),
        device_pointer[DType.uint8](product.bias),
        Int32(product.bias_dtype),
        device_pointer[DType.uint8](product.output),
        Int32(product.out_dtype),
        grid_dim=(
            ceildiv(product.columns, WARPS * COLUMNS),
            min(product.rows, MAX_GRID_Y),
            ceildiv(product.rows, MAX_GRID_Y),
        ),
        block_dim=WARPS * WARP_THREADS,
    )


def _launch_few_rows(queue: Queue, product: Product) raises:
    """Picks tokens and tiles of a group and the cluster, and launches."""
    comptime for log_tiles in range(4):
        comptime token_tiles = 1 << log_tiles
        if product.rows <= TOKENS * token_tiles or token_tiles == 8:
            var wide = ceildiv(product.columns, 8 * TILE_ROWS)
            var blocks = product.k // BLOCK
            if wide * min(MAX_RANKS, ceildiv(blocks, 8)) >= TARGET_GROUPS * 3 // 4:
                return _launch_tiles[token_tiles, 8](queue, product)
            return _launch_tiles[token_tiles, 4](queue, product)


def _launch_tiles[
    token_tiles: Int, row_warps: Int
](queue: Queue, product: Product) raises:
    """Launches one shape of group."""
    comptime kernel = matmul_few_rows[token_tiles, row_warps]
    var groups = ceildiv(product.columns, row_warps * TILE_ROWS)
    var token_groups = ceildiv(product.rows, TOKENS * token_tiles)
    var blocks = product.k // BLOCK
    var ranks = 1
    while (
        ranks < MAX_RANKS
        and groups * token_groups * ranks < TARGET_GROUPS * 3 // 4
        and blocks >= 4 * ranks
    ):
        ranks *= 2
    comptime num_bytes = shared_bytes[token_tiles]()
    queue.stream.enqueue_function(
        queue.context.compile_function[kernel](
            func_attribute=FuncAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES(UInt32(num_bytes))
        ),
        device_pointer[DType.uint8](product.x),
        device_pointer[DType.uint8](product.x_scales),
        Int64(product.row_stride),
        Int32(product.kind),
        Int32(product.x_dtype),
        UInt32(product.carry),
        device_pointer[DType.uint8](product.codes),
        device_pointer[DType.uint8](product.scales),
        Int32(product.rows),
        Int32(product.columns),
        Int32(product.k),
        device_pointer[DType.uint8](product.bias),
        Int32(product.bias_dtype),
        device_pointer[DType.uint8](product.output),
        Int32(product.out_dtype),
        Int32(ranks),
        grid_dim=(groups * ranks, token_groups),
        block_dim=THREADS,
        cluster_dim=OptionalReg[Dim](Dim(ranks)),
        shared_mem_bytes=num_bytes,
    )

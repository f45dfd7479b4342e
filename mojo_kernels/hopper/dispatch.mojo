"""Picks the kernel and its grid for a product on Hopper, and launches it.

Few rows are bound by reading the weights: enough groups must run to keep all
of memory busy, so a cluster splits K where there are few tiles of columns.
Everything the fast kernels do not take goes to the portable one.
"""

from max.gpu.host import Dim, FuncAttribute
from max.gpu.host.launch_attribute import (
    LaunchAttribute,
    LaunchAttributeID,
    LaunchAttributeValue,
)
from std.bit import log2_ceil, log2_floor
from std.collections import OptionalReg
from std.math import ceildiv

from ..formats import BLOCK
from ..layouts import OperandLayout, PreshuffledCuda
from ..simt.launch import Queue, device_pointer
from ..simt.matmul import COLUMNS, MAX_GRID_Y, WARPS, WARP_THREADS, matmul_warps
from ..simt.problem import ENCODED, FLOAT32
from .expand_tokens import ROW_BYTES, THREADS as EXPAND_THREADS
from .expand_tokens import expand_tokens, marks_of_row, num_steps_of
from .layout import K_LANES, TILE_ROWS
from .matmul_decode import SHORT, THREADS, WARPS as FEW_ROWS_WARPS
from .matmul_decode import matmul_few_rows, shared_bytes
from .matmul_middle import THREADS as MIDDLE_THREADS, matmul_some_rows, shared_bytes_of
from .matmul_prefill import THREADS as PREFILL_THREADS, TOKENS as PREFILL_TOKENS, matmul_many_rows
from .middle_sums import MAX_RANKS
from .prefill_stages import COLUMNS as TILE_COLUMNS, Pipeline
from .tokens import TOKENS

comptime MAX_FEW_ROWS = 32
"""Up to this many rows of activations, `matmul_few_rows` takes them. Guess."""
comptime MIDDLE_PLAN = 1 << 20
"""Plans of the kernels that want the activations expanded begin here."""
comptime TARGET_GROUPS = 132
"""Groups that keep the device busy: one a multiprocessor of an H200."""
comptime MAX_KEPT_TILES = 4 * TARGET_GROUPS
"""Up to so many tiles of many rows, a group takes several. Guess, after tiles of another shape."""
comptime MAX_TILES_BY_K_WARPS = 32
"""Token tiles times warps along K: what they stage together must fit shared memory."""
comptime MUCH_STAGING = 1024
"""Blocks of tokens from which on staging them weighs more than a cluster. H200, 2026-11-21."""


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
    var plan: Int
    """Zero, or the plan to use, for tests and tuning: 256 * token tiles
    + 16 * row warps + ranks of `matmul_few_rows`, `MIDDLE_PLAN` + 256 * rows + ranks
    of `matmul_some_rows`, or `MIDDLE_PLAN` for `matmul_many_rows`."""
    var workspace: Int
    """Address of `workspace_bytes` that the kernels may use until they end, or zero."""

    def __init__(out self, *, kind: Int):
        """Makes a product of one kind of activations, everything else zero."""
        self = Self(0, 0, 0, kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

    def is_aligned(self) -> Bool:
        """Says whether activations and weights can be read 16 bytes at a time."""
        comptime VECTOR_BYTES = 16
        var element_bytes = 4 if self.x_dtype == FLOAT32 else 2
        var stride_bytes = self.row_stride * element_bytes
        if self.kind == ENCODED:
            stride_bytes = 0
        return (
            self.x % VECTOR_BYTES == 0
            and stride_bytes % VECTOR_BYTES == 0
            and self.codes % VECTOR_BYTES == 0
            and self.scales % VECTOR_BYTES == 0
            and self.output % VECTOR_BYTES == 0
        )


def early_start() -> List[LaunchAttribute]:
    """Lets a kernel start while the one before ends; it waits where it needs its results."""
    return [
        LaunchAttribute(
            LaunchAttributeID.PROGRAMMATIC_STREAM_SERIALIZATION, LaunchAttributeValue(True)
        )
    ]


def multiply[Layout: OperandLayout](queue: Queue, product: Product) raises:
    """Computes activations @ weights.T + bias with the kernel that suits the problem."""
    var aligned = product.is_aligned()
    comptime if Layout.NAME == PreshuffledCuda.NAME:
        var takes_few = product.plan > 0 or product.rows <= MAX_FEW_ROWS
        if aligned and takes_few and product.plan < MIDDLE_PLAN:
            return _launch_few_rows(queue, product)
        if aligned and product.workspace % 16 == 0 and product.workspace != 0:
            return _launch_more_rows(queue, product)
    comptime for is_aligned in [False, True]:
        if aligned == is_aligned:
            return launch_portable[Layout, is_aligned](queue, product)


def launch_portable[Layout: OperandLayout, aligned: Bool](queue: Queue, product: Product) raises:
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


@fieldwise_init
struct FewRowsPlan(TrivialRegisterPassable):
    """How the groups of `matmul_few_rows` share a product."""

    var token_tiles: Int
    """Fragments of eight tokens of a group."""
    var row_warps: Int
    """Tiles of columns of a group; its other warps split K."""
    var ranks: Int
    """Groups of a cluster, which split K once more."""

    @staticmethod
    def of(product: Product) -> Self:
        """Picks a plan: many groups, but few that stage the same tokens where that is work."""
        var tiles = ceildiv(product.columns, TILE_ROWS)
        var blocks = product.k // BLOCK
        var token_tiles = 1
        while token_tiles < 8 and product.rows > TOKENS * token_tiles:
            token_tiles *= 2

        if product.rows * blocks < MUCH_STAGING and ceildiv(tiles, 2) < TARGET_GROUPS:
            return Self(token_tiles, max(token_tiles * 8 // MAX_TILES_BY_K_WARPS, 1), 1)

        var resident = 1 if token_tiles >= 4 else 2
        var ranks = 1
        while (
            ranks < MAX_RANKS
            and ceildiv(tiles, 8) * ranks < resident * TARGET_GROUPS * 3 // 4
            and blocks >= 2 * ranks
        ):
            ranks *= 2
        return Self(token_tiles, 8, ranks)


def _launch_few_rows(queue: Queue, product: Product) raises:
    """Picks tokens and tiles of a group and the cluster, and launches."""
    var plan = FewRowsPlan.of(product)
    if product.plan > 0:
        plan = FewRowsPlan(product.plan // 256, product.plan // 16 % 16, product.plan % 16)
    comptime for log_tiles in range(4):
        comptime token_tiles = 1 << log_tiles
        if plan.token_tiles == token_tiles:
            comptime for log_warps in range(4):
                comptime row_warps = 1 << log_warps
                comptime if token_tiles * 8 // row_warps <= MAX_TILES_BY_K_WARPS:
                    if plan.row_warps == row_warps:
                        var share = ceildiv(product.k // BLOCK, plan.ranks)
                        comptime for is_short in [False, True]:
                            if is_short == (share * row_warps <= SHORT * FEW_ROWS_WARPS):
                                return _launch_tiles[token_tiles, row_warps, is_short](
                                    queue, product, plan.ranks
                                )
    raise Error(
        String(
            "plan: got ", plan.row_warps, " row warps for ", product.rows, " rows, expected more"
        )
    )


def _launch_tiles[
    token_tiles: Int, row_warps: Int, is_short: Bool
](queue: Queue, product: Product, ranks: Int) raises:
    """Launches one shape of group."""
    comptime kernel = matmul_few_rows[token_tiles, row_warps, is_short]
    var groups = ceildiv(product.columns, row_warps * TILE_ROWS)
    var token_groups = ceildiv(product.rows, TOKENS * token_tiles)
    var share = ceildiv(product.k // BLOCK, ranks)
    var num_bytes = shared_bytes[token_tiles, row_warps, is_short](share)
    comptime max_bytes = shared_bytes[token_tiles, row_warps, is_short](1 << 30)
    queue.stream.enqueue_function(
        queue.context.compile_function[kernel](
            func_attribute=FuncAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES(UInt32(max_bytes))
        ),
        device_pointer[DType.uint8](product.x),
        device_pointer[DType.uint8](product.x_scales),
        Int64(product.row_stride),
        Int32(product.kind),
        Int32(product.x_dtype),
        UInt32(product.carry),
        device_pointer[DType.uint8](product.codes),
        device_pointer[DType.uint8](product.scales),
        UInt32(product.rows),
        UInt32(product.columns),
        UInt32(product.k),
        device_pointer[DType.uint8](product.bias),
        Int32(product.bias_dtype),
        device_pointer[DType.uint8](product.output),
        Int32(product.out_dtype),
        UInt32(ranks),
        UInt32(share),
        UInt32(min(log2_ceil(share), log2_floor(THREADS // K_LANES))),
        grid_dim=(ranks, groups, token_groups),
        block_dim=THREADS,
        cluster_dim=OptionalReg[Dim](Dim(ranks)),
        attributes=early_start(),
        shared_mem_bytes=num_bytes,
    )


def workspace_bytes(rows: Int, k: Int) -> Int:
    """Returns the workspace of a product: bfloat16 stages, and the marks of each row."""
    if rows <= MAX_FEW_ROWS:
        return 0
    return _stages_bytes(rows, k) + rows * Int(marks_of_row(UInt32(k)))


def _stages_bytes(rows: Int, k: Int) -> Int:
    """Returns the bytes of activations as stages, at the widest tile."""
    var padded = ceildiv(rows, PREFILL_TOKENS) * PREFILL_TOKENS
    return padded * Int(num_steps_of(UInt32(k))) * ROW_BYTES


@fieldwise_init
struct MiddlePlan(TrivialRegisterPassable):
    """How the groups of `matmul_some_rows` share a product."""

    var tokens: Int
    """Rows of a group."""
    var ranks: Int
    """Groups of a cluster, which split K."""

    @staticmethod
    def of(product: Product) -> Self:
        """Picks a plan: large tiles, but groups for every multiprocessor."""
        var column_groups = ceildiv(product.columns, TILE_COLUMNS)
        var tokens = 64
        if column_groups * ceildiv(product.rows, 128) > TARGET_GROUPS * 3 // 4:
            tokens = 128
        var groups = column_groups * ceildiv(product.rows, tokens)
        var ranks = 1
        while ranks < MAX_RANKS and 2 * groups * ranks <= TARGET_GROUPS:
            ranks *= 2
        return Self(tokens, ranks)


def _launch_more_rows(queue: Queue, product: Product) raises:
    """Picks between the kernels that want the activations expanded."""
    if product.plan >= MIDDLE_PLAN:
        var code = product.plan - MIDDLE_PLAN
        if code == 0:
            return _launch_many_rows(queue, product)
        return _launch_middle(queue, product, MiddlePlan(code // 256, code % 256))
    var groups = _prefill_tiles(product)
    if groups < TARGET_GROUPS * 3 // 4:
        _launch_middle(queue, product, MiddlePlan.of(product))
    else:
        _launch_many_rows(queue, product)


def _expand(queue: Queue, product: Product, tokens: Int) raises:
    """Makes stages of the activations, tiles of so many tokens."""
    queue.stream.enqueue_function(
        queue.context.compile_function[expand_tokens](),
        device_pointer[DType.uint8](product.x),
        device_pointer[DType.uint8](product.x_scales),
        Int64(product.row_stride),
        Int32(product.kind),
        Int32(product.x_dtype),
        UInt32(product.carry),
        UInt32(product.k),
        UInt32(tokens),
        device_pointer[DType.uint32](product.workspace),
        device_pointer[DType.uint8](_marks(product)),
        grid_dim=(product.rows, Int(marks_of_row(UInt32(product.k)))),
        block_dim=EXPAND_THREADS,
        attributes=early_start(),
    )


def _marks(product: Product) -> Int:
    """Returns where the marks are, behind the stages."""
    return product.workspace + _stages_bytes(product.rows, product.k)


def _launch_middle(queue: Queue, product: Product, plan: MiddlePlan) raises:
    """Launches `matmul_some_rows` as planned."""
    if plan.ranks < 1 or plan.ranks > MAX_RANKS or MAX_RANKS % plan.ranks != 0:
        raise Error(String("plan: got ", plan.ranks, " ranks, expected 1, 2, 4 or 8"))
    comptime for tokens in [64, 128]:
        if plan.tokens == tokens:
            return _launch_some_rows[tokens](queue, product, plan.ranks)
    raise Error(String("plan: got ", plan.tokens, " rows of a group, expected 64 or 128"))


def _launch_some_rows[tokens: Int](queue: Queue, product: Product, ranks: Int) raises:
    """Expands the activations, and multiplies with one shape of group."""
    _expand(queue, product, tokens)
    comptime num_bytes = shared_bytes_of[tokens]()
    var token_groups = ceildiv(product.rows, tokens)
    var column_groups = ceildiv(product.columns, TILE_COLUMNS)
    queue.stream.enqueue_function(
        queue.context.compile_function[matmul_some_rows[tokens]](
            func_attribute=FuncAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES(UInt32(num_bytes))
        ),
        device_pointer[DType.uint8](product.workspace),
        device_pointer[DType.uint8](_marks(product)),
        device_pointer[DType.uint8](product.x),
        device_pointer[DType.uint8](product.x_scales),
        Int64(product.row_stride),
        Int32(product.kind),
        Int32(product.x_dtype),
        UInt32(product.carry),
        device_pointer[DType.uint8](product.codes),
        device_pointer[DType.uint8](product.scales),
        UInt32(product.rows),
        UInt32(product.columns),
        UInt32(product.k),
        device_pointer[DType.uint8](product.bias),
        Int32(product.bias_dtype),
        device_pointer[DType.uint8](product.output),
        Int32(product.out_dtype),
        UInt32(token_groups),
        UInt32(column_groups),
        UInt32(ranks),
        grid_dim=ranks * token_groups * column_groups,
        block_dim=MIDDLE_THREADS,
        cluster_dim=OptionalReg[Dim](Dim(ranks)),
        attributes=early_start(),
        shared_mem_bytes=num_bytes,
    )


def _prefill_tiles(product: Product) -> Int:
    """Returns the tiles of C of `matmul_many_rows`."""
    return ceildiv(product.columns, TILE_COLUMNS) * ceildiv(product.rows, PREFILL_TOKENS)


def _launch_many_rows(queue: Queue, product: Product) raises:
    """Expands the activations, and multiplies."""
    _expand(queue, product, PREFILL_TOKENS)
    var tiles = _prefill_tiles(product)
    comptime num_bytes = Pipeline[PREFILL_TOKENS].NUM_BYTES
    queue.stream.enqueue_function(
        queue.context.compile_function[matmul_many_rows](
            func_attribute=FuncAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES(UInt32(num_bytes))
        ),
        device_pointer[DType.uint8](product.workspace),
        device_pointer[DType.uint8](_marks(product)),
        device_pointer[DType.uint8](product.x),
        device_pointer[DType.uint8](product.x_scales),
        Int64(product.row_stride),
        Int32(product.kind),
        Int32(product.x_dtype),
        UInt32(product.carry),
        device_pointer[DType.uint8](product.codes),
        device_pointer[DType.uint8](product.scales),
        UInt32(product.rows),
        UInt32(product.columns),
        UInt32(product.k),
        device_pointer[DType.uint8](product.bias),
        Int32(product.bias_dtype),
        device_pointer[DType.uint8](product.output),
        Int32(product.out_dtype),
        # Of few tiles a group takes several; many are dealt, so that slow groups get fewer.
        grid_dim=min(tiles, TARGET_GROUPS) if tiles <= MAX_KEPT_TILES else tiles,
        block_dim=PREFILL_THREADS,
        attributes=early_start(),
        shared_mem_bytes=num_bytes,
    )

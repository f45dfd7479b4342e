"""Which kernel computes a product on CDNA4, why, and how it is launched.

`CHOICES` is the whole policy: the first row that covers (M, N, K) is taken, and
the last row covers every shape. A row names how a workgroup cuts its work and
the reason; `Launch` derives grid, workspace and the rest from it. The benchmark,
`mx_kernels.explain` and the MAX ops all read this table.

    decode kernels    tiles of C for each workgroup, its waves share K
    quantize          one pass over memory, for every shape
"""

from max.gpu.host import DeviceContext
from std.math import align_up, ceildiv
from std.sys import size_of
from std.utils.numerics import max_finite

from ..backend import CDNA4_COMPILE_OPTIONS
from ..codec import Rounding
from ..formats import BLOCK
from ..layouts import Plain
from .epilogue import TILE_SUM_BYTES
from .matmul_decode import DecodeShape, linear_decode, matmul_decode
from .mma import LANES
from .quantize import QUANTIZE_BLOCKS, QUANTIZE_ROWS, QUANTIZE_WAVES, quantize_rows
from .tiles import TILE, TILE_K

comptime NUM_XCDS = 8
"""Dies among which workgroups are dealt, one after another."""
comptime COUNTER_BYTES = 4
"""A counter of arrivals."""
comptime MAX_TENSOR_BYTES = 1 << 31
"""Kernels count bytes in 32 bits."""
comptime LDS_BYTES = 160 * 1024
"""Of a compute unit."""
comptime BF16_BYTES = 2
"""Of the element that activations usually have."""
comptime MAX_X_BYTES = 4
"""Of the widest element of activations."""
comptime ANY = Int(max_finite[DType.int32]())
"""No bound."""


@fieldwise_init
struct Choice(TrivialRegisterPassable):
    """A row of the table: the shapes it covers, the kernel for them, and why."""

    var max_m: Int
    """Rows of activations, at most."""
    var max_n: Int
    """Rows of weights, at most."""
    var max_k: Int
    """Elements along K, at most."""
    var any_k: Bool
    """Whether K may end within a chunk."""
    var shape: DecodeShape
    """The kernel; `k_tail` is settled by K."""
    var reason: StaticString
    """Why this kernel is for these shapes."""

    def may_serve(self, n: Int, k: Int, x_bytes: Int) -> Bool:
        """Says whether the row covers these weights for some M, and fits floats of `x_bytes`."""
        var tiles = self.shape.waves * self.shape.depth * self.shape.k_tiles * self.shape.m_tiles
        return (
            n <= self.max_n
            and k <= self.max_k
            and (self.any_k or not self._has_tail(k))
            and tiles * TILE * TILE_K * x_bytes <= LDS_BYTES
        )

    def _has_tail(self, k: Int) -> Bool:
        """Says whether K ends within a chunk."""
        return k % (self.shape.k_tiles * TILE_K) != 0

    def covers(self, m: Int, n: Int, k: Int, x_bytes: Int) -> Bool:
        """Says whether the row covers a shape, for floats of `x_bytes`."""
        return m <= self.max_m and self.may_serve(n, k, x_bytes)

    def shape_for(self, k: Int) -> DecodeShape:
        """Returns the kernel, able to end within a chunk where K does."""
        var shape = self.shape
        shape.k_tail = self._has_tail(k)
        return shape


def _shape(m_tiles: Int, n_tiles: Int, waves: Int, splits: Int = 1) -> DecodeShape:
    """Returns a shape with one tile along K in a chunk and one chunk in flight."""
    return DecodeShape(m_tiles, n_tiles, 1, waves, 1, False, splits)


comptime CHOICES = [
    Choice(
        16, ANY, 512, True, _shape(1, 1, 4), "K in one step, a tile of columns for each workgroup"
    ),
    Choice(64, ANY, 512, True, _shape(1, 2, 4), "K in one step, scale words feed two column tiles"),
    Choice(16, ANY, 4096, True, _shape(1, 2, 12), "twelve waves share K, no sums to hand over"),
    Choice(
        16, 4096, ANY, True, _shape(1, 4, 8, splits=7), "few tiles: K is split to occupy the CUs"
    ),
    Choice(ANY, ANY, 1536, False, _shape(2, 6, 12), "many rows: a large tile, K in one step"),
    Choice(ANY, ANY, ANY, True, _shape(2, 4, 8), "weights stream, eight waves share K"),
]
"""In order of preference."""


def choose(m: Int, n: Int, k: Int, x_bytes: Int = BF16_BYTES) -> Int:
    """Returns the row of `CHOICES` for a shape and activations of `x_bytes` an element."""
    comptime last = len(CHOICES) - 1
    comptime assert CHOICES[last].covers(
        ANY, ANY, ANY, MAX_X_BYTES
    ), "the last row covers every shape"
    comptime for i in range(last):
        comptime choice = CHOICES[i]
        if choice.covers(m, n, k, x_bytes):
            return i
    return last


@fieldwise_init
struct Launch(TrivialRegisterPassable):
    """The grid of a decode kernel and what else depends on the sizes."""

    var x: Int
    """Workgroups along N."""
    var y: Int
    """Workgroups along M."""
    var z: Int
    """Workgroups along K."""
    var threads: Int
    """Threads of a workgroup."""
    var chunks_per_wave: Int
    """Chunks along K of each wave."""
    var counter_bytes: Int
    """Bytes at the beginning of the workspace that are zero before and after."""
    var workspace_bytes: Int
    """Bytes of the workspace."""

    @staticmethod
    def of(shape: DecodeShape, m: Int, n: Int, k: Int) -> Self:
        """Returns the launch of a kernel for a shape."""
        var x, y = ceildiv(n, shape.n_tiles * TILE), ceildiv(m, shape.m_tiles * TILE)
        var chunks = ceildiv(k, shape.k_tiles * TILE_K)
        var counter_bytes, sum_bytes = 0, 0
        if shape.splits > 1:
            counter_bytes = x * y * shape.waves * COUNTER_BYTES
            sum_bytes = x * y * shape.splits * shape.tiles() * TILE_SUM_BYTES
        return Self(
            x=align_up(x, NUM_XCDS) if y > 1 else x,
            y=y,
            z=shape.splits,
            threads=shape.threads(),
            chunks_per_wave=align_up(ceildiv(chunks, shape.waves * shape.splits), shape.depth),
            counter_bytes=counter_bytes,
            workspace_bytes=counter_bytes + sum_bytes,
        )


@fieldwise_init
struct Product(TrivialRegisterPassable):
    """Addresses and sizes of C = A @ W.T (+ bias); everything is contiguous."""

    var a: Int
    """Floats [M, K], or plain codes."""
    var a_scales: Int
    """Plain scales of codes; unused for floats."""
    var w_codes: Int
    """Preshuffled codes of [N, K]."""
    var w_scales: Int
    """Preshuffled scales."""
    var result: Int
    """[M, N]."""
    var bias: Int
    """[N]; unused without a bias."""
    var m: Int
    """Rows of A."""
    var n: Int
    """Rows of W."""
    var k: Int
    """Elements of a row."""

    def check[out_bytes: Int](self, a_bytes: Int) raises:
        """Raises if a tensor is too large for 32-bit offsets."""
        var sizes = [a_bytes, self.n * self.k // 2, self.m * self.n * out_bytes]
        for i in range(len(sizes)):
            if sizes[i] >= MAX_TENSOR_BYTES:
                raise Error(
                    String(
                        "got a tensor of ", sizes[i], " bytes for (M, N, K) = (", self.m, ", ",
                        self.n, ", ", self.k, "), expected less than 2 GiB",
                    )
                )  # fmt: skip


@always_inline
def _source[dtype: DType](address: Int) -> ImmPointer[Scalar[dtype], ImmutAnyOrigin]:
    """Returns the pointer to an operand."""
    return ImmPointer[Scalar[dtype], ImmutAnyOrigin](unsafe_from_address=address)


@always_inline
def _target[dtype: DType](address: Int) -> MutPointer[Scalar[dtype], MutAnyOrigin]:
    """Returns the pointer to a result."""
    return MutPointer[Scalar[dtype], MutAnyOrigin](unsafe_from_address=address)


def multiply[
    x_dtype: Optional[DType],
    out_dtype: DType,
    bias_dtype: Optional[DType],
    rounding: Rounding,
    n: Int,
    k: Int,
](context: DeviceContext, product: Product) raises:
    """Launches C = A @ W.T + bias for weights of known size and any M.

    Parameters:
        x_dtype: Type of A if it is floats, which are quantized on the way; else none.
        out_dtype: Type of C.
        bias_dtype: Type of the bias, or none.
        rounding: How floats are quantized.
        n: Rows of the weights, rounded up to whole tiles or not.
        k: Elements of a row.
    """
    comptime x_bytes = size_of[x_dtype.or_else(DType.uint8)]()
    product.check[size_of[out_dtype]()](product.m * k * x_bytes)
    if product.m == 0:
        return
    comptime for i in range(len(CHOICES)):
        comptime choice = CHOICES[i]
        comptime if choice.may_serve(n, k, x_bytes):
            if choose(product.m, n, k, x_bytes) == i:
                comptime shape = choice.shape_for(k)
                _launch[x_dtype, out_dtype, bias_dtype, rounding, shape](context, product)


def _launch[
    x_dtype: Optional[DType],
    out_dtype: DType,
    bias_dtype: Optional[DType],
    rounding: Rounding,
    shape: DecodeShape,
](context: DeviceContext, product: Product) raises:
    """Launches one kernel."""
    var launch = Launch.of(shape, product.m, product.n, product.k)
    var workspace = context.enqueue_create_buffer[DType.uint8](max(launch.workspace_bytes, 1))
    if launch.counter_bytes > 0:
        context.enqueue_memset(
            workspace.create_sub_buffer[DType.uint8](0, launch.counter_bytes), UInt8(0)
        )
    comptime if x_dtype:
        comptime kernel = linear_decode[x_dtype.value(), out_dtype, bias_dtype, rounding, shape]
        context.enqueue_function(
            context.compile_function[kernel, compile_options=CDNA4_COMPILE_OPTIONS](),
            _source[x_dtype.value()](product.a),
            _source[DType.uint8](product.w_codes),
            _source[DType.uint8](product.w_scales),
            _target[out_dtype](product.result),
            Int32(product.m),
            Int32(product.n),
            Int32(product.k),
            Int32(launch.chunks_per_wave),
            _source[DType.uint8](product.bias),
            _target[DType.uint8](Int(workspace.unsafe_ptr())),
            grid_dim=(launch.x, launch.y, launch.z),
            block_dim=launch.threads,
        )
    else:
        comptime kernel = matmul_decode[out_dtype, bias_dtype, shape]
        context.enqueue_function(
            context.compile_function[kernel, compile_options=CDNA4_COMPILE_OPTIONS](),
            _source[DType.uint8](product.a),
            _source[DType.uint8](product.a_scales),
            _source[DType.uint8](product.w_codes),
            _source[DType.uint8](product.w_scales),
            _target[out_dtype](product.result),
            Int32(product.m),
            Int32(product.n),
            Int32(product.k),
            Int32(launch.chunks_per_wave),
            _source[DType.uint8](product.bias),
            _target[DType.uint8](Int(workspace.unsafe_ptr())),
            grid_dim=(launch.x, launch.y, launch.z),
            block_dim=launch.threads,
        )
    _ = workspace^


def quantize[
    dtype: DType, rounding: Rounding
](context: DeviceContext, x: Int, codes: Int, scales: Int, m: Int, k: Int) raises:
    """Launches the quantizer: contiguous floats [m, k] at `x` to plain codes and scales."""
    if m == 0:
        return
    if m * k * size_of[dtype]() >= MAX_TENSOR_BYTES:
        raise Error(String("x: got [", m, ", ", k, "], expected less than 2 GiB"))
    comptime kernel = quantize_rows[dtype, rounding, Plain]
    context.enqueue_function(
        context.compile_function[kernel, compile_options=CDNA4_COMPILE_OPTIONS](),
        _source[dtype](x),
        _target[DType.uint8](codes),
        _target[DType.uint8](scales),
        Int32(m),
        Int32(k),
        grid_dim=(ceildiv(k // BLOCK, QUANTIZE_BLOCKS), ceildiv(m, QUANTIZE_ROWS)),
        block_dim=QUANTIZE_WAVES * LANES,
    )

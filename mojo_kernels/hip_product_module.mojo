"""The Python extension module `_mx_kernels_hip_product`: products of one kind on gfx950.

There are too many kinds to compile them all, so each becomes a module of its own,
when it is first asked for. A kind is set when the module is compiled, by codes
of element types and of rounding rules:

    -D X=...           activations are floats, quantized on the way; without it, codes
    -D ROUNDING=...    how they are quantized
    -D OUT=...         the result
    -D BIAS=...        what is added to it; without it, nothing

A module holds every kernel that the dispatch can choose for its kind, whatever the
shape. Nothing waits and nothing is allocated, as in `hip_module`.
"""

from std.os import abort
from std.python import Python, PythonObject
from std.python.bindings import PythonModuleBuilder
from std.sys import get_defined_int, size_of

from mojo_kernels.cdna4.dispatch import (
    ANY,
    CHOICES,
    Choice,
    Kernel,
    Launch,
    Product,
    choose,
)
from mojo_kernels.cdna4.launch import Grid, MAX_ROWS, Queue, rows_at_once
from mojo_kernels.cdna4.linear_prefill import linear_prefill
from mojo_kernels.cdna4.matmul_decode import (
    DecodeShape,
    linear_decode,
    matmul_decode,
)
from mojo_kernels.cdna4.matmul_prefill import matmul_prefill
from mojo_kernels.codec import Rounding
from mojo_kernels.formats import BLOCK, FORMAT
from mojo_kernels.python_arguments import Arguments, DTYPES, unknown

comptime NONE = -1
"""No code."""


def _dtype[code: Int]() -> Optional[DType]:
    """Returns the element type of a code, or none."""
    comptime if code == NONE:
        return None
    else:
        comptime dtype = DTYPES[code]
        return dtype


comptime X = _dtype[get_defined_int["X", NONE]()]()
"""The type of activations; none for codes."""
comptime ROUNDING = Rounding(get_defined_int["ROUNDING", Rounding.EVEN.code]())
"""How activations are quantized."""
comptime OUT = DTYPES[get_defined_int["OUT"]()]
"""The type of the result."""
comptime BIAS = _dtype[get_defined_int["BIAS", NONE]()]()
"""The type of the bias, or none."""
comptime X_BYTES = size_of[X.or_else(DType.uint8)]()
"""Of an element of activations."""


def _is_reachable(row: Int) -> Bool:
    """Says whether the dispatch chooses a row for some shape."""
    comptime for i in range(len(CHOICES)):
        comptime choice = CHOICES[i]
        if i < row and choice.max_rows(ANY, ANY, X_BYTES) >= MAX_ROWS:
            return False
        if i == row:
            return choice.sources.include(X_BYTES) and choice.fits(X_BYTES)
    return False


def _stretch(n: Int, k: Int) -> Int:
    """Returns how many rows of activations a launch takes."""
    return rows_at_once(max(k * X_BYTES, n * size_of[OUT]()))


def py_workspace(arguments: PythonObject) raises -> PythonObject:
    """Takes (m, n, k); returns the bytes of counters, and those that workgroups hand over."""
    var args = Arguments(arguments)
    var m = args.next()
    var n = args.next()
    var k = args.next()
    var stretch = _stretch(n, k)
    var counter_bytes, handed_over_bytes = 0, 0
    for rows in [min(m, stretch), m % stretch]:
        var launch = _launch_of(rows, n, k)
        counter_bytes = max(counter_bytes, launch.counter_bytes)
        handed_over_bytes = max(handed_over_bytes, launch.workspace_bytes - launch.counter_bytes)
    return Python.tuple(counter_bytes, handed_over_bytes)


def _launch_of(m: Int, n: Int, k: Int) -> Launch:
    """Returns the launch that the dispatch chooses."""
    var row = choose(m, n, k, X_BYTES)
    comptime last = len(CHOICES) - 1
    comptime for i in range(last):
        comptime choice = CHOICES[i]
        if row == i:
            return choice.launch(m, n, k, X_BYTES)
    comptime choice = CHOICES[last]
    return choice.launch(m, n, k, X_BYTES)


def py_multiply(arguments: PythonObject) raises:
    """Takes (device, stream, a, a scales, codes, scales, m, n, k, out, bias, workspace).

    Activations are contiguous floats, or plain codes; weights are preshuffled for CDNA4. The
    workspace is where counters end and what is handed over begins.
    """
    var args = Arguments(arguments)
    var device = args.next()
    var queue = Queue(device, args.next())
    var product = Product(
        a=args.next(),
        a_scales=args.next(),
        w_codes=args.next(),
        w_scales=args.next(),
        m=args.next(),
        n=args.next(),
        k=args.next(),
        result=args.next(),
        bias=args.next(),
    )
    var workspace = args.next()
    var stretch = _stretch(product.n, product.k)
    for row in range(0, product.m, stretch):
        _multiply(
            queue,
            _rows_of(product, row, min(stretch, product.m - row)),
            workspace,
        )


def _rows_of(product: Product, row: Int, count: Int) -> Product:
    """Returns the product of some rows of activations."""
    var part = product
    part.m = count
    part.a += row * (product.k * X_BYTES if X else FORMAT.packed_bytes(product.k))
    part.a_scales += row * (product.k // BLOCK)
    part.result += row * product.n * size_of[OUT]()
    return part


def _multiply(queue: Queue, product: Product, workspace: Int) raises:
    """Launches a product that a launch can take."""
    product.check[size_of[OUT]()](product.m * product.k * X_BYTES)
    var row = choose(product.m, product.n, product.k, X_BYTES)
    comptime for i in range(len(CHOICES)):
        comptime if _is_reachable(i):
            if row == i:
                return _launch[CHOICES[i]](queue, product, workspace)
    raise unknown("row", row)


def _launch[choice: Choice](queue: Queue, product: Product, workspace: Int) raises:
    """Launches the instance of a row for K."""
    var launch = choice.launch(product.m, product.n, product.k, X_BYTES)
    var grid = Grid(launch.x, launch.y, launch.z, launch.threads)
    var counters = workspace - launch.counter_bytes
    comptime for k_tail in [False, True]:
        comptime if choice.any_k or not k_tail:
            if choice.has_tail(product.k) == k_tail:
                comptime if choice.kernel == Kernel.DECODE:
                    comptime shape = _with_tail(choice.shape, k_tail)
                    return _decode[shape](queue, grid, product, counters, launch.chunks_per_wave)
                else:
                    return _prefill[choice.m_tiles, k_tail](queue, grid, product, counters)


def _with_tail(shape: DecodeShape, k_tail: Bool) -> DecodeShape:
    """Returns a shape that is for a K that ends within a chunk, or for others."""
    var result = shape
    result.k_tail = k_tail
    return result


def _decode[
    shape: DecodeShape
](queue: Queue, grid: Grid, product: Product, workspace: Int, chunks_per_wave: Int,) raises:
    """Launches a kernel for few rows."""
    var arguments = _inputs(product)
    arguments += [
        product.result,
        product.m,
        product.n,
        product.k,
        chunks_per_wave,
    ]
    arguments += [product.bias, workspace]
    comptime if X:
        comptime kernel = linear_decode[X.value(), OUT, BIAS, ROUNDING, shape]
        queue.launch[kernel](grid, arguments^)
    else:
        comptime kernel = matmul_decode[OUT, BIAS, shape]
        queue.launch[kernel](grid, arguments^)


def _prefill[
    m_tiles: Int, k_tail: Bool
](queue: Queue, grid: Grid, product: Product, workspace: Int) raises:
    """Launches a kernel for many rows."""
    var arguments = _inputs(product)
    comptime if X:
        arguments += [
            product.result,
            workspace,
            product.m,
            product.n,
            product.k,
            product.bias,
        ]
        comptime kernel = linear_prefill[m_tiles, X.value(), OUT, BIAS, ROUNDING, k_tail]
        queue.launch[kernel](grid, arguments^)
    else:
        arguments += [
            workspace,
            product.m,
            product.n,
            product.k,
            product.result,
            product.bias,
        ]
        comptime kernel = matmul_prefill[m_tiles, OUT, BIAS, k_tail]
        queue.launch[kernel](grid, arguments^)


def _inputs(product: Product) -> List[Int]:
    """Returns the arguments that all kernels begin with."""
    var arguments: List[Int] = [product.a]
    comptime if not X:
        arguments.append(product.a_scales)
    arguments += [product.w_codes, product.w_scales]
    return arguments^


@export
def PyInit__mx_kernels_hip_product() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        var module = PythonModuleBuilder("_mx_kernels_hip_product")
        module.def_function[py_workspace]("workspace")
        module.def_function[py_multiply]("multiply")
        return module.finalize()
    except error:
        abort(String("cannot create _mx_kernels_hip_product: ", error))

"""The decode shapes and kernels that tests launch, by name:

    <op>_<input>_<output>_<bias>_<rounding>_m<tiles>n<tiles>k<tiles>w<waves>d<depth>s<splits>a<sharers>[u][t]

`u` marks a kernel that fetches all chunks up front, `t` one for a K that ends within a chunk;
matmul has no input and no rounding.
"""

from emit import emit

from mojo_kernels.cdna4.decode_shape import DecodeShape
from mojo_kernels.cdna4.epilogue import NO_BIAS
from mojo_kernels.cdna4.matmul_decode import linear_decode, matmul_decode
from mojo_kernels.codec import Rounding

comptime BF16 = DType.bfloat16
comptime F16 = DType.float16
comptime F32 = DType.float32


def name_of(op: String, result: DType, bias: Optional[DType], shape: DecodeShape) -> String:
    """Returns the name of a kernel."""
    var bias_name = String(bias.value()) if bias else "none"
    var tail = "t" if shape.k_tail else ""
    return String(
        op, "_", result, "_", bias_name, "_m", shape.m_tiles, "n", shape.n_tiles, "k", shape.k_tiles,
        "w", shape.waves, "d", shape.depth, "s", shape.splits, "a", shape.sharers, "u" if shape.up_front else "", tail,
    )  # fmt: skip


def emit_linear[
    shape: DecodeShape,
    x: DType = BF16,
    result: DType = BF16,
    bias: Optional[DType] = NO_BIAS,
    rounding: Rounding = Rounding.EVEN,
](prefix: String = "") raises:
    """Emits a linear kernel."""
    comptime rounding_name = Rounding.NAMES[rounding.code]
    emit[linear_decode[x, result, bias, rounding, shape]](
        name_of(String(prefix, "linear_", x, "_", rounding_name), result, bias, shape)
    )


def emit_matmul[
    shape: DecodeShape, result: DType = BF16, bias: Optional[DType] = NO_BIAS
](prefix: String = "") raises:
    """Emits a matmul kernel."""
    emit[matmul_decode[result, bias, shape]](name_of(String(prefix, "matmul"), result, bias, shape))


def shape_of(
    m_tiles: Int,
    n_tiles: Int,
    k_tiles: Int,
    waves: Int,
    depth: Int = 1,
    splits: Int = 1,
    sharers: Int = 1,
    up_front: Bool = False,
    k_tail: Bool = False,
) -> DecodeShape:
    """Returns a shape."""
    return DecodeShape(m_tiles, n_tiles, k_tiles, waves, depth, k_tail, splits, sharers, up_front)

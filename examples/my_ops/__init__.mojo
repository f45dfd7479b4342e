"""An op of one's own for MAX's graphs, made of a product of mx_kernels: residual + x @ w.T.

    mojo precompile -I "$(python -c 'import mx_kernels; print(mx_kernels.mojo_path())')" \
        -o my_ops.mojoc examples/my_ops
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext

from mojo_kernels.bindings.max_ops import MXLinear


@extensibility.register("my_residual_linear")
struct ResidualLinear:
    """Multiplies float32 rows by MXFP4 weights in the layout of CPUs, and adds a residual."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[dtype=DType.float32, rank=2, ...],
        residual: InputTensor[dtype=DType.float32, rank=2, ...],
        x: InputTensor[dtype=DType.float32, rank=2, ...],
        codes: InputTensor[dtype=DType.uint8, rank=2, ...],
        scales: InputTensor[dtype=DType.uint8, rank=2, ...],
        bias: InputTensor[dtype=DType.float32, rank=1, ...],
        context: DeviceContext,
    ) raises:
        """Computes [M, N] of residual [M, N], x [M, K], weights and bias [N], or an empty one."""
        if residual.shape() != result.shape():
            raise Error("residual: got ", residual.shape(), ", expected ", result.shape())
        MXLinear.execute[
            target=target,
            activations="mxint8",
            format="mxfp4",
            layout="preshuffled_cpu",
            rounding="even",
        ](result, x, codes, scales, Int64(result.dim_size(1)), bias, context)
        var sums, addends = result.unsafe_ptr(), residual.unsafe_ptr()
        for i in range(result.dim_size(0) * result.dim_size(1)):
            sums[unsafe_offset=i] += addends[unsafe_offset=i]

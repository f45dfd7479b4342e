"""MX formats as the OCP Microscaling text defines them, in NumPy and nothing else.

This is the independent witness: it imports no code of ours and takes no short
cut that ours could share. Values are float64, in which everything that an MX
format can say is exact; elements are known by enumerating the values of all
their codes, exponents come from `frexp`, never from bit patterns.

    floats     bfloat16, float16, float32: what they hold, rounding to them
    formats    elements, scales, rules; quantize and dequantize
    layouts    byte orders of codes and scales
    products   the float64 product, and how far float32 sums may be from it
    experts    gated activations and how far float32 may be from them
    norms      rows through RMS and layer norms, operation by operation
    agreement  assertions that name coordinates and bytes
"""

from .agreement import Product, assert_bitwise_equal, assert_matmul
from .experts import fused_multiply_add, gated
from .floats import FLOATS, FloatType, decode_bfloat16, round_to
from .formats import (
    BIAS,
    BLOCK,
    ELEMENTS,
    FORMATS,
    NAN_SCALE,
    ONE_SCALE,
    ROUNDINGS,
    WHOLE_ROW,
    Element,
    Format,
    decode_e8m0,
    dequantize,
    encode_e8m0,
    float_scale,
    octave_top,
    pack,
    quantize,
    round_to_mxint16,
    scale_exponent,
    tensor_scales,
    unpack,
)
from .layouts import LAYOUTS, Layout, code_offset, scale_offset
from .norms import norm, rotated, row_sum
from .products import (
    common_scale_bound,
    error_bound,
    finite_magnitude,
    fp8_cutoff_bound,
    matmul_reference,
)

__all__ = [
    "BIAS",
    "BLOCK",
    "ELEMENTS",
    "FLOATS",
    "FORMATS",
    "LAYOUTS",
    "NAN_SCALE",
    "ONE_SCALE",
    "ROUNDINGS",
    "WHOLE_ROW",
    "Element",
    "FloatType",
    "Format",
    "Layout",
    "Product",
    "assert_bitwise_equal",
    "assert_matmul",
    "code_offset",
    "common_scale_bound",
    "decode_bfloat16",
    "decode_e8m0",
    "dequantize",
    "encode_e8m0",
    "error_bound",
    "finite_magnitude",
    "float_scale",
    "fp8_cutoff_bound",
    "fused_multiply_add",
    "gated",
    "matmul_reference",
    "norm",
    "octave_top",
    "pack",
    "quantize",
    "rotated",
    "round_to",
    "round_to_mxint16",
    "row_sum",
    "scale_exponent",
    "scale_offset",
    "tensor_scales",
    "unpack",
]

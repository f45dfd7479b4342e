"""The kinds of products that tests launch, by name; each is a module of its own."""

import oracle
from mx_kernels._core.hip import ExpertsKind, Kind

BF16, F16, F32 = range(3)
EVEN, CEIL = 1, 2


def kind(left: str | None, right: str, x: int | None, scale_rule: int | None, out=BF16, bias=None):
    """Returns a kind by the names of its formats."""
    places = list(oracle.FORMATS)
    return Kind(left and places.index(left), places.index(right), x, scale_rule, out, bias)


KINDS = {
    "floats": kind("mxfp4", "mxfp4", BF16, EVEN),
    "codes": kind("mxfp4", "mxfp4", None, None),
    "kept": kind(None, "mxfp4", BF16, 0),
    "kept_halves": kind(None, "mxfp4", F16, 0, F16),
    "kept_nvfp4": kind(None, "nvfp4", BF16, 0),
    "six_bits": kind("mxfp6", "mxfp4", BF16, EVEN),
    "eight_bits": kind("mxfp8", "mxfp4", BF16, EVEN),
    "row_scales": kind("fp8", "fp8", None, None),
    "block_scales": kind("fp8_block", "fp8_block_2d", BF16, EVEN),
    "by_floats": Kind(None, None, BF16, 0, BF16, None),
    "columns": kind("fp8_block", "fp8_block_2d", None, None)._replace(columns=1),
    "others": kind("mxfp4", "mxfp4", F32, CEIL, F16, F32),
}
"""bfloat16 in and out; codes in; bfloat16 in, kept; float16 in and out, kept; bfloat16 by NVFP4
weights; bfloat16 rounded to MXFP6 or MXFP8; codes of FP8 with scales of rows; bfloat16 rounded to
FP8 with scales of blocks; bfloat16 by bfloat16; codes of FP8, column by column; float32 in, float16
out and a float32 bias."""
FLOAT_SCALES = ("row_scales", "block_scales", "columns", "kept_nvfp4", "by_floats")
"""Those of FP8 and of NVFP4, and floats by floats."""

EXPERTS = {
    "grouped": ExpertsKind(KINDS["floats"]._replace(out=2)),
    "layer": ExpertsKind(KINDS["floats"]._replace(out=2), down=0),
    "six_bits_grouped": ExpertsKind(KINDS["six_bits"]._replace(out=2)),
    "six_bits_layer": ExpertsKind(KINDS["six_bits"]._replace(out=2), down=0),
}
"""Grouped products and layers, bfloat16 in and float32 out, without a bias; the same of bfloat16
that is rounded to MXFP6."""

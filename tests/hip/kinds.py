"""The kinds of products that tests launch, by name; each is a module of its own."""

from mx_kernels._hip import ExpertsKind, Kind

KINDS = {
    "floats": Kind(left=0, right=0, x=0, rounding=1, out=0, bias=None),
    "codes": Kind(left=0, right=0, x=None, rounding=None, out=0, bias=None),
    "kept": Kind(left=None, right=0, x=0, rounding=0, out=0, bias=None),
    "eight_bits": Kind(left=1, right=0, x=0, rounding=1, out=0, bias=None),
    "row_scales": Kind(left=4, right=4, x=None, rounding=None, out=0, bias=None),
    "block_scales": Kind(left=5, right=6, x=0, rounding=1, out=0, bias=None),
    "others": Kind(left=0, right=0, x=2, rounding=2, out=1, bias=2),
}
"""bfloat16 in and out; codes in; bfloat16 in, kept, and rounded to MXFP8; codes of FP8
with scales of rows; bfloat16 rounded to FP8 with scales of blocks; float32 in, float16 out and a
float32 bias."""
FLOAT_SCALES = ("row_scales", "block_scales")
"""Those of FP8."""

EXPERTS = {
    "grouped": ExpertsKind(KINDS["floats"]._replace(out=2)),
    "layer": ExpertsKind(KINDS["floats"]._replace(out=2), down=0),
}
"""Grouped products and layers, bfloat16 in and float32 out, without a bias."""

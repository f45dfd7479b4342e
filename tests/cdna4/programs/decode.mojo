"""Emits decode kernels for awkward shapes, and one for every type, rule and source."""

from named import BF16, F16, F32, emit_linear, emit_matmul, shape_of

from mojo_kernels.codec import Rounding


def main() raises:
    """Emits every kernel."""
    # Tiles, depths and splits, for any K.
    emit_linear[shape_of(1, 1, 1, 1, k_tail=True)]()
    emit_linear[shape_of(1, 1, 2, 4, depth=2, k_tail=True)]()
    emit_linear[shape_of(1, 2, 2, 1, depth=3, k_tail=True)]()
    emit_linear[shape_of(2, 2, 1, 4, k_tail=True)]()
    emit_linear[shape_of(2, 4, 2, 2, depth=2, splits=2, k_tail=True)]()
    emit_linear[shape_of(4, 4, 1, 4, splits=3, k_tail=True)]()

    # Shared activations: in one chunk, in a pipeline, with tiles that nobody needs, in all at once.
    emit_linear[shape_of(2, 4, 2, 8, sharers=2, k_tail=True)]()
    emit_linear[shape_of(1, 8, 2, 4, depth=2, sharers=4, k_tail=True)]()
    emit_linear[shape_of(2, 6, 1, 6, depth=3, splits=3, sharers=3, k_tail=True)]()
    emit_linear[shape_of(4, 4, 2, 2, sharers=2, k_tail=True), x=F16]()
    comptime at_once = shape_of(
        2, 6, 2, 6, depth=2, splits=2, sharers=3, up_front=True, k_tail=True
    )
    emit_linear[at_once]()

    # Types, biases and rules.
    comptime small = shape_of(1, 2, 1, 2, k_tail=True)
    emit_linear[small, x=F16, result=F16, bias=Optional(F16)]()
    emit_linear[small, x=F32, result=F32, bias=Optional(F32)]()
    emit_linear[small, bias=Optional(BF16), rounding=Rounding.FLOOR]()
    emit_linear[small, result=F32, rounding=Rounding.CEIL]()
    emit_linear[small, rounding=Rounding.RCEIL]()

    # Activations that are already encoded.
    emit_matmul[shape_of(1, 1, 1, 4, k_tail=True)]()
    emit_matmul[shape_of(2, 4, 2, 2, depth=2, splits=2, k_tail=True), result=F32]()
    emit_matmul[shape_of(1, 2, 2, 2, depth=3, k_tail=True), bias=Optional(F32)]()
    emit_matmul[shape_of(2, 4, 2, 4, depth=2, splits=2, sharers=2, k_tail=True)]()

"""Emits every kernel that the CDNA4 dispatch can choose, for bfloat16, and the quantizer."""

from emit import emit
from products import BF16, EVEN, emit_products

from mojo_kernels.backend import CDNA4_COMPILE_OPTIONS
from mojo_kernels.cdna4.dispatch import CHOICES
from mojo_kernels.cdna4.quantize import quantize_rows
from mojo_kernels.layouts import Plain


def is_first[row: Int]() -> Bool:
    """Says whether no row above launches the same kernels."""
    comptime for i in range(row):
        comptime if CHOICES[i].name() == CHOICES[row].name():
            return False
    return True


def main() raises:
    """Emits them."""
    comptime for i in range(len(CHOICES)):
        comptime if is_first[i]():
            emit_products[CHOICES[i]]()
    emit[quantize_rows[BF16, EVEN, Plain], options=CDNA4_COMPILE_OPTIONS]("quantize")

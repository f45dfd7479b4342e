"""Operands made ready by launches of their own: quantized, or ordered by tiles of groups."""

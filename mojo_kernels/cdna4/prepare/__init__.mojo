"""Quantize as a kernel of its own."""

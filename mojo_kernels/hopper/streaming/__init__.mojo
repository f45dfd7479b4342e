"""Streaming GEMM: for small M, weights stream through the registers of warps, mma.sync multiplies."""

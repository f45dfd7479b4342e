"""Kernels for NVIDIA Hopper: weights stay in four bits until registers."""

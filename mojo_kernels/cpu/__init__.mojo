"""The CPU kernels: integer block dot products on byte vectors."""

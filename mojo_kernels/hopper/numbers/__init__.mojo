"""Codes of eight bits: as they are on FP8 tensor cores, or as bfloat16 numbers."""

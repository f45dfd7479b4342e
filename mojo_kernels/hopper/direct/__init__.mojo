"""Weights' codes become operands in the registers of those who multiply: FP8 tensor cores."""

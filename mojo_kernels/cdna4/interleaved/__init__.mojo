"""Dozens to thousands of rows, both operands encoded: weights go straight to registers."""

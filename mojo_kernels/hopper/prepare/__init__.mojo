"""Operand preparation: activations and weights become what tensor cores take, in the workspace."""

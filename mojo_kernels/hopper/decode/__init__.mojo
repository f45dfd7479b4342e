"""From codes of weights to fragments of tensor cores, in registers."""

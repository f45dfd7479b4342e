"""From sums to memory: scales of rows, bias, gate, rounding, store."""

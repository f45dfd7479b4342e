"""From accumulators to C: reduction, factors, bias or gate, rounding, store; the fallback."""

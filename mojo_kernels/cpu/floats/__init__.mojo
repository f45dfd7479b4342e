"""Products as bfloat16 dot products: any activations, exact in bfloat16, times any weights."""

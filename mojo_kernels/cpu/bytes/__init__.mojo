"""Products as integer dot products: MXFP4 activations, expanded to bytes, times MXFP4 weights."""

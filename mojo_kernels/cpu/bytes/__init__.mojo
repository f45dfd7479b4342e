"""Products as integer dot products: activations, expanded to signed bytes, times weights as bytes."""

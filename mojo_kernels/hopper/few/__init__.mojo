"""Few rows of activations: weights stream through registers."""

"""Products of experts for few rows of each: weights stream through registers."""

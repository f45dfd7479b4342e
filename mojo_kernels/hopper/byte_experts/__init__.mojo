"""Products of experts on FP8 tensor cores: MXFP4 or MXFP8 activations, MXFP4 weights."""

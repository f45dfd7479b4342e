"""MXFP8 activations on FP8 tensor cores: elements under one scale for 128 neighbours, or a row."""

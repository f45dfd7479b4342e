"""MXFP4 weights as bfloat16 numbers in the workspace, activations of bfloat16 as they lie."""

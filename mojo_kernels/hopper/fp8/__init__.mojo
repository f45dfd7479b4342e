"""MXFP4 codes times MXFP4 codes on FP8 tensor cores, for many rows."""

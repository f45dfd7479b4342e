"""MXFP4 quantization and block-scaled matrix multiplication."""

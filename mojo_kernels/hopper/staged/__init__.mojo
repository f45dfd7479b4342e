"""What the kernels for more rows share: operands in stages of shared memory."""

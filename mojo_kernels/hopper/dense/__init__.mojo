"""What kernels with tiles of 64 or 128 rows share: rows made ready, stages, results, marks."""

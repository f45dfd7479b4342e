"""AMD CDNA4 (gfx950): kernels on the block-scaled matrix instruction."""

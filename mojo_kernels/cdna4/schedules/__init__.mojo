"""Three orders of a wave's work, a kernel each, and how tiles and K are dealt out to them."""

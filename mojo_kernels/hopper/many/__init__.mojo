"""Many rows: a weight is decoded once for 256 of them."""

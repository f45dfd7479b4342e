"""Large M: two groups of waves take turns at the matrix pipes."""

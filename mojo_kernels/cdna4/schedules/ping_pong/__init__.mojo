"""Many rows: eight waves share a large tile of C in LDS."""

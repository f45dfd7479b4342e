"""E4M3 on both sides, rows as they lie."""

"""E4M3 codes times E4M3 codes on FP8 tensor cores."""

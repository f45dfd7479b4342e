"""E4M3 codes times E4M3 codes under float32 scales on FP8 tensor cores."""

"""Main loops: a consumer warp group multiplies stage after stage, and promotes partial sums."""

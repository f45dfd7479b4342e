"""Both sides as stages in shared memory: plain tensor core products of many rows."""

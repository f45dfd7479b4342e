"""Which kernel, and why."""

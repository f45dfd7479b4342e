"""What is decided before a launch: which kernel, and why. Nothing here reaches a kernel."""

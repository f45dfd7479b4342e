"""What happens before a launch: which kernel, and why."""

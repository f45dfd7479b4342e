"""What happens to activations before the main loop, by workgroups that share rows."""

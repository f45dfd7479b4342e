"""Kernels for any GPU that Mojo targets: correct everywhere, tuned nowhere."""

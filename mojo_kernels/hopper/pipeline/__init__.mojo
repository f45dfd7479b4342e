"""Stages of shared memory between those who copy and those who multiply."""

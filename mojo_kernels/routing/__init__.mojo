"""Routing of tokens to experts: slots and groups of rows, and sums over slots, on any GPU."""

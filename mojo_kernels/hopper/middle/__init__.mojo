"""Dozens to hundreds of rows: more warps decode, and groups split K."""

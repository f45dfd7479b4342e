"""Rows on both sides as they lie, of bytes or of numbers: tensor maps bring tiles of them."""

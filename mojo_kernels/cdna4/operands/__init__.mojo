"""What a wave multiplies: where it comes from, how it is encoded, where it goes."""

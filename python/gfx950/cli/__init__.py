"""`python -m gfx950`: commands, launches as text, profiles as tables."""

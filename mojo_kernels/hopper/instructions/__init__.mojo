"""What only Hopper's instruction set says: the one room with inline assembly."""
